//! Looking at files: listing, stat, reading what changed. Blocking; runs off the agent's thread.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;

use super::names::{NameClass, class, looks_like_manifest};
use limpet_core::source::Decoder;
use limpet_host::directory::directory_id;
use limpet_host::file_system;
use limpet_model::directory_id::DirectoryId;
use limpet_model::manifest::Manifest;
use limpet_model::pod::Fault;
use limpet_model::source::SourceKind;

/// Bytes of one manifest file, as kubelet has it.
pub(super) const MAX_FILE: u64 = 10 << 20;
/// Files of one directory; those after it in byte order are not read.
pub(super) const MAX_FILES: usize = 10_000;
/// Two writes within one tick of the kernel's clock leave equal stamps: a file read this soon after its change
/// is read again when it is named again.
pub(super) const STAMP_GRAIN: Duration = Duration::from_millis(50);
/// A file written in place this recently may be half of what it is to be. Its writer's close is told; a look that
/// nobody called for leaves it alone until then, or until nothing has been written for so long.
pub(super) const WRITER_PAUSES: Duration = Duration::from_secs(1);
/// How much of a skipped file is read to see what it is.
const GLANCE: u64 = 4 << 10;

/// What tells that a file is the one read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether it is the file `before`, written to within [`WRITER_PAUSES`].
    fn is_being_written(&self, before: &Self, now: SystemTime) -> bool {
        (self.device, self.inode) == (before.device, before.inode)
            && self.modified != before.modified
            && now.duration_since(moment(self.modified)).is_ok_and(|age| age < WRITER_PAUSES)
    }

    /// Whether a change after this moment would leave another stamp.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        now.duration_since(moment(self.changed)).is_ok_and(|age| age > STAMP_GRAIN)
    }
}

/// Seconds and nanoseconds of the Unix epoch, as a stamp has them.
fn moment((seconds, nanos): (i64, i64)) -> SystemTime {
    UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0))
}

/// A file that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// `None`: to be read again whatever its stamp.
    pub(super) stamp: Option<Stamp>,
    /// It is a symlink: what it leads through is watched.
    pub(super) link: bool,
}

/// Files by name, as they were last looked at.
pub(super) type KnownFiles = BTreeMap<Arc<str>, Known>;

/// Where manifests are.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The directory.
    pub(super) directory: PathBuf,
    /// The one file that counts, whatever its name; `None`: all manifests of the directory.
    pub(super) only: Option<Arc<str>>,
    /// The node's name, part of every pod's name.
    pub(super) node_name: Arc<str>,
    /// What makes pods of bytes.
    pub(super) decoder: Decoder,
}

/// What was found out about one file that is not as it was.
#[derive(Debug)]
pub(super) enum Finding {
    /// Read, well or with faults.
    Read(Manifest),
    /// No such name.
    Absent,
    /// In the middle of being written in place: what it was before counts for now.
    BeingWritten,
}

/// The outcome of one look.
#[derive(Debug)]
pub(super) struct Look {
    /// What is known of the files now.
    pub(super) known: KnownFiles,
    /// Files that are not as they were.
    pub(super) findings: Vec<(Arc<str>, Finding)>,
    /// For a look at everything: the directory's identity and the names in it, or why it cannot be read.
    pub(super) listing: Option<Result<Listing, String>>,
}

/// The names that count in a directory.
#[derive(Debug)]
pub(super) struct Listing {
    /// Which directory it is.
    pub(super) id: DirectoryId,
    /// Manifests in it.
    pub(super) names: BTreeSet<Arc<str>>,
    /// Files that look like manifests by content and not by name.
    pub(super) skipped: Vec<String>,
    /// Manifests beyond [`MAX_FILES`].
    pub(super) excess: usize,
    /// The file system of the directory, or of what a symlink leads to, that hides changes, if there is one.
    pub(super) unseen: Option<&'static str>,
}

/// What a power cut or an editor halfway through leaves of a file: nobody ends a pod so on purpose.
fn is_blank(text: &[u8]) -> bool {
    text.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace())
}

fn blank(name: &Arc<str>) -> Fault {
    let fault = Fault::error("", "the file is empty").with_remedy("remove it if its pods are to end");
    Fault { origin: Arc::clone(name), ..fault }
}

/// What the files at `path` hold now, by name. Blocks.
///
/// # Errors
/// The directory cannot be read; in words.
pub fn read_all(path: &Path, node_name: &str, decoder: Decoder) -> Result<Vec<(Arc<str>, Manifest)>, String> {
    let (place, _) = Place::at(path, node_name, decoder);
    let look = place.look_at_all(KnownFiles::new(), &BTreeSet::new());
    look.listing.unwrap_or_else(|| Err("not looked at".to_owned()))?;
    let read = |(name, finding)| match finding {
        Finding::Read(manifest) => Some((name, manifest)),
        Finding::Absent | Finding::BeingWritten => None,
    };
    Ok(look.findings.into_iter().filter_map(read).collect())
}

impl Place {
    /// The place that `path` stands for, and the path in full: a directory, or one file; what does not exist is a file
    /// if it is named like a manifest.
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

    /// Whether `name` is read.
    pub(super) fn counts(&self, name: &str) -> bool {
        self.only.as_deref().map_or_else(|| class(name) == NameClass::Manifest, |only| only == name)
    }

