//! The record of a pod's attachment, one file per pod: the configuration it was made with (the directory may have
//! changed since), the namespace and the boot it was made in, and the result.
//!
//! It is written before the ADD, without a result, so that an interrupted ADD can be undone; and again after it, synced,
//! so that the addresses are released after a power cut. Each file is written beside and renamed, so it is never
//! partial.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conflist::{self, Conflist};
use super::{AttachRequest, BandwidthLimits, PortMapping};
use crate::boot::boot_id;
use limpet_model::pod::PodUid;

/// The network namespace a pod was attached in: its path, and two fields that identify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NetworkNamespace {
    pub path: PathBuf,
    pub inode: u64,
    pub boot_id: String,
}

impl NetworkNamespace {
    /// Identifies the namespace at `path`.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: std::fs::metadata(path)?.ino(), boot_id: boot_id()? })
    }

    /// Whether the namespace still exists at its path.
    pub(super) fn exists(&self) -> bool {
        Self::at(&self.path).is_ok_and(|now| now == *self)
    }
}

/// A pod's attachment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub network_namespace: NetworkNamespace,
    pub ports: Vec<PortMapping>,
    /// Records of earlier versions have none.
    #[serde(default)]
    pub bandwidth: Option<BandwidthLimits>,
    conflist: Value,
    /// The last plugin's result; `None` while an ADD is running or after it was interrupted.
    pub result: Option<Value>,
}

impl Record {
    /// The record of an attachment that is about to be made.
    pub(super) fn intent(pod: &AttachRequest<'_>, at: NetworkNamespace, conflist: &Conflist) -> Self {
        Self {
            namespace: pod.namespace.to_owned(),
            name: pod.name.to_owned(),
            uid: pod.uid.as_str().to_owned(),
            network_namespace: at,
            ports: pod.ports.clone(),
            bandwidth: pod.bandwidth,
            conflist: conflist.to_json(),
            result: None,
        }
    }

    /// The configuration it was made with.
    pub(super) fn conflist(&self) -> Result<Conflist, String> {
        conflist::parse(self.conflist.clone(), true)
    }
}

/// The files, one per pod, named after its UID.
#[derive(Debug, Clone)]
pub(super) struct Records {
    pub dir: PathBuf,
}

impl Records {
    pub(super) fn path(&self, uid: &PodUid) -> PathBuf {
        self.dir.join(uid.as_str())
    }

    /// The pod's record, if there is one. A damaged one is `InvalidData`.
    pub(super) fn load(&self, uid: &PodUid) -> io::Result<Option<Record>> {
        match std::fs::read(self.path(uid)) {
            // An empty file too: serde_json would report that as end of file.
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the pod's record. With `sync` it survives a power cut.
    pub(super) fn save(&self, uid: &PodUid, record: &Record, sync: bool) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let beside = self.dir.join(format!(".{uid}"));
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        if sync {
            file.sync_data()?;
        }
        std::fs::rename(&beside, self.path(uid))?;
        if sync { File::open(&self.dir)?.sync_all() } else { Ok(()) }
    }

    /// Removes the pod's record.
    pub(super) fn remove(&self, uid: &PodUid) -> io::Result<()> {
        match std::fs::remove_file(self.path(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The pods with a record.
    pub(super) fn list(&self) -> io::Result<Vec<PodUid>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut pods = Vec::new();
        for entry in entries {
            // A leading dot: the temporary file of a crash, overwritten by the next write.
            match entry?.file_name().to_str() {
                Some(name) => pods.extend(PodUid::parse(name)),
                None => {}
            }
        }
        pods.sort();
        Ok(pods)
    }
}
