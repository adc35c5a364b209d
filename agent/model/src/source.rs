//! The kinds of source that pods come from.

use std::fmt;

/// The kinds of source, in order of precedence when two claim one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A directory of manifests, or one file.
    File,
    /// Pods pushed through the local socket.
    Push,
    /// A URL.
    Http,
    /// The apiserver.
    Api,
}

impl SourceKind {
    /// All kinds, in order of precedence.
    pub const ALL: [Self; 4] = [Self::File, Self::Push, Self::Http, Self::Api];

    /// The name kubelet gives the source in logs and in `kubernetes.io/config.source`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Push => "push",
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
