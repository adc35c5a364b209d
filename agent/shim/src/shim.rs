//! The shim itself: one thread that waits for requests, output and exits.
//!
//! Only the poller waits. The OCI runtime is a child process whose exit is an event like any other (`operations`), so
//! a runtime or a container that hangs delays nothing else of the pod.

mod completion;
mod exits;
mod loggers;
mod operations;
mod service;
mod start_fifo;
mod streams;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use limpet_log::container_log::Buffers;
use nix::sys::signalfd::SignalFd;
use prost::Message;
use rustix::event::epoll::EventFlags;

use self::loggers::AwaitedLogger;
use self::operations::Operation;
use self::start_fifo::PendingStart;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::messages::{Response, Status};
use crate::poller::{Poller, Source};
use crate::process::{Call, Container, Key, Process};
use crate::publisher::Publisher;
use crate::start;

/// The most connections at once. containerd has one per container.
const MAX_CLIENTS: usize = 1_024;
/// How long a shim runs after `Shutdown` to send its last events.
const LAST_EVENTS: Duration = Duration::from_secs(3);
/// Flags for sockets that are read and written until they would block.
const SOCKET: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::ET);

/// The shim of a group of containers: a pod's, or all of the node.
pub(crate) struct Shim {
    poller: Poller,
    listener: UnixListener,
    listener_token: u64,
    signals: SignalFd,
    /// The path of its socket; the sockets for terminals are beside it.
    socket: PathBuf,
    namespace: String,
    /// The bundle of the container for which it was started. Messages for containerd's log go there while it has no
    /// container.
    first_bundle: PathBuf,
    containers: BTreeMap<String, Container>,
    clients: BTreeMap<u64, Client>,
    /// Running calls of the runtime by PID.
    operations: BTreeMap<u32, Operation>,
    last_operation: u64,
    /// Calls of the runtime that wait for a logger, by its token.
    awaited_loggers: BTreeMap<u64, AwaitedLogger>,
    /// Starts without the runtime, by the token of the FIFO.
    pending_starts: BTreeMap<u64, PendingStart>,
    /// Exits of children that a running runtime may just have started.
    early_exits: Vec<Exit>,
    publisher: Publisher,
    publisher_token: Option<u64>,
    /// Allocated once a log was written.
    buffers: Option<Buffers>,
    /// Set once it serves no container: the time at which it ends at the latest.
    ending: Option<Instant>,
}

/// The parts of a new shim.
pub(crate) struct Parts {
    pub(crate) listener: UnixListener,
    pub(crate) signals: SignalFd,
    pub(crate) socket: PathBuf,
    pub(crate) namespace: String,
    pub(crate) first_bundle: PathBuf,
    pub(crate) publisher: Publisher,
}

