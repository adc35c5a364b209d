//! Why a bundle does not take effect. Nothing has changed then.

use std::path::PathBuf;

use limpet_bundle::BundleError;
use limpet_bundle::node_key::NodeKeyError;
use limpet_containerd::image::ImageError;
use limpet_model::pod::Fault;

/// The most layers and faults that a message names.
const MAX_NAMED: usize = 10;

/// Why a bundle does not take effect.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is not to be used.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The file cannot be copied to where no other program changes it.
    #[error("cannot copy {path}: {source}")]
    Copy { path: PathBuf, source: std::io::Error },
    /// It is not newer than what the node has.
    #[error("{} is not newer: {message}", path.display())]
    Replayed { path: PathBuf, message: String },
    /// It is for other nodes first.
    #[error("{0}")]
    Outside(String),
    /// It waits for a window or an application.
    #[error("{bundle} is held: {why}")]
    Held { bundle: String, why: String },
    /// A manifest cannot run on this node.
    #[error("{}", first(.0))]
    Manifests(Vec<Fault>),
    /// It is made for nodes that have another bundle.
    #[error(
        "bundle {bundle} leaves out layers that this node lacks: {}; apply the bundle that it was made from, or one made \
             without --from",
        first(missing)
    )]
    Incomplete { bundle: String, missing: Vec<String> },
    /// Its images cannot be imported.
    #[error(transparent)]
    Images(#[from] ImageError),
    /// It cannot be written to the database.
    #[error("cannot save the bundle: {0}")]
    Unsaved(String),
    /// Too many are received, or wait, at once.
    #[error("{0} other bundles are being received, or wait for their window: try again")]
    Busy(usize),
    /// There is no serial to reset.
    #[error("this node has no bundle")]
    NoBundle,
    /// The agent is about to end.
    #[error("limpet is stopping")]
    Stopping,
    /// A task of the agent failed.
    #[error("the bundle cannot be read: {0}")]
    Internal(String),
}

fn first(all: &[impl ToString]) -> String {
    let mut named: Vec<String> = all.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    if all.len() > MAX_NAMED {
        named.push(format!("and {} more", all.len() - MAX_NAMED));
    }
    named.join("; ")
}

impl Refusal {
    /// Whether the same bundle may be accepted later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Images(error) => error.is_transient(),
            Self::Unsaved(_) | Self::Stopping | Self::Internal(_) => true,
            Self::Copy { .. } | Self::Held { .. } | Self::Busy(_) => true,
            // The key may be restored.
            Self::Bundle(BundleError::NodeKey(NodeKeyError::Read { .. })) => true,
            Self::Bundle(_)
            | Self::Replayed { .. }
            | Self::Outside(_)
            | Self::Manifests(_)
            | Self::Incomplete { .. }
            | Self::NoBundle => false,
        }
    }
}
