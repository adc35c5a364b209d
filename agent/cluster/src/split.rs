//! Splits the Pods bound to this node: mirrors of its own pods, and the apiserver's own pods.

use serde_json::Value;
use tokio::sync::mpsc;

use super::followed::Update;
use super::link::Link;
use limpet_apiserver_client::{Request, Resource};
use limpet_core::cluster_history::ClusterHistory;
use limpet_core::mirror::MIRROR_ANNOTATION;
use limpet_core::source::cluster_update;
use limpet_model::object::service::KUBERNETES;

/// How often the apiserver's own Service is read while it is missing or the server fails; this takes some seconds.
const MAX_SERVICE_READS: u32 = 4;

/// The receivers of each kind of Pod.
#[derive(Debug)]
pub(super) struct Receivers {
    pub(super) mirrors: mpsc::Sender<Update>,
    /// Reports on the apiserver's own pods.
    pub(super) pods: mpsc::Sender<Update>,
    /// Runs the apiserver's own pods.
    pub(super) source: mpsc::Sender<cluster_update::Update>,
}

/// Passes every update on until the sender is dropped.
pub(super) async fn split(link: Link, mut updates: mpsc::Receiver<Update>, receivers: Receivers) {
    let Receivers { mirrors, pods, source } = receivers;
    // A receiver that is gone is ignored: the agent is stopping.
    while let Some(update) = updates.recv().await {
        match update {
            Update::Listed(all, version) => {
                let (of_mirrors, scheduled): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_mirror);
                let service_uid = service_uid(&link).await;
                let mut history = ClusterHistory { version: 0, authorities: link.authorities(), service_uid };
                history.saw(&version);
                let _ = mirrors.send(Update::Listed(of_mirrors, version.clone())).await;
                // Sent before the pod runs, so that those who report its end know a pod that ends immediately.
                let _ = pods.send(Update::Listed(scheduled.clone(), version)).await;
                let _ = source.send(cluster_update::Update::Listed(scheduled, history)).await;
            }
            Update::Bookmark(version) => _ = source.send(cluster_update::Update::Reached(version)).await,
            Update::Stored(pod) if is_mirror(&pod) => _ = mirrors.send(Update::Stored(pod)).await,
            Update::Deleted(pod) if is_mirror(&pod) => _ = mirrors.send(Update::Deleted(pod)).await,
            Update::Stored(pod) => {
                let _ = pods.send(Update::Stored(pod.clone())).await;
                let _ = source.send(cluster_update::Update::Stored(pod)).await;
            }
            Update::Deleted(pod) => {
                let _ = source.send(cluster_update::Update::Deleted(pod.clone())).await;
                let _ = pods.send(Update::Deleted(pod)).await;
            }
        }
    }
}

/// The UID of the cluster's own Service; empty if the apiserver refuses the request, or lacks the Service or fails
/// [`MAX_SERVICE_READS`] times. Waits for an answer, because without the UID a list from a recreated cluster would
/// end pods.
async fn service_uid(link: &Link) -> String {
    let (mut failures, mut unavailable) = (0, 0);
    loop {
        link.online().await;
        let request = Request::get(Resource::Service("default".to_owned(), KUBERNETES.to_owned())).metadata_only();
        let error = match link.send(request).await {
            Ok(service) => return service["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            Err(error) => error,
        };
        match error.code() {
            Some(403) => return String::new(),
            // An apiserver creates the Service shortly after its start. A longer failure does not hold back the list.
            Some(404 | 500..) => unavailable += 1,
            _ => {}
        }
        if unavailable > MAX_SERVICE_READS {
            tracing::warn!(%error, "the UID of Service default/kubernetes cannot be read; a recreated cluster is not recognized by it");
            return String::new();
        }
        failures += 1;
        tracing::debug!(%error, "cannot read the UID of Service default/kubernetes yet");
        link.pause(failures, error.retry_after()).await;
    }
}

fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"][MIRROR_ANNOTATION].is_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::{self, Instant};

    use super::super::fake;
    use super::*;

    /// A link to a server that answers with this code, or resets the connection for 0; and the number of its
    /// requests.
    fn server(code: u16) -> (Link, Arc<AtomicU16>, Arc<AtomicUsize>) {
        let (code, count) = (Arc::new(AtomicU16::new(code)), Arc::new(AtomicUsize::default()));
        let (answer, counted) = (Arc::clone(&code), Arc::clone(&count));
        let link = fake::link(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            let code = answer.load(Ordering::Relaxed);
            async move {
                match code {
                    0 => Err(fake::reset()),
                    200 => fake::whole(200, &json!({ "metadata": { "uid": "s-1" } })),
                    code => fake::refusal(code),
                }
            }
        });
        link.succeeded();
        (link, code, count)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_for_the_uid_of_the_service_for_some_seconds_and_for_the_connection() {
        // Code, UID, requests.
        for (code, uid, requests) in [(200, "s-1", 1), (403, "", 1), (404, "", 5), (500, "", 5), (503, "", 5)] {
            let ((link, ..), begun) = (server(code), Instant::now());
            let actual = time::timeout(Duration::from_secs(30), service_uid(&link)).await;
            assert_eq!(actual.as_deref(), Ok(uid), "{code}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{code} {:?}", begun.elapsed());
            let (link, _, count) = server(code);
            service_uid(&link).await;
            assert_eq!(count.load(Ordering::Relaxed), requests, "{code}");
        }

        let (link, code, count) = server(0);
        let reading = service_uid(&link);
        tokio::pin!(reading);
        assert!(time::timeout(Duration::from_secs(3600), &mut reading).await.is_err());
        assert_eq!(count.load(Ordering::Relaxed), 1, "what leads looks for the connection");
        code.store(200, Ordering::Relaxed);
        link.succeeded();
        assert_eq!(time::timeout(Duration::from_secs(20), reading).await.unwrap(), "s-1");
    }
}
