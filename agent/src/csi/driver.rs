//! One CSI driver: its connection, what it can, and its calls with their deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Status;
use tonic::transport::Channel;

use crate::plugin_socket::{connect, said};
use limpet_core::csi_node::DriverInfo;
use limpet_node_api::csi::node_client::NodeClient;
use limpet_node_api::csi::node_service_capability::{Type, rpc};
use limpet_node_api::csi::{NodeGetCapabilitiesRequest, NodeGetInfoRequest};

/// How long a driver may take for a call: kubelet's deadline.
const CALL: Duration = Duration::from_secs(120);
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", said(status))]
pub struct CallError {
    /// Which one.
    call: &'static str,
    /// What the driver has said, or that it has said nothing.
    status: Status,
}

/// What a driver can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Its volumes are staged for the node before they are published for a pod.
    pub stage: bool,
    /// It gives volumes the pod's group itself.
    pub mount_group: bool,
    /// It knows how many pods of one node write to a volume.
    pub single_node_multi_writer: bool,
}

/// A driver that is registered.
#[derive(Debug)]
pub struct Driver {
    name: String,
    socket: PathBuf,
    capabilities: Capabilities,
}

impl Driver {
    /// Connects, and asks what the driver can and what it says of the node.
    ///
    /// # Errors
    /// It does not answer, or refuses; in words.
    pub(super) async fn open(name: &str, socket: PathBuf) -> Result<(Self, DriverInfo), String> {
        let connected = tokio::time::timeout(CALL, connect(socket.clone())).await;
        let channel = connected.map_err(|_| "no answer".to_owned())??;
        let mut client = NodeClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        let info = within("NodeGetInfo", client.node_get_info(NodeGetInfoRequest {})).await;
        let info = info.map_err(|error| error.to_string())?;
        let found = within("NodeGetCapabilities", client.node_get_capabilities(NodeGetCapabilitiesRequest {})).await;
        let found = found.map_err(|error| error.to_string())?.capabilities;
        let has = |wanted: rpc::Type| {
            found.iter().any(|one| matches!(&one.r#type, Some(Type::Rpc(rpc)) if rpc.r#type == wanted as i32))
        };
        let capabilities = Capabilities {
            stage: has(rpc::Type::StageUnstageVolume),
            mount_group: has(rpc::Type::VolumeMountGroup),
            single_node_multi_writer: has(rpc::Type::SingleNodeMultiWriter),
        };
        let info = DriverInfo {
            node_id: info.node_id,
            topology: info.accessible_topology.unwrap_or_default().segments.into_iter().collect(),
            max_volumes: info.max_volumes_per_node,
        };
        Ok((Self { name: name.to_owned(), socket, capabilities }, info))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it can.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

/// The answer to a call, or an error at its deadline.
async fn within<T>(
    call: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, CallError> {
    let answer = tokio::time::timeout(CALL, answer)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {} s", CALL.as_secs()))));
    answer.map(tonic::Response::into_inner).map_err(|status| CallError { call, status })
}
