//! The Node at the apiserver, for all tasks that wait for it.

use limpet_core::node_object::SeenNode;

/// The apiserver's state of the Node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum NodeFromApiserver {
    /// The Node has not been read yet.
    #[default]
    Unknown,
    /// There is no Node.
    Absent,
    Present(Box<SeenNode>),
}

impl From<Option<SeenNode>> for NodeFromApiserver {
    fn from(node: Option<SeenNode>) -> Self {
        node.map_or(Self::Absent, |node| Self::Present(Box::new(node)))
    }
}

impl NodeFromApiserver {
    pub(super) fn node(&self) -> Option<&SeenNode> {
        match self {
            Self::Present(node) => Some(node),
            Self::Unknown | Self::Absent => None,
        }
    }
}
