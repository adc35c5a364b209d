//! A server that answers gRPC health checks. It implements only as much HTTP/2 as a unary call without TLS needs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use anyhow::{Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The protocol's answer that everything is well.
pub const SERVING: u8 = 1;
/// The answer that it is not.
pub const NOT_SERVING: u8 = 2;

const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The server, on every address of the machine. It answers until the test ends.
#[derive(Debug)]
pub struct HealthServer {
    pub port: u16,
    status: Arc<AtomicU8>,
}

impl HealthServer {
    /// A server that serves.
    pub fn start() -> Result<Self> {
        Self::serve(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?)
    }

    /// The same on that port in the network namespace of the process `pid`.
    pub fn start_in_network_of(pid: u32, port: u16) -> Result<Self> {
        let network = File::open(format!("/proc/{pid}/ns/net"))?;
        let bind = move || -> Result<TcpListener> {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?)
        };
        // A socket stays in the network in which it was made, and the thread that was there ends.
        let bound = thread::spawn(bind).join().map_err(|_| anyhow!("the thread that binds the port panicked"))?;
        Self::serve(bound?)
    }

    fn serve(listener: TcpListener) -> Result<Self> {
        let port = listener.local_addr()?.port();
        let status = Arc::new(AtomicU8::new(SERVING));
        let answers = Arc::clone(&status);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // It does not matter to this server if a client disconnects in between.
                let _ = answer(stream, answers.load(Ordering::SeqCst));
            }
        });
        Ok(Self { port, status })
    }

    /// Makes it answer this from now on.
    pub fn answer(&self, status: u8) {
        self.status.store(status, Ordering::SeqCst);
    }
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len().to_be_bytes();
    let mut frame = length[length.len() - 3..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, stream]);
    frame.extend(payload);
    frame
}

/// A header in HPACK: a literal that is not indexed.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

fn answer(mut stream: TcpStream, status: u8) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    stream.read_exact(&mut preface)?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload)?;
        match (head[3], head[4]) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, 0, &[]))?,
            (DATA, flags) if flags & END_STREAM != 0 => break,
            _ => {}
        }
    }
    // Status 200, by its index.
    let begin = [vec![0x88], header("content-type", "application/grpc")].concat();
    let message = [0, 0, 0, 0, 2, 8, status];
    let reply = [
        frame(HEADERS, END_HEADERS, 1, &begin),
        frame(DATA, 0, 1, &message),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &header("grpc-status", "0")),
    ];
    stream.write_all(&reply.concat())?;
    // Until the client has read it.
    while matches!(stream.read(&mut [0; 256]), Ok(1..)) {}
    Ok(())
}
