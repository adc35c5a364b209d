//! kubelet's `/containerLogs`: a container's log, optionally followed.
//!
//! A snapshot of the observed pods determines which file is read; `limpet_containerd::log` reads it.

use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ContainerStatus;
use tokio::sync::watch;

use super::permission::{Permission, Subresource};
use super::routes::Routes;
use limpet_containerd::log::{LogStream, ReadOptions, exists, previous_attempt, read};
use limpet_core::status::observed::{Observed, ObservedPod};
use limpet_host::blocking;
use limpet_model::pod::PodKey;

/// The container whose log is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTarget {
    pub pod: PodKey,
    pub container: String,
    /// Whether the previous instance's log is requested.
    pub previous: bool,
}

#[derive(Debug, Clone)]
pub struct ResolvedLog {
    pub path: PathBuf,
    /// Becomes true, or loses its sender, when the container has exited.
    pub finished: watch::Receiver<bool>,
}

/// Why there is no log, with kubelet's messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogLookupError {
    #[error("pod \"{0}\" does not exist")]
    NoPod(String),
    #[error("container \"{container}\" not found in pod \"{pod}\"")]
    NoContainer { pod: String, container: String },
    /// The container has not started yet.
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start: {reason}")]
    Waiting {
        pod: String,
        container: String,
        /// What the container is waiting for.
        reason: String,
    },
    /// The container has run only once, or its previous instance was removed.
    #[error("previous terminated container \"{container}\" in pod \"{pod}\" not found")]
    NoPrevious { pod: String, container: String },
}

impl IntoResponse for LogLookupError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoPod(_) | Self::NoContainer { .. } => StatusCode::NOT_FOUND,
            Self::Waiting { .. } | Self::NoPrevious { .. } => StatusCode::BAD_REQUEST,
        };
        (status, format!("{self}\n")).into_response()
    }
}

pub type ResolveLog = dyn Fn(&LogTarget) -> Result<ResolvedLog, LogLookupError> + Send + Sync;

#[derive(Clone)]
pub struct LogState {
    /// Finds the requested log; called on a blocking thread of a tokio runtime.
    pub resolve: Arc<ResolveLog>,
}

impl LogState {
    pub fn observed(observed: Observed) -> Self {
        Self { resolve: Arc::new(move |target| resolve(&observed, target)) }
    }
}

/// kubelet's `/containerLogs/{namespace}/{pod}/{container}`.
pub(super) fn routes(state: LogState) -> Routes {
    let path = "/containerLogs/{namespace}/{pod}/{container}";
    Routes::default().get(path, Permission::Nodes(Subresource::Proxy), container_logs).with_state(state)
}

