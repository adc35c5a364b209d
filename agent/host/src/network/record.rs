//! The record of a pod's attachment, one file per pod: the configuration it was made with (the directory may have
//! changed since), the namespace and the boot, and the result.
//!
//! It is written before the ADD, without a result, so that an interrupted ADD can be undone; and again after it,
//! synced, so that the addresses are released after a power cut. Each file is written beside and renamed, so it is
//! never partial.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conflist::{self, Conflist};
use super::{AttachRequest, BandwidthLimits, CGROUP_PATH, DNS, DnsSettings, POD_ANNOTATIONS, PortMapping};
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
    /// Stands for a namespace that is gone or unknown.
    pub(super) fn none() -> Self {
        Self { path: PathBuf::new(), inode: 0, boot_id: String::new() }
    }

    /// Identifies the namespace at `path`.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: std::fs::metadata(path)?.ino(), boot_id: boot_id()? })
    }

    /// Whether the namespace still exists at its path.
    ///
    /// # Errors
    ///
    /// This is unknown.
    pub(super) fn exists(&self) -> io::Result<bool> {
        match Self::at(&self.path) {
            Ok(now) => Ok(now == *self),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
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
    /// Absent in records of earlier versions.
    #[serde(default)]
    pub bandwidth: Option<BandwidthLimits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsSettings>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup_path: String,
    conflist: Value,
    /// The last plugin's result; `None` while an ADD is running or after it was interrupted.
    pub result: Option<Value>,
}

impl Record {
    /// The record of an attachment before its ADD. Contains only what plugins receive.
    pub(super) fn intent(pod: &AttachRequest<'_>, at: NetworkNamespace, conflist: &Conflist) -> Self {
        let has = |capability| conflist.has_capability(capability);
        Self {
            namespace: pod.namespace.to_owned(),
            name: pod.name.to_owned(),
            uid: pod.uid.as_str().to_owned(),
            network_namespace: at,
            ports: pod.ports.clone(),
            bandwidth: pod.bandwidth,
            dns: pod.dns.clone().filter(|_| has(DNS)),
            annotations: pod.annotations.filter(|_| has(POD_ANNOTATIONS)).cloned().unwrap_or_default(),
            cgroup_path: pod.cgroup_path.clone().filter(|_| has(CGROUP_PATH)).unwrap_or_default(),
            conflist: conflist.to_json(),
            result: None,
        }
    }

    /// The configuration it was made with.
    pub(super) fn conflist(&self) -> Result<Conflist, String> {
        conflist::parse(self.conflist.clone(), true)
    }

    /// The same attachment with another configuration; `None` if it already has this one. The result is kept only for
    /// the same network.
    pub(super) fn with(&self, conflist: &Conflist) -> Option<Self> {
        let list = conflist.to_json();
        if list == self.conflist {
            return None;
        }
        let result = self.result.clone().filter(|_| self.conflist.get("name") == list.get("name"));
        Some(Self { conflist: list, result, ..self.clone() })
    }
}

/// The content of a pod's file.
#[derive(Debug)]
pub(super) enum Reading {
    /// There is no file.
    Absent,
    /// The file exists and cannot be used.
    Damaged(io::Error),
    /// Its record.
    Whole(Box<Record>),
}

/// Whether the error means that the file system has lost the content.
fn is_lost(error: &io::Error) -> bool {
    let lost = [Errno::IO, Errno::UCLEAN, Errno::BADMSG];
    error.raw_os_error().is_some_and(|code| lost.iter().any(|errno| errno.raw_os_error() == code))
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

    /// The pod's record.
    ///
    /// # Errors
    ///
    /// The file cannot be read at the moment, so its content is unknown.
    pub(super) fn load(&self, uid: &PodUid) -> io::Result<Reading> {
        match std::fs::read(self.path(uid)) {
            Ok(text) => {
                Ok(serde_json::from_slice(&text).map_or_else(|error| Reading::Damaged(error.into()), Reading::Whole))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Reading::Absent),
            Err(error) if is_lost(&error) => Ok(Reading::Damaged(error)),
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
            // A leading dot marks the temporary file of a crash, which the next write replaces.
            if let Some(name) = entry?.file_name().to_str() {
                pods.extend(PodUid::parse(name));
            }
        }
        pods.sort();
        Ok(pods)
    }
}
