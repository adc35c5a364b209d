//! A web server on loopback that serves one document, as a fleet's manifest server would.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Result;

use crate::claim::Port;

/// The server; dropping it closes its port.
#[derive(Debug)]
pub struct Web {
    port: u16,
    body: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Web {
    /// Serves `body` on `port`.
    pub fn start(port: &Port, body: &str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number))?;
        let port = port.number;
        let (body, stop) = (Arc::new(Mutex::new(body.to_owned())), Arc::new(AtomicBool::new(false)));
        let (served, stopped) = (Arc::clone(&body), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // It does not matter to this server if a client disconnects in between.
                let _ = answer(stream, &served.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
        Ok(Self { port, body, stop, thread: Some(thread) })
    }

    /// Serves this from now on.
    pub fn serve(&self, body: &str) {
        body.clone_into(&mut self.body.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The document's URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/pods", self.port)
    }
}

/// Reads a request's head, and answers it with `body`.
///
/// # Errors
/// When the connection breaks.
pub fn answer(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        head.push(byte[0]);
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // This wakes the thread, which waits for the next client.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, its port would be closed as well.
            let _ = thread.join();
        }
    }
}
