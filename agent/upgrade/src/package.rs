//! The package of a new version: it is fetched, its signature is verified, and its executables are staged in the
//! slot. Nothing is executed before that, and all sizes are bounded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use limpet_model::error_chain::error_chain;
use limpet_signature::SignatureError;
use limpet_tls::System;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::durable::beside;
use crate::elf::Target;
use crate::slot::{PROGRAM, SHIM, Slot, SlotLock};

/// The largest file that is fetched, and the largest executable in it. An offline archive has some 60 MiB.
const MAX_BYTES: u64 = 256 << 20;
const MAX_SIGNATURE_BYTES: u64 = 4 << 10;
/// The most files of an archive.
const MAX_ENTRIES: usize = 10_000;
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// The longest time between two reads from the server.
const SILENCE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
const SIGNATURE: &str = ".minisig";
const DOWNLOAD: &str = "limpet-upgrade.download";

/// Why a new version is not installed. The slot is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackageError {
    #[error("cannot {verb} {place}: {cause}")]
    Io { verb: &'static str, place: String, cause: String },
    #[error("{place} is larger than {} MiB: it is no release of limpet", MAX_BYTES >> 20)]
    TooLarge { place: String },
    #[error("{0}")]
    Signature(String),
    #[error("{place} is neither an executable nor the tarball of a release: {why}")]
    Unknown { place: String, why: String },
    #[error("{place} is for {theirs}, and this machine is {ours}: take the file with {ours} in its name")]
    OtherArchitecture { place: String, theirs: String, ours: String },
}

/// The origin of a new version.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    /// A path or a URL.
    pub(crate) place: &'a str,
    pub(crate) key: &'a Path,
    /// Additional certificate authorities for the server.
    pub(crate) authorities: Option<&'a Path>,
}

