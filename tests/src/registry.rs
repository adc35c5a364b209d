//! A real registry on a free loopback port, with or without a password, and a way into it that can be cut.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};

use crate::image::Image;
use crate::process::Daemon;
use crate::{tools, wait};

/// The one user a closed registry knows.
pub const USER: &str = "limpet";
/// That user's password.
pub const PASSWORD: &str = "barnacle";
/// Both, as an htpasswd line (bcrypt, the one form the registry takes).
const HTPASSWD: &str = "limpet:$2y$04$CEOf/viZHd4WO.0b0lnO.eij51bRaybdQzvyeH1P8zwWAj2bgxWza\n";

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
    port: u16,
    _daemon: Daemon,
}

impl Registry {
    /// Starts one that keeps its things below `dir`; a `closed` one wants [`USER`] and [`PASSWORD`].
    pub fn start(dir: &Path, closed: bool) -> Result<Self> {
        let program = tools::registry().context("no docker-registry here; run: cargo xtask setup")?;
        fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
        fs::write(dir.join("htpasswd"), HTPASSWD)?;
        let at = dir.display();
        let auth = format!("auth:\n  htpasswd:\n    realm: limpet\n    path: {at}/htpasswd\n");
        let config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {at}/data\nhttp:\n  \
             addr: 127.0.0.1:0\n  secret: limpet\n{}",
            if closed { &auth } else { "" }
        );
        fs::write(dir.join("config.yml"), config)?;
        let mut command = Command::new(program);
        command.arg("serve").arg(dir.join("config.yml"));
        let daemon = Daemon::start(&mut command, &dir.join("registry.log"))?;
        let port = wait::until(wait::SOON, "the registry's port", || listens_on(&daemon.log()))
            .with_context(|| daemon.log())?;
        Ok(Self { dir: dir.to_owned(), port, _daemon: daemon })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Puts `image` into the registry's storage as `repository:tag`.
    pub fn add(&self, image: &Image, repository: &str, tag: &str) -> Result<()> {
        store(&self.dir, image, repository, tag)
    }
}

/// Puts `image` as `repository:tag` where a registry that keeps its things below `dir` will find it, in the layout its
/// file-system driver documents.
pub fn store(dir: &Path, image: &Image, repository: &str, tag: &str) -> Result<()> {
    let data = dir.join("data/docker/registry/v2");
    let repository = data.join("repositories").join(repository);
    let link = |place: PathBuf, digest: &str| put(&place.join("link"), digest.as_bytes());
    for blob in [&image.manifest, &image.config].into_iter().chain(&image.layers) {
        put(&data.join("blobs/sha256").join(&blob.hex[..2]).join(&blob.hex).join("data"), &blob.bytes)?;
    }
    for blob in image.layers.iter().chain([&image.config]) {
        link(repository.join("_layers/sha256").join(&blob.hex), &blob.digest())?;
    }
    let manifest = &image.manifest;
    let tag = repository.join("_manifests/tags").join(tag);
    link(repository.join("_manifests/revisions/sha256").join(&manifest.hex), &manifest.digest())?;
    link(tag.join("index/sha256").join(&manifest.hex), &manifest.digest())?;
    link(tag.join("current"), &manifest.digest())
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    }
    fs::write(path, content).with_context(|| format!("{}", path.display()))
}

/// The port that the registry says in its log it listens on: any that was free, so nobody can take it before.
fn listens_on(log: &str) -> Option<u16> {
    let (_, rest) = log.split_once("listening on 127.0.0.1:")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..digits].parse().ok()
}

/// Tells containerd and the agent, in `certs_d`, to reach the registry `host` by plain HTTP at `address`.
pub fn allow_plain_http(certs_d: &Path, host: &str, address: SocketAddr) -> Result<()> {
    let text = format!(
        "server = \"http://{address}\"\n\n[host.\"http://{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    );
    put(&certs_d.join(host).join("hosts.toml"), text.as_bytes())
}

/// What a [`Proxy`] does with what passes.
#[derive(Debug)]
struct Passage {
    target: SocketAddr,
    /// How many bytes the registry may still say before the line is cut, once; `None`: it stays whole.
    allowance: Mutex<Option<u64>>,
    cut: AtomicBool,
    said: AtomicU64,
    heads: Mutex<Vec<String>>,
}

/// A TCP line to the registry that can be cut in mid-download and that remembers the requests it carried.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    passage: Arc<Passage>,
}

impl Proxy {
    /// Listens on a free loopback port; cuts the line once, after the registry has said `cut_after` bytes.
    pub fn start(target: SocketAddr, cut_after: Option<u64>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let passage = Arc::new(Passage {
            target,
            allowance: Mutex::new(cut_after),
            cut: AtomicBool::new(false),
            said: AtomicU64::new(0),
            heads: Mutex::default(),
        });
        let carried = passage.clone();
        // The thread ends with the process: it holds nothing but the port.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let passage = carried.clone();
                thread::spawn(move || passage.carry(client));
            }
        });
        Ok(Self { address, passage })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The heads of all requests so far: request line and headers.
    pub fn requests(&self) -> Vec<String> {
        self.passage.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The size of the registry's log so far.
    pub fn bytes(&self) -> u64 {
        self.passage.said.load(Ordering::SeqCst)
    }

    /// Whether the line has been cut.
    pub fn was_cut(&self) -> bool {
        self.passage.cut.load(Ordering::SeqCst)
    }
}

impl Passage {
    fn carry(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.target) else { return };
        let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { return };
        let ahead = self.clone();
        let requests = thread::spawn(move || ahead.carry_requests(from, to));
        self.carry_replies(server, client);
        requests.join().ok();
    }

    /// Requests of a registry client have no body here: each ends with an empty line.
    fn carry_requests(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut head = Vec::new();
        let mut buffer = [0; 16 * 1024];
        while let Some(length) = read(&mut from, &mut buffer) {
            head.extend_from_slice(&buffer[..length]);
            while let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
                let request: Vec<_> = head.drain(..end + 4).collect();
                let text = String::from_utf8_lossy(&request).trim().to_owned();
                self.heads.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Write).ok();
    }

    fn carry_replies(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        while let Some(length) = read(&mut from, &mut buffer) {
            let (passes, cut) = self.spend(length);
            self.said.fetch_add(passes as u64, Ordering::SeqCst);
            if to.write_all(&buffer[..passes]).is_err() || cut {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
        from.shutdown(Shutdown::Both).ok();
    }

    /// How many of `length` bytes may pass, and whether the line is cut after them.
    fn spend(&self, length: usize) -> (usize, bool) {
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        match *allowance {
            Some(left) if left <= length as u64 => {
                *allowance = None;
                self.cut.store(true, Ordering::SeqCst);
                (usize::try_from(left).unwrap_or(length), true)
            }
            Some(left) => {
                *allowance = Some(left - length as u64);
                (length, false)
            }
            None => (length, false),
        }
    }
}

/// Reads once; `None` at the end of the stream.
fn read(from: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match from.read(buffer) {
            Ok(0) => return None,
            Ok(length) => return Some(length),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
