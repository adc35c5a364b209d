//! Kernel events of the pods' processes: victims of the OOM killer, and who sent the signal that killed a process.
//! They come from BPF programs, loaded once the first containers run, so that no boot waits for them. If those do not
//! work, cgroup counters and exit codes are used instead; `limpet doctor` shows which.

use std::collections::HashMap;
use std::sync::Arc;

use limpet_bpf::{Event, Events, LoadError, Loaded, Purpose, Request};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendError;
use tokio_util::sync::CancellationToken;

use super::kernel_types;
use limpet_attribution::bpf_feed::{self, FeedEnd};
use limpet_host::memory;
use limpet_model::container::ContainerId;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::process::{ProcessName, Sender, container_in_cgroups};
use limpet_watch::actors::Feed;
use limpet_worker::watched_processes::{Changes, WatchedProcesses};

/// How many events are handled in a row before other tasks run.
const MAX_EVENT_BATCH: usize = 1_024;
/// Sends kernel events of `followed` until `stop`. Returns at once if the BPF programs do not work. If `feeds` is
/// given, it receives a feed of who changes manifests.
pub async fn run(
    followed: Arc<WatchedProcesses>,
    events: mpsc::Sender<LifecycleEvent>,
    feeds: Option<mpsc::Sender<Feed>>,
    stop: CancellationToken,
) {
    let mut changes = followed.changes();
    tokio::select! {
        () = stop.cancelled() => return,
        () = first_containers(&followed, &mut changes) => {}
    }
    // Reading the kernel's BTF takes some hundredths of a second.
    let request = Request { lifecycle: true, watch: feeds.is_some(), ..Request::default() };
    let loaded = tokio::task::spawn_blocking(move || {
        let loaded = load(&request);
        memory::release_memory();
        loaded
    });
    let loaded = loaded.await;
    let (loaded, kernel_events) = match loaded {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(error)) => {
            return tracing::info!(%error, "no BPF programs: victims of OOM kills and senders of signals are not named");
        }
        Err(error) => return tracing::error!(%error, "loading BPF programs failed"),
    };
    for program in loaded.programs() {
        match &program.failure {
            None => tracing::debug!(program = program.name, hook = program.hook, "BPF program attached"),
            // `offer` logs them all in one message.
            Some(failure) if program.purpose == Purpose::Watch => {
                tracing::debug!(program = program.name, hook = program.hook, failure, "BPF program does not work here");
            }
            Some(failure) => {
                tracing::info!(program = program.name, hook = program.hook, failure, "BPF program does not work here")
            }
        }
    }
    let working = loaded.programs().iter().filter(|program| program.failure.is_none()).count();
    tracing::info!(working, of = loaded.programs().len(), "BPF programs loaded");
    let writes = feeds.and_then(|feeds| offer(&loaded, &feeds));
    let following = Following { loaded, followed, changes, known: HashMap::new(), events, writes };
    tokio::select! {
        () = stop.cancelled() => {}
        () = following.run(kernel_events) => {}
    }
}

/// Resolves once containers run and the burst of their starts is over.
async fn first_containers(followed: &WatchedProcesses, changes: &mut Changes) {
    changes.settled().await;
    while followed.is_empty() {
        changes.settled().await;
    }
}

fn load(request: &Request) -> Result<(Loaded, Option<Events>), LoadError> {
    let mut loaded = kernel_types::read().load(request)?;
    let events = loaded.events().map_err(|error| LoadError::Maps(error.to_string()))?;
    Ok((loaded, events))
}

/// Offers a feed of who changes manifests, if all programs for it work.
fn offer(loaded: &Loaded, feeds: &mpsc::Sender<Feed>) -> Option<FeedEnd> {
    match bpf_feed::feed(loaded) {
        // A full channel already has a feed; a closed one has no receiver.
        Ok((feed, end)) => feeds.try_send(feed).is_ok().then_some(end),
        Err(reason) => {
            tracing::info!(reason, "BPF programs cannot report who changes manifests");
            None
        }
    }
}

/// Resolves when the manifest watch changes its directories; never without a feed.
async fn directories_changed(writes: Option<&mut FeedEnd>) {
    match writes {
        Some(writes) => writes.changed().await,
        None => std::future::pending().await,
    }
}

struct Following {
    loaded: Loaded,
    followed: Arc<WatchedProcesses>,
    changes: Changes,
    /// The processes that the programs follow.
    known: HashMap<u32, ContainerId>,
    events: mpsc::Sender<LifecycleEvent>,
    /// Receives who changes manifests.
    writes: Option<FeedEnd>,
}

impl Following {
    async fn run(mut self, kernel_events: Option<Events>) {
        let Some(mut kernel_events) = kernel_events else { return };
        loop {
            self.align();
            tokio::select! {
                () = self.changes.next() => {}
                () = directories_changed(self.writes.as_mut()) => {}
                event = kernel_events.next() => match event {
                    Ok(event) => if self.handle(event, &mut kernel_events).await.is_err() {
                        return;
                    },
                    Err(error) => return tracing::warn!(%error, "reading BPF events failed"),
                },
            }
        }
    }

    /// Handles `event` and those queued after it.
    ///
    /// # Errors
    /// The receiver is gone.
    async fn handle(&mut self, event: Event, kernel_events: &mut Events) -> Result<(), SendError<LifecycleEvent>> {
        self.account(false);
        let (mut queued, mut left) = (Some(event), MAX_EVENT_BATCH);
        while let Some(event) = queued {
            if let Event::Write(change) = event {
                if let Some(writes) = &mut self.writes {
                    writes.forward(change).await;
                }
            } else {
                // The event may be about a process that was added just now.
                self.align();
                if let Some(event) = self.lifecycle_event(event) {
                    self.events.send(event).await?;
                }
            }
            left -= 1;
            queued = if left > 0 { kernel_events.now() } else { None };
        }
        self.account(left > 0);
        Ok(())
    }

    fn account(&mut self, drained: bool) {
        if let Some(writes) = &mut self.writes {
            writes.account(self.loaded.lost(), drained);
        }
    }

    /// Makes the programs follow exactly the processes of `followed`.
    fn align(&mut self) {
        let wanted = self.followed.processes();
        for pid in self.known.keys().filter(|pid| !wanted.contains_key(pid)) {
            self.loaded.forget_process(*pid);
        }
        for pid in wanted.keys().filter(|pid| !self.known.contains_key(pid)) {
            if let Err(error) = self.loaded.follow_process(*pid) {
                tracing::debug!(%error, pid, "a process cannot be watched");
            }
        }
        self.known = wanted;
        if let Some(writes) = &mut self.writes {
            writes.align(&mut self.loaded);
        }
    }

    fn lifecycle_event(&mut self, event: Event) -> Option<LifecycleEvent> {
        match event {
            Event::OomVictim { process } => {
                let victim = ProcessName { pid: process.pid, command: process.command };
                let id = self.known.get(&victim.pid).cloned().or_else(|| container_of(victim.pid))?;
                Some(LifecycleEvent::OutOfMemoryVictim { id, victim })
            }
            Event::Signal { target, signal, by_kernel, sender } => {
                let id = self.known.get(&target).cloned()?;
                let process = (!by_kernel).then_some(ProcessName { pid: sender.pid, command: sender.command });
                Some(LifecycleEvent::Signalled { id, sender: Sender { signal, process, uid: sender.uid } })
            }
            Event::Write(_) | Event::Refused { .. } => None,
        }
    }
}

/// The container in whose cgroup a process is. Works until the process is reaped.
fn container_of(pid: u32) -> Option<ContainerId> {
    container_in_cgroups(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}
