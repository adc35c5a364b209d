//! A CSI driver: gRPC servers of the service `Node` and of the registration, like a vendor's driver and its registrar.
//! Its volumes are directories that it bind-mounts.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::Result;
use limpet_node_api::csi::node_server::{Node, NodeServer};
use limpet_node_api::csi::node_service_capability::{Rpc, Type, rpc};
use limpet_node_api::csi::volume_capability::AccessType;
use limpet_node_api::csi::*;
use limpet_node_api::plugin_registration::registration_server::{Registration, RegistrationServer};
use limpet_node_api::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use limpet_tests::{TestNode, process};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use super::serve::serve;

/// The link to a volume's device where it is staged.
const DEVICE: &str = "device";

/// How a driver behaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// Whether it stages volumes.
    pub stages: bool,
    /// Whether it reports how much of a volume is used.
    pub measures: bool,
    /// Whether it expands volumes.
    pub expands: bool,
    /// Whether it applies the pod's group itself.
    pub mount_group: bool,
    /// The volume for which it does not answer `NodePublishVolume`.
    pub hangs_at: Option<String>,
    /// The number of the call of `NodePublishVolume` that fails, from 1.
    pub publish_fails: usize,
    /// How many of the first calls of `NodeUnstageVolume` fail.
    pub unstage_fails: usize,
}

/// A call, as a line: its name, the volume, and what else matters.
type Calls = Arc<Mutex<Vec<String>>>;

/// A running driver. When it is dropped it ends and removes its sockets, like one that is stopped; its volumes stay.
pub(crate) struct Driver {
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    calls: Calls,
    data: PathBuf,
    sockets: [PathBuf; 2],
}

impl Driver {
    /// Starts a driver of that name, which registers at the node's agent.
    pub(crate) fn start(node: &TestNode, name: &str, behaviour: Behaviour) -> Result<Self> {
        let data = node.dir().join("volumes").join(name);
        fs::create_dir_all(&data)?;
        let plugins = node.agent.settings().plugins();
        fs::create_dir_all(plugins.join("plugins_registry"))?;
        let socket = node.dir().join(format!("{name}.sock"));
        let registration = plugins.join("plugins_registry").join(format!("{name}-reg.sock"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let calls = Calls::default();
        let service = Service {
            behaviour: Arc::new(behaviour),
            calls: Arc::clone(&calls),
            data: data.clone(),
            node_id: format!("{}-id", node.name()),
            zone: (format!("topology.{name}/node"), node.name().to_owned()),
        };
        serve(runtime.handle(), &socket, NodeServer::new(service))?;
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: socket.to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        serve(runtime.handle(), &registration, RegistrationServer::new(Registrar { info, calls: Arc::clone(&calls) }))?;
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        });
        Ok(Self { thread: Some((end, thread)), calls, data, sockets: [registration, socket] })
    }

