//! Publishes events to containerd in order, over one ttrpc connection.
//!
//! An event is sent once the previous one is acknowledged. An undeliverable event is retried a few times: a
//! containerd that was away for longer reads the state of every task.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use prost::Message;
use prost_types::Any;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::messages::{Envelope, ForwardRequest, Request};
use crate::ttrpc::{Decoder, Frame, encode_request};

/// The most queued events; beyond it the oldest is dropped.
const MAX_QUEUE: usize = 2_048;
/// How often an event is tried.
const MAX_TRIES: u32 = 5;
/// The pause after the first failed attempt; each further one is a second longer.
const PAUSE: Duration = Duration::from_secs(1);
/// The deadline for containerd to acknowledge an event.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(5);

/// Events on their way to containerd.
#[derive(Debug)]
pub(crate) struct Publisher {
    address: Option<PathBuf>,
    namespace: String,
    queue: VecDeque<ForwardRequest>,
    connection: Option<Connection>,
    /// How often the first event was tried.
    tries: u32,
    /// The stream id of the next request; a client's ids are odd.
    next_stream: u32,
    /// When the first event is due again, or its acknowledgement overdue.
    due: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    decoder: Decoder,
    /// Bytes that could not be sent yet.
    unsent: Vec<u8>,
    /// The stream id of the event that awaits its acknowledgement.
    awaited: Option<u32>,
}

impl Publisher {
    /// A publisher to containerd's ttrpc socket at `address`. Without an address, events are dropped.
    pub(crate) fn new(address: Option<PathBuf>, namespace: &str) -> Self {
        Self {
            address,
            namespace: namespace.to_owned(),
            queue: VecDeque::new(),
            connection: None,
            tries: 0,
            next_stream: 1,
            due: None,
        }
    }

    /// Queues an event of type `containerd.events.<name>`.
    pub(crate) fn publish(&mut self, topic: &str, name: &str, event: &impl Message) {
        if self.address.is_none() {
            return;
        }
        if self.queue.len() >= MAX_QUEUE {
            self.queue.pop_front();
        }
        let event = Any { type_url: format!("containerd.events.{name}"), value: event.encode_to_vec() };
        let envelope = Envelope {
            timestamp: Some(std::time::SystemTime::now().into()),
            namespace: self.namespace.clone(),
            topic: topic.to_owned(),
            event: Some(event),
        };
        self.queue.push_back(ForwardRequest { envelope: Some(envelope) });
    }

    /// Whether every event was delivered or dropped.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(|connection| connection.socket.as_fd())
    }

    fn number(&self) -> Option<RawFd> {
        self.connection.as_ref().map(|connection| connection.socket.as_raw_fd())
    }

    /// When [`Publisher::advance`] is due even if nothing is received.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Receives acknowledgements, and sends the next event. Call it when the connection is ready, when it is due, and
    /// after publishing events. Returns true if a connection was opened or closed, so that the poller needs an
    /// update.
    pub(crate) fn advance(&mut self, now: Instant) -> bool {
        let before = self.number();
        let waits = self.connection.as_ref().is_some_and(|connection| connection.awaited.is_some());
        let overdue = self.due.is_some_and(|due| due <= now);
        if overdue {
            self.due = None;
        }
        let exchanged = match &mut self.connection {
            Some(_) if waits && overdue => Err(io::ErrorKind::TimedOut.into()),
            Some(connection) => connection.exchange(),
            None => Ok(false),
        };
        match exchanged {
            Ok(false) => {}
            Ok(true) => self.delivered(),
            Err(_) => self.failed(now),
        }
        if self.due.is_none() || self.connection.as_ref().is_some_and(|connection| connection.awaited.is_none()) {
            self.send_next(now);
        }
        before != self.number()
    }

    fn delivered(&mut self) {
        self.queue.pop_front();
        self.tries = 0;
        self.due = None;
    }

    /// Handles a broken connection: the event that was being sent is retried.
    fn failed(&mut self, now: Instant) {
        self.connection = None;
        self.due = None;
        if self.queue.is_empty() {
            return;
        }
        self.tries += 1;
        if self.tries >= MAX_TRIES {
            self.queue.clear();
            self.tries = 0;
        } else {
            self.due = Some(now + PAUSE * self.tries);
        }
    }

    fn send_next(&mut self, now: Instant) {
        let Some(event) = self.queue.front() else { return };
        let connection = match &mut self.connection {
            Some(connection) if connection.awaited.is_some() => return,
            Some(connection) => connection,
            None => match self.address.as_ref().ok_or(io::ErrorKind::NotFound.into()).and_then(Connection::open) {
                Ok(connection) => self.connection.insert(connection),
                Err(_) => return self.failed(now),
            },
        };
        let request = Request {
            service: "containerd.services.events.ttrpc.v1.Events".to_owned(),
            method: "Forward".to_owned(),
            payload: event.encode_to_vec(),
            timeout_nano: i64::try_from(ACKNOWLEDGEMENT.as_nanos()).unwrap_or(0),
        };
        encode_request(self.next_stream, &request, &mut connection.unsent);
        connection.awaited = Some(self.next_stream);
        self.next_stream = self.next_stream.wrapping_add(2);
        self.due = Some(now + ACKNOWLEDGEMENT);
        if connection.send().is_err() {
            self.failed(now);
        }
    }
}

