//! A server of one file with an `ETag` and ranges, which can break off.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Result;

/// The contents that are served, and the requests.
#[derive(Debug, Default)]
struct Shared {
    content: Vec<u8>,
    version: u32,
    /// The byte of the contents before which the next answer that has it ends.
    cut: Option<usize>,
    /// The first bytes of the requests, each with the status of its answer.
    requests: Vec<String>,
    /// How many bytes of contents could be sent.
    sent: usize,
}

/// The server; it ends with the test's process.
#[derive(Debug)]
pub struct FileServer {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl FileServer {
    /// Starts the server on a free port of loopback, without a file.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, shared) = (listener.local_addr()?, Arc::<Mutex<Shared>>::default());
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client may be gone before the answer.
                let _ = answer(stream, &served);
            }
        });
        Ok(Self { address, shared })
    }

    /// The URL of the file.
    pub fn url(&self) -> String {
        format!("http://{}/plant.limpet", self.address)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes the contents. The next answer that would have the byte `cut` ends before it.
    pub fn serve(&self, content: Vec<u8>, cut: Option<usize>) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        (shared.content, shared.cut) = (content, cut);
        shared.version += 1;
    }

    /// How many bytes of contents clients, and the buffers on the way to them, have taken.
    pub fn sent(&self) -> usize {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).sent
    }

    /// `FIRST-BYTE STATUS` of every request.
    pub fn requests(&self) -> Vec<String> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).requests.clone()
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<Shared>) -> Result<()> {
    let mut head = Vec::new();
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        head.push(line.to_ascii_lowercase());
    }
    let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(name).map(str::trim));
    let mut shared = state.lock().unwrap_or_else(PoisonError::into_inner);
    let etag = format!("\"v{}\"", shared.version);
    // A range of another version is not sent.
    let range = header("range:").filter(|_| header("if-range:").is_none_or(|version| version == etag));
    let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let size = shared.content.len();
    let from = range.and_then(|(from, _)| from.parse().ok()).unwrap_or(0).min(size);
    let to = range.and_then(|(_, last)| last.parse().ok()).map_or(size, |last: usize| size.min(last + 1));
    let (status, fields) = if shared.content.is_empty() {
        ("404 Not Found", String::new())
    } else if header("if-none-match:") == Some(&etag) {
        ("304 Not Modified", String::new())
    } else if from >= to {
        ("416 Range Not Satisfiable", String::new())
    } else if range.is_some() {
        ("206 Partial Content", format!("Content-Range: bytes {from}-{}/{size}\r\n", to - 1))
    } else {
        ("200 OK", String::new())
    };
    let body = if status.starts_with('2') { shared.content[from..to].to_vec() } else { Vec::new() };
    let length = body.len();
    let sent = shared.cut.take_if(|cut| (from..from + length).contains(cut)).map_or(length, |cut| cut - from);
    shared.requests.push(format!("{from} {}", &status[..3]));
    drop(shared);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nETag: {etag}\r\nContent-Length: {length}\r\nConnection: close\r\n{fields}\r\n"
    )?;
    for piece in body[..sent].chunks(16 << 10) {
        stream.write_all(piece)?;
        state.lock().unwrap_or_else(PoisonError::into_inner).sent += piece.len();
    }
    Ok(())
}
