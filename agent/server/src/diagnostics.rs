//! kubelet's routes for diagnosing the agent itself: `/statusz`, `/flagz`, `/debug/flags/v`, `/debug/pprof/`. Those
//! that limpet does not support explain why.

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;

use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::ServerState;
use super::permission::Permission::{self, Nodes};
use super::permission::Subresource::{Checkpoint, Flagz, Proxy, Statusz};
use super::routes::Routes;
use limpet_host::blocking;
use limpet_model::pod::PodKey;

/// The most characters of a verbosity.
const MAX_VERBOSITY: usize = 16;
/// The first line of both pages, as in kubelet.
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
/// The paths that `/statusz` lists: kubelet's, by their first parts.
const PATHS: &str = "/configz /debug /flagz /healthz /metrics";

/// Changes the verbosity of the log while the agent runs.
pub type SetVerbosity = dyn Fn(u8) -> Result<(), String> + Send + Sync;

/// What the pages show of the agent.
#[derive(Clone)]
pub struct DiagnosticsState {
    pub started: Timestamp,
    /// The flags that were given, with their values.
    pub flags: Arc<Value>,
    pub set_verbosity: Arc<SetVerbosity>,
}

/// `/statusz` and `/flagz`.
pub(super) fn pages(state: DiagnosticsState) -> Routes {
    Routes::default().get("/statusz", Nodes(Statusz), statusz).get("/flagz", Nodes(Flagz), flagz).with_state(state)
}

/// `/debug/flags/v`.
pub(super) fn flags(state: DiagnosticsState) -> Routes {
    let routes = Routes::default().put("/debug/flags/v", Nodes(Proxy), set_verbosity).body_limit(MAX_VERBOSITY);
    let others = async || (StatusCode::NOT_ACCEPTABLE, "unsupported http method");
    routes.get("/debug/flags/v", Nodes(Proxy), others).post("/debug/flags/v", Nodes(Proxy), others).with_state(state)
}

/// `/debug/pprof/`.
pub(super) fn profiles() -> Routes {
    let routes = Routes::default().get("/debug/pprof", Nodes(Proxy), index).get("/debug/pprof/", Nodes(Proxy), index);
    routes.get("/debug/pprof/{*name}", Nodes(Proxy), profile)
}

/// `/checkpoint/{namespace}/{pod}/{container}`.
pub(super) fn checkpoints() -> Routes<ServerState> {
    Routes::default().post("/checkpoint/{namespace}/{pod}/{container}", Nodes(Checkpoint), checkpoint)
}

async fn statusz(State(state): State<DiagnosticsState>, headers: HeaderMap) -> Response {
    let version = env!("CARGO_PKG_VERSION");
    let seconds = Timestamp::now().duration_since(state.started).as_secs();
    // Kubernetes requires this media type, with the kind as a parameter.
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepts.contains("application/json") && accepts.contains("as=Statusz") {
        let document = json!({
            "kind": "Statusz",
            "apiVersion": "config.k8s.io/v1beta1",
            "metadata": { "name": "kubelet" },
            "startTime": state.started.to_string(),
            "uptimeSeconds": seconds,
            "binaryVersion": version,
            "paths": PATHS.split(' ').collect::<Vec<_>>(),
        });
        return axum::Json(document).into_response();
    }
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let text = format!(
        "\nkubelet statusz\n{WARNING}\n\nStarted: {}\nUp: {hours} hr {minutes:02} min {:02} sec\n\
         Binary version: limpet {version}\nPaths: {PATHS}\n",
        state.started,
        seconds % 60
    );
    plain(text)
}

async fn flagz(State(state): State<DiagnosticsState>) -> Response {
    let mut text = format!("\nkubelet flagz\n{WARNING}\n\n");
    for (name, value) in state.flags.as_object().into_iter().flatten() {
        let value = match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{name}={value}");
    }
    plain(text)
}

