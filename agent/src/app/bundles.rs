//! The source of bundles as the server knows it: what a client offers, and why it is refused.

use std::path::PathBuf;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use limpet_server::bundle::{BundleRefusal, BundleStream, Bundles};
use limpet_sources::bundle::{BundleIntake, Refusal};
use limpet_wire::bundle::BundleDocument;

/// The source of bundles.
#[derive(Debug)]
pub(super) struct ServedBundles(pub(super) BundleIntake);

impl Bundles for ServedBundles {
    fn apply(
        &self,
        bytes: BundleStream,
        name: PathBuf,
        in_window: bool,
    ) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>> {
        async move { self.0.apply(bytes, &name, in_window).await.map_err(served) }.boxed()
    }

    fn reset_serial(&self) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>> {
        self.0.reset_serial().map(|result| result.map_err(served)).boxed()
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
