//! What must hold for any file that is offered as a bundle, for the fuzz targets: a file without a valid signature is
//! refused, and what the holder of a key has signed is read within limits, or refused with a reason.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use limpet_cli::screen::printable;
use limpet_core::node_place::NodePlace;
use limpet_model::manifest;
use limpet_model::pod::Severity;
use limpet_model::source::SourceKind;
use limpet_signature::PublicKeys;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::announcement::{Announcement, Foreseen};
use crate::bundle::Bundle;
use crate::document::{digest, is_name};
use crate::envelope;
use crate::error::BundleError;
use crate::inspect;
use crate::layout::{INDEX, MAX_IMAGE_DOCUMENTS, blob_name};
use crate::node_key::NodeKey;
use crate::tar_writer::TarWriter;

/// The public key of the seeds. Its secret key is in the tests.
pub(crate) const PUBLIC: &str = "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU";
/// The key of the node to which the Secrets of seeds are sealed.
pub(crate) const NODE_KEY: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VuBCIEIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH\n-----END PRIVATE KEY-----\n";
/// How errors call the bundle.
const SHOWN: &str = "fuzz";
/// The largest file that is taken.
const LIMIT: u64 = 1 << 20;
/// Marks the digest of another document, whose letter follows.
const MARK: u8 = b'@';

/// Reads `bytes` as the file of a bundle: its first bytes, its signature, and then the rest as if that were valid.
///
/// # Panics
///
/// A property does not hold.
pub fn check_file(bytes: &[u8]) {
    let Ok(file) = MemoryFile::new(bytes) else { return };
    let Ok(keys) = MemoryFile::new(PUBLIC.as_bytes()) else { return };
    let Ok(keys) = PublicKeys::read(&[keys.path()]) else { panic!("the key of the seeds is no key") };
    let announced = Announcement::read(bytes, &keys);
    match Bundle::open(&file.path(), Path::new(SHOWN), &keys, LIMIT) {
        Ok(bundle) => {
            let Some(announced) = announced else { panic!("a signed bundle has no announcement") };
            let rollout = bundle.config.rollout;
            assert_eq!((announced.serial, announced.rollout), (bundle.config.serial, rollout), "another is announced");
            let foreseen = announced.foresee(Some(&bundle.identity), NodePlace::new(SHOWN));
            assert_eq!(foreseen, Foreseen::Open, "the same bundle is refused before it is read");
        }
        Err(error) => check_refusal(&error),
    }
    check_content(&file.path());
}

/// Reads the lines of `bytes` as the documents of a bundle whose signature is valid. `@a` in a line stands for the digest of
/// the first line, and so on, and the last line is `index.json`.
///
/// # Panics
///
/// A property does not hold.
pub fn check_documents(bytes: &[u8]) {
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    if let Ok(file) = unsigned(&lines) {
        check_content(&file.path());
    }
}

/// A bundle of these documents, whose signature is not valid.
pub(crate) fn unsigned(lines: &[&[u8]]) -> Result<MemoryFile, BundleError> {
    let path = Path::new(SHOWN);
    let written = MemoryFile::new(&envelope::unsigned()).map_err(BundleError::io("write", path))?;
    let file = written.0.try_clone().map_err(BundleError::io("write", path))?;
    let mut tar = TarWriter::new(file, path);
    let mut digests = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let document = with_digests(line, &digests);
        digests.push(digest(&document));
        match number + 1 == lines.len() {
            true => tar.entry(INDEX, &document)?,
            false => tar.entry(&blob_name(&digest(&document)), &document)?,
        }
    }
    tar.finish()?;
    Ok(written)
}

/// The line with the digests that it names.
fn with_digests(line: &[u8], digests: &[String]) -> Vec<u8> {
    let mut pieces = line.split(|byte| *byte == MARK);
    let mut text = pieces.next().unwrap_or_default().to_vec();
    for piece in pieces {
        let named = piece.split_first().and_then(|(letter, rest)| {
            let digest = digests.get(usize::from(letter.checked_sub(b'a')?))?;
            Some((digest, rest))
        });
        match named {
            Some((digest, rest)) => {
                text.extend_from_slice(digest.as_bytes());
                text.extend_from_slice(rest);
            }
            None => {
                text.push(MARK);
                text.extend_from_slice(piece);
            }
        }
    }
    text
}

/// Reads all of a bundle, as a node does once it has seen the signature, and as `limpet bundle inspect` shows it.
fn check_content(path: &Path) {
    let bundle = match Bundle::open_unchecked(path) {
        Ok(bundle) => bundle,
        Err(error) => return check_refusal(&error),
    };
    assert!(is_name(&bundle.identity.name) && is_name(&bundle.identity.version), "{:?}", bundle.identity);
    match bundle.images() {
        Ok(images) => {
            let documents = images.iter().flat_map(|image| &image.documents);
            documents.clone().for_each(|(name, bytes)| assert_eq!(*name, digest(bytes), "another document"));
            let size: usize = documents.map(|(_, bytes)| bytes.len()).sum();
            assert!(size as u64 <= MAX_IMAGE_DOCUMENTS, "{size} bytes of documents");
            assert!(images.iter().all(|image| !image.layers.is_empty()), "an image without layers");
        }
        Err(error) => check_refusal(&error),
    }
    if let Ok(report) = inspect::report(&bundle) {
        let page = inspect::page(&report);
        assert!(page.lines().all(|line| printable(line) == line), "{page:?}");
    }
    match bundle.open_manifests(node_key) {
        Ok(manifests) => check_manifests(&manifests, &bundle.identity.name),
        Err(error) => check_refusal(&error),
    }
}

fn node_key() -> Result<NodeKey, crate::node_key::NodeKeyError> {
    let file = MemoryFile::new(NODE_KEY.as_bytes());
    let path = file.as_ref().map(MemoryFile::path).unwrap_or_default();
    NodeKey::read(&path)
}

fn check_manifests(manifests: &[u8], name: &str) {
    let read = manifest::read(manifests, name, SourceKind::Bundle, "node");
    let errors = read.faults.iter().any(|fault| fault.severity == Severity::Error);
    assert!(errors || (read.refused.is_empty() && !read.unknown_pod_refused), "rejected without a reason");
}

fn check_refusal(error: &BundleError) {
    assert!(!error.to_string().is_empty(), "refused without a reason");
}

/// A file without a place on any disk.
pub(crate) struct MemoryFile(File);

impl MemoryFile {
    fn new(bytes: &[u8]) -> std::io::Result<Self> {
        let mut file = File::from(memfd_create(SHOWN, MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(Self(file))
    }

    /// A name by which it can be opened again.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}