    /// Makes a volume. Returns its directory.
    pub(crate) fn volume(&self, handle: &str) -> Result<PathBuf> {
        let path = self.data.join(handle);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Makes a volume that is a block device of one MiB. Returns its file.
    pub(crate) fn disk(&self, handle: &str) -> Result<PathBuf> {
        let path = self.data.join(handle);
        fs::File::create(&path)?.set_len(1 << 20)?;
        Ok(path)
    }

    /// The calls so far whose line begins with `begin`.
    pub(crate) fn calls(&self, begin: &str) -> Vec<String> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().filter(|call| call.starts_with(begin)).cloned().collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for socket in &self.sockets {
            let _ = fs::remove_file(socket);
        }
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

#[derive(Clone)]
struct Service {
    behaviour: Arc<Behaviour>,
    calls: Calls,
    data: PathBuf,
    node_id: String,
    zone: (String, String),
}

impl Service {
    fn note(&self, call: String) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    fn count(&self, begin: &str) -> usize {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().filter(|call| call.starts_with(begin)).count()
    }
}

/// The values by name, in one line.
fn line(values: &HashMap<String, String>) -> String {
    let mut all: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.sort();
    all.join(",")
}

/// A call for a volume, in one line.
fn capability(capability: Option<&VolumeCapability>) -> String {
    let mode = capability.and_then(|capability| capability.access_mode).map(|mode| mode.mode()).unwrap_or_default();
    match capability.and_then(|capability| capability.access_type.as_ref()) {
        Some(AccessType::Mount(mount)) => {
            let (kind, flags, group) = (&mount.fs_type, mount.mount_flags.join(","), &mount.volume_mount_group);
            format!("{} fs={kind} flags={flags} group={group}", mode.as_str_name())
        }
        other => format!("{other:?}"),
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), Status> {
    process::checked(Command::new(program).args(arguments))
        .map(drop)
        .map_err(|error| Status::internal(format!("{error:#}")))
}

fn is_mounted(path: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

fn bind(from: &Path, to: &str) -> Result<(), Status> {
    if is_mounted(to) {
        return Ok(());
    }
    if !Path::new(to).exists() {
        fs::create_dir_all(to).map_err(|error| Status::internal(error.to_string()))?;
    }
    run("mount", &["--bind", &from.to_string_lossy(), to])
}

fn is_block(capability: Option<&VolumeCapability>) -> bool {
    matches!(capability.and_then(|capability| capability.access_type.as_ref()), Some(AccessType::Block(_)))
}

/// Attaches the file of a volume as a loop device, to which a link in `staging` leads.
fn attach(file: &Path, staging: &str) -> Result<(), Status> {
    let link = Path::new(staging).join(DEVICE);
    if fs::symlink_metadata(&link).is_ok() {
        return Ok(());
    }
    let device = process::checked(Command::new("losetup").args(["--find", "--show"]).arg(file));
    let device = device.map_err(|error| Status::internal(format!("{error:#}")))?;
    std::os::unix::fs::symlink(device.trim(), link).map_err(|error| Status::internal(error.to_string()))
}

fn unmount(path: &str) -> Result<(), Status> {
    if is_mounted(path) {
        run("umount", &[path])?;
    }
    Ok(())
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(format!(
            "stage {} {} context={} secrets={} attached={} at={}",
            request.volume_id,
            capability(request.volume_capability.as_ref()),
            line(&request.volume_context),
            line(&request.secrets),
            line(&request.publish_context),
            request.staging_target_path
        ));
        let source = self.data.join(&request.volume_id);
        if is_block(request.volume_capability.as_ref()) {
            attach(&source, &request.staging_target_path)?;
            return Ok(Response::new(NodeStageVolumeResponse {}));
        }
        if !source.is_dir() {
            return Err(Status::not_found(format!("no volume {}", request.volume_id)));
        }
        bind(&source, &request.staging_target_path)?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(format!("unstage {}", request.volume_id));
        if self.count("unstage") <= self.behaviour.unstage_fails {
            return Err(Status::internal("target is busy"));
        }
        let device = Path::new(&request.staging_target_path).join(DEVICE);
        if let Ok(device) = fs::read_link(device) {
            run("losetup", &["-d", &device.to_string_lossy()])?;
        }
        unmount(&request.staging_target_path)?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(format!(
            "publish {} {} readonly={} context={} secrets={} at={}",
            request.volume_id,
            capability(request.volume_capability.as_ref()),
            request.readonly,
            line(&request.volume_context),
            line(&request.secrets),
            request.target_path
        ));
        if self.count("publish") == self.behaviour.publish_fails {
            return Err(Status::unavailable("the vault is sealed"));
        }
        if self.behaviour.hangs_at.as_ref() == Some(&request.volume_id) {
            std::future::pending::<()>().await;
        }
        if is_block(request.volume_capability.as_ref()) {
            let device = fs::read_link(Path::new(&request.staging_target_path).join(DEVICE));
            let device = device.map_err(|error| Status::internal(error.to_string()))?;
            fs::write(&request.target_path, "").map_err(|error| Status::internal(error.to_string()))?;
            bind(&device, &request.target_path)?;
            return Ok(Response::new(NodePublishVolumeResponse {}));
        }
        let ephemeral = request.volume_context.get("csi.storage.k8s.io/ephemeral").is_some_and(|value| value == "true");
        let source = match request.staging_target_path.as_str() {
            "" => self.data.join(&request.volume_id),
            staging => PathBuf::from(staging),
        };
        if ephemeral {
            fs::create_dir_all(&source).map_err(|error| Status::internal(error.to_string()))?;
        }
        bind(&source, &request.target_path)?;
        if request.readonly {
            run("mount", &["-o", "remount,bind,ro", &request.target_path])?;
        }
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(format!("unpublish {}", request.volume_id));
        unmount(&request.target_path)?;
        let _ = fs::remove_dir(&request.target_path).or_else(|_| fs::remove_file(&request.target_path));
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.note(format!("stats {} at={}", request.volume_id, request.volume_path));
        let usage = |unit: volume_usage::Unit, total: i64, used: i64| VolumeUsage {
            available: total - used,
            total,
            used,
            unit: unit as i32,
        };
        let usage = vec![usage(volume_usage::Unit::Bytes, 1 << 20, 4096), usage(volume_usage::Unit::Inodes, 100, 3)];
        Ok(Response::new(NodeGetVolumeStatsResponse { usage }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.unwrap_or_default().required_bytes;
        self.note(format!(
            "expand {} {} bytes={bytes} secrets={} at={} staged={}",
            request.volume_id,
            capability(request.volume_capability.as_ref()),
            line(&request.secrets),
            request.volume_path,
            request.staging_target_path
        ));
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let has = [
            (self.behaviour.stages, rpc::Type::StageUnstageVolume),
            (self.behaviour.mount_group, rpc::Type::VolumeMountGroup),
            (self.behaviour.expands, rpc::Type::ExpandVolume),
            (self.behaviour.measures, rpc::Type::GetVolumeStats),
        ];
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind as i32 })) };
        let capabilities = has.into_iter().filter(|(has, _)| *has).map(|(_, kind)| capability(kind)).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: 5,
            accessible_topology: Some(Topology { segments: [self.zone.clone()].into() }),
        }))
    }
}

struct Registrar {
    info: PluginInfo,
    calls: Calls,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        let line = format!("registered {plugin_registered} {error}");
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