fn plain(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

async fn set_verbosity(State(state): State<DiagnosticsState>, body: String) -> (StatusCode, String) {
    let text = body.trim();
    let set = text.parse::<u8>().ok().filter(|level| *level <= 10).ok_or_else(|| "it is 0 to 10".to_owned());
    match set.and_then(|level| (state.set_verbosity)(level)) {
        Ok(()) => {
            tracing::info!(verbosity = text, "log verbosity changed");
            (StatusCode::OK, format!("successfully set klog.logging.verbosity to {text}"))
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("failed set klog.logging.verbosity {text}: {error}")),
    }
}

/// kubelet's profiles, and limpet's substitutes.
const PROFILES: [(&str, Option<&str>); 10] = [
    ("cmdline", None),
    ("threadcreate", None),
    ("allocs", Some("memory is not sampled; /metrics has the process's memory")),
    ("block", Some("there is no Go scheduler to sample")),
    ("goroutine", Some("there are no goroutines; /debug/pprof/threadcreate shows the threads")),
    ("heap", Some("memory is not sampled; /metrics has the process's memory")),
    ("mutex", Some("there is no Go scheduler to sample")),
    ("profile", Some("the agent does not sample itself; perf record -p PID does")),
    ("symbol", Some("addresses are resolved by perf and gdb, from the executable")),
    ("trace", Some("there is no Go scheduler to trace; /debug/flags/v makes the log say more")),
];

async fn index() -> Response {
    let mut text = "/debug/pprof/\n\n".to_owned();
    for (name, missing) in PROFILES {
        // Writing to a `String` cannot fail.
        let _ = match missing {
            None => writeln!(text, "{name}"),
            Some(why) => writeln!(text, "{name}: not there: {why}"),
        };
    }
    plain(text)
}

async fn profile(UrlPath(name): UrlPath<String>) -> Response {
    let read = match PROFILES.iter().find(|(known, _)| *known == name) {
        Some(("cmdline", _)) => command_line,
        Some((_, None)) => threads,
        Some((_, Some(why))) => return (StatusCode::NOT_IMPLEMENTED, format!("{name}: {why}\n")).into_response(),
        None => return (StatusCode::NOT_FOUND, "Unknown profile\n").into_response(),
    };
    match blocking::run("/proc/self".into(), blocking::DEADLINE, move |_| read()).await {
        Ok(Ok(text)) => plain(text),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// The agent's command line with its words separated by NUL. Only the headers of a URL may hold a secret; they are
/// left out.
fn command_line() -> std::io::Result<String> {
    let mut words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    for index in 0..words.len() {
        if words[index].starts_with(HEADERS_FLAG) && words[index] != HEADERS_FLAG {
            words[index] = format!("{HEADERS_FLAG}=***");
        } else if index > 0 && words[index - 1] == HEADERS_FLAG {
            words[index] = "***".to_owned();
        }
    }
    Ok(words.join("\0"))
}

/// The flag whose values may be credentials.
const HEADERS_FLAG: &str = "--manifest-url-header";

/// The agent's threads: id, name, state, and what each waits for in the kernel.
fn threads() -> std::io::Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let directory = entry?.path();
        // A thread may have ended meanwhile.
        let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
        let id = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stat = read("stat");
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("-");
        let wchan = read("wchan");
        let wchan = Some(wchan.trim()).filter(|wchan| !wchan.is_empty() && *wchan != "0").unwrap_or("-");
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{id} {} {state} {wchan}", read("comm").trim());
    }
    Ok(text)
}

/// Responds as a kubelet whose runtime cannot create checkpoints: containerd's native API checkpoints tasks, but
/// limpet's containers could not be restored from such a checkpoint.
async fn checkpoint(
    State(state): State<ServerState>,
    UrlPath((namespace, pod, container)): UrlPath<(String, String, String)>,
) -> (StatusCode, String) {
    let key = PodKey::parse(&*namespace, &*pod).ok();
    let observed = state.observed.load();
    let Some(observed_pod) = key.and_then(|key| observed.pods.get(&key)) else {
        return (StatusCode::NOT_FOUND, "pod does not exist\n".to_owned());
    };
    let spec = observed_pod.record.spec();
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if !containers.any(|known| known.name == container) {
        return (StatusCode::NOT_FOUND, format!("container {container} does not exist\n"));
    }
    let why = "limpet does not checkpoint containers: nothing on the node could restore one";
    let message = format!("checkpointing of {namespace}/{pod}/{container} failed ({why})\n");
    (StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// Responds for routes that are disabled: everything below `path`, which ends with a slash.
pub(super) fn disabled(routes: Routes, path: &str, permission: Permission, why: &'static str) -> Routes {
    let answer = async move || (StatusCode::METHOD_NOT_ALLOWED, format!("{why}\n"));
    let routes = routes.any(path.trim_end_matches('/'), permission, answer).any(path, permission, answer);
    routes.any(&format!("{path}{{*rest}}"), permission, answer)
}

/// The response of `/debug/flags/v` where it is disabled.
pub(super) async fn flags_disabled() -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, "flags endpoint is disabled.\n")
}
