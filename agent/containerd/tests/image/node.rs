//! A private containerd for a test, and inspection of its state.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{RemoveSnapshotRequest, StatSnapshotRequest, ViewSnapshotRequest};
use containerd_client::services::v1::{
    CreateRequest, DeleteContentRequest, DeleteRequest, GetImageRequest, ListRequest, WriteAction, WriteContentRequest,
};
use limpet_containerd::client::Client;
use limpet_containerd::image::{Images, ImagesConfig};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::made::Blob;

const SNAPSHOTTER: &str = "overlayfs";

pub(crate) struct Node {
    dir: PathBuf,
    client: Mutex<Client>,
    child: Mutex<Child>,
    tmpfs: bool,
}

/// A new directory of this process.
pub(crate) fn fresh_dir(what: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = PathBuf::from(format!("/run/limpet-test-image/{}-{what}-{count}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn containerd() -> Command {
    match std::env::var_os("LIMPET_CONTAINERD_BIN") {
        None => Command::new("containerd"),
        Some(bin) => {
            let mut command = Command::new(Path::new(&bin).join("containerd"));
            let mut path = bin.clone();
            path.push(":");
            path.push(std::env::var_os("PATH").unwrap_or_default());
            command.env("PATH", path);
            command
        }
    }
}

/// Major and minor version.
fn version() -> Option<(u32, u32)> {
    let output = containerd().arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version =
        text.split_whitespace().find(|word| word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = version.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

impl Node {
    pub(crate) async fn start() -> Result<Self, String> {
        Self::start_in(None)
    }

    /// With a disk of so many bytes.
    pub(crate) async fn start_on(bytes: u64) -> Result<Self, String> {
        Self::start_in(Some(bytes))
    }

    fn start_in(bytes: Option<u64>) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        match version() {
            None => return Err("containerd is not installed".to_owned()),
            Some(version) if version < (1, 7) => return Err(format!("containerd {version:?} is older than 1.7")),
            Some(_) => {}
        }
        let dir = fresh_dir("node");
        for name in ["root", "state", "images", "certs.d"] {
            std::fs::create_dir(dir.join(name)).unwrap();
        }
        if let Some(bytes) = bytes {
            mount_tmpfs(&dir.join("root"), bytes, MountFlags::empty());
        }
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
             \"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\", \"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = {:?}\n",
            dir.join("root"),
            dir.join("state"),
            dir.join("sock")
        );
        std::fs::write(dir.join("config.toml"), config).unwrap();
        let child = boot(&dir);
        Ok(Self {
            client: Mutex::new(Client::new(&dir.join("sock"))),
            dir,
            child: Mutex::new(child),
            tmpfs: bytes.is_some(),
        })
    }

    /// As after a crash of containerd.
    pub(crate) async fn restart_containerd(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        *child = boot(&self.dir);
        // The loss of the old connection may be noticed only by the next call, which then fails.
        *self.client.lock().unwrap() = Client::new(&self.dir.join("sock"));
    }

    fn client(&self) -> Client {
        self.client.lock().unwrap().clone()
    }

    /// Resizes the disk.
    pub(crate) fn resize(&self, bytes: u64) {
        let root = self.dir.join("root");
        rustix::mount::mount_remount(&root, MountFlags::empty(), format!("size={bytes}")).unwrap();
    }

    /// The images of an agent that has just started.
    pub(crate) fn images(&self) -> Images {
        Images::new(
            self.client(),
            ImagesConfig {
                snapshotter: SNAPSHOTTER.to_owned(),
                registry_config_dir: self.dir.join("certs.d"),
                auth_files: vec![self.dir.join("none.json"), self.dir.join("config.json")],
                archives_dir: self.archives(),
            },
        )
    }

    pub(crate) fn archives(&self) -> PathBuf {
        self.dir.join("images")
    }

    /// A path on the same file system as the archives, not watched.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn compress(&self, tool: &str, name: &str, to: &Path) {
        let output = std::fs::File::create(to).unwrap();
        let status = Command::new(tool).arg("-c").arg(self.scratch(name)).stdout(output).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn credentials(&self, host: &str, user: &str, password: &str) {
        let config = serde_json::json!({"auths": {host: {"username": user, "password": password}}});
        std::fs::write(self.dir.join("config.json"), config.to_string()).unwrap();
    }

    pub(crate) fn hosts_toml(&self, host: &str, text: &str) {
        std::fs::create_dir_all(self.dir.join("certs.d").join(host)).unwrap();
        std::fs::write(self.dir.join("certs.d").join(host).join("hosts.toml"), text).unwrap();
    }

    pub(crate) async fn leases(&self) -> Vec<String> {
        let mut leases = LeasesClient::new(self.client().channel());
        let listed = leases.list(self.client().request(ListRequest::default())).await.unwrap().into_inner();
        listed.leases.into_iter().map(|lease| lease.id).collect()
    }

    /// Runs containerd's collector to its end.
    pub(crate) async fn collect_garbage(&self) {
        let mut leases = LeasesClient::new(self.client().channel());
        let id = "collect-garbage".to_owned();
        leases.create(self.client().request(CreateRequest { id: id.clone(), ..Default::default() })).await.unwrap();
        leases.delete(self.client().request(DeleteRequest { id, sync: true })).await.unwrap();
    }

    fn snapshots(&self) -> SnapshotsClient<tonic::transport::Channel> {
        SnapshotsClient::new(self.client().channel())
    }

    pub(crate) async fn has_snapshot(&self, key: &str) -> bool {
        let request = StatSnapshotRequest { snapshotter: SNAPSHOTTER.to_owned(), key: key.to_owned() };
        self.snapshots().stat(self.client().request(request)).await.is_ok()
    }

    pub(crate) async fn remove_snapshot(&self, key: &str) {
        let request = RemoveSnapshotRequest { snapshotter: SNAPSHOTTER.to_owned(), key: key.to_owned() };
        self.snapshots().remove(self.client().request(request)).await.unwrap();
    }

    pub(crate) async fn remove_content(&self, digest: &str) {
        let request = DeleteContentRequest { digest: digest.to_owned() };
        ContentClient::new(self.client().channel()).delete(self.client().request(request)).await.unwrap();
    }

    /// Leaves the beginning of a download, as an interrupted agent does.
    pub(crate) async fn leave_ingest(&self, blob: &Blob, bytes: &[u8]) {
        let message = |action: WriteAction, data: &[u8]| WriteContentRequest {
            action: action.into(),
            r#ref: format!("limpet-{}", blob.digest),
            total: i64::try_from(blob.size).unwrap(),
            expected: blob.digest.clone(),
            data: data.to_vec(),
            ..Default::default()
        };
        let messages = [message(WriteAction::Stat, &[]), message(WriteAction::Write, bytes)];
        let request = self.client().request(futures_util::stream::iter(messages));
        let mut answers = ContentClient::new(self.client().channel()).write(request).await.unwrap().into_inner();
        while let Ok(Some(_)) = answers.message().await {}
    }

    pub(crate) async fn is_pinned(&self, name: &str) -> bool {
        let request = self.client().request(GetImageRequest { name: name.to_owned() });
        let image = ImagesClient::new(self.client().channel()).get(request).await.unwrap().into_inner().image.unwrap();
        image.labels.get("io.cri-containerd.pinned").is_some_and(|value| value == "pinned")
    }

    /// Asserts that the file is in the unpacked image.
    pub(crate) async fn assert_file(&self, chain_id: &str, path: &str) {
        let key = format!("look-{}", chain_id.len() + path.len());
        let request = ViewSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.clone(),
            parent: chain_id.to_owned(),
            ..Default::default()
        };
        let mounts = self.snapshots().view(self.client().request(request)).await.unwrap().into_inner().mounts;
        // An overlay without an upper directory names its layers; one layer alone is a bind mount.
        let lower = mounts[0].options.iter().find_map(|option| option.strip_prefix("lowerdir="));
        let layers: Vec<&str> = lower.map_or_else(|| vec![mounts[0].source.as_str()], |dirs| dirs.split(':').collect());
        assert!(layers.iter().any(|layer| Path::new(layer).join(path).is_file()), "{path} in {mounts:?}");
        self.remove_snapshot(&key).await;
    }
}

fn mount_tmpfs(at: &Path, bytes: u64, flags: MountFlags) {
    let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
    rustix::mount::mount("limpet-test", at, "tmpfs", flags, Some(options.as_c_str())).unwrap();
}

/// Starts containerd and waits until it logs that it is ready.
fn boot(dir: &Path) -> Child {
    let mut child = containerd()
        .arg("--config")
        .arg(dir.join("config.toml"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut lines = String::new();
    while !lines.contains("containerd successfully booted") {
        assert!(log.read_line(&mut lines).unwrap() > 0, "containerd exited: {lines}");
    }
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    child
}

impl Drop for Node {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
        if self.tmpfs {
            let _ = rustix::mount::unmount(self.dir.join("root"), UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
