//! The process that changed a manifest, as far as it is known. Unknown facts are omitted, never guessed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pod::{PodKey, PodUid};

/// A process that changed something, and its user and pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Actor {
    /// In the agent's own pid namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The user's name on the node. Inside a container the same id may be another user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its path in the process's own mount namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// Its cgroup path, from the root of the hierarchy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The pod that owns this cgroup or an ancestor of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<ActorPod>,
}

/// A pod of this node, and the container within it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActorPod {
    pub uid: String,
    /// `namespace/name`; absent if no pod of that UID is known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container's name; absent if the process has none, or if the container is no longer known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

impl ActorPod {
    /// The pod's key and UID; `None` when its name is not known any more.
    pub fn pod_identity(&self) -> Option<(PodKey, PodUid)> {
        let (namespace, name) = self.pod.as_deref()?.split_once('/')?;
        Some((PodKey::parse(namespace, name).ok()?, PodUid::parse(self.uid.as_str()).ok()?))
    }
}

impl Actor {
    /// The actor without its pids, so that repeated changes by the same program compare equal.
    pub fn without_pids(&self) -> Self {
        Self { pid: None, parent: None, ..self.clone() }
    }
}

/// `ansible (uid 1001, pid 4711, python3)`; `unknown` for what is not known.
impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.user.as_deref().unwrap_or("unknown"))?;
        let facts =
            [self.uid.map(|uid| format!("uid {uid}")), self.pid.map(|pid| format!("pid {pid}")), self.command.clone()];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if !facts.is_empty() {
            write!(f, " ({})", facts.join(", "))?;
        }
        match &self.resident {
            Some(resident) => write!(f, " in {resident}"),
            None => Ok(()),
        }
    }
}

/// `pod default/web-edge1, container app`.
impl fmt::Display for ActorPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => write!(f, "pod {pod}")?,
            None => write!(f, "a pod that is gone (uid {})", self.uid)?,
        }
        match &self.container {
            Some(container) => write!(f, ", container {container}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::actor::*;

    #[test]
    fn an_actor_as_text_names_what_is_unknown() {
        let whole = Actor {
            pid: Some(4711),
            parent: Some(1),
            uid: Some(1001),
            user: Some("ansible".to_owned()),
            command: Some("python3".to_owned()),
            ..Actor::default()
        };
        assert_eq!(whole.to_string(), "ansible (uid 1001, pid 4711, python3)");
        assert_eq!(Actor::default().to_string(), "unknown");
        assert_eq!(whole.without_pids().to_string(), "ansible (uid 1001, python3)");
        let container = Some("app".to_owned());
        let resident_of = |pod: Option<&str>| ActorPod {
            uid: "u1".to_owned(),
            pod: pod.map(str::to_owned),
            container: container.clone(),
        };
        let in_pod = Actor { pid: Some(7), resident: Some(resident_of(Some("default/web"))), ..Actor::default() };
        assert_eq!(in_pod.to_string(), "unknown (pid 7) in pod default/web, container app");
        let gone = Actor { resident: Some(resident_of(None)), ..whole.clone() };
        assert!(gone.to_string().ends_with(" in a pod that is gone (uid u1), container app"), "{gone}");
        let identity = resident_of(Some("default/web")).pod_identity().unwrap();
        assert_eq!((identity.0.to_string(), identity.1.as_str()), ("default/web".to_owned(), "u1"));
        assert_eq!(resident_of(None).pod_identity(), None);
        let read: Actor = serde_json::from_slice(&serde_json::to_vec(&in_pod).unwrap()).unwrap();
        assert_eq!(read, in_pod);
    }
}
