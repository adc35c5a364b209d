//! Requests over the link. Each is counted and timed, has a span with its verb and object, and its result updates the
//! connection's state.

use std::time::Duration;

use hyper::Method;
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::request_scheduler::{Need, RequestPermit};
use super::{Link, cause};
use limpet_apiserver_client::request::PatchType;
use limpet_apiserver_client::watch::Watch;
use limpet_apiserver_client::{Request, RequestError, Resource, Selector, Traffic, WatchFrom};
use limpet_core::stored_status::StoredStatus;

/// `Too Many Requests`, RFC 6585.
pub(crate) const BUSY: u16 = 429;

impl Link {
    /// Sends a request. If there is no connection, or the server does not accept the node's credentials, the
    /// connection ends for all.
    pub(crate) async fn send(&self, request: Request) -> Result<Value, RequestError> {
        let (verb, resource) = (request.method.to_string(), request.resource.kind());
        let span = tracing::debug_span!("request", verb, path = request.resource.path());
        let sent = async {
            let asked = Instant::now();
            let need = Need::for_resource(&request.resource, request.method == Method::GET);
            let permit = self.0.scheduler.acquire(need).await;
            let (mut traffic, begun, connection) = (Traffic::default(), Instant::now(), self.0.scheduler.connection());
            let result = match self.client().await {
                Ok(client) => client.send_counted(request, &mut traffic).await,
                Err(error) => Err(error),
            };
            let (waited, took) = (begun - asked, begun.elapsed());
            let Traffic { code, sent, received } = traffic;
            self.metrics().answered(&verb, resource, took, sent, received);
            let (waited_ms, took_ms) = (waited.as_millis(), took.as_millis());
            tracing::debug!(code, waited_ms, took_ms, sent, received, "answered");
            self.count_answer(need, permit.as_ref(), &result);
            self.judge(connection, (&verb, resource), code, result)
        };
        // Boxed, because tasks that wait for days would otherwise reserve room for this future.
        Box::pin(sent.instrument(span)).await
    }

    /// Reports the status of a Pod with a strategic merge patch. Returns the stored status.
    pub(crate) async fn report_status(
        &self,
        namespace: String,
        name: String,
        patch: Value,
    ) -> Result<StoredStatus, RequestError> {
        let sent = StoredStatus::of_patch(&patch);
        let status = Resource::PodStatus(namespace, name);
        let answer = self.send(Request::patch(status, PatchType::Strategic, patch).metadata_only()).await?;
        Ok(sent.taken(&answer))
    }

    /// Begins a watch.
    pub(crate) async fn watch(
        &self,
        resource: Resource,
        selector: &Selector,
        from: WatchFrom<'_>,
        limit: Duration,
    ) -> Result<Watch, RequestError> {
        let kind = resource.kind();
        let span = tracing::debug_span!("request", verb = "WATCH", path = resource.path(), selector = selector.fields);
        let begun = async {
            let need = Need::for_resource(&resource, true);
            let permit = self.0.scheduler.acquire(need).await;
            let connection = self.0.scheduler.connection();
            let result = match self.client().await {
                Ok(client) => client.watch(resource, selector, from, limit).await,
                Err(error) => Err(error),
            };
            let code = code(&result);
            self.count_answer(need, permit.as_ref(), &result);
            tracing::debug!(code, ?from, "answered");
            // client-go counts a watch by its HTTP method.
            self.judge(connection, ("GET", kind), code, result)
        };
        Box::pin(begun.instrument(span)).await
    }

    /// Whether a list may be requested as the beginning of a watch.
    pub(crate) fn streams_lists(&self) -> bool {
        self.0.connection.streams_lists()
    }

    /// Records that the server refuses streaming lists. The agent tries them again after its next start.
    pub(crate) fn set_no_streaming_lists(&self) {
        self.0.connection.set_no_streaming_lists();
    }

    /// Updates the limit of concurrent requests by the result. The permit is released only once it is known whether
    /// there is still a connection.
    fn count_answer<T>(&self, need: Need, permit: Option<&RequestPermit>, result: &Result<T, RequestError>) {
        match result {
            Ok(_) => permit.into_iter().for_each(RequestPermit::answered),
            Err(error) if error.code() == Some(BUSY) => {
                self.0.scheduler.busy(need, error.retry_after(), fastrand::u64(..));
            }
            Err(_) => {}
        }
    }

    fn judge<T>(
        &self,
        connection: u64,
        (method, resource): (&str, &'static str),
        code: Option<u16>,
        result: Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        // The labels of client-go's `rest_client_requests_total`.
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.metrics().requested(method, resource, code);
        if result.is_ok() {
            self.0.view.answered();
        }
        if let Err(error) = &result
            && let Some(cause) = cause(error)
            // A failure on an earlier connection says nothing about the current one.
            && self.0.scheduler.lost(connection)
        {
            self.failed(cause, error);
        }
        result
    }
}

/// The HTTP status of a result; `None` if there was no answer.
fn code<T>(result: &Result<T, RequestError>) -> Option<u16> {
    match result {
        Ok(_) => Some(200),
        Err(error) => error.code(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::fake::{self, Asked};

    fn get_service(name: &str) -> Request {
        Request::get(Resource::Service("default".to_owned(), name.to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_fails_on_an_earlier_connection_does_not_end_the_present_one() {
        let (open, gate) = watch::channel(false);
        let link = fake::link(move |asked: Asked| {
            let mut gate = gate.clone();
            async move {
                if asked.path.ends_with("/works") {
                    return fake::whole(200, &json!({}));
                }
                if asked.path.ends_with("/late") {
                    let _ = gate.wait_for(|open| *open).await;
                }
                Err(fake::reset())
            }
        });
        link.succeeded();
        let late = async {
            assert!(link.send(get_service("late")).await.is_err());
            assert!(link.is_online());
        };
        let others = async {
            tokio::task::yield_now().await;
            assert!(link.send(get_service("fails")).await.is_err());
            assert!(!link.is_online());
            link.succeeded();
            open.send_replace(true);
        };
        tokio::join!(late, others);
        link.send(get_service("works")).await.unwrap();
        assert!(link.send(get_service("fails")).await.is_err());
        assert!(!link.is_online(), "the present one ends by its own failures");
    }

    #[tokio::test(start_paused = true)]
    async fn the_loss_of_the_leading_watch_ends_its_connection_for_requests_that_are_sent_already() {
        let (open, gate) = watch::channel(false);
        let link = fake::link(move |_: Asked| {
            let mut gate = gate.clone();
            async move {
                let _ = gate.wait_for(|open| *open).await;
                Err(fake::reset())
            }
        });
        link.succeeded();
        let late = async {
            assert!(link.send(get_service("late")).await.is_err());
            assert!(link.is_online());
        };
        let leader = async {
            tokio::task::yield_now().await;
            link.leader_failed(&RequestError::Unreachable("reset".to_owned()));
            assert!(!link.is_online());
            link.succeeded();
            open.send_replace(true);
        };
        tokio::join!(late, leader);
    }
}
