//! A watch of the simulated apiserver: its changes in their order, bookmarks, and what befalls it on a bad line.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::{BoxError, Fate, Server, reset};

/// After this time without an answer a kernel gives a connection up.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// An idle watch sends the server's version this often.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// One watch.
pub(super) struct Watching {
    pub(super) server: Server,
    pub(super) prefix: String,
    pub(super) name: Option<String>,
    /// What is sent first, of a streaming list.
    pub(super) initial: VecDeque<Value>,
    pub(super) at: u64,
    pub(super) boots: u64,
    pub(super) ends: Instant,
    pub(super) has_bookmarks: bool,
    pub(super) over: bool,
}

impl Watching {
    /// The next line; `None` at its end.
    pub(super) async fn next(&mut self) -> Option<Result<Value, BoxError>> {
        if self.over {
            return None;
        }
        let mut changed = self.server.changed.subscribe();
        let bookmark = Instant::now() + BOOKMARK_INTERVAL;
        loop {
            self.server.carried(false).await;
            let next = {
                let state = self.server.lock();
                if state.boots != self.boots {
                    self.over = true;
                    return Some(Err(reset()));
                }
                match self.initial.pop_front() {
                    Some(event) => Some((event, self.at)),
                    None => state
                        .objects
                        .next_change(self.at, &self.prefix, self.name.as_deref())
                        .map(|change| (json!({ "type": change.kind, "object": change.object }), change.version)),
                }
            };
            if let Some((event, version)) = next {
                let (_, slow) = self.server.dice();
                sleep(slow).await;
                self.server.carried(false).await;
                let fate = self.server.lock().fate();
                match fate {
                    Fate::Reset | Fate::Lost => {
                        self.over = true;
                        return Some(Err(reset()));
                    }
                    // The connection is dead, which the node's kernel finds out.
                    Fate::Swallowed => {
                        sleep(CONNECTION_TIMEOUT).await;
                        self.over = true;
                        return Some(Err(reset()));
                    }
                    Fate::Refused(_) => return None,
                    Fate::Served => {}
                }
                self.server
                    .lock()
                    .note(|| format!("  {} {} at {version}", event["type"], event["object"]["metadata"]["name"]));
                self.at = version;
                return Some(Ok(event));
            }
            tokio::select! {
                biased;
                _ = changed.changed() => {}
                () = sleep_until(self.ends) => return None,
                () = sleep_until(bookmark), if self.has_bookmarks => {
                    let version = self.server.lock().objects.version();
                    if version < self.at {
                        continue;
                    }
                    self.at = version;
                    let object = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": version.to_string() } });
                    return Some(Ok(json!({ "type": "BOOKMARK", "object": object })));
                }
            }
        }
    }
}
