//! The shim itself: one thread that waits for requests, for output, and for the ends of processes.
//!
//! Nothing here waits for anything but the poller. The OCI runtime is started and its end is an event like any other
//! (`operations`), so a runtime or a container that hangs holds up nothing else of the pod.

mod completion;
mod exits;
mod operations;
mod service;
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

use self::operations::Operation;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::messages::{Response, Status};
use crate::poller::{Poller, Source};
use crate::process::{Call, Container, Key, Process};
use crate::publisher::Publisher;
use crate::start;

/// The most connections at once. containerd has one for each container.
const MAX_CLIENTS: usize = 1_024;
/// How long a shim runs after `Shutdown`, so that its last events are sent.
const LAST_EVENTS: Duration = Duration::from_secs(3);
/// For sockets that are read and written until nothing more can be.
const SOCKET: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::ET);

/// The shim of a group of containers: a pod's, or all of the node.
pub(crate) struct Shim {
    poller: Poller,
    listener: UnixListener,
    listener_token: u64,
    signals: SignalFd,
    /// Where it listens; the sockets for terminals are beside it.
    socket: PathBuf,
    namespace: String,
    /// The bundle of the container it was started for: messages for containerd's log go there while it has no container.
    first_bundle: PathBuf,
    containers: BTreeMap<String, Container>,
    clients: BTreeMap<u64, Client>,
    /// Calls of the runtime by their process ids.
    operations: BTreeMap<u32, Operation>,
    last_operation: u64,
    /// Children that ended while a runtime runs that may just have started them.
    early_exits: Vec<Exit>,
    publisher: Publisher,
    publisher_token: Option<u64>,
    /// Present once a log was written.
    buffers: Option<Buffers>,
    /// It serves no container any more, and ends after its last events; at the latest then.
    ending: Option<Instant>,
}

/// What a new shim is given.
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
                // Gone by an event before this one.
                let Some(source) = self.poller.source(token) else { continue };
                self.handle_event(token, source, flags);
            }
            self.handle_due(Instant::now());
        }
    }

    /// Goes on for the last events alone.
    fn begin_ending(&mut self) {
        if self.ending.is_none() {
            self.ending = Some(Instant::now() + LAST_EVENTS);
            // Whoever starts the pod's next container starts another shim. Not later: the name may be that one's then.
            let _ = std::fs::remove_file(&self.socket);
        }
    }

    /// Goes on for a new container although it was about to end: containerd may connect for a container before it ends the
    /// shim for the last one of another.
    ///
    /// # Errors
    /// Its address is another shim's by now. A containerd that starts again would look for the container there.
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
            // It is advanced before every waiting.
            Source::Publisher => {}
            Source::Client => self.serve(token, flags),
            Source::Transfer(key, index) => self.advance_transfer(&key, index),
            Source::Log(key, index) => self.read_log(&key, index),
            Source::Follower(key) => self.accept_follower(&key),
            Source::Memory(container) => self.handle_memory(&container),
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

    /// Receives and answers what a client has sent, and sends it what could not be sent before.
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

    /// Answers a call. A client that has gone gets no answer.
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
        dues.chain(self.publisher.due()).chain(self.ending).min()
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