impl Shim {
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let Parts { listener, signals, socket, namespace, first_bundle, publisher } = parts;
        listener.set_nonblocking(true)?;
        let mut poller = Poller::new()?;
        let refused = || io::Error::other("epoll refuses the shim's own descriptors");
        let listener_token = poller.add(&listener, Source::Listener, EventFlags::IN).ok_or_else(refused)?;
        poller.add(signals.as_fd(), Source::Signals, EventFlags::IN).ok_or_else(refused)?;
        Ok(Self {
            poller,
            listener,
            listener_token,
            signals,
            socket,
            namespace,
            first_bundle,
            containers: BTreeMap::new(),
            clients: BTreeMap::new(),
            operations: BTreeMap::new(),
            last_operation: 0,
            awaited_loggers: BTreeMap::new(),
            pending_starts: BTreeMap::new(),
            early_exits: Vec::new(),
            publisher,
            publisher_token: None,
            buffers: None,
            ending: None,
        })
    }

    /// Serves until `Shutdown` is called.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        loop {
            self.advance_publisher();
            if self.has_ended(Instant::now()) {
                return Ok(());
            }
            for (token, flags) in self.poller.wait(self.next_due())? {
                // An earlier event has removed it.
                let Some(source) = self.poller.source(token) else { continue };
                self.handle_event(token, source, flags);
            }
            self.handle_due(Instant::now());
        }
    }

    /// Continues only for the last events.
    fn begin_ending(&mut self) {
        if self.ending.is_none() {
            self.ending = Some(Instant::now() + LAST_EVENTS);
            // The pod's next container starts another shim. Removed now, because the name may later belong to that
            // one.
            let _ = std::fs::remove_file(&self.socket);
        }
    }

    /// Continues for a new container although it was about to end: containerd may connect for a container before it
    /// shuts the shim down for the last one of another.
    ///
    /// # Errors
    ///
    /// Another shim already has its address, at which a restarted containerd would look for the container.
    fn continue_serving(&mut self) -> Result<(), Failure> {
        if self.ending.is_none() {
            return Ok(());
        }
        let gone = |error: io::Error| Failure::unavailable(format!("the shim is about to end: {error}"));
        let listener = start::listen_again(&self.socket).map_err(gone)?;
        let token = self.poller.add(&listener, Source::Listener, EventFlags::IN);
        let token = token.ok_or_else(|| gone(io::Error::other("epoll refuses its socket")))?;
        self.poller.remove(&self.listener, self.listener_token);
        (self.listener, self.listener_token, self.ending) = (listener, token, None);
        Ok(())
    }

    fn has_ended(&self, now: Instant) -> bool {
        let sent = || self.publisher.is_idle() && self.clients.values().all(Client::is_idle);
        self.ending.is_some_and(|end| end <= now || sent())
    }

    fn handle_event(&mut self, token: u64, source: Source, flags: EventFlags) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.handle_signals(),
            // The publisher is advanced before each wait.
            Source::Publisher => {}
            Source::Client => self.serve(token, flags),
            Source::Transfer(key, index) => self.advance_transfer(&key, index),
            Source::Log(key, index) => self.read_log(&key, index),
            Source::Follower(key) => self.accept_follower(&key),
            Source::BlockedFollower(key) => self.serve_followers(&key),
            Source::Memory(container) => self.handle_memory(&container),
            Source::Logger => self.logger_is_ready(token),
            Source::StartFifo => self.read_start_fifo(token),
        }
    }

    fn advance_publisher(&mut self) {
        if !self.publisher.advance(Instant::now()) {
            return;
        }
        if let Some(token) = self.publisher_token.take() {
            self.poller.forget(token);
        }
        if let Some(socket) = self.publisher.socket() {
            self.publisher_token = self.poller.add(socket, Source::Publisher, SOCKET);
        }
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let Ok(client) = Client::new(socket) else { continue };
            if self.clients.len() < MAX_CLIENTS
                && let Some(token) = self.poller.add(&client, Source::Client, SOCKET)
            {
                self.clients.insert(token, client);
            }
        }
    }

    /// Receives and answers a client's requests, and sends it buffered bytes.
    fn serve(&mut self, token: u64, flags: EventFlags) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.send().is_err() {
            return self.disconnect(token);
        }
        if flags == EventFlags::OUT {
            return;
        }
        match client.receive() {
            Ok(requests) => {
                for (stream, request) in requests {
                    self.handle(Call { client: token, stream }, request);
                }
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::Other {
                    self.warn(&format!("a client is disconnected: it sent {error}"));
                }
                self.disconnect(token);
            }
        }
    }

    fn disconnect(&mut self, token: u64) {
        if let Some(client) = self.clients.remove(&token) {
            self.poller.remove(&client, token);
        }
        for process in self.containers.values_mut().flat_map(Container::processes_mut) {
            process.waiters.retain(|call| call.client != token);
        }
    }

    /// Answers a call, unless its client has gone.
    fn reply(&mut self, call: Call, answer: Result<Vec<u8>, Failure>) {
        let Some(client) = self.clients.get_mut(&call.client) else { return };
        let response = match answer {
            Ok(payload) => Response { status: None, payload },
            Err(Failure { code, message }) => Response { status: Some(Status { code, message }), payload: Vec::new() },
        };
        if client.respond(call.stream, &response).is_err() {
            self.disconnect(call.client);
        }
    }

    fn reply_with(&mut self, call: Call, message: &impl Message) {
        self.reply(call, Ok(message.encode_to_vec()));
    }

    /// When something is due without an event.
    fn next_due(&self) -> Option<Instant> {
        let processes = self.containers.values().flat_map(Container::processes);
        let dues = processes.flat_map(|(_, process)| {
            [process.streams.log_due, process.deleting.map(|(_, until)| until)].into_iter().flatten()
        });
        let loggers = self.awaited_loggers.values().map(AwaitedLogger::until);
        dues.chain(loggers).chain(self.publisher.due()).chain(self.ending).min()
    }

    fn handle_due(&mut self, now: Instant) {
        let mut due = Vec::new();
        for (id, container) in &self.containers {
            for (exec, process) in container.processes() {
                let key = || Key { container: id.clone(), exec: exec.to_owned() };
                if process.streams.log_due.is_some_and(|due| due <= now) {
                    due.push((key(), false));
                }
                if process.deleting.is_some_and(|(_, until)| until <= now) {
                    due.push((key(), true));
                }
            }
        }
        for (key, deletes) in due {
            if deletes { self.finish_deletion(&key) } else { self.catch_up_log(&key) }
        }
        self.give_up_loggers(now);
    }

    fn process_mut(&mut self, key: &Key) -> Option<&mut Process> {
        process_in(&mut self.containers, key)
    }

    /// Writes a message to containerd's log.
    fn warn(&self, message: &str) {
        let bundle = self.containers.values().next().map_or(&self.first_bundle, |container| &container.bundle);
        crate::diagnostics::warn(bundle, message);
    }
}

fn process_in<'a>(containers: &'a mut BTreeMap<String, Container>, key: &Key) -> Option<&'a mut Process> {
    containers.get_mut(&key.container)?.process_mut(&key.exec)
}
