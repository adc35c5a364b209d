//! The connection to a plugin: its calls with their deadlines, and the stream of its devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

use super::{DevicePlugins, RegisterError};
use crate::plugin_socket::{connect, status_message};
use limpet_core::device_plugins::{PluginDevice, PluginId};
use limpet_model::device_allocation::{self, DeviceAllocation, PluginMount};
use limpet_node_api::device_plugin::device_plugin_client::DevicePluginClient;
use limpet_node_api::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest, Device,
    DevicePluginOptions, Empty, PreStartContainerRequest, PreferredAllocationRequest,
};

/// The deadline of a plugin's answer when it registers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The deadline for preparing devices, which may mean resetting or programming them: kubelet's deadline of
/// `PreStartContainer`.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// kubelet's word for a usable device.
const HEALTHY: &str = "Healthy";

/// A connected plugin. Clones share the connection.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    resource: String,
    socket: PathBuf,
    client: DevicePluginClient<Channel>,
    options: DevicePluginOptions,
    end: CancellationToken,
}

impl Connection {
    /// Connects, and requests the plugin's options.
    pub(super) async fn open(
        resource: &str,
        socket: PathBuf,
    ) -> Result<(Self, DevicePluginClient<Channel>), RegisterError> {
        let opening = async {
            let mut client = DevicePluginClient::new(connect(socket.clone()).await?);
            let options = client.get_device_plugin_options(Empty {}).await;
            let options = options
                .map_err(|status| format!("failed to get device plugin options: {}", status_message(&status)))?;
            Ok((client, options.into_inner()))
        };
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())));
        let unreachable = |message| RegisterError::Unreachable { path: socket.clone(), message };
        let (client, options) = opened.map_err(unreachable)?;
        let end = CancellationToken::new();
        let connection = Self { resource: resource.to_owned(), socket, client: client.clone(), options, end };
        Ok((connection, client))
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn is_at(&self, resource: &str, socket: &Path) -> bool {
        self.resource == resource && self.socket == socket
    }

    pub(super) fn end(&self) {
        self.end.cancel();
    }

    /// The ids that the plugin prefers, if it has a preference.
    pub(super) async fn preferred(
        &self,
        available: Vec<String>,
        must_include: Vec<String>,
        size: usize,
    ) -> Result<Vec<String>, Status> {
        if !self.options.get_preferred_allocation_available {
            return Ok(Vec::new());
        }
        let wanted = ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: must_include,
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![wanted] };
        let answer = within(self.client.clone().get_preferred_allocation(request)).await?;
        Ok(answer.container_responses.into_iter().next().map(|response| response.device_i_ds).unwrap_or_default())
    }

    /// Calls `Allocate` for a container's devices `ids`.
    pub(super) async fn allocate(&self, ids: Vec<String>) -> Result<DeviceAllocation, Status> {
        let wanted = ContainerAllocateRequest { devices_ids: ids.clone() };
        let request = AllocateRequest { container_requests: vec![wanted] };
        let answer = within(self.client.clone().allocate(request)).await?;
        let given = answer.container_responses.into_iter().next();
        let given = given.ok_or_else(|| Status::internal("no containers return in allocation response"))?;
        Ok(allocation(&self.resource, ids, given))
    }

    /// Calls `PreStartContainer`, if the plugin requires it.
    pub(super) async fn pre_start(&self, ids: Vec<String>) -> Result<(), Status> {
        if self.options.pre_start_required {
            let request = PreStartContainerRequest { devices_ids: ids };
            within(self.client.clone().pre_start_container(request)).await?;
        }
        Ok(())
    }
}

/// The response to a call, or an error at its deadline.
async fn within<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} s", CALL_TIMEOUT.as_secs()))),
    }
}

fn allocation(resource: &str, ids: Vec<String>, given: ContainerAllocateResponse) -> DeviceAllocation {
    let mount = |mount: limpet_node_api::device_plugin::Mount| PluginMount {
        container_path: mount.container_path.into(),
        host_path: mount.host_path.into(),
        read_only: mount.read_only,
    };
    let device = |device: limpet_node_api::device_plugin::DeviceSpec| device_allocation::PluginDevice {
        container_path: device.container_path.into(),
        host_path: device.host_path.into(),
        permissions: device.permissions,
    };
    DeviceAllocation {
        resource: resource.to_owned(),
        ids,
        env: given.envs.into_iter().collect(),
        mounts: given.mounts.into_iter().map(mount).collect(),
        devices: given.devices.into_iter().map(device).collect(),
        annotations: given.annotations.into_iter().collect(),
        cdi_devices: given.cdi_devices.into_iter().map(|device| device.name).collect(),
    }
}

/// Follows the plugin's list of devices until it ends, is replaced, or the agent stops.
pub(super) async fn follow(
    plugins: Arc<DevicePlugins>,
    id: PluginId,
    connection: Connection,
    client: DevicePluginClient<Channel>,
) {
    let why = tokio::select! {
        () = plugins.stop.cancelled() => return,
        () = connection.end.cancelled() => "it was deregistered".to_owned(),
        why = listen(&plugins, id, &connection, client) => why,
    };
    plugins.connections().remove(&id);
    if plugins.inventory().disconnected(&connection.resource, id, Instant::now()) {
        let Connection { resource, socket, .. } = connection;
        tracing::warn!(resource, socket = %socket.display(), why, "device plugin disconnected");
        plugins.changed();
    }
}

async fn listen(
    plugins: &DevicePlugins,
    id: PluginId,
    connection: &Connection,
    mut client: DevicePluginClient<Channel>,
) -> String {
    let mut stream = match client.list_and_watch(Empty {}).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return status_message(&status),
    };
    loop {
        match stream.message().await {
            Ok(Some(list)) => {
                let devices: BTreeMap<_, _> = list.devices.into_iter().map(device).collect();
                let healthy = devices.values().filter(|device| device.healthy).count();
                tracing::info!(
                    resource = connection.resource,
                    devices = devices.len(),
                    healthy,
                    "device plugin reported its devices"
                );
                if plugins.inventory().listed(&connection.resource, id, devices) {
                    plugins.changed();
                }
            }
            Ok(None) => return "it closed the stream of its devices".to_owned(),
            Err(status) => return status_message(&status),
        }
    }
}

fn device(device: Device) -> (String, PluginDevice) {
    let numa_nodes = device.topology.into_iter().flat_map(|topology| topology.nodes).map(|node| node.id).collect();
    (device.id, PluginDevice { healthy: device.health == HEALTHY, numa_nodes })
}
