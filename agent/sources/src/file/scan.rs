//! Scans manifest files: lists, stats, and reads those that changed. Blocks; runs off the agent's thread.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::OFlags;

use super::scan_result::{Finding, KnownFile, KnownFiles, Listing, Scan};
use super::scan_run::ScanRun;
use super::stamp::Stamp;
use limpet_core::source::Decoder;
use limpet_core::source::file_names::{is_leftover, is_read};
use limpet_host::blocking::Progress;
use limpet_host::directory::directory_id;
use limpet_host::file_system;
use limpet_model::manifest::Manifest;
use limpet_model::pod::{Fault, encoding};
use limpet_model::source::SourceKind;

/// The limit of a manifest file, as in kubelet.
pub(super) const MAX_FILE: u64 = 10 << 20;
/// How many files of one directory are read. Those after them in byte order are not.
pub(super) const MAX_FILES: usize = 10_000;

/// Scans and decodes manifest files at one path.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    pub(super) directory: PathBuf,
    /// The only file to read, whatever its name; `None` for all manifests of the directory.
    pub(super) only: Option<Arc<str>>,
    /// The node name, part of every pod's name.
    pub(super) node_name: Arc<str>,
    pub(super) decoder: Decoder,
}

/// Whether the content is what a power cut or an interrupted editor leaves, which is not meant to remove pods.
fn is_blank(text: &[u8]) -> bool {
    let text = encoding::utf8(text);
    text.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace())
}

fn blank(name: &Arc<str>) -> Fault {
    let fault = Fault::error("", "the file is empty").with_remedy("remove the file to stop its pods");
    Fault { origin: Arc::clone(name), ..fault }
}

fn leftover(name: &Arc<str>) -> Fault {
    let fault =
        Fault::warning("", "is read as by kubelet, though its name is that of an editor's or a tool's leftover");
    let remedy = "move it out of the directory, or begin its name with a dot";
    Fault { origin: Arc::clone(name), ..fault.with_remedy(remedy) }
}

/// Reads the manifests at `path`, by name. Blocks.
///
/// # Errors
/// The directory cannot be read; the error message.
pub fn read_all(path: &Path, node_name: &str, decoder: Decoder) -> Result<Vec<(Arc<str>, Manifest)>, String> {
    let (scanner, _) = Scanner::at(path, node_name, decoder);
    let run = ScanRun::new(KnownFiles::new(), BTreeSet::new());
    scanner.scan_all(&BTreeSet::new(), &run, &Progress::new(path));
    let (scan, _) = run.take();
    scan.listing.unwrap_or_else(|| Err("not scanned".to_owned()))?;
    let read = |(name, finding)| match finding {
        Finding::Read(manifest) => Some((name, manifest)),
        Finding::Absent | Finding::BeingWritten => None,
    };
    Ok(scan.findings.into_iter().filter_map(read).collect())
}