    /// Looks at `names` and reads those that changed.
    pub(super) fn look_at(&self, names: impl IntoIterator<Item = Arc<str>>, known: KnownFiles) -> Look {
        self.look(names, known, false)
    }

    fn look(&self, names: impl IntoIterator<Item = Arc<str>>, known: KnownFiles, unasked: bool) -> Look {
        let mut look = Look { known, findings: Vec::new(), listing: None };
        for name in names {
            self.examine(name, unasked, &mut look);
        }
        look
    }

    /// Lists the directory, and reads what changed. `told`: skipped names not to be looked into again.
    pub(super) fn look_at_all(&self, known: KnownFiles, told: &BTreeSet<String>) -> Look {
        match self.list(told) {
            Ok(listing) => {
                let mut look = self.look(listing.names.iter().cloned().collect::<Vec<_>>(), known, true);
                look.known.retain(|name, _| listing.names.contains(name));
                look.listing = Some(Ok(listing));
                look
            }
            Err(error) => {
                let reason = format!("cannot read {}: {error}", self.directory.display());
                Look { known, findings: Vec::new(), listing: Some(Err(reason)) }
            }
        }
    }

    fn list(&self, told: &BTreeSet<String>) -> io::Result<Listing> {
        let id = directory_id(&self.directory)?;
        let unseen = file_system::hides_changes(&self.directory);
        let mut listing = Listing { id, names: BTreeSet::new(), skipped: Vec::new(), excess: 0, unseen };
        for entry in self.directory.read_dir()? {
            let entry = entry?;
            let file_name = entry.file_name();
            let Some(name) = file_name.to_str() else {
                let lossy = file_name.to_string_lossy().into_owned();
                if self.only.is_none() && !told.contains(&lossy) {
                    listing.skipped.push(lossy);
                }
                continue;
            };
            if self.counts(name) {
                if listing.unseen.is_none() && entry.file_type()?.is_symlink() {
                    listing.unseen = file_system::hides_changes(&self.directory.join(name));
                }
                if !entry.file_type()?.is_dir() {
                    listing.names.insert(Arc::from(name));
                }
            } else if self.only.is_none()
                && class(name) == NameClass::Other
                && !told.contains(name)
                && self.glance(name)
            {
                listing.skipped.push(name.to_owned());
            }
        }
        while listing.names.len() > MAX_FILES {
            listing.names.pop_last();
            listing.excess += 1;
        }
        Ok(listing)
    }

    fn glance(&self, name: &str) -> bool {
        let mut beginning = Vec::new();
        let read = self.open(name).and_then(|file| {
            if !file.metadata()?.is_file() {
                return Ok(0);
            }
            file.take(GLANCE).read_to_end(&mut beginning)
        });
        read.is_ok() && looks_like_manifest(&beginning)
    }

    /// Never waits for a FIFO's other end.
    fn open(&self, name: &str) -> io::Result<File> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY).bits()).unwrap_or(0);
        OpenOptions::new().read(true).custom_flags(flags).open(self.directory.join(name))
    }

    /// `unasked`: no event has named the file.
    fn examine(&self, name: Arc<str>, unasked: bool, look: &mut Look) {
        let path = self.directory.join(&*name);
        let link = match path.symlink_metadata() {
            Ok(metadata) => metadata.is_symlink(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                look.known.remove(&name);
                look.findings.push((name, Finding::Absent));
                return;
            }
            Err(error) => return self.refuse(name, false, &error, look),
        };
        let before = look.known.get(&name).and_then(|known| known.stamp);
        match path.metadata() {
            Ok(metadata) if before == Some(Stamp::of(&metadata)) => {
                look.known.insert(name, Known { stamp: before, link });
            }
            Ok(metadata)
                if unasked
                    && before
                        .is_some_and(|before| Stamp::of(&metadata).is_being_written(&before, SystemTime::now())) =>
            {
                look.findings.push((name, Finding::BeingWritten));
            }
            Ok(_) => match self.read(&name) {
                Ok((text, stamp)) => {
                    let manifest = self.decode(&name, &text);
                    look.known.insert(Arc::clone(&name), Known { stamp, link });
                    look.findings.push((name, Finding::Read(manifest)));
                }
                Err(error) => self.refuse(name, link, &error, look),
            },
            Err(error) => self.refuse(name, link, &error, look),
        }
    }

    /// The pods of a file's bytes.
    pub(super) fn decode(&self, name: &Arc<str>, text: &[u8]) -> Manifest {
        match is_blank(text) {
            true => Manifest::broken(blank(name)),
            false => (self.decoder.read)(text, name, SourceKind::File, &self.node_name),
        }
    }

    /// The file is there and cannot be read: as good as broken, and tried again whenever it is looked at.
    fn refuse(&self, name: Arc<str>, link: bool, error: &io::Error, look: &mut Look) {
        let message = match error.kind() {
            io::ErrorKind::NotFound if link => "the symlink leads nowhere".to_owned(),
            _ => format!("cannot be read: {error}"),
        };
        let mut fault = Fault::error("", message);
        fault.origin = Arc::clone(&name);
        look.known.insert(Arc::clone(&name), Known { stamp: None, link });
        look.findings.push((name, Finding::Read(Manifest::broken(fault))));
    }

    /// The file's bytes, and the stamp that stands for them if any does.
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
        let stamp = Stamp::of(&metadata);
        Ok((text, stamp.is_settled(now).then_some(stamp)))
    }
}
