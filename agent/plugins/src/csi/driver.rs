//! One CSI driver: its connection, its capabilities, and its calls with their deadline.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::plugin_socket::{connect, status_message};
use limpet_core::csi_node::DriverInfo;
use limpet_model::object::csi::CsiVolume;
use limpet_node_api::csi::node_client::NodeClient;
use limpet_node_api::csi::node_service_capability::{Type, rpc};
use limpet_node_api::csi::volume_capability::access_mode::Mode;
use limpet_node_api::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use limpet_node_api::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability, VolumeUsage,
};

/// The deadline of a call, as in kubelet.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", status_message(status))]
pub struct CallError {
    /// The call's name.
    call: &'static str,
    /// The driver's status, or the transport's.
    status: Status,
}

impl CallError {
    /// The status code.
    pub(super) fn code(&self) -> Code {
        self.status.code()
    }

    /// Whether the driver does not know the volume.
    pub fn is_not_found(&self) -> bool {
        self.status.code() == Code::NotFound
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Its volumes are staged for the node before they are published for a pod.
    pub stage: bool,
    /// It gives volumes the pod's group itself.
    pub mount_group: bool,
    /// It reports how much of a volume is used.
    pub stats: bool,
    /// It expands volumes on the node.
    pub expand: bool,
    /// It knows how many pods of one node write to a volume.
    pub single_node_multi_writer: bool,
}

#[derive(Debug)]
pub struct Driver {
    name: String,
    socket: PathBuf,
    client: NodeClient<Channel>,
    capabilities: Capabilities,
}

impl Driver {
    /// Connects, and requests the driver's capabilities and the node's id and topology.
    ///
    /// # Errors
    ///
    /// It does not answer, or refuses; a sentence.
    pub(super) async fn open(name: &str, socket: PathBuf) -> Result<(Self, DriverInfo), String> {
        let connected = tokio::time::timeout(CALL_TIMEOUT, connect(socket.clone())).await;
        let channel = connected.map_err(|_| "no answer".to_owned())??;
        let mut client = NodeClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        let info = within("NodeGetInfo", client.node_get_info(NodeGetInfoRequest {})).await;
        let info = info.map_err(|error| error.to_string())?;
        let answer = within("NodeGetCapabilities", client.node_get_capabilities(NodeGetCapabilitiesRequest {})).await;
        let answer = answer.map_err(|error| error.to_string())?.capabilities;
        let has = |wanted: rpc::Type| {
            answer
                .iter()
                .any(|capability| matches!(&capability.r#type, Some(Type::Rpc(rpc)) if rpc.r#type == wanted as i32))
        };
        let capabilities = Capabilities {
            stage: has(rpc::Type::StageUnstageVolume),
            mount_group: has(rpc::Type::VolumeMountGroup),
            stats: has(rpc::Type::GetVolumeStats),
            expand: has(rpc::Type::ExpandVolume),
            single_node_multi_writer: has(rpc::Type::SingleNodeMultiWriter),
        };
        let info = DriverInfo {
            node_id: info.node_id,
            topology: info.accessible_topology.unwrap_or_default().segments.into_iter().collect(),
            max_volumes: info.max_volumes_per_node,
        };
        Ok((Self { name: name.to_owned(), socket, client, capabilities }, info))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// `NodeStageVolume`: prepares the volume for all pods of the node, at `staging`.
    pub(super) async fn stage(&self, mounting: &Mounting<'_>, staging: &Path) -> Result<(), CallError> {
        let volume = mounting.volume;
        let request = NodeStageVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: map(&volume.publish_context),
            staging_target_path: text(staging),
            volume_capability: Some(mounting.capability(self.capabilities)),
            secrets: map(&mounting.secrets),
            volume_context: map(&mounting.attributes),
        };
        within("NodeStageVolume", self.client.clone().node_stage_volume(request)).await.map(drop)
    }

    /// `NodePublishVolume`: mounts the volume at `target` for one pod.
    pub(super) async fn publish(&self, mounting: &Mounting<'_>, target: &Path) -> Result<(), CallError> {
        let volume = mounting.volume;
        let request = NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: map(&volume.publish_context),
            staging_target_path: mounting.staging.as_deref().map(text).unwrap_or_default(),
            target_path: text(target),
            volume_capability: Some(mounting.capability(self.capabilities)),
            readonly: mounting.read_only,
            secrets: map(&mounting.secrets),
            volume_context: map(&mounting.attributes),
        };
        within("NodePublishVolume", self.client.clone().node_publish_volume(request)).await.map(drop)
    }

    /// `NodeUnpublishVolume`.
    pub(super) async fn unpublish(&self, handle: &str, target: &Path) -> Result<(), CallError> {
        let request = NodeUnpublishVolumeRequest { volume_id: handle.to_owned(), target_path: text(target) };
        within("NodeUnpublishVolume", self.client.clone().node_unpublish_volume(request)).await.map(drop)
    }

    /// `NodeGetVolumeStats` of the volume at `target`.
    pub(super) async fn stats(&self, handle: &str, target: &Path) -> Result<Vec<VolumeUsage>, CallError> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: text(target),
            staging_target_path: String::new(),
        };
        let answer = within("NodeGetVolumeStats", self.client.clone().node_get_volume_stats(request)).await?;
        Ok(answer.usage)
    }