impl Scanner {
    /// The scanner of `path`, and its absolute path: a directory, or one file; a path that does not exist is a file if
    /// it is named like a manifest.
    pub(super) fn at(path: &Path, node_name: &str, decoder: Decoder) -> (Self, PathBuf) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let named_as_file = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        let single = path.is_file() || (named_as_file && !path.is_dir());
        let (directory, only) = match (path.parent(), path.file_name().and_then(OsStr::to_str)) {
            (Some(parent), Some(name)) if single => (parent.to_owned(), Some(Arc::from(name))),
            _ => (path.clone(), None),
        };
        (Self { directory, only, node_name: Arc::from(node_name), decoder }, path)
    }

    pub(super) fn is_manifest(&self, name: &str) -> bool {
        self.only.as_deref().map_or_else(|| is_read(name), |only| only == name)
    }

    /// Scans `names` and reads those that changed.
    pub(super) fn scan_names(&self, names: &BTreeSet<Arc<str>>, run: &ScanRun, progress: &Progress) {
        for name in names {
            self.scan_name(name, false, run, progress);
        }
    }

    fn scan_name(&self, name: &Arc<str>, full_scan: bool, run: &ScanRun, progress: &Progress) {
        if run.enter(name) {
            progress.at(&self.directory.join(&**name));
            let mut part = Scan::new(run.known(name).map(|known| (Arc::clone(name), known)).into_iter().collect());
            self.examine(Arc::clone(name), full_scan, &mut part);
            run.leave(name, part);
        }
    }

    /// Lists the directory, and reads what changed. `logged`: skipped names that need no check.
    pub(super) fn scan_all(&self, logged: &BTreeSet<String>, run: &ScanRun, progress: &Progress) {
        match self.list(logged, run, progress) {
            Ok(listing) => {
                for name in &listing.names {
                    self.scan_name(name, true, run, progress);
                }
                run.finish(Ok(listing));
            }
            Err(error) => run.finish(Err(format!("cannot read {}: {error}", self.directory.display()))),
        }
    }

    fn list(&self, logged: &BTreeSet<String>, run: &ScanRun, progress: &Progress) -> io::Result<Listing> {
        let id = directory_id(&self.directory)?;
        let unwatched_fs = file_system::hides_changes(&self.directory);
        let mut listing = Listing { id, names: BTreeSet::new(), skipped: Vec::new(), excess: 0, unwatched_fs };
        for entry in self.directory.read_dir()? {
            let entry = entry?;
            let file_name = entry.file_name();
            let Some(name) = file_name.to_str() else {
                let lossy = file_name.to_string_lossy().into_owned();
                if self.only.is_none() && !logged.contains(&lossy) {
                    listing.skipped.push(lossy);
                }
                continue;
            };
            let name = &Arc::from(name);
            if !run.enter(name) {
                listing.names.extend(self.is_manifest(name).then(|| Arc::clone(name)));
                continue;
            }
            progress.at(&entry.path());
            if self.is_manifest(name) {
                if listing.unwatched_fs.is_none() && entry.file_type()?.is_symlink() {
                    listing.unwatched_fs = file_system::hides_changes(&self.directory.join(&**name));
                }
                if !entry.file_type()?.is_dir() {
                    listing.names.insert(Arc::clone(name));
                }
            }
        }
        run.enter_none();
        while listing.names.len() > MAX_FILES {
            listing.names.pop_last();
            listing.excess += 1;
        }
        Ok(listing)
    }

    /// Does not block on a FIFO without a writer.
    fn open(&self, name: &str) -> io::Result<File> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY).bits()).unwrap_or(0);
        OpenOptions::new().read(true).custom_flags(flags).open(self.directory.join(name))
    }

    /// `full_scan`: no event named the file.
    fn examine(&self, name: Arc<str>, full_scan: bool, scan: &mut Scan) {
        let path = self.directory.join(&*name);
        let link = match path.symlink_metadata() {
            Ok(metadata) => metadata.is_symlink(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                scan.known.remove(&name);
                scan.findings.push((name, Finding::Absent));
                return;
            }
            Err(error) => return self.mark_unreadable(name, false, &error, scan),
        };
        let before = scan.known.get(&name).and_then(|known| known.stamp);
        match path.metadata() {
            // As in kubelet, a directory is not a manifest, and neither is anything in it.
            Ok(metadata) if metadata.is_dir() => {
                scan.known.remove(&name);
                scan.findings.push((name, Finding::Absent));
            }
            Ok(metadata) if before == Some(Stamp::from_metadata(&metadata)) => {
                scan.known.insert(name, KnownFile { stamp: before, link });
            }
            Ok(metadata)
                if full_scan
                    && before.is_some_and(|before| {
                        Stamp::from_metadata(&metadata).is_being_written(&before, SystemTime::now())
                    }) =>
            {
                scan.findings.push((name, Finding::BeingWritten));
            }
            Ok(_) => match self.read(&name) {
                Ok((text, stamp)) => {
                    let manifest = self.decode(&name, &text);
                    scan.known.insert(Arc::clone(&name), KnownFile { stamp, link });
                    scan.findings.push((name, Finding::Read(manifest)));
                }
                Err(error) => self.mark_unreadable(name, link, &error, scan),
            },
            Err(error) => self.mark_unreadable(name, link, &error, scan),
        }
    }

    /// The pods of a file's content.
    pub(super) fn decode(&self, name: &Arc<str>, text: &[u8]) -> Manifest {
        let mut manifest = match is_blank(text) {
            true => Manifest::broken(blank(name)),
            false => self.decoder.read(text, name, SourceKind::File, &self.node_name),
        };
        if self.only.is_none() && is_leftover(name) {
            manifest.faults.push(leftover(name));
        }
        manifest
    }

    /// Records a file that exists but cannot be read. It is handled as broken, and retried at every scan.
    pub(super) fn mark_unreadable(&self, name: Arc<str>, link: bool, error: &io::Error, scan: &mut Scan) {
        let message = match error.kind() {
            io::ErrorKind::NotFound if link => "the symlink's target does not exist".to_owned(),
            _ => format!("cannot be read: {error}"),
        };
        let mut fault = Fault::error("", message);
        fault.origin = Arc::clone(&name);
        scan.known.insert(Arc::clone(&name), KnownFile { stamp: None, link });
        scan.findings.push((name, Finding::Read(Manifest::broken(fault))));
    }

    /// The file's content, and its stamp if it identifies this content.
    fn read(&self, name: &str) -> io::Result<(Vec<u8>, Option<Stamp>)> {
        let file = self.open(name)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let now = SystemTime::now();
        let mut text = Vec::with_capacity(usize::try_from(metadata.len().min(MAX_FILE)).unwrap_or(0));
        file.take(MAX_FILE + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("larger than {} MiB", MAX_FILE >> 20)));
        }
        let stamp = Stamp::from_metadata(&metadata);
        Ok((text, stamp.is_settled(now).then_some(stamp)))
    }
}
