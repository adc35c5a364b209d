//! The files of a certificate and its key, named as in kubelet: `kubelet-client-TIME.pem`, and
//! `kubelet-client-current.pem`, a symlink to the newest. Decides which certificate is in effect. All functions
//! block.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use jiff::Timestamp;
use jiff::tz::Offset;
use rcgen::{KeyPair, PublicKeyData as _};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use limpet_apiserver_client::kubeconfig;
use limpet_core::certificate::Validity;
use limpet_host::private_file::write;

/// The certificates that are kept: the current one, and its predecessor, whose connections may still be open.
const KEPT_CERTIFICATES: usize = 2;

/// The node's two certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The certificate with which the node authenticates to the apiserver.
    Client,
    /// The certificate that the node presents to clients of kubelet's API.
    Serving,
}

impl Purpose {
    /// The prefix of the files' names, as in kubelet.
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Serving => "kubelet-server",
        }
    }
}

/// Why the files of a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("read or write {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A key could not be generated, or the existing one cannot be read.
    #[error("read or create the key {}: {source}", path.display())]
    Key { path: PathBuf, source: rcgen::Error },
    /// The issued certificate is not for this node's key.
    #[error("the issued certificate is invalid or does not match this node's key")]
    Foreign,
    /// The issued certificate is not valid by the node's clock.
    #[error(
        "the issued certificate expired at {not_after} by this node's clock; set the clock, or raise the cluster's signing duration"
    )]
    Over { not_after: Timestamp },
}

/// The contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) validity: Validity,
    /// Its host names and addresses.
    pub(crate) names: BTreeSet<String>,
    key: Vec<u8>,
}

impl Contents {
    /// Reads the first certificate in `pem`; `None` if there is none.
    pub(crate) fn parse(pem: &[u8]) -> Option<Self> {
        let certificate =
            Pem::iter_from_buffer(pem).filter_map(Result::ok).find(|section| section.label == "CERTIFICATE")?;
        let (_, certificate) = X509Certificate::from_der(&certificate.contents).ok()?;
        let time = |at: i64| Timestamp::from_second(at).ok();
        let validity = certificate.validity();
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|names| &names.value.general_names).filter_map(name).collect();
        Some(Self {
            validity: Validity {
                not_before: time(validity.not_before.timestamp())?,
                not_after: time(validity.not_after.timestamp())?,
            },
            names,
            key: certificate.public_key().raw.to_vec(),
        })
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Files {
    directory: PathBuf,
    purpose: Purpose,
}

impl Files {
    pub(crate) fn new(directory: PathBuf, purpose: Purpose) -> Self {
        Self { directory, purpose }
    }

    /// The file of the current certificate and key.
    pub(crate) fn current(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.purpose.file_name()))
    }

    /// The contents of the current certificate; `None` if there is none.
    pub(crate) fn contents(&self) -> Option<Contents> {
        Contents::parse(&fs::read(self.current()).ok()?)
    }

    /// The file with the key of a pending request. It survives restarts, as the request does.
    fn pending(&self) -> PathBuf {
        self.directory.join(format!("{}.key.tmp", self.purpose.file_name()))
    }

    /// The key of the pending request, generated if there is none.
    pub(crate) fn key(&self) -> Result<KeyPair, FileError> {
        let path = self.pending();
        if let Some(key) = fs::read_to_string(&path).ok().and_then(|pem| KeyPair::from_pem(&pem).ok()) {
            return Ok(key);
        }
        let key = KeyPair::generate().map_err(|source| FileError::Key { path: path.clone(), source })?;
        let failed = |source| FileError::File { path: path.clone(), source };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        write(&path, &key.serialize_pem()).map_err(failed)?;
        Ok(key)
    }

    /// Has the next request use another key.
    pub(crate) fn forget_key(&self) {
        // If the file cannot be removed, the refused request is sent once more.
        let _ = fs::remove_file(self.pending());
    }

    /// Makes the certificate the current one. Returns its file.
    pub(crate) fn save(&self, key: &KeyPair, certificate: &str, now: Timestamp) -> Result<PathBuf, FileError> {
        let contents = Contents::parse(certificate.as_bytes()).ok_or(FileError::Foreign)?;
        if contents.key != key.subject_public_key_info() {
            return Err(FileError::Foreign);
        }
        if contents.validity.not_after <= now {
            self.forget_key();
            return Err(FileError::Over { not_after: contents.validity.not_after });
        }
        let time = Offset::UTC.to_datetime(now).strftime("%Y-%m-%d-%H-%M-%S");
        let name = format!("{}-{time}.pem", self.purpose.file_name());
        let path = self.directory.join(&name);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError::File { path, source }
        };
        write(&path, &format!("{}\n{}", certificate.trim_end(), key.serialize_pem())).map_err(failed(&path))?;
        let (current, fresh) = (self.current(), self.current().with_extension("new"));
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&fresh)(error)),
            _ => symlink(&name, &fresh).map_err(failed(&fresh))?,
        }
        fs::rename(&fresh, &current).map_err(failed(&current))?;
        self.forget_key();
        self.remove_old();
        Ok(current)
    }

    /// Removes old certificates, which would fill a gateway's flash over years. Names sort by time.
    fn remove_old(&self) {
        let begin = format!("{}-2", self.purpose.file_name());
        let files = fs::read_dir(&self.directory).into_iter().flatten().filter_map(Result::ok);
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let mut old: Vec<String> = names.filter(|name| name.starts_with(&begin) && name.ends_with(".pem")).collect();
        old.sort_unstable();
        for name in old.iter().rev().skip(KEPT_CERTIFICATES) {
            let _ = fs::remove_file(self.directory.join(name));
        }
    }
}

