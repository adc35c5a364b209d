//! A simulated apiserver, and the link to it: what a node needs of one, on virtual time.
//!
//! It keeps objects with resource versions, answers lists, watches, patches and deletions as Kubernetes does, and has
//! what befalls a server on the other end of a bad line: answers that are late or lost, refusals, watches that end or
//! are dead, a restart, a compaction, a restored backup.

mod objects;
mod watching;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::http::{Method, Request, Response};
use limpet_apiserver_client::Body;
use limpet_apiserver_client::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub(crate) use self::objects::Backup;
use self::objects::{Objects, failure, prefix, selected_name};
use self::watching::Watching;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<StreamBody<BoxStream<'static, Result<Frame<Bytes>, BoxError>>>>;

/// Where Pods of the tests are.
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
/// A ConfigMap that some of them refer to.
pub(crate) const SETTINGS: &str = "settings";
/// The node's lease.
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node";
/// How the line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Open,
    /// Connections are refused at once.
    Refused,
    /// What the node sends vanishes.
    Deaf,
    /// What the server sends vanishes.
    Mute,
    /// Both vanish.
    Cut,
}

impl Line {
    fn carries(self, to_server: bool) -> bool {
        match self {
            Self::Open => true,
            Self::Refused => false,
            Self::Deaf => !to_server,
            Self::Mute => to_server,
            Self::Cut => false,
        }
    }
}

#[derive(Debug)]
struct State {
    rng: fastrand::Rng,
    objects: Objects,
    /// How often it was started: connections from before are gone.
    boots: u64,
    /// Of a thousand requests or steps of a watch, so many fare badly.
    fault_rate: u32,
    /// How long an answer takes at the most.
    slowness: Duration,
    /// The node's credentials are not valid any more, or not yet.
    expired: bool,
    /// How often the lease was renewed.
    renewals: u64,
    /// Its etcd cannot say how far a watch has come, as Debian 12's.
    lacks_streaming_lists: bool,
    /// The requests that arrived.
    trace: Option<Vec<String>>,
    begun: Instant,
}

/// The server. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
    /// Wakes watches.
    changed: watch::Sender<u64>,
    line: watch::Sender<Line>,
}

impl Server {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let state = State {
            expired: false,
            renewals: 0,
            lacks_streaming_lists: rng.bool(),
            rng,
            objects: Objects::new(),
            boots: 0,
            fault_rate: 0,
            slowness: Duration::ZERO,
            trace: trace.then(Vec::new),
            begun: Instant::now(),
        };
        let (state, changed, line) =
            (Arc::new(Mutex::new(state)), watch::Sender::new(0), watch::Sender::new(Line::Open));
        let server = Self { state, changed, line };
        let settings = json!({ "metadata": { "name": SETTINGS, "namespace": "default" }, "data": { "KEY": "value" } });
        server.store(&format!("/api/v1/namespaces/default/configmaps/{SETTINGS}"), settings);
        // Every apiserver has it.
        server.store(
            "/api/v1/namespaces/default/services/kubernetes",
            json!({ "metadata": { "name": "kubernetes", "uid": "s-1" } }),
        );
        server
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A client of a life of the agent's.
    pub(crate) fn client(&self) -> Client {
        Client::over(Service(self.clone()))
    }

    pub(crate) fn set_line(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// From now on so many of a thousand requests fare badly, and answers take up to that long.
    pub(crate) fn set_faults(&self, rate: u32, slowness: Duration) {
        let mut state = self.lock();
        (state.fault_rate, state.slowness) = (rate, slowness);
    }

    /// From now on no request counts as the node's, or each does again. Watches that are open continue, as at a real one.
    pub(crate) fn set_expired(&self, expired: bool) {
        self.lock().expired = expired;
    }

    /// Every connection is gone.
    pub(crate) fn restart(&self) {
        self.lock().boots += 1;
        self.wake();
    }

    /// Older changes are forgotten: no watch begins there any more. Those that are open have theirs.
    pub(crate) fn compact(&self) {
        self.lock().objects.compact();
    }

    pub(crate) fn back_up(&self) -> Backup {
        self.lock().objects.back_up()
    }

    /// How often the node's lease was renewed.
    pub(crate) fn renewals(&self) -> u64 {
        self.lock().renewals
    }

    /// Everything is as it was then.
    pub(crate) fn restore(&self, backup: Backup) {
        let mut state = self.lock();
        state.objects.restore(backup);
        state.boots += 1;
        drop(state);
        self.wake();
    }

    /// What there is at the path.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path)
    }

    /// The Pods, by their names.
    pub(crate) fn pods(&self) -> BTreeMap<String, Value> {
        self.lock().objects.below(&format!("{PODS}/"))
    }

    /// Stores an object, as another client does.
    pub(crate) fn store(&self, path: &str, object: Value) {
        self.lock().objects.put(path, object);
        self.wake();
    }

    /// Removes an object, as another client does.
    pub(crate) fn remove(&self, path: &str) {
        self.lock().objects.remove(path);
        self.wake();
    }

    pub(crate) fn take_trace(&self) -> Vec<String> {
        self.lock().trace.take().unwrap_or_default()
    }

