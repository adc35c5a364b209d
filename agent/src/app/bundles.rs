//! The source of bundles as the server knows it: what a client offers, and why it is refused.

use std::path::PathBuf;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use limpet_server::bundle::{BundleRefusal, BundleStream, Bundles};
use limpet_sources::bundle::{BundleIntake, Refusal, public_node_key};
use limpet_wire::bundle::{BundleDocument, NodeKeyDocument};

/// The source of bundles.
#[derive(Debug)]
pub(super) struct ServedBundles {
    pub(super) intake: BundleIntake,
    /// The file of the node's key.
    pub(super) node_key: PathBuf,
}

impl Bundles for ServedBundles {
    fn apply(
        &self,
        bytes: BundleStream,
        name: PathBuf,
        in_window: bool,
    ) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>> {
        async move { self.intake.apply(bytes, &name, in_window).await.map_err(served) }.boxed()
    }

    fn reset_serial(&self) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>> {
        self.intake.reset_serial().map(|result| result.map_err(served)).boxed()
    }

    fn node_key(&self) -> BoxFuture<'_, Result<NodeKeyDocument, BundleRefusal>> {
        async move {
            self.intake.wait_restored().await;
            let key = public_node_key(self.node_key.clone()).await;
            let key = key.map_err(|error| BundleRefusal::Unavailable(error.to_string()))?;
            Ok(NodeKeyDocument { id: key.id(), public_key: key.pem() })
        }
        .boxed()
    }
}

fn served(refusal: Refusal) -> BundleRefusal {
    let message = refusal.to_string();
    match refusal {
        refusal if refusal.is_transient() => BundleRefusal::Unavailable(message),
        Refusal::NoBundle => BundleRefusal::Missing(message),
        _ => BundleRefusal::Refused(message),
    }
}
