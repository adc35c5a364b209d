//! The tasks that fetch what the screen shows from the agent. Each follows a stream, except usage, which has no
//! stream and is requested periodically while it is shown.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt as _;
use limpet_host::inotify::Queue;
use rustix::fs::inotify::WatchFlags;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::feed::{DetailOf, EventsOf, Feed, Figures, LogOf, Subscriptions};
use super::log::LOG_LINES;
use super::text::log_line;
use crate::error::CliError;
use crate::top;
use limpet_wire::pods::PodChange;
use limpet_wire::socket_client::{ClientError, JsonLines, SocketClient};

/// The most queued updates; beyond it tasks wait.
const UPDATE_QUEUE_LEN: usize = 64;
/// The pause between two readings of one description.
const DESCRIPTION_INTERVAL: Duration = Duration::from_millis(500);
/// The pause after an unreadable response, or where inotify cannot report that the agent is back.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The longest log line; a longer one is cut off.
const LONGEST_LINE: usize = 8 << 10;

/// The task that follows one stream; dropping it ends the task.
#[derive(Debug)]
struct Follower<T> {
    subject: T,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
pub(super) struct Feeds {
    client: SocketClient,
    news: mpsc::Sender<Feed>,
    _pods: AbortOnDropHandle<()>,
    events: Option<Follower<EventsOf>>,
    detail: Option<(Follower<DetailOf>, watch::Sender<u64>)>,
    log: Option<Follower<LogOf>>,
    usage: Option<Follower<u64>>,
}

impl Feeds {
    /// Follows the pods, first by the stream `pods`; returns the receiver of all updates.
    pub(super) fn start(client: &SocketClient, pods: JsonLines<PodChange>) -> (Self, mpsc::Receiver<Feed>) {
        let (news, receiver) = mpsc::channel(UPDATE_QUEUE_LEN);
        let task = spawn(follow_pods(client.clone(), pods, news.clone()));
        let (client, events, detail, log, usage) = (client.clone(), None, None, None, None);
        (Self { client, news, _pods: task, events, detail, log, usage }, receiver)
    }

    /// Follows exactly the `wanted` data.
    pub(super) fn want(&mut self, wanted: Subscriptions) {
        let (client, news) = (&self.client, &self.news);
        let begin = |subject: EventsOf| spawn(follow_events(client.clone(), subject, news.clone()));
        replace(&mut self.events, wanted.events, begin);
        let begin = |subject: LogOf| spawn(follow_log(client.clone(), subject, news.clone()));
        replace(&mut self.log, wanted.log, begin);
        replace(&mut self.usage, wanted.usage, |_| spawn(follow_usage(client.clone(), news.clone())));
        match (wanted.detail, &self.detail) {
            (None, _) => self.detail = None,
            (Some((subject, revision)), Some((follower, revisions))) if follower.subject == subject => {
                revisions.send_if_modified(|last| std::mem::replace(last, revision) != revision);
            }
            (Some((subject, revision)), _) => {
                let (revisions, changed) = watch::channel(revision);
                let task = spawn(follow_detail(client.clone(), subject.clone(), changed, news.clone()));
                self.detail = Some((Follower { subject, _task: task }, revisions));
            }
        }
    }
}

fn spawn(task: impl Future<Output = Option<Infallible>> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        // The thread ends when the receiver is dropped.
        let _ = task.await;
    }))
}

fn replace<T: Clone + PartialEq>(
    now: &mut Option<Follower<T>>,
    wanted: Option<T>,
    begin: impl FnOnce(T) -> AbortOnDropHandle<()>,
) {
    if now.as_ref().map(|follower| &follower.subject) != wanted.as_ref() {
        *now = wanted.map(|subject| Follower { subject: subject.clone(), _task: begin(subject) });
    }
}

