//! A device plugin: a gRPC server of the device plugin API on its own socket, like a vendor's program.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Result;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};
use limpet_node_api::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use limpet_node_api::device_plugin::registration_client::RegistrationClient;
use limpet_node_api::device_plugin::*;
use limpet_node_api::plugin_registration::registration_server::{Registration, RegistrationServer};
use limpet_node_api::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status};

use super::serve::serve;

/// The resource that it offers.
pub(crate) const CARD: &str = "example.com/card";

/// How it answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// Whether `Allocate` never answers.
    pub hangs: bool,
    /// Whether it only names CDI devices.
    pub cdi: bool,
    /// The id that it prefers.
    pub prefers: Option<String>,
    /// `PreStartContainer` writes here which devices a container is started with.
    pub started: Option<PathBuf>,
}

/// A running plugin. When it is dropped it ends and leaves its socket, like one that is killed.
pub(crate) struct Plugin {
    handle: Handle,
    /// Its thread, and the sender that ends it.
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    devices: watch::Sender<Vec<Device>>,
    pub socket: PathBuf,
}

/// Devices by id; those that begin with `-` are not healthy.
fn devices(ids: &[&str]) -> Vec<Device> {
    let health = |id: &str| if id.starts_with('-') { "Unhealthy" } else { "Healthy" };
    let device = |id: &&str| Device {
        id: id.trim_start_matches('-').to_owned(),
        health: health(id).to_owned(),
        topology: Some(TopologyInfo { nodes: vec![NumaNode { id: 0 }] }),
    };
    ids.iter().map(device).collect()
}

impl Plugin {
    /// Starts a plugin with these devices, which listens and has not registered.
    pub(crate) fn start(socket: PathBuf, ids: &[&str], behaviour: Behaviour) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel::<()>());
        let thread = std::thread::spawn(move || drop(runtime.block_on(ended)));
        let (devices, listed) = watch::channel(devices(ids));
        let server = DevicePluginServer::new(Server { devices: listed, behaviour: Arc::new(behaviour) });
        serve(&handle, &socket, server)?;
        Ok(Self { handle, thread: Some((end, thread)), devices, socket })
    }

    /// Changes the list of devices.
    pub(crate) fn list(&self, ids: &[&str]) {
        self.devices.send_replace(devices(ids));
    }

    /// Registers at the socket `kubelet.sock` beside its own.
    pub(crate) fn register(&self, version: &str, resource: &str) -> Result<(), Status> {
        let kubelet = self.socket.with_file_name("kubelet.sock");
        let endpoint = self.socket.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let request = RegisterRequest {
            version: version.to_owned(),
            endpoint,
            resource_name: resource.to_owned(),
            options: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Status::internal(error.to_string()))?.block_on(async {
            let channel =
                containerd_client::connect(&kubelet).await.map_err(|error| Status::unavailable(error.to_string()))?;
            RegistrationClient::new(channel).register(request).await.map(drop)
        })
    }

    /// Registers as a plugin of the type `kind`: waits for the agent's requests at `socket`, and accepts its
    /// notifications.
    pub(crate) fn wait_for_request(
        &self,
        socket: &Path,
        kind: &str,
    ) -> Result<watch::Receiver<Option<RegistrationStatus>>> {
        let (told, status) = watch::channel(None);
        let endpoint = self.socket.to_string_lossy().into_owned();
        let info = PluginInfo {
            r#type: kind.to_owned(),
            name: CARD.to_owned(),
            endpoint,
            supported_versions: vec!["v1beta1".to_owned()],
        };
        serve(&self.handle, socket, RegistrationServer::new(Asked { info, told }))?;
        Ok(status)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

#[derive(Clone)]
struct Server {
    devices: watch::Receiver<Vec<Device>>,
    behaviour: Arc<Behaviour>,
}

#[tonic::async_trait]
impl DevicePlugin for Server {
    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.behaviour.started.is_some(),
            get_preferred_allocation_available: self.behaviour.prefers.is_some(),
        }))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut listed = self.devices.clone();
        listed.mark_changed();
        let lists = unfold(listed, async |mut listed| {
            listed.changed().await.ok()?;
            let devices = listed.borrow_and_update().clone();
            Some((Ok(ListAndWatchResponse { devices }), listed))
        });
        Ok(Response::new(lists.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let prefers = self.behaviour.prefers.clone();
        let preferred = |_| ContainerPreferredAllocationResponse { device_i_ds: prefers.iter().cloned().collect() };
        let container_responses = request.into_inner().container_requests.into_iter().map(preferred).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        if self.behaviour.hangs {
            std::future::pending::<()>().await;
        }
        let given = |ids: Vec<String>| {
            if self.behaviour.cdi {
                let cdi_devices = ids.iter().map(|id| CdiDevice { name: format!("{CARD}={id}") }).collect();
                return ContainerAllocateResponse { cdi_devices, ..ContainerAllocateResponse::default() };
            }
            ContainerAllocateResponse {
                envs: HashMap::from([("CARDS".to_owned(), ids.join(",")), ("OWN".to_owned(), "plugin".to_owned())]),
                mounts: vec![Mount {
                    container_path: "/vendor/release".to_owned(),
                    host_path: "/etc/os-release".to_owned(),
                    read_only: true,
                }],
                devices: vec![DeviceSpec {
                    container_path: "/dev/card".to_owned(),
                    host_path: "/dev/fuse".to_owned(),
                    permissions: "rw".to_owned(),
                }],
                ..ContainerAllocateResponse::default()
            }
        };
        let container_responses =
            request.into_inner().container_requests.into_iter().map(|container| given(container.devices_ids)).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        if let Some(path) = &self.behaviour.started {
            let ids = request.into_inner().devices_ids.join(",");
            fs::write(path, ids).map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

struct Asked {
    info: PluginInfo,
    told: watch::Sender<Option<RegistrationStatus>>,
}

#[tonic::async_trait]
impl Registration for Asked {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.told.send_replace(Some(request.into_inner()));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
