//! The source of a volume's data that does not belong to the pod alone: a path of the node, a server, a disk or a CSI
//! driver, directly or through a claim.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Volume};

use super::VolumeError;
use super::claim::ClaimDirectory;
use super::csi::{self, CsiMount};
use super::flex::FlexMount;
use super::host_path::{HostPath, HostPathType};
use super::iscsi::IscsiMount;
use super::nfs::NfsMount;
use super::secret_values::secret_values;
use limpet_model::object::claim::{self, ClaimedSource};
use limpet_model::object::iscsi::IscsiVolume;
use limpet_model::object::{ObjectKind, PodObjects, flex_secret, iscsi_secret};
use limpet_model::pod::PodRecord;
use limpet_model::pod::qos::all_containers;
use limpet_model::pod::volume_kind::VolumeKind;

/// The source of a volume's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VolumeSource {
    /// A path of the node.
    Node(HostPath),
    /// A directory of a claim of a manifest.
    Claim(ClaimDirectory),
    /// An export that is mounted for the pod.
    Server(NfsMount),
    /// A disk of an iSCSI target.
    Disk(Box<IscsiMount>),
    /// A volume that a CSI driver mounts for the pod.
    Driver(CsiMount),
    /// A volume that a FlexVolume driver mounts for the pod.
    Flex(Box<FlexMount>),
}

impl VolumeSource {
    /// The source of `volume`, and whether containers may only read it; `None` if the volume is removed with its pod.
    pub(super) fn find(
        volume: &Volume,
        pod: &PodRecord,
        objects: &PodObjects,
        pod_dir: &Path,
    ) -> Result<Option<(Self, bool)>, VolumeError> {
        let (usage, name) = (Usage::in_pod(pod, &volume.name), &volume.name);
        let Some(kind) = VolumeKind::find(volume) else { return Ok(None) };
        Ok(Some(match kind {
            VolumeKind::HostPath(source) => {
                let mut host_path = HostPath::new(name, source)?;
                // A missing device is waited for, and never created as a directory.
                if usage.device {
                    host_path.kind = HostPathType::BlockDevice;
                }
                (Self::Node(host_path), false)
            }
            VolumeKind::Nfs(export) => {
                let read_only = export.read_only == Some(true);
                (Self::Server(NfsMount::new(pod_dir, name, export, &[], read_only)?), read_only)
            }
            VolumeKind::Iscsi(source) => {
                let disk = IscsiVolume::inline(name, source);
                let agrees = usage.agrees(false, name);
                agrees.map_err(|reason| VolumeError::Claim { volume: name.clone(), reason })?;
                let secret = secret_values(iscsi_secret(volume), objects);
                let mount = IscsiMount::new(pod, pod_dir, name, &disk, secret, disk.read_only)?;
                (Self::Disk(Box::new(mount)), disk.read_only)
            }
            VolumeKind::FlexVolume(source) => {
                let secret = secret_values(flex_secret(volume), objects);
                let mount = FlexMount::new(pod, pod_dir, name, source, secret)?;
                (Self::Flex(Box::new(mount)), source.read_only == Some(true))
            }
            VolumeKind::Csi(_) | VolumeKind::PersistentVolumeClaim(_) | VolumeKind::Ephemeral(_) => {
                return Self::of_claim(volume, usage, pod, objects, pod_dir);
            }
            VolumeKind::EmptyDir(_)
            | VolumeKind::Image(_)
            | VolumeKind::ConfigMap(_)
            | VolumeKind::Secret(_)
            | VolumeKind::Projected(_)
            | VolumeKind::DownwardApi(_) => return Ok(None),
        }))
    }

    /// The source of a claim, or of a volume that a CSI driver provides for this pod only.
    fn of_claim(
        volume: &Volume,
        usage: Usage,
        pod: &PodRecord,
        objects: &PodObjects,
        pod_dir: &Path,
    ) -> Result<Option<(Self, bool)>, VolumeError> {
        if let Some(name) = claim::local_name(pod, volume) {
            let directory = ClaimDirectory::find(volume, name, objects)?;
            let agrees = usage.agrees(false, &volume.name);
            agrees.map_err(|reason| VolumeError::Claim { volume: volume.name.clone(), reason })?;
            let read_only = !directory.writable;
            return Ok(Some((Self::Claim(directory), read_only)));
        }
        let Some(object) = claim::object_name(pod, volume) else { return Ok(None) };
        let (kind, name) = (ObjectKind::VolumeClaim, claim::of_object(&object).to_owned());
        let object = objects.get(kind, &object);
        let object = object.ok_or_else(|| VolumeError::NoObject { volume: volume.name.clone(), kind, name })?;
        let source = claim::source(object);
        let claimed = source.and_then(|claimed| usage.agrees(claimed.block, &volume.name).map(|()| claimed));
        let claimed = claimed.map_err(|reason| VolumeError::Claim { volume: volume.name.clone(), reason })?;
        let read_only_claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only) == Some(true);
        match claimed.source {
            ClaimedSource::HostPath(source) => {
                HostPath::new(&volume.name, &source).map(|path| Some((Self::Node(path), read_only_claim)))
            }
            ClaimedSource::Local(source) => {
                let owned = !read_only_claim && !claimed.block;
                let path = HostPath { owned, ..HostPath::new(&volume.name, &source)? };
                Ok(Some((Self::Node(path), read_only_claim)))
            }
            ClaimedSource::Nfs { export, options } => {
                let read_only = read_only_claim || export.read_only == Some(true);
                let mount = NfsMount::new(pod_dir, &volume.name, &export, &options, read_only)?;
                Ok(Some((Self::Server(mount), read_only)))
            }
            ClaimedSource::Iscsi(iscsi_volume) => {
                let read_only = read_only_claim || iscsi_volume.read_only;
                let secret = claim::iscsi::secret(object);
                let mount = IscsiMount::new(pod, pod_dir, &volume.name, &iscsi_volume, Ok(secret), read_only)?;
                Ok(Some((Self::Disk(Box::new(mount)), read_only)))
            }
            ClaimedSource::Csi(csi_volume) if csi_volume.block => {
                let device = csi::device(pod_dir, &volume.name, &csi_volume.name);
                Ok(Some((Self::Node(device), read_only_claim || csi_volume.read_only)))
            }
            ClaimedSource::Csi(csi_volume) => {
                let mount = CsiMount::new(pod_dir, &volume.name, &csi_volume.driver, &csi_volume.name);
                Ok(Some((Self::Driver(mount), read_only_claim || csi_volume.read_only)))
            }
        }
    }
}

/// How the containers of a pod use a volume.
#[derive(Debug, Clone, Copy)]
struct Usage {
    mounted: bool,
    device: bool,
}

impl Usage {
    fn in_pod(pod: &PodRecord, volume: &str) -> Self {
        let containers = || all_containers(pod.spec()).chain(&pod.ephemeral);
        let mounts = |container: &Container| container.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
        let devices =
            |container: &Container| container.volume_devices.iter().flatten().any(|device| device.name == volume);
        Self { mounted: containers().any(mounts), device: containers().any(devices) }
    }

    /// Checks that a claim's volume with this mode can be used in this way; the error is kubelet's.
    fn agrees(self, block: bool, volume: &str) -> Result<(), String> {
        let (mode, other) = match block {
            true if self.mounted => ("Block", "volumeMounts"),
            false if self.device => ("Filesystem", "volumeDevices"),
            _ => return Ok(()),
        };
        Err(format!("volume {volume} has volumeMode {mode}, but is specified in {other}"))
    }
}