    /// `NodeExpandVolume`: expands the volume at `target` to at least this many bytes.
    pub(super) async fn expand(&self, mounting: &Mounting<'_>, target: &Path, bytes: i64) -> Result<(), CallError> {
        let request = NodeExpandVolumeRequest {
            volume_id: mounting.volume.handle.clone(),
            volume_path: text(target),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: mounting.staging.as_deref().map(text).unwrap_or_default(),
            volume_capability: Some(mounting.capability(self.capabilities)),
            secrets: map(&mounting.secrets),
        };
        within("NodeExpandVolume", self.client.clone().node_expand_volume(request)).await.map(drop)
    }

    /// `NodeUnstageVolume`.
    pub(super) async fn unstage(&self, handle: &str, staging: &Path) -> Result<(), CallError> {
        let request = NodeUnstageVolumeRequest { volume_id: handle.to_owned(), staging_target_path: text(staging) };
        within("NodeUnstageVolume", self.client.clone().node_unstage_volume(request)).await.map(drop)
    }
}

/// How a volume is to be mounted.
#[derive(Debug)]
pub(super) struct Mounting<'a> {
    pub volume: &'a CsiVolume,
    /// The volume's attributes, and the pod's where the driver requires them.
    pub attributes: BTreeMap<String, String>,
    /// The Secret of the call.
    pub secrets: BTreeMap<String, String>,
    /// The group to which the driver gives the files.
    pub group: Option<u32>,
    /// The path where it is staged.
    pub staging: Option<PathBuf>,
    /// Whether the pod only reads it.
    pub read_only: bool,
}

impl Mounting<'_> {
    fn capability(&self, of_driver: Capabilities) -> VolumeCapability {
        let mode = self.volume.access_modes.first().map_or("ReadWriteOnce", String::as_str);
        let access_mode = AccessMode { mode: access_mode(mode, of_driver.single_node_multi_writer) as i32 };
        if self.volume.block {
            let access_type = Some(AccessType::Block(BlockVolume {}));
            return VolumeCapability { access_mode: Some(access_mode), access_type };
        }
        let mount = MountVolume {
            fs_type: self.volume.fs_type.clone(),
            mount_flags: self.volume.mount_options.clone(),
            volume_mount_group: self.group.map(|group| group.to_string()).unwrap_or_default(),
        };
        VolumeCapability { access_mode: Some(access_mode), access_type: Some(AccessType::Mount(mount)) }
    }
}

/// Kubernetes' access mode as CSI's, by kubelet's table.
fn access_mode(mode: &str, single_node_multi_writer: bool) -> Mode {
    match (mode, single_node_multi_writer) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

fn map(values: &BTreeMap<String, String>) -> HashMap<String, String> {
    values.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The answer to a call, or an error at its deadline.
async fn within<T>(
    call: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, CallError> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, answer)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {} s", CALL_TIMEOUT.as_secs()))));
    answer.map(tonic::Response::into_inner).map_err(|status| CallError { call, status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_kubelets() {
        for (mode, plain, able) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            ("", Mode::Unknown, Mode::Unknown),
        ] {
            assert_eq!((access_mode(mode, false), access_mode(mode, true)), (plain, able), "{mode}");
        }
    }
}