async fn container_logs(
    State(state): State<LogState>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let (options, previous) = match parse(&query, Timestamp::now()) {
        Ok(parsed) => parsed,
        Err(error) => return error.into_response(),
    };
    let Ok(key) = PodKey::parse(namespace, pod.as_str()) else { return LogLookupError::NoPod(pod).into_response() };
    let target = LogTarget { pod: key, container, previous };
    let (subject, wanted) = (PathBuf::from(format!("the logs of pod {}", target.pod)), target.clone());
    let log = match blocking::run(subject, blocking::DEADLINE, move |_| (state.resolve)(&wanted)).await {
        Ok(Ok(log)) => log,
        Ok(Err(error)) => return error.into_response(),
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    };
    if !exists(&log.path).await {
        let message = format!("container \"{}\" in pod \"{}\" has no log\n", target.container, target.pod.name());
        return (StatusCode::NOT_FOUND, message).into_response();
    }
    let body = Body::from_stream(ended_apart(read(log.path, options, log.finished)));
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// Ends the stream separately from its last data. An apiserver that passes a log on over a WebSocket drops the data
/// that it reads together with the end (apimachinery's `wsstream.Reader`), which would be all of a short log.
fn ended_apart<T>(stream: impl Stream<Item = T>) -> impl Stream<Item = T> {
    // The connection flushes whenever nothing more is ready.
    let end = stream::once(tokio::task::yield_now()).filter_map(|()| ready(None));
    stream.chain(end)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum QueryError {
    /// A value cannot be parsed.
    #[error("{0}")]
    Unreadable(String),
    /// A value is not allowed; kubelet gives no details.
    #[error("{{\"message\": \"Invalid request.\"}}")]
    Invalid,
}

impl IntoResponse for QueryError {
    fn into_response(self) -> Response {
        match self {
            Self::Unreadable(_) => (StatusCode::BAD_REQUEST, format!("{self}\n")).into_response(),
            Self::Invalid => {
                let json = [(header::CONTENT_TYPE, "application/json")];
                (StatusCode::UNPROCESSABLE_ENTITY, json, self.to_string()).into_response()
            }
        }
    }
}

/// Parses kubelet's query parameters; the flag is `previous`. `tail` is an older name of `tailLines`, and may be
/// `all`. `sinceSeconds` counts back from `now`.
fn parse(query: &[(String, String)], now: Timestamp) -> Result<(ReadOptions, bool), QueryError> {
    let value = |name: &str| {
        query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    };
    let flag = |name: &str| match value(name) {
        None | Some("false" | "0") => Ok(false),
        Some("true" | "1") => Ok(true),
        Some(other) => Err(QueryError::Unreadable(format!("{name}: {other} is neither true nor false"))),
    };
    let number = |name: &str, least: u64| {
        let number = |text: &str| {
            let number: i64 =
                text.parse().map_err(|_| QueryError::Unreadable(format!("{name}: {text} is not a number")))?;
            u64::try_from(number).ok().filter(|number| *number >= least).ok_or(QueryError::Invalid)
        };
        value(name).map(number).transpose()
    };
    let tail_lines = match value("tail") {
        Some("all") => None,
        Some(_) => number("tail", 0)?,
        None => number("tailLines", 0)?,
    };
    let since_time = value("sinceTime")
        .map(|text| text.parse::<Timestamp>())
        .transpose()
        .map_err(|_| QueryError::Unreadable("sinceTime is not an RFC 3339 time".to_owned()))?;
    // A time before the earliest timestamp selects everything.
    let before = |seconds| {
        let ago = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
        now.checked_sub(ago).unwrap_or(Timestamp::MIN)
    };
    let since_seconds = number("sinceSeconds", 1)?.map(before);
    if since_time.is_some() && since_seconds.is_some() {
        return Err(QueryError::Invalid);
    }
    let stream = match value("stream") {
        None | Some("All") => None,
        Some("Stdout") => Some(LogStream::Stdout),
        Some("Stderr") => Some(LogStream::Stderr),
        Some(_) => return Err(QueryError::Invalid),
    };
    let options = ReadOptions {
        follow: flag("follow")?,
        tail_lines,
        since: since_time.or(since_seconds),
        timestamps: flag("timestamps")?,
        limit_bytes: number("limitBytes", 1)?,
        stream,
    };
    Ok((options, flag("previous")?))
}

fn resolve(observed: &Observed, target: &LogTarget) -> Result<ResolvedLog, LogLookupError> {
    let pods = observed.load();
    let observed_pod = pods.pods.get(&target.pod).ok_or_else(|| LogLookupError::NoPod(target.pod.name().to_owned()))?;
    let (pod, container) = (target.pod.name().to_owned(), target.container.clone());
    if !has_container(observed_pod, &container) {
        return Err(LogLookupError::NoContainer { pod, container });
    }
    let Some(running) = observed_pod.containers.get(&container) else {
        return Err(match target.previous {
            true => LogLookupError::NoPrevious { pod, container },
            false => LogLookupError::Waiting { reason: waiting_reason(observed_pod, &container), pod, container },
        });
    };
    let attempt = match target.previous {
        true => previous_attempt(&running.log_path, running.restart_count)
            .ok_or(LogLookupError::NoPrevious { pod, container })?,
        false => running.restart_count,
    };
    let path = running.log_path.join(format!("{attempt}.log"));
    let finished = match target.previous {
        // A receiver without a sender means that the container has exited.
        true => watch::channel(true).1,
        false => finished(observed.clone(), target.clone(), running.id.clone()),
    };
    Ok(ResolvedLog { path, finished })
}

fn has_container(pod: &ObservedPod, name: &str) -> bool {
    pod.record.container(name).is_some()
}

/// Why a container has not started, in kubelet's words for a requested log.
fn waiting_reason(pod: &ObservedPod, container: &str) -> String {
    let status = &pod.status;
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let statuses = statuses.chain(&status.ephemeral_container_statuses).flatten();
    let waiting = |status: &ContainerStatus| status.state.as_ref()?.waiting.as_ref()?.reason.clone();
    let reason = statuses.filter(|status| status.name == container).find_map(waiting);
    match reason.as_deref() {
        Some("ErrImagePull") => "image can't be pulled".to_owned(),
        Some("ImagePullBackOff") => "trying and failing to pull image".to_owned(),
        Some(reason) => reason.to_owned(),
        None => "no logs yet".to_owned(),
    }
}

/// Waits for the container's exit while its log is read.
pub(super) fn finished(observed: Observed, target: LogTarget, id: String) -> watch::Receiver<bool> {
    let runs = move |observed: &Observed| {
        let pods = observed.load();
        let container = pods.pods.get(&target.pod).and_then(|pod| pod.containers.get(&target.container));
        container.is_some_and(|container| container.id == id && container.pid.is_some())
    };
    let (end, ended) = watch::channel(false);
    let mut changes = observed.changes();
    tokio::spawn(async move {
        let ends = async { while runs(&observed) && changes.next().await {} };
        tokio::select! {
            () = ends => drop(end.send(true)),
            () = end.closed() => {}
        }
    });
    ended
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
