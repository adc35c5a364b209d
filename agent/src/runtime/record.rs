//! What limpet writes on each container in containerd, so that a restarted agent knows all without a database.
//!
//! Labels hold the short keys other tools read; three extensions hold the rest: the pod's manifest, what the
//! container is, and what became of it. Only the last one changes, and it is written before the task is deleted.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use prost_types::Any;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::pod::{PodKey, PodUid};
use crate::source::SourceKind;

/// Label that says a container is limpet's.
pub const LABEL_MANAGED: &str = "io.limpet.managed";
/// kubelet's labels, which other node tools read.
pub const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
/// The pod's namespace.
pub const LABEL_POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// The pod's UID.
pub const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";
/// The container's name in the pod.
pub const LABEL_CONTAINER_NAME: &str = "io.kubernetes.container.name";

const EXTENSION_MANIFEST: &str = "io.limpet.manifest";
const EXTENSION_IDENTITY: &str = "io.limpet.identity";
/// The extension that changes during a container's life.
pub const EXTENSION_STATE: &str = "io.limpet.state";

/// A container's id in containerd: 64 hexadecimal digits, the last 32 of them the pod's.
///
/// Derived from pod UID, container name and attempt, so that a start cut short by a crash is found again. Its own
/// digits come first, because people and tools read the first dozen.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(Arc<str>);

impl ContainerId {
    /// The id of one attempt at one container of one pod.
    pub fn derive(uid: &PodUid, container: &str, attempt: u32) -> Self {
        let own = hex(&Sha256::digest(format!("{uid}/{container}/{attempt}")));
        Self(format!("{}{}", &own[..32], Self::pod_digits(uid)).into())
    }

    /// The 32 digits that the id of every container of the pod ends with.
    pub fn pod_digits(uid: &PodUid) -> String {
        let mut digits = hex(&Sha256::digest(uid.as_str()));
        digits.truncate(32);
        digits
    }

    /// An id as containerd reports it.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// The last 32 digits, which lead to the pod; empty for an id that is not limpet's.
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a container is; never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerIdentity {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's name.
    pub container: String,
    /// Whether it is an init container.
    pub init: bool,
    /// How many starts came before this one.
    pub attempt: u32,
    /// The source the pod came from.
    pub source: String,
    /// The file or URL.
    pub origin: String,
    /// Hash of what of this container can change in place: image and resources.
    pub fingerprint: String,
    /// The image's name as pulled.
    pub image: String,
    /// Digest the name pointed to at the start.
    pub image_digest: String,
    /// Where its log is.
    pub log_path: String,
    /// The back-off that its end begins with, in seconds (kubelet-semantics 4.5).
    #[serde(default)]
    pub backoff_seconds: u64,
}

impl ContainerIdentity {
    /// The pod's key.
    pub fn pod_key(&self) -> PodKey {
        PodKey::new(self.namespace.as_str(), self.pod.as_str())
    }

    /// The source's kind; an unknown one counts as the file source's.
    pub fn source(&self) -> SourceKind {
        SourceKind::from_name(&self.source).unwrap_or(SourceKind::File)
    }
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; above 128 a signal.
    pub code: i32,
    /// kubelet's reason: `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`.
    pub reason: String,
    /// The termination message, or why the start failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ended, by the wall clock of then.
    pub finished_at: Timestamp,
}

/// What became of a container; written over as it happens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerState {
    /// When its process was started; `None`: it never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// How it ended; `None`: it runs, or nobody saw its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
}

/// The labels of a container.
pub fn labels(identity: &ContainerIdentity) -> HashMap<String, String> {
    [
        (LABEL_MANAGED, "container"),
        (LABEL_POD_NAME, &identity.pod),
        (LABEL_POD_NAMESPACE, &identity.namespace),
        (LABEL_POD_UID, &identity.uid),
        (LABEL_CONTAINER_NAME, &identity.container),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// The extensions of a new container.
pub fn extensions(identity: &ContainerIdentity, manifest: &[u8]) -> HashMap<String, Any> {
    HashMap::from([
        (EXTENSION_MANIFEST.to_owned(), any(EXTENSION_MANIFEST, manifest.to_vec())),
        (EXTENSION_IDENTITY.to_owned(), any(EXTENSION_IDENTITY, json(identity))),
        (EXTENSION_STATE.to_owned(), state_extension(&ContainerState::default())),
    ])
}

/// The extension that carries `state`.
pub fn state_extension(state: &ContainerState) -> Any {
    any(EXTENSION_STATE, json(state))
}

/// A container as its extensions describe it.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// What it is.
    pub identity: ContainerIdentity,
    /// What became of it.
    pub state: ContainerState,
    /// The pod's manifest, canonical JSON as authored.
    pub manifest: Arc<[u8]>,
}

/// Reads the extensions back; the error says which one is missing or unreadable.
pub fn recorded(extensions: &HashMap<String, Any>) -> Result<Recorded, String> {
    let bytes = |key: &str| {
        extensions.get(key).map(|any| any.value.as_slice()).ok_or_else(|| format!("extension {key} is missing"))
    };
    let parse_error = |key: &str, error: serde_json::Error| format!("extension {key}: {error}");
    Ok(Recorded {
        identity: serde_json::from_slice(bytes(EXTENSION_IDENTITY)?)
            .map_err(|error| parse_error(EXTENSION_IDENTITY, error))?,
        state: serde_json::from_slice(bytes(EXTENSION_STATE)?).map_err(|error| parse_error(EXTENSION_STATE, error))?,
        manifest: Arc::from(bytes(EXTENSION_MANIFEST)?),
    })
}

fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain structs of strings and numbers always serialise.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_attempts_own_half_and_the_pods() {
        let uid = PodUid::new("0123");
        let first = ContainerId::derive(&uid, "web", 0);
        let second = ContainerId::derive(&uid, "web", 1);
        assert_eq!(first.as_str().len(), 64);
        assert!(first.as_str()[..12] != second.as_str()[..12]);
        assert_eq!((first.pod_part(), second.pod_part()), (&*ContainerId::pod_digits(&uid), first.pod_part()));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let identity = ContainerIdentity {
            namespace: "default".into(),
            pod: "web-node".into(),
            uid: "0123".into(),
            container: "web".into(),
            init: false,
            attempt: 3,
            source: "file".into(),
            origin: "web.yaml".into(),
            fingerprint: "aa".into(),
            image: "docker.io/library/web:1".into(),
            image_digest: "sha256:00".into(),
            log_path: "/var/log/pods/x/web/3.log".into(),
            backoff_seconds: 20,
        };
        let mut written = extensions(&identity, b"{}");
        let exit = Exit { code: 1, reason: "Error".into(), message: String::new(), finished_at: Timestamp::UNIX_EPOCH };
        let state = ContainerState { started_at: Some(Timestamp::UNIX_EPOCH), exit: Some(exit) };
        written.insert(EXTENSION_STATE.into(), state_extension(&state));
        let read = recorded(&written).unwrap();
        assert_eq!((read.identity, read.state, &*read.manifest), (identity, state, &b"{}"[..]));
        written.remove(EXTENSION_STATE);
        assert!(recorded(&written).unwrap_err().contains(EXTENSION_STATE));
    }
}