impl Connection {
    fn open(address: &PathBuf) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // If containerd does not accept, this fails immediately instead of delaying the pod.
        rustix::net::connect(&socket, &SocketAddrUnix::new(address)?)?;
        Ok(Self { socket, decoder: Decoder::default(), unsent: Vec::new(), awaited: None })
    }

    /// Sends and receives. Returns true if the event was acknowledged.
    fn exchange(&mut self) -> io::Result<bool> {
        self.send()?;
        let mut buffer = [0; 512];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.push(&buffer[..count]),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut acknowledged = false;
        while let Some(frame) = self.decoder.next().map_err(io::Error::other)? {
            if let Frame::Response(stream, response) = frame
                && Some(stream) == self.awaited
            {
                if response.status.is_some_and(|status| status.code != 0) {
                    return Err(io::Error::other("containerd refuses the event"));
                }
                self.awaited = None;
                acknowledged = true;
            }
        }
        Ok(acknowledged)
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match rustix::io::write(&self.socket, &self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.unsent = Vec::new();
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::messages::{Response, TaskEvent};
    use crate::ttrpc::encode_response;

    fn publish(publisher: &mut Publisher, id: &str) {
        publisher.publish("/tasks/paused", "TaskPaused", &TaskEvent { container_id: id.into() });
    }

    /// Receives one event, and returns its stream id and its container.
    fn receive(peer: &mut UnixStream) -> (u32, String) {
        let mut decoder = Decoder::default();
        loop {
            let mut buffer = [0; 1024];
            let count = peer.read(&mut buffer).unwrap();
            decoder.push(&buffer[..count]);
            if let Some(Frame::Request(stream, request)) = decoder.next().unwrap() {
                let envelope = ForwardRequest::decode(&*request.payload).unwrap().envelope.unwrap();
                assert_eq!((envelope.namespace.as_str(), envelope.topic.as_str()), ("k8s.io", "/tasks/paused"));
                let event = envelope.event.unwrap();
                assert_eq!(event.type_url, "containerd.events.TaskPaused");
                return (stream, TaskEvent::decode(&*event.value).unwrap().container_id);
            }
        }
    }

    fn acknowledge(peer: &mut UnixStream, stream: u32) {
        let mut bytes = Vec::new();
        encode_response(stream, &Response::default(), &mut bytes);
        peer.write_all(&bytes).unwrap();
    }

    #[test]
    fn events_arrive_in_order_and_again_after_a_broken_connection() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let mut publisher = Publisher::new(Some(path), "k8s.io");
        let mut now = Instant::now();
        publish(&mut publisher, "a");
        publish(&mut publisher, "b");
        assert!(publisher.advance(now), "a new connection");
        let mut peer = listener.accept().unwrap().0;
        let (stream, id) = receive(&mut peer);
        assert_eq!(id, "a");
        acknowledge(&mut peer, stream);
        publisher.advance(now);
        assert_eq!(receive(&mut peer).1, "b");
        drop(peer);
        assert!(publisher.advance(now), "the connection is closed");
        assert!(!publisher.is_idle());
        now = publisher.due().unwrap();
        publisher.advance(now);
        let mut peer = listener.accept().unwrap().0;
        let (stream, id) = receive(&mut peer);
        assert_eq!(id, "b");
        acknowledge(&mut peer, stream);
        publisher.advance(now);
        assert!(publisher.is_idle());
        assert_eq!(publisher.due(), None, "an idle publisher wakes nobody");
    }

    #[test]
    fn events_are_given_up_when_containerd_stays_away() {
        let mut publisher = Publisher::new(Some("/nonexistent/s".into()), "n");
        let mut now = Instant::now();
        publish(&mut publisher, "a");
        for _ in 0..MAX_TRIES {
            publisher.advance(now);
            now = publisher.due().unwrap_or(now);
        }
        assert!(publisher.is_idle());
        assert_eq!(publisher.due(), None);
    }
}
