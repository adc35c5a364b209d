//! The kinds of source that pods come from, and how their pods differ.

use std::fmt;

/// The kinds of source, in order of precedence when two claim one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A directory of manifests, or one file.
    File,
    /// Pods pushed through the local socket.
    Push,
    /// A signed bundle.
    Bundle,
    /// A URL.
    Http,
    /// The apiserver.
    Api,
}

/// How the pods of one source differ from those of others. What only concerns a source itself, such as how it is
/// read, is not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceTraits {
    /// Whether an apiserver stores the pod: its name, UID and defaults are stored there, and it stays one Pod until
    /// it is deleted there. Otherwise the node derives all of that from a manifest.
    pub is_stored: bool,
    /// Whether a controller replaces a pod that fails, so that the node refuses or ends it for good. Otherwise the
    /// pod waits, and runs again as soon as it can.
    pub is_replaced: bool,
    /// Whether a scheduler has chosen the node, by labels, taints and resources that the node may not all know.
    pub is_scheduled: bool,
    /// Whether it may refer to what a cluster has: Services, RuntimeClasses, service accounts.
    pub has_cluster: bool,
    /// Whether a cluster sees it as a mirror pod.
    pub is_mirrored: bool,
    /// Whether it is static in kubelet's sense: critical, and the last to end when the node is short of something.
    pub is_static: bool,
    /// Whether it tolerates every taint, like the pods of kubelet's directory.
    pub tolerates_all: bool,
    /// Whether it is read through the connection to an apiserver, which has its own state and directory.
    pub is_connection: bool,
}

/// Pods that are pushed to the node.
const PUSHED: SourceTraits = SourceTraits {
    is_stored: false,
    is_replaced: false,
    is_scheduled: false,
    has_cluster: false,
    is_mirrored: true,
    is_static: false,
    tolerates_all: false,
    is_connection: false,
};

/// Static pods that come from elsewhere: by a URL or in a bundle.
const DELIVERED: SourceTraits = SourceTraits { is_static: true, ..PUSHED };
const OF_FILE: SourceTraits = SourceTraits { tolerates_all: true, ..DELIVERED };

const OF_CLUSTER: SourceTraits = SourceTraits {
    is_stored: true,
    is_replaced: true,
    is_scheduled: true,
    has_cluster: true,
    is_mirrored: false,
    is_static: false,
    tolerates_all: false,
    is_connection: true,
};

impl SourceKind {
    /// How its pods differ from those of other sources.
    pub const fn traits(self) -> &'static SourceTraits {
        match self {
            Self::File => &OF_FILE,
            Self::Push => &PUSHED,
            Self::Bundle | Self::Http => &DELIVERED,
            Self::Api => &OF_CLUSTER,
        }
    }

    /// All kinds, in order of precedence.
    pub const ALL: [Self; 5] = [Self::File, Self::Push, Self::Bundle, Self::Http, Self::Api];

    /// The name of the source in logs and in `kubernetes.io/config.source`; kubelet's, where kubelet has the source.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Push => "push",
            Self::Bundle => "bundle",
            Self::Http => "http",
            Self::Api => "api",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Its index in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_a_kind_is_its_position() {
        for (index, kind) in SourceKind::ALL.into_iter().enumerate() {
            assert_eq!((kind.index(), SourceKind::from_name(kind.as_str())), (index, Some(kind)));
        }
    }
}
