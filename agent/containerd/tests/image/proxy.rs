//! A TCP proxy before a registry that cuts connections, and records the requests.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    /// A connection is cut after so many bytes.
    limit: u64,
    /// How many connections are still to be cut.
    cuts: usize,
    served: u64,
    requests: Vec<String>,
}

pub(crate) struct Proxy {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
    cut: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (state, cut) = (Arc::<Mutex<State>>::default(), Arc::new(Notify::new()));
        let (upstream, shared, notify) = (upstream.to_owned(), Arc::clone(&state), Arc::clone(&cut));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&upstream).await.unwrap();
                tokio::spawn(serve(client, server, Arc::clone(&shared), Arc::clone(&notify)));
            }
        });
        Self { address, state, cut, task }
    }

    /// Cuts the next `cuts` connections that serve more than `limit` bytes.
    pub(crate) fn cut_after(&self, limit: u64, cuts: usize) {
        let mut state = self.state.lock().unwrap();
        (state.limit, state.cuts) = (limit, cuts);
    }

    pub(crate) fn heal(&self) {
        self.cut_after(u64::MAX, 0);
    }

    /// Waits for a cut.
    pub(crate) async fn cut_happened(&self) {
        self.cut.notified().await;
    }

    /// Bytes sent to clients.
    pub(crate) fn served(&self) -> u64 {
        self.state.lock().unwrap().served
    }

    /// The offset of each request for a blob.
    pub(crate) fn offsets(&self, digest: &str) -> Vec<u64> {
        let state = self.state.lock().unwrap();
        let wanted = state.requests.iter().filter(|request| request.contains(&format!("/blobs/{digest} ")));
        wanted
            .map(|request| {
                let range = request.lines().find_map(|line| line.strip_prefix("range: bytes="));
                range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap())
            })
            .collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, server: TcpStream, state: Arc<Mutex<State>>, cut: Arc<Notify>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asked = Arc::clone(&state);
    let up = async move {
        let (mut buffer, mut head) = (vec![0; 16 << 10], String::new());
        loop {
            let read = from_client.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                return;
            }
            head.push_str(&String::from_utf8_lossy(&buffer[..read]));
            while let Some((request, rest)) = head.split_once("\r\n\r\n") {
                asked.lock().unwrap().requests.push(request.to_lowercase());
                head = rest.to_owned();
            }
            if to_server.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let down = async move {
        let (mut buffer, mut served) = (vec![0; 16 << 10], 0);
        loop {
            let read = from_server.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                return;
            }
            {
                let mut state = state.lock().unwrap();
                if state.cuts > 0 && served + read as u64 > state.limit {
                    state.cuts -= 1;
                    cut.notify_one();
                    return;
                }
                state.served += read as u64;
            }
            served += read as u64;
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
