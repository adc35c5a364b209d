//! Why a bundle is not made, or not taken. Nothing was changed then.

use std::io;
use std::path::{Path, PathBuf};

use limpet_model::pod::Fault;
use limpet_signature::SignatureError;

use crate::node_key::NodeKeyError;

/// Why a bundle is not made, or not taken.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file cannot be read or written.
    #[error("cannot {verb} {path}: {source}")]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    /// It is none, or only its beginning.
    #[error("{path} is not a bundle of limpet: {cause}")]
    NotABundle {
        path: PathBuf,
        /// What of a bundle is missing, in words that follow a colon.
        cause: String,
    },
    /// It is larger than the node takes.
    #[error("{path} has {size} bytes, and at most {limit} are taken: raise bundle.maxSize in the LimpetConfiguration")]
    TooLarge {
        path: PathBuf,
        size: u64,
        /// `bundle.maxSize`, in bytes.
        limit: u64,
    },
    /// It is not signed, or by another key.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The key of a node cannot be used.
    #[error(transparent)]
    NodeKey(#[from] NodeKeyError),
    /// Its Secrets are sealed to other nodes.
    #[error(
        "the Secrets of {path} are sealed to other nodes, and not to the key {key} of this one: create the bundle again with \
         --seal-to and what limpet bundle node-key prints on this node"
    )]
    SealedToOthers {
        path: PathBuf,
        /// What names the node's key.
        key: String,
    },
    /// Manifests that no node would take.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: "))]
    Manifests(Vec<Fault>),
    /// It is signed, and its content is not what a bundle has.
    #[error("{path}: {cause}")]
    Content { path: PathBuf, cause: String },
}

impl BundleError {
    pub(crate) fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { verb, path, source }
    }

    pub(crate) fn content(path: &Path, cause: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), cause: cause.into() }
    }
}
