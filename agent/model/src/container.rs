//! Containers: their ids, the record limpet keeps of each, and their state in containerd.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::device_allocation::DeviceAllocation;
use crate::hex::hex;
use crate::object::StartValues;
use crate::pod::{NameError, PodKey, PodUid};
use crate::probe::ProbeRecord;
use crate::source::SourceKind;
use crate::stop_signal::StopSignal;
use crate::verdict::PodVerdict;

/// A container's id in containerd: 64 hexadecimal digits, the last 32 of which identify the pod.
///
/// Each id is used only once, as clients of containerd and collectors of logs and metrics expect. It is derived from
/// pod UID, container name, attempt and a salt, so that an attempt whose answer was lost is found again. The
/// container's own digits come first, because people and tools show the first dozen.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(Arc<str>);

impl ContainerId {
    /// The id of one attempt at one container of one pod. `salt` differs between incarnations of a pod, whose UIDs
    /// may be equal.
    pub fn derive(uid: &PodUid, container: &str, attempt: u32, salt: u64) -> Self {
        let digits = hex(&Sha256::digest(format!("{uid}/{container}/{attempt}/{salt:016x}")));
        Self(format!("{}{}", &digits[..32], Self::pod_digits(uid)).into())
    }

    /// The 32 digits with which the ids of all containers of the pod end.
    pub fn pod_digits(uid: &PodUid) -> String {
        let mut digits = pod_id(uid);
        digits.truncate(32);
        digits
    }

    /// An id as containerd reports it.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// The last 32 digits, which identify the pod; empty for an id that is not limpet's.
    pub fn pod_part(&self) -> &str {
        self.0.get(32..).unwrap_or_default()
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The pod's id where tools expect that of a sandbox: 64 hexadecimal digits, of which the first 32 are those with
/// which the ids of its containers end.
pub fn pod_id(uid: &PodUid) -> String {
    hex(&Sha256::digest(uid.as_str()))
}

/// Who the first process of a container runs as, shown in its status as `user.linux`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    pub uid: u32,
    pub gid: u32,
    /// All groups, the primary one included.
    pub groups: Vec<u32>,
}

/// The facts of a container. Only a resize in place changes some of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerIdentity {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub container: String,
    /// Whether it is one of `spec.initContainers`.
    pub init: bool,
    /// How many starts came before this one.
    pub attempt: u32,
    /// The source the pod came from.
    pub source: String,
    /// The file or URL that the pod came from.
    pub origin: String,
    /// Hash of the fields that can change in place: image and resources. Updated when it is resized.
    pub fingerprint: String,
    /// The image's name as pulled.
    pub image: String,
    /// The digest the name resolved to at the start.
    pub image_digest: String,
    pub log_path: String,
    /// The back-off after its exit, in seconds (docs/kubelet.md, back-off).
    #[serde(default)]
    pub backoff_seconds: u64,
    /// The pod's `status.startTime`; `None` if the container was started by a limpet that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_start: Option<Timestamp>,
    /// The pod's addresses at this start, primary first. Its status shows them once it has no sandbox any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<IpAddr>,
    /// Its stop signal. Earlier versions recorded none, and sent SIGTERM.
    #[serde(default)]
    pub stop_signal: StopSignal,
    /// The id of the sandbox it was started in; earlier versions recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// How often all containers of its pod had been restarted before its start.
    #[serde(default)]
    pub pod_restarts: u32,
    /// When it was last resized in place; `None` if it has the resources it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resized_at: Option<Timestamp>,
    /// The definition of an ephemeral container, because the manifest need not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<serde_json::Value>,
    /// What device plugins have allocated to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceAllocation>,
    /// Who its first process runs as; earlier versions recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<ContainerUser>,
    /// Hashes of the values of ConfigMaps and Secrets that it has read at its start; earlier versions recorded none.
    #[serde(default, skip_serializing_if = "StartValues::is_empty")]
    pub start_values: StartValues,
}

impl ContainerIdentity {
    /// The pod's key.
    ///
    /// # Errors
    /// The record holds no names.
    pub fn pod_key(&self) -> Result<PodKey, NameError> {
        PodKey::parse(self.namespace.as_str(), self.pod.as_str())
    }

    /// The source's kind. An unknown one counts as the file source.
    pub fn source(&self) -> SourceKind {
        SourceKind::from_name(&self.source).unwrap_or(SourceKind::File)
    }
}

/// How a container exited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Above 128 it stands for a signal.
    pub code: i32,
    /// kubelet's reason: `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
    pub reason: String,
    /// The termination message, or why the start failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it exited, by the wall clock at that time.
    pub finished_at: Timestamp,
}

/// The state of a container; overwritten as it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerState {
    /// When its process was started; `None` if it never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// How it exited; `None` if it runs, or its exit was missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Why the node had ended the pod, if it had done so when this container exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<PodVerdict>,
}

/// A container as described by its containerd extensions.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub identity: ContainerIdentity,
    pub state: ContainerState,
    pub probes: ProbeRecord,
    /// The pod's manifest, canonical JSON as authored.
    pub manifest: Arc<[u8]>,
}

/// containerd's view of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Created, not started.
    Created,
    /// Its process runs (or is paused).
    Running {
        /// The first process, in the host's pid namespace.
        pid: u32,
    },
    /// Its process exited.
    Stopped { code: i32, at: Timestamp },
    /// containerd does not know its state, because the shim does not respond (yet).
    Unknown {
        /// The last known first process.
        pid: u32,
    },
}

/// A container found in containerd.
#[derive(Debug, Clone)]
pub struct FoundContainer {
    pub id: ContainerId,
    /// The record limpet wrote to it.
    pub recorded: Recorded,
    /// Its task, if it has one.
    pub task: Option<Task>,
    /// Whether its writable snapshot still exists.
    pub has_snapshot: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_half_the_attempts_own_and_half_the_pods() {
        let uid = PodUid::new("0123");
        let first = ContainerId::derive(&uid, "web", 0, 7);
        assert_eq!((first.as_str().len(), first.pod_part()), (64, &*ContainerId::pod_digits(&uid)));
        for (attempt, salt) in [(1, 7), (0, 8)] {
            let other = ContainerId::derive(&uid, "web", attempt, salt);
            assert!(first.as_str()[..12] != other.as_str()[..12], "{attempt} {salt}");
            assert_eq!(first.pod_part(), other.pod_part());
        }
        assert!(pod_id(&uid).len() == 64 && pod_id(&uid).starts_with(first.pod_part()));
    }
}