/// Follows the pods across restarts of the agent.
async fn follow_pods(
    client: SocketClient,
    mut pods: JsonLines<PodChange>,
    news: mpsc::Sender<Feed>,
) -> Option<Infallible> {
    loop {
        let why = loop {
            match pods.next().await {
                Ok(Some(change)) => news.send(Feed::Pod(change)).await.ok()?,
                Ok(None) => break "it stopped".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        news.send(Feed::Away(why)).await.ok()?;
        pods = loop {
            let why = match arrival(&client).await {
                Ok(()) => match client.lines(PODS).await {
                    Ok(pods) => break pods,
                    Err(error) => error.to_string(),
                },
                Err(error) => error.to_string(),
            };
            news.send(Feed::Away(why)).await.ok()?;
            tokio::time::sleep(RETRY_INTERVAL).await;
        };
    }
}

/// Opens the stream of pods.
pub(super) const PODS: &str = "/limpet/v1/pods?watch=1";

/// Waits until the agent listens: it renames its socket into place, which inotify reports.
async fn arrival(client: &SocketClient) -> io::Result<()> {
    loop {
        let near = existing(client.socket());
        let queue = Queue::new()?;
        let mask = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        queue.adder()?.add(&near, mask)?;
        // From here on no event is missed.
        match client.connect().await {
            Ok(_) => return Ok(()),
            Err(ClientError::NotRunning { .. }) => {}
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
        if existing(client.socket()) == near {
            queue.drain().await?;
        }
    }
}

/// The socket's directory, or its nearest existing parent.
fn existing(socket: &Path) -> PathBuf {
    let above = socket.ancestors().skip(1).map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    above.into_iter().find(|dir| dir.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

async fn follow_events(client: SocketClient, subject: EventsOf, news: mpsc::Sender<Feed>) -> Option<Infallible> {
    let about = subject.pod.as_ref().map(|(namespace, name)| format!("&pod={namespace}/{name}")).unwrap_or_default();
    // If this stream ends, the stream of pods has ended too, and its task handles that.
    let mut events = client.lines(&format!("/limpet/v1/events?watch=1{about}")).await.ok()?;
    loop {
        let event = events.next().await.ok()??;
        news.send(Feed::Event(subject.clone(), Box::new(event))).await.ok()?;
    }
}

async fn follow_detail(
    client: SocketClient,
    subject: DetailOf,
    mut changed: watch::Receiver<u64>,
    news: mpsc::Sender<Feed>,
) -> Option<Infallible> {
    let path = format!("/limpet/v1/pods/{}/{}/describe", subject.pod.0, subject.pod.1);
    loop {
        changed.borrow_and_update();
        let document = client.get_json(&path).await.map(Box::new).map_err(|error| error.to_string());
        news.send(Feed::Detail(subject.clone(), document)).await.ok()?;
        changed.changed().await.ok()?;
        tokio::time::sleep(DESCRIPTION_INTERVAL).await;
    }
}

async fn follow_log(client: SocketClient, subject: LogOf, news: mpsc::Sender<Feed>) -> Option<Infallible> {
    let why = match read_log(&client, &subject, &news).await {
        Ok(()) => "ended".to_owned(),
        Err(error) => error.to_string(),
    };
    news.send(Feed::LogEnd(subject, why)).await.ok()?;
    None
}

async fn read_log(client: &SocketClient, subject: &LogOf, news: &mpsc::Sender<Feed>) -> Result<(), CliError> {
    let ((namespace, name), previous) = (&subject.pod, if subject.previous { "&previous=true" } else { "" });
    let container = &subject.container;
    let path = format!("/containerLogs/{namespace}/{name}/{container}?follow=true&tailLines={LOG_LINES}{previous}");
    let mut body = client.accepted(client.get(&path).await?).await?.into_body();
    let mut pending: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let broken = |error: hyper::Error| ClientError::Connection {
            socket: client.socket().to_owned(),
            message: error.to_string(),
        };
        pending.extend(frame.map_err(broken)?.data_ref().into_iter().flatten());
        let lines = whole_lines(&mut pending);
        if !lines.is_empty() && news.send(Feed::Log(subject.clone(), lines)).await.is_err() {
            return Ok(());
        }
    }
    if !pending.is_empty() {
        let _ = news.send(Feed::Log(subject.clone(), vec![log_line(&pending)])).await;
    }
    Ok(())
}

/// Takes the complete lines, at most as many as the screen keeps.
fn whole_lines(pending: &mut Vec<u8>) -> Vec<String> {
    let end = match pending.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => last + 1,
        None if pending.len() > LONGEST_LINE => pending.len(),
        None => return Vec::new(),
    };
    let taken: Vec<u8> = pending.drain(..end).collect();
    let lines: Vec<&[u8]> = taken.split_inclusive(|byte| *byte == b'\n').collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| log_line(line)).collect()
}

async fn follow_usage(client: SocketClient, news: mpsc::Sender<Feed>) -> Option<Infallible> {
    let mut before = None;
    loop {
        let (usage, summary) = tokio::join!(top::read(&client), client.get_json("/stats/summary"));
        // The first pause is shorter, because CPU usage needs two readings.
        let pause = if before.is_none() { top::READING_INTERVAL } else { top::REFRESH_INTERVAL };
        let figures = usage.and_then(|after| {
            let first = before.take().unwrap_or_else(|| after.clone());
            before = Some(after.clone());
            Ok(Box::new(Figures { before: first, after, summary: summary? }))
        });
        news.send(Feed::Usage(figures.map_err(|error| error.to_string()))).await.ok()?;
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_comes_in_lines_and_no_more_of_them_than_are_kept() {
        let mut pending = b"one\ntwo\nthr".to_vec();
        assert_eq!(whole_lines(&mut pending), ["one", "two"]);
        assert_eq!(pending, b"thr");
        assert!(whole_lines(&mut pending).is_empty());
        let mut many: Vec<u8> = (0..5000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
        let lines = whole_lines(&mut many);
        assert_eq!((lines.len(), lines[0].as_str()), (LOG_LINES, "4000"));
        let mut endless = vec![b'x'; LONGEST_LINE + 1];
        assert_eq!((whole_lines(&mut endless).len(), endless.len()), (1, 0));
    }

    #[test]
    fn the_nearest_directory_is_watched() {
        assert_eq!(existing(Path::new("/nonexistent-dir/limpet/limpet.sock")), Path::new("/"));
        assert_eq!(existing(Path::new("limpet.sock")), Path::new("."));
    }
}
