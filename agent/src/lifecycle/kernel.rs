//! What the kernel tells of the pods' processes by itself: victims of its OOM killer, and who sent the signal that ended
//! one. By BPF programs, loaded once the first containers run, so that no boot waits for them. Where they do not work the
//! counts of the cgroups and the exit codes have to do; `limpet doctor` says which it is.

use std::collections::HashMap;
use std::sync::Arc;

use limpet_bpf::{Event, Events, LoadError, Loaded, Purpose, Request};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendError;
use tokio_util::sync::CancellationToken;

use super::followed::{Changes, Followed};
use super::{kernel_types, memory};
use crate::attribution::Feed;
use limpet_attribution::bpf_feed::{self, FeedEnd};
use limpet_model::container::ContainerId;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::process::ProcessName;
use limpet_model::process::Sender;
use limpet_model::process::container_in_cgroups;

/// Events that are heard in one go, before anything else has its turn.
const BATCH: usize = 1_024;
/// Tells what the kernel tells of `followed`, until `stop`. Ends at once where its programs do not work. To whom it shall
/// be told who changes manifests, `feeds`, a feed is offered.
pub async fn run(
    followed: Arc<Followed>,
    events: mpsc::Sender<LifecycleEvent>,
    feeds: Option<mpsc::Sender<Feed>>,
    stop: CancellationToken,
) {
    let mut changes = followed.changes();
    tokio::select! {
        () = stop.cancelled() => return,
        () = first_containers(&followed, &mut changes) => {}
    }
    // Reading the kernel's types takes some hundredths of a second.
    let request = Request { lifecycle: true, watch: feeds.is_some(), ..Request::default() };
    let loaded = tokio::task::spawn_blocking(move || {
        let loaded = load(&request);
        memory::give_back();
        loaded
    });
    let loaded = loaded.await;
    let (loaded, told) = match loaded {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(error)) => {
            return tracing::info!(%error, "no BPF programs: victims of OOM kills and senders of signals are not named");
        }
        Err(error) => return tracing::error!(%error, "loading BPF programs failed"),
    };
    for program in loaded.programs() {
        match &program.failure {
            None => tracing::debug!(program = program.name, hook = program.hook, "BPF program attached"),
            // Told in one word for all of them, by whoever offers them.
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
        () = following.run(told) => {}
    }
}

/// Resolves once containers run and the burst of their starts is over.
async fn first_containers(followed: &Followed, changes: &mut Changes) {
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

/// Offers what the programs tell of manifests, where all of them work.
fn offer(loaded: &Loaded, feeds: &mpsc::Sender<Feed>) -> Option<FeedEnd> {
    match bpf_feed::feed(loaded) {
        // Without room there is a feed already, or nobody listens any more.
        Ok((feed, end)) => feeds.try_send(feed).is_ok().then_some(end),
        Err(reason) => {
            tracing::info!(reason, "no BPF programs tell who changes manifests");
            None
        }
    }
}

/// What the watch of manifests asks of the programs; never where it asks nothing.
async fn other_directories(writes: Option<&mut FeedEnd>) {
    match writes {
        Some(writes) => writes.changed().await,
        None => std::future::pending().await,
    }
}

struct Following {
    loaded: Loaded,
    followed: Arc<Followed>,
    changes: Changes,
    /// What the programs follow.
    known: HashMap<u32, ContainerId>,
    events: mpsc::Sender<LifecycleEvent>,
    /// Who wants to know who changes manifests.
    writes: Option<FeedEnd>,
}

impl Following {
    async fn run(mut self, told: Option<Events>) {
        let Some(mut told) = told else { return };
        loop {
            self.align();
            tokio::select! {
                () = self.changes.next() => {}
                () = other_directories(self.writes.as_mut()) => {}
                event = told.next() => match event {
                    Ok(event) => if self.hear(event, &mut told).await.is_err() {
                        return;
                    },
                    Err(error) => return tracing::warn!(%error, "the kernel's events are not read any more"),
                },
            }
        }
    }

    /// Hears `event` and what waits behind it.
    ///
    /// # Errors
    /// Nobody listens any more.
    async fn hear(&mut self, event: Event, told: &mut Events) -> Result<(), SendError<LifecycleEvent>> {
        self.account(false);
        let (mut waiting, mut room) = (Some(event), BATCH);
        while let Some(event) = waiting {
            if let Event::Write(change) = event {
                if let Some(writes) = &mut self.writes {
                    writes.tell(change).await;
                }
            } else {
                // A process that was added just now may be the one.
                self.align();
                if let Some(event) = self.understand(event) {
                    self.events.send(event).await?;
                }
            }
            room -= 1;
            waiting = if room > 0 { told.now() } else { None };
        }
        self.account(room > 0);
        Ok(())
    }

    fn account(&mut self, drained: bool) {
        if let Some(writes) = &mut self.writes {
            writes.account(self.loaded.lost(), drained);
        }
    }

    /// Has the programs follow what is to be followed, and nothing else.
    fn align(&mut self) {
        let wanted = self.followed.processes();
        for pid in self.known.keys().filter(|pid| !wanted.contains_key(pid)) {
            self.loaded.forget_process(*pid);
        }
        for pid in wanted.keys().filter(|pid| !self.known.contains_key(pid)) {
            if let Err(error) = self.loaded.follow_process(*pid) {
                tracing::debug!(%error, pid, "not followed");
            }
        }
        self.known = wanted;
        if let Some(writes) = &mut self.writes {
            writes.align(&mut self.loaded);
        }
    }

    fn understand(&mut self, event: Event) -> Option<LifecycleEvent> {
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

/// The container in whose cgroup a process is, which has not been waited for yet.
fn container_of(pid: u32) -> Option<ContainerId> {
    container_in_cgroups(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}
