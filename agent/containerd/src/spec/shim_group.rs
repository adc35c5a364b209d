//! `shimGroup`: which containers share a shim.

use std::fmt;

use limpet_model::pod::PodUid;

/// The group of all containers of a node. It cannot be a pod's, because UIDs begin with a letter or a digit.
const NODE: &str = "_node";

/// Which containers share a shim. Running ones keep theirs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShimGroup {
    /// `pod`: the containers of a pod.
    #[default]
    Pod,
    /// `node`: all containers of the node.
    Node,
}

impl ShimGroup {
    /// Parses the value of the key.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pod, Self::Node].into_iter().find(|group| group.to_string() == text)
    }

    /// The group's name for a container of the pod.
    pub(super) fn name(self, pod: &PodUid) -> String {
        match self {
            Self::Pod => pod.as_str().to_owned(),
            Self::Node => NODE.to_owned(),
        }
    }
}

impl fmt::Display for ShimGroup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pod => "pod",
            Self::Node => "node",
        })
    }
}
