//! A real registry on a free loopback port: open, with a password or with TLS; and a connection to it that can be
//! cut.

mod proxy;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

pub use self::proxy::Proxy;
use crate::image::{Blob, Image};
use crate::process::{self, Daemon};
use crate::{tools, wait};

/// The only user that a closed registry knows.
pub const USER: &str = "limpet";
/// That user's password.
pub const PASSWORD: &str = "barnacle";
/// Both, as an htpasswd line (bcrypt, the only form that the registry accepts).
const HTPASSWD: &str = "limpet:$2y$04$CEOf/viZHd4WO.0b0lnO.eij51bRaybdQzvyeH1P8zwWAj2bgxWza\n";

/// A function that starts a registry with its files below a directory.
pub type Start = fn(&Path) -> Result<Registry>;

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
    port: u16,
    _daemon: Daemon,
}

impl Registry {
    /// Starts one without authentication, with its files below `dir`.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, None, "", "")
    }

    /// Starts one in the mount and network namespaces of the process `pid`.
    pub fn start_on_host_of(pid: u32, dir: &Path) -> Result<Self> {
        Self::start_with(dir, Some(pid), "", "")
    }

    /// Starts one that requires [`USER`] and [`PASSWORD`].
    pub fn start_closed(dir: &Path) -> Result<Self> {
        put(&dir.join("htpasswd"), HTPASSWD.as_bytes())?;
        let at = dir.display();
        Self::start_with(dir, None, "", &format!("auth:\n  htpasswd:\n    realm: limpet\n    path: {at}/htpasswd\n"))
    }

    /// Starts one that uses TLS, with a certificate that only its own [`Self::certificate`] vouches for.
    pub fn start_tls(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
        let (key, certificate) = (dir.join("key.pem"), certificate(dir));
        self_signed(&key, &certificate)?;
        let (key, certificate) = (key.display(), certificate.display());
        Self::start_with(dir, None, &format!("  tls:\n    key: {key}\n    certificate: {certificate}\n"), "")
    }

    fn start_with(dir: &Path, host_of: Option<u32>, http: &str, further: &str) -> Result<Self> {
        let program = tools::registry().context("no docker-registry here; run: cargo xtask setup")?;
        let config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {}/data\nhttp:\n  \
             addr: 127.0.0.1:0\n  secret: limpet\n{http}{further}",
            dir.display(),
        );
        put(&dir.join("config.yml"), config.as_bytes())?;
        let mut command = match host_of {
            None => Command::new(program),
            Some(pid) => process::entering(pid, &program),
        };
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

    /// The certificate of one that uses TLS.
    pub fn certificate(&self) -> PathBuf {
        certificate(&self.dir)
    }

    /// Writes `image` into the registry's storage as `repository:tag`.
    pub fn add(&self, image: &Image, repository: &str, tag: &str) -> Result<()> {
        store(&self.dir, image, repository, tag)
    }

    /// The same behind the image's index.
    pub fn add_with_index(&self, image: &Image, repository: &str, tag: &str) -> Result<()> {
        let store = Repository::new(&self.dir, repository);
        store.content(image)?;
        store.manifest(&image.manifest)?;
        store.tag(tag, &image.index())
    }

    /// Writes a manifest and what it refers to into the storage.
    pub fn add_artifact(&self, manifest: &Blob, blobs: &[Blob], repository: &str, tag: &str) -> Result<()> {
        let store = Repository::new(&self.dir, repository);
        for blob in blobs {
            store.layer(blob)?;
        }
        store.tag(tag, manifest)
    }

    /// Writes an index into the storage. No client could, because a registry refuses an index whose manifests it
    /// lacks.
    pub fn add_index(&self, index: &Blob, repository: &str, tag: &str) -> Result<()> {
        Repository::new(&self.dir, repository).tag(tag, index)
    }
}

/// Writes a self-signed certificate for 127.0.0.1, and its key.
pub fn self_signed(key: &Path, certificate: &Path) -> Result<()> {
    self_signed_for(2, key, certificate)
}

/// The same with a certificate that expires in `days`.
pub fn self_signed_for(days: u32, key: &Path, certificate: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]);
    command.args(["-days", &days.to_string()]);
    command.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]);
    process::checked(command.arg("-keyout").arg(key).arg("-out").arg(certificate)).map(drop)
}

fn certificate(dir: &Path) -> PathBuf {
    dir.join("cert.pem")
}

/// Writes `image` as `repository:tag` where a registry with its files below `dir` finds it.
pub fn store(dir: &Path, image: &Image, repository: &str, tag: &str) -> Result<()> {
    let store = Repository::new(dir, repository);
    store.content(image)?;
    store.tag(tag, &image.manifest)
}

/// One repository, in the layout that the registry's file-system driver documents.
struct Repository {
    blobs: PathBuf,
    dir: PathBuf,
}

impl Repository {
    fn new(dir: &Path, name: &str) -> Self {
        let data = dir.join("data/docker/registry/v2");
        Self { blobs: data.join("blobs/sha256"), dir: data.join("repositories").join(name) }
    }

    fn blob(&self, blob: &Blob) -> Result<()> {
        put(&self.blobs.join(&blob.hex[..2]).join(&blob.hex).join("data"), &blob.bytes)
    }

    /// Layers and configuration.
    fn content(&self, image: &Image) -> Result<()> {
        image.layers.iter().chain([&image.config]).try_for_each(|blob| self.layer(blob))
    }

    fn layer(&self, blob: &Blob) -> Result<()> {
        self.blob(blob)?;
        link(&self.dir.join("_layers/sha256").join(&blob.hex), blob)
    }

    /// A manifest or an index.
    fn manifest(&self, manifest: &Blob) -> Result<()> {
        self.blob(manifest)?;
        link(&self.dir.join("_manifests/revisions/sha256").join(&manifest.hex), manifest)
    }

    fn tag(&self, tag: &str, manifest: &Blob) -> Result<()> {
        self.manifest(manifest)?;
        let tag = self.dir.join("_manifests/tags").join(tag);
        link(&tag.join("index/sha256").join(&manifest.hex), manifest)?;
        link(&tag.join("current"), manifest)
    }
}

fn link(place: &Path, blob: &Blob) -> Result<()> {
    put(&place.join("link"), blob.digest().as_bytes())
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    }
    fs::write(path, content).with_context(|| format!("{}", path.display()))
}

/// The port on which the registry listens according to its log. It is any free port, so no other process can take it
/// before.
fn listens_on(log: &str) -> Option<u16> {
    let (_, rest) = log.split_once("listening on 127.0.0.1:")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..digits].parse().ok()
}

/// Configures containerd and the agent, in `certs_d`, to reach the registry `host` by plain HTTP at `address`.
pub fn allow_plain_http(certs_d: &Path, host: &str, address: SocketAddr) -> Result<()> {
    let text = format!(
        "server = \"http://{address}\"\n\n[host.\"http://{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    );
    put(&certs_d.join(host).join("hosts.toml"), text.as_bytes())
}
