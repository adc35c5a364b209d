//! A node of the harness without an agent, and inspection of its containerd by the API that limpet uses.

use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{RemoveSnapshotRequest, StatSnapshotRequest, ViewSnapshotRequest};
use containerd_client::services::v1::{
    CreateRequest, DeleteContentRequest, DeleteRequest, GetImageRequest, Info, InfoRequest, ListRequest, UpdateRequest,
    WriteAction, WriteContentRequest,
};
use limpet_containerd::client::Client;
use limpet_containerd::image::{Images, ImagesConfig};
use limpet_containerd::settings::ImageSettings;
use limpet_tests::image::Blob;
use limpet_tests::node::NodeOptions;
use limpet_tests::registry::{self, Registry};
use limpet_tests::{TestNode, need};
use rustix::mount::MountFlags;

const SNAPSHOTTER: &str = "overlayfs";

pub(crate) struct Node {
    node: TestNode,
    client: Client,
}

impl Node {
    /// `None`, with a message why, where a requirement is missing.
    pub(crate) fn start() -> Option<Self> {
        Self::start_in(None)
    }

    /// With a disk of so many bytes.
    pub(crate) fn start_on(bytes: u64) -> Option<Self> {
        Self::start_in(Some(bytes))
    }

    fn start_in(image_disk: Option<u64>) -> Option<Self> {
        let options = NodeOptions { agent: false, images: false, image_disk, ..NodeOptions::default() };
        let node = need::node(&options)?;
        let node = Self { client: Client::new(&node.containerd.socket()), node };
        std::fs::create_dir_all(node.archives()).unwrap();
        Some(node)
    }

    /// A registry of its own.
    pub(crate) fn registry(&self, start: registry::Start) -> Option<Registry> {
        need::registry(&self.node, start)
    }

    /// As after a crash of containerd.
    pub(crate) fn restart_containerd(&mut self) {
        self.node.containerd.kill();
        self.node.containerd.start().unwrap();
        // The loss of the old connection may be noticed only by the next call, which then fails.
        self.client = Client::new(&self.node.containerd.socket());
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    /// Resizes the disk.
    pub(crate) fn resize(&self, bytes: u64) {
        let root = self.node.containerd.root();
        rustix::mount::mount_remount(&root, MountFlags::empty(), format!("size={bytes}")).unwrap();
    }

    /// The images of an agent that has just started.
    pub(crate) fn images(&self) -> Images {
        Images::new(
            self.client(),
            ImagesConfig {
                snapshotter: SNAPSHOTTER.to_owned(),
                settings: ImageSettings {
                    registry_config_dir: self.node.containerd.certs_d(),
                    ..ImageSettings::default()
                },
                auth_files: vec![self.scratch("none.json"), self.scratch("config.json")],
                verifiers: None,
                throttle: limpet_host::throttle::Throttle::default(),
                archives_dir: self.archives(),
            },
        )
    }

    pub(crate) fn archives(&self) -> PathBuf {
        self.node.agent.settings().root().join("images")
    }

    /// A path on the same file system as the archives, not watched.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.node.dir().join(name)
    }

    pub(crate) fn compress(&self, tool: &str, name: &str, to: &Path) {
        let output = std::fs::File::create(to).unwrap();
        let status = Command::new(tool).arg("-c").arg(self.scratch(name)).stdout(output).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn credentials(&self, host: &str, user: &str, password: &str) {
        let config = serde_json::json!({"auths": {host: {"username": user, "password": password}}});
        std::fs::write(self.scratch("config.json"), config.to_string()).unwrap();
    }

    pub(crate) fn hosts_toml(&self, host: &str, text: &str) {
        let dir = self.node.containerd.certs_d().join(host);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("hosts.toml"), text).unwrap();
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

    /// A label of a blob.
    pub(crate) async fn label(&self, digest: &str, key: &str) -> Option<String> {
        let request = self.client().request(InfoRequest { digest: digest.to_owned() });
        let info = ContentClient::new(self.client().channel()).info(request).await.unwrap().into_inner().info.unwrap();
        info.labels.get(key).cloned()
    }

    /// Sets a label of a blob; an empty one is removed.
    pub(crate) async fn set_label(&self, digest: &str, key: &str, value: &str) {
        let labels = [(key.to_owned(), value.to_owned())].into_iter().collect();
        let info = Info { digest: digest.to_owned(), labels, ..Info::default() };
        let update_mask = Some(prost_types::FieldMask { paths: vec![format!("labels.{key}")] });
        let request = self.client().request(UpdateRequest { info: Some(info), update_mask });
        ContentClient::new(self.client().channel()).update(request).await.unwrap();
    }

    /// Leaves the beginning of a download, as an interrupted agent does.
    pub(crate) async fn leave_ingest(&self, blob: &Blob, bytes: &[u8]) {
        let message = |action: WriteAction, data: &[u8]| WriteContentRequest {
            action: action.into(),
            r#ref: format!("limpet-{}", blob.digest()),
            total: i64::try_from(blob.bytes.len()).unwrap(),
            expected: blob.digest(),
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
        // Nothing refers to it, so the collector may have been faster.
        let request = RemoveSnapshotRequest { snapshotter: SNAPSHOTTER.to_owned(), key };
        let removed = self.snapshots().remove(self.client().request(request)).await;
        assert!(removed.as_ref().err().is_none_or(|status| status.code() == tonic::Code::NotFound), "{removed:?}");
    }
}
