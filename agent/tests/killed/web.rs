//! The server of the URL; it is not killed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Serves one document until the test ends.
pub(crate) struct Web {
    port: u16,
    body: Arc<Mutex<String>>,
}

impl Web {
    pub(crate) fn start(body: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let body = Arc::new(Mutex::new(body));
        let served = Arc::clone(&body);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let body = served.lock().unwrap().clone();
                // The client may be killed in the middle of a response.
                let _ = answer(stream, &body);
            }
        });
        Self { port, body }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn serve(&self, body: String) {
        *self.body.lock().unwrap() = body;
    }
}

fn answer(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        head.push(byte[0]);
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}
