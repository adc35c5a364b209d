//! An apiserver with scripted answers.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::http::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::link::{ClientSource, Link, LinkParts};
use limpet_apiserver_client::Body;
use limpet_apiserver_client::Client;
use limpet_core::node_state::NodeNetwork;
use limpet_telemetry::event::Events;
use limpet_telemetry::metrics::Metrics;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(super) type Answer = Result<Response<StreamBody<BoxStream<'static, Result<Frame<Bytes>, BoxError>>>>, BoxError>;

/// A request that was received.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    /// The body; null without one.
    pub(super) body: Value,
}

impl Asked {
    pub(super) fn is_watch(&self) -> bool {
        self.query.contains("watch=")
    }
}

/// A link to a server that calls `answer` for each request.
pub(super) fn link<F>(answer: impl Fn(Asked) -> F + Clone + Send + Sync + 'static) -> Link
where
    F: Future<Output = Answer> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect().await?.to_bytes()).unwrap_or_default();
            let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
            answer(Asked { method: head.method, path, query, body }).await
        }
    });
    let (_, node_network) = watch::channel(NodeNetwork::default());
    let parts = LinkParts { node_network, metrics: Metrics::new("node"), events: Events::default() };
    Link::new(ClientSource::Fixed(Client::over(service)), "", parts)
}

pub(super) fn whole(code: u16, answer: &Value) -> Answer {
    let frame = Frame::data(Bytes::from(answer.to_string()));
    frames(code, stream::once(async { Ok(frame) }).boxed())
}

pub(super) fn refusal(code: u16) -> Answer {
    whole(code, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no" }))
}

/// An answer whose lines arrive one after another.
pub(super) fn lines(lines: impl futures_util::Stream<Item = Result<Value, BoxError>> + Send + 'static) -> Answer {
    frames(200, lines.map(|line| Ok(Frame::data(Bytes::from(format!("{}\n", line?))))).boxed())
}

/// An answer that fails: the connection is reset.
pub(super) fn reset() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

fn frames(code: u16, frames: BoxStream<'static, Result<Frame<Bytes>, BoxError>>) -> Answer {
    let mut response = Response::new(StreamBody::new(frames));
    *response.status_mut() = code.try_into()?;
    Ok(response)
}