/// The file of the certificate and key with which the node authenticates.
pub(crate) fn client_certificate(directory: &Path) -> PathBuf {
    Files::new(directory.to_owned(), Purpose::Client).current()
}

/// The file of the certificate and key that the node presents, in the directory of its certificates.
pub fn serving_certificate(directory: &Path) -> PathBuf {
    Files::new(directory.to_owned(), Purpose::Serving).current()
}

/// Whether the certificate that this agent obtained takes precedence over the kubeconfig's. It does unless it is
/// missing, or has expired while the kubeconfig's is valid, as in client-go. Blocks.
pub(crate) fn supersedes(certificate: &Path, kubeconfig: &Path, now: Timestamp) -> bool {
    validity(certificate).is_some_and(|held| {
        held.not_after >= now || identity(kubeconfig, None).is_none_or(|embedded| embedded.not_after < now)
    })
}

/// The validity of the certificate in that file, or else of the kubeconfig's own; `None` if there is neither. Blocks.
pub(crate) fn identity(kubeconfig: &Path, certificate: Option<&Path>) -> Option<Validity> {
    match certificate {
        Some(file) => validity(file),
        None => Contents::parse(&kubeconfig::certificate(kubeconfig).ok()??.pem).map(|contents| contents.validity),
    }
}

/// The validity of the certificate in that file; `None` if there is none. Blocks.
pub fn validity(file: &Path) -> Option<Validity> {
    Contents::parse(&std::fs::read(file).ok()?).map(|contents| contents.validity)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rcgen::CertificateParams;

    use super::*;

    #[test]
    fn the_newest_certificate_is_current_and_two_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().join("pki"), Purpose::Serving);
        assert_eq!(files.contents(), None);
        let mut paths = Vec::new();
        for second in 0..3 {
            let key = files.key().unwrap();
            assert_eq!(files.key().unwrap().serialize_pem(), key.serialize_pem(), "the pending key stays");
            let params = CertificateParams::new(vec!["edge1".to_owned(), "192.0.2.1".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap().pem();
            let now = Timestamp::from_second(1_800_000_000 + second).unwrap();
            let current = files.save(&key, &certificate, now).unwrap();
            paths.push(fs::read_link(&current).unwrap());
            let contents = files.contents().unwrap();
            assert_eq!(contents.names, BTreeSet::from(["192.0.2.1".to_owned(), "edge1".to_owned()]));
        }
        assert_eq!(paths[0], PathBuf::from("kubelet-server-2027-01-15-08-00-00.pem"));
        let exists: Vec<bool> = paths.iter().map(|name| dir.path().join("pki").join(name).exists()).collect();
        assert_eq!(exists, [false, true, true]);
    }

    #[test]
    fn a_certificate_that_has_ended_as_it_comes_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), Purpose::Client);
        let key = files.key().unwrap();
        let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap().pem();
        let not_after = Contents::parse(certificate.as_bytes()).unwrap().validity.not_after;
        let saved = files.save(&key, &certificate, not_after);
        assert!(matches!(saved, Err(FileError::Over { .. })), "{saved:?}");
        assert_eq!(files.contents(), None);
        assert_ne!(files.key().unwrap().serialize_pem(), key.serialize_pem(), "the next request is another one");
    }

    #[test]
    fn a_certificate_of_another_key_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), Purpose::Client);
        let (key, other) = (files.key().unwrap(), KeyPair::generate().unwrap());
        let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&other).unwrap().pem();
        let saved = files.save(&key, &certificate, Timestamp::UNIX_EPOCH);
        assert!(matches!(saved, Err(FileError::Foreign)), "{saved:?}");
        assert_eq!(files.contents(), None);
    }
}