impl Origin<'_> {
    /// Fetches, verifies and stages it. Returns the comment that was signed with it.
    ///
    /// # Errors
    ///
    /// Why it must not be used.
    pub(crate) async fn stage(&self, slot: &Slot, lock: &SlotLock) -> Result<String, PackageError> {
        let download = slot.directory().join(DOWNLOAD);
        // An upgrade that was interrupted may have left a part of its files.
        slot.discard(lock).map_err(|error| failed("remove", slot.staged().display(), &error))?;
        let staged = async {
            self.fetch("", &download, MAX_BYTES).await?;
            self.fetch(SIGNATURE, &beside(&download, SIGNATURE), MAX_SIGNATURE_BYTES).await?;
            let comment = self.verify(&download)?;
            self.unpack(&download, slot)?;
            self.demand_this_machine(slot)?;
            Ok(comment)
        };
        let staged = staged.await;
        for file in [download.clone(), beside(&download, SIGNATURE)] {
            let _ = fs::remove_file(file);
        }
        if staged.is_err() {
            slot.discard(lock).map_err(|error| failed("remove", slot.staged().display(), &error))?;
        }
        staged
    }

    /// Fetches the file, or the one beside it with a suffix, of at most `most` bytes.
    async fn fetch(&self, suffix: &str, to: &Path, most: u64) -> Result<(), PackageError> {
        let place = format!("{}{suffix}", self.place);
        let mut file = new_file(to, 0o600).map_err(|error| failed("write", to.display(), &error))?;
        if is_url(self.place) {
            return self.download(suffix, &mut file, most).await;
        }
        let mut from = File::open(&place).map_err(|error| failed("read", &place, &error))?;
        copy(&mut from, &mut file, &place, most)
    }

    async fn download(&self, suffix: &str, file: &mut File, most: u64) -> Result<(), PackageError> {
        let place = format!("{}{suffix}", self.place);
        let failed = |error: &dyn std::error::Error| PackageError::Io {
            verb: "download",
            place: place.clone(),
            cause: error_chain(error),
        };
        let answer = self.client()?.get(with_suffix(self.place, suffix)).send().await;
        let mut answer =
            answer.and_then(reqwest::Response::error_for_status).map_err(|error| failed(&error.without_url()))?;
        let mut length = 0;
        while let Some(piece) = answer.chunk().await.map_err(|error| failed(&error.without_url()))? {
            length += piece.len() as u64;
            if length > most {
                return Err(PackageError::TooLarge { place });
            }
            file.write_all(&piece).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Uses the proxy in the environment, like all of limpet's downloads.
    fn client(&self) -> Result<reqwest::Client, PackageError> {
        // Fails if a provider is installed already, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let broken =
            |cause: String| PackageError::Io { verb: "use the certificates for", place: self.place.to_owned(), cause };
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("limpet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE_TIMEOUT);
        if let Some(path) = self.authorities {
            let pem = fs::read(path).map_err(|error| failed("read", path.display(), &error))?;
            let named: Vec<_> = CertificateDer::pem_slice_iter(&pem).map_while(Result::ok).collect();
            if named.is_empty() {
                return Err(broken(format!("{} contains no certificate", path.display())));
            }
            let tls = limpet_tls::client_config(named, System::Trusted, None);
            builder = builder.tls_backend_preconfigured(tls.map_err(|error| broken(error.to_string()))?);
        }
        builder.build().map_err(|error| broken(error_chain(&error)))
    }

    fn verify(&self, download: &Path) -> Result<String, PackageError> {
        let named = |error: SignatureError| {
            PackageError::Signature(error.to_string().replace(&*download.to_string_lossy(), self.place))
        };
        limpet_signature::verify(download, self.key).map_err(named)
    }

    fn unpack(&self, download: &Path, slot: &Slot) -> Result<(), PackageError> {
        let unreadable = |error| failed("read", self.place, &error);
        let mut file = File::open(download).map_err(unreadable)?;
        let mut magic = Vec::new();
        Read::by_ref(&mut file).take(4).read_to_end(&mut magic).map_err(unreadable)?;
        file.rewind().map_err(unreadable)?;
        match &magic[..] {
            b"\x7fELF" => write_program(&mut file, &slot.staged(), self.place),
            [0x1f, 0x8b, ..] => self.unpack_archive(file, slot),
            _ => Err(PackageError::Unknown {
                place: self.place.to_owned(),
                why: "its first bytes are of neither".to_owned(),
            }),
        }
    }

    fn unpack_archive(&self, file: File, slot: &Slot) -> Result<(), PackageError> {
        let unreadable =
            |error: io::Error| PackageError::Unknown { place: self.place.to_owned(), why: error.to_string() };
        let mut archive = tar::Archive::new(GzDecoder::new(file));
        let (mut has_agent, programs) = (false, [(PROGRAM, slot.staged()), (SHIM, slot.staged_shim())]);
        for entry in archive.entries().map_err(unreadable)?.take(MAX_ENTRIES) {
            let mut entry = entry.map_err(unreadable)?;
            let path = entry.path().map_err(unreadable)?.into_owned();
            let to = programs.iter().find(|(name, _)| is_program(&path, name));
            if let Some((name, to)) = to.filter(|_| entry.header().entry_type().is_file()) {
                write_program(&mut entry, to, self.place)?;
                has_agent |= *name == PROGRAM;
            }
        }
        let missing =
            || PackageError::Unknown { place: self.place.to_owned(), why: "it has no usr/bin/limpet".to_owned() };
        has_agent.then_some(()).ok_or_else(missing)
    }

    /// Refuses executables for another processor.
    fn demand_this_machine(&self, slot: &Slot) -> Result<(), PackageError> {
        let target = |path: &Path| Target::read(path).map_err(|error| failed("read", path.display(), &error));
        let ours = target(Path::new("/proc/self/exe"))?;
        let staged = [slot.staged(), slot.staged_shim()];
        for path in staged.iter().filter(|path| path.exists()) {
            let theirs = target(path)?;
            if theirs != ours {
                let name = |target: Option<Target>| target.map_or("no machine".to_owned(), |target| target.to_string());
                let place = self.place.to_owned();
                return Err(PackageError::OtherArchitecture { place, theirs: name(theirs), ours: name(ours) });
            }
        }
        Ok(())
    }
}

/// Whether it has to be downloaded.
pub(crate) fn is_url(place: &str) -> bool {
    place.starts_with("https://") || place.starts_with("http://")
}

/// The URL with a suffix, which goes before a query.
fn with_suffix(url: &str, suffix: &str) -> String {
    match url.split_once('?') {
        Some((path, query)) => format!("{path}{suffix}?{query}"),
        None => format!("{url}{suffix}"),
    }
}

/// `<top>/usr/bin/<name>`, as archives of releases have it.
fn is_program(path: &Path, name: &str) -> bool {
    let parts: Vec<_> = path.iter().collect();
    matches!(&parts[..], [_, usr, bin, file] if *usr == "usr" && *bin == "bin" && *file == name)
}

fn write_program(from: &mut impl Read, to: &Path, place: &str) -> Result<(), PackageError> {
    let unwritten = |error: io::Error| failed("write", to.display(), &error);
    let mut file = new_file(to, 0o755).map_err(unwritten)?;
    copy(from, &mut file, place, MAX_BYTES)?;
    file.sync_all().map_err(unwritten)
}

/// Creates a new file, because one left by an interrupted upgrade may be executed.
fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

fn copy(from: &mut impl Read, to: &mut File, place: &str, most: u64) -> Result<(), PackageError> {
    let copied = io::copy(&mut from.take(most + 1), to).map_err(|error| failed("copy", place, &error))?;
    if copied > most { Err(PackageError::TooLarge { place: place.to_owned() }) } else { Ok(()) }
}

fn failed(verb: &'static str, place: impl std::fmt::Display, error: &io::Error) -> PackageError {
    PackageError::Io { verb, place: place.to_string(), cause: error.to_string() }
}

/// The default path of the key.
pub(crate) fn default_key() -> PathBuf {
    PathBuf::from("/etc/limpet/limpet.pub")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_a_releases_tree() {
        for (path, expected) in [
            ("limpet-0.1.0-x86_64/usr/bin/limpet", true),
            ("usr/bin/limpet", false),
            ("limpet-0.1.0-x86_64/runtime/usr/bin/limpet", false),
            ("limpet-0.1.0-x86_64/usr/bin/limpet/x", false),
            ("limpet-0.1.0-x86_64/usr/bin/limpet2", false),
        ] {
            assert_eq!(is_program(Path::new(path), PROGRAM), expected, "{path}");
        }
    }

    #[test]
    fn a_signature_is_beside_the_file_and_before_the_query() {
        assert_eq!(
            with_suffix("https://x/limpet.tar.gz?token=a", ".minisig"),
            "https://x/limpet.tar.gz.minisig?token=a"
        );
        assert_eq!(with_suffix("https://x/limpet.tar.gz", ".minisig"), "https://x/limpet.tar.gz.minisig");
        assert!(is_url("http://x") && !is_url("./http") && !is_url("ftp://x"));
    }
}