    pub(crate) fn note(&self, step: impl FnOnce() -> String) {
        self.lock().note(step);
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Resolves once something can go that way: a kernel repeats what was lost.
    async fn carried(&self, to_server: bool) {
        // The sender lives as long as this handle.
        let _ = self.line.subscribe().wait_for(|line| line.carries(to_server)).await;
    }

    async fn answer(self, request: Request<Body>) -> Result<Answer, BoxError> {
        if *self.line.borrow() == Line::Refused {
            return Err(refused());
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (boots, slow) = self.dice();
        sleep(slow).await;
        self.carried(true).await;
        if self.lock().expired {
            self.carried(false).await;
            return Ok(whole(401, failure(401, "Unauthorized", "Unauthorized")));
        }
        let fate = self.lock().fate();
        match fate {
            Fate::Reset => return Err(reset()),
            Fate::Refused(code) => {
                self.carried(false).await;
                return Ok(whole(code, failure(code, "ServerError", "the simulated server cannot")));
            }
            Fate::Served | Fate::Lost | Fate::Swallowed => {}
        }
        let (path, query) = (parts.uri.path().to_owned(), query(parts.uri.query().unwrap_or_default()));
        let watches = query.get("watch").is_some_and(|value| value == "true");
        let (code, answer) = match watches {
            true => (200, Value::Null),
            false => self.serve(&parts.method, &path, &query, body),
        };
        self.wake();
        match fate {
            Fate::Lost => return Err(reset()),
            Fate::Swallowed => std::future::pending().await,
            _ => {}
        }
        let (_, slow) = self.dice();
        sleep(slow).await;
        self.carried(false).await;
        if self.lock().boots != boots {
            return Err(reset());
        }
        if watches { Ok(self.watch(&path, &query)) } else { Ok(whole(code, answer)) }
    }

    fn serve(&self, method: &Method, path: &str, query: &BTreeMap<String, String>, body: Value) -> (u16, Value) {
        let mut state = self.lock();
        let answer = state.objects.serve(method, path, query, body);
        state.renewals += u64::from(*method == Method::PATCH && path == LEASE && answer.0 == 200);
        // Events are named after the time of day.
        let shown = path.split_inclusive("/events").next().unwrap_or_default();
        state.note(|| format!("{method} {shown}: {}", answer.0));
        answer
    }

    fn dice(&self) -> (u64, Duration) {
        let mut state = self.lock();
        let most = state.slowness.as_millis() as u64;
        let millis = if most == 0 { 0 } else { state.rng.u64(0..most) };
        (state.boots, Duration::from_millis(millis))
    }

    fn watch(&self, path: &str, query: &BTreeMap<String, String>) -> Answer {
        let from = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
        let mut state = self.lock();
        let streams = query.get("sendInitialEvents").is_some_and(|value| value == "true");
        if !streams && state.objects.is_forgotten(from) {
            return whole(410, failure(410, "Expired", "too old resource version"));
        }
        let (initial, from) = match streams {
            true if state.lacks_streaming_lists => {
                let refusal =
                    failure(500, "InternalError", "the required storage feature RequestWatchProgress is disabled");
                (VecDeque::from([json!({ "type": "ERROR", "object": refusal })]), from)
            }
            true if from > state.objects.version() => {
                let refusal = failure(504, "Timeout", "Too large resource version");
                (VecDeque::from([json!({ "type": "ERROR", "object": refusal })]), from)
            }
            true => (state.objects.all_as_changes(path, query), state.objects.version()),
            false => (VecDeque::new(), from),
        };
        state.note(|| format!("WATCH {path} from {}", if streams { "all".to_owned() } else { from.to_string() }));
        let watching = Watching {
            server: self.clone(),
            prefix: prefix(path),
            name: selected_name(query),
            initial,
            at: from,
            boots: state.boots,
            ends: Instant::now() + Duration::from_secs(seconds),
            has_bookmarks: query.get("allowWatchBookmarks").is_some_and(|value| value == "true"),
            over: false,
        };
        drop(state);
        let frames = stream::unfold(watching, |mut watching| async move {
            let next = watching.next().await?;
            Some((next.map(|line| Frame::data(Bytes::from(format!("{line}\n")))), watching))
        });
        response(200, frames.boxed())
    }
}

/// What becomes of a request.
enum Fate {
    Served,
    /// It does not arrive, and the node learns that its connection is gone.
    Reset,
    /// It is done, and the node learns that its connection is gone.
    Lost,
    /// It is done, and the answer never comes.
    Swallowed,
    Refused(u16),
}

impl State {
    fn note(&mut self, step: impl FnOnce() -> String) {
        let seconds = self.begun.elapsed().as_secs_f64();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{seconds:9.3} {}", step()));
        }
    }

    fn fate(&mut self) -> Fate {
        if self.rng.u32(0..1_000) >= self.fault_rate {
            return Fate::Served;
        }
        match self.rng.u32(0..6) {
            0 => Fate::Reset,
            1 | 2 => Fate::Lost,
            3 => Fate::Swallowed,
            4 => Fate::Refused(429),
            _ => Fate::Refused(500),
        }
    }
}

fn query(text: &str) -> BTreeMap<String, String> {
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

fn reset() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

fn refused() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()
}

fn whole(code: u16, answer: Value) -> Answer {
    let frame = Frame::data(Bytes::from(answer.to_string()));
    response(code, stream::once(async { Ok(frame) }).boxed())
}

fn response(code: u16, frames: BoxStream<'static, Result<Frame<Bytes>, BoxError>>) -> Answer {
    let mut response = Response::new(StreamBody::new(frames));
    *response.status_mut() = code.try_into().unwrap();
    response
}

/// What takes requests.
#[derive(Clone)]
struct Service(Server);

impl tower::Service<Request<Body>> for Service {
    type Response = Answer;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.clone().answer(request))
    }
}
