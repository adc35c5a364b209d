//! The server of the URL; it is not killed.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

use limpet_tests::web::answer;

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
