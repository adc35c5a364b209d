//! Splits the Pods bound to this node: mirrors of its own pods, and those that the apiserver itself has for it.

use serde_json::Value;
use tokio::sync::mpsc;

use super::follow::Update;
use super::link::Link;
use crate::source::api;
use limpet_apiserver::{Request, Resource};
use limpet_core::cluster_history::ClusterHistory;
use limpet_core::mirror::MIRROR_ANNOTATION;
use limpet_model::object::service::KUBERNETES;

/// How many times the apiserver's own Service is read while there is none: for some seconds.
const MAX_SERVICE_READS: u32 = 4;

/// Who receives which Pods.
#[derive(Debug)]
pub(super) struct Receivers {
    /// Of the mirrors.
    pub(super) mirrors: mpsc::Sender<Update>,
    /// Of the others, to report on them.
    pub(super) pods: mpsc::Sender<Update>,
    /// Of the others, to run them.
    pub(super) source: mpsc::Sender<api::Update>,
}

/// Passes every update on; ends when the sender is dropped.
pub(super) async fn split(link: Link, mut updates: mpsc::Receiver<Update>, receivers: Receivers) {
    let Receivers { mirrors, pods, source } = receivers;
    // A client that has gone is not waited for: the agent stops.
    while let Some(update) = updates.recv().await {
        match update {
            Update::Listed(all, version) => {
                let (of_mirrors, own): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_mirror);
                let service_uid = service_uid(&link).await;
                let mut history = ClusterHistory { version: 0, authorities: link.authorities(), service_uid };
                history.saw(&version);
                let _ = mirrors.send(Update::Listed(of_mirrors, version.clone())).await;
                // Before it runs: a pod that ends at once is known then to those who report its end.
                let _ = pods.send(Update::Listed(own.clone(), version)).await;
                let _ = source.send(api::Update::Listed(own, history)).await;
            }
            Update::Bookmark(version) => _ = source.send(api::Update::Reached(version)).await,
            Update::Stored(pod) if is_mirror(&pod) => _ = mirrors.send(Update::Stored(pod)).await,
            Update::Deleted(pod) if is_mirror(&pod) => _ = mirrors.send(Update::Deleted(pod)).await,
            Update::Stored(pod) => {
                let _ = pods.send(Update::Stored(pod.clone())).await;
                let _ = source.send(api::Update::Stored(pod)).await;
            }
            Update::Deleted(pod) => {
                let _ = source.send(api::Update::Deleted(pod.clone())).await;
                let _ = pods.send(Update::Deleted(pod)).await;
            }
        }
    }
}

/// The UID of the cluster's own Service; empty where the apiserver refuses it, or has none [`MAX_SERVICE_READS`] times.
/// Waits for an answer: without it a list of a recreated cluster would end pods.
async fn service_uid(link: &Link) -> String {
    let mut failures = 0;
    loop {
        let request = Request::get(Resource::Service("default".to_owned(), KUBERNETES.to_owned())).metadata_only();
        match link.send(request).await {
            Ok(service) => return service["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            Err(error) if error.code() == Some(403) => return String::new(),
            // An apiserver makes the Service shortly after its start.
            Err(error) if error.is_not_found() && failures >= MAX_SERVICE_READS => return String::new(),
            Err(error) => {
                failures += 1;
                tracing::debug!(%error, "cannot read the UID of Service default/kubernetes yet");
                link.pause(failures, error.retry_after()).await;
            }
        }
    }
}

fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"][MIRROR_ANNOTATION].is_string()
}
