//! The volumes and files that a pod's first container needs: planned by pure functions, then created on another thread.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{HostAlias, Volume};

use super::claim::ClaimDirectory;
use super::dns::DnsRequest;
use super::empty_dir::EmptyDir;
use super::host_path::HostPath;
use super::payload::{Sources, payload};
use super::source::VolumeSource;
use super::written::{self, WrittenVolume};
use super::{Settings, VolumeError, Warning, files, hostname, hosts, in_place, plugin_directory, resolver, tmpfs};
use crate::blocking::Progress;
use limpet_model::object::PodObjects;
use limpet_model::pod::volume_kind::{VolumeKind, VolumePlugin};
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::sandbox::PodAddresses;

/// The plan, which owns all its data.
#[derive(Debug)]
pub(super) struct Preparation {
    uid: PodUid,
    volumes: Vec<PreparedVolume>,
    hosts: HostsFile,
    hostname: String,
    dns: DnsRequest,
}

/// What is done for a volume before the first container starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PreparedVolume {
    EmptyDir(EmptyDir),
    HostPath(HostPath),
    /// The directory of a claim of a manifest.
    Claim(ClaimDirectory),
    /// The directory on which an image is mounted.
    Image(PathBuf),
    /// The directory on which an export of a server, a disk of a target, or a volume of a CSI driver is already
    /// mounted.
    Mounted(PathBuf),
    Written(WrittenVolume),
}

/// The content of `/etc/hosts`.
#[derive(Debug)]
enum HostsFile {
    /// This text.
    Own(String),
    /// The node's file, and these aliases.
    Node(Vec<HostAlias>),
}

impl Preparation {
    pub(super) fn new(
        pod: &PodRecord,
        objects: &PodObjects,
        addresses: &PodAddresses,
        hostname: &str,
        settings: &Settings,
    ) -> Result<Self, VolumeError> {
        let spec = pod.spec();
        let aliases = spec.host_aliases.as_deref().unwrap_or_default();
        let hosts = if pod.host_network() {
            HostsFile::Node(aliases.to_vec())
        } else {
            let names = hostname::pod_hostname(pod, &settings.configured.cluster.domain)?;
            HostsFile::Own(hosts::own_network(addresses, &names, aliases))
        };
        let pod_dir = settings.pod_dir(&pod.uid);
        let sources = Sources { pod, objects, node: settings.limits };
        let volumes = spec.volumes.iter().flatten().map(|volume| PreparedVolume::new(volume, &pod_dir, sources));
        Ok(Self {
            uid: pod.uid.clone(),
            volumes: volumes.collect::<Result<_, _>>()?,
            hosts,
            hostname: hostname.to_owned(),
            dns: DnsRequest::new(pod),
        })
    }

    /// Creates the volumes and files; those that are up to date are not changed.
    pub(super) fn run(self, settings: &Settings, progress: &Progress) -> Result<Vec<Warning>, VolumeError> {
        let pod_dir = settings.pod_dir(&self.uid);
        files::make_dirs(&pod_dir, 0o750)?;
        for volume in &self.volumes {
            progress.at(volume.path());
            match volume {
                PreparedVolume::EmptyDir(empty_dir) => empty_dir.set_up()?,
                PreparedVolume::HostPath(host_path) => host_path.set_up()?,
                PreparedVolume::Claim(claim) => claim.set_up(settings)?,
                PreparedVolume::Image(path) => files::make_dirs(path, 0o755)?,
                PreparedVolume::Mounted(_) => {}
                PreparedVolume::Written(written) => {
                    written.set_up()?;
                }
            }
        }
        progress.at(&pod_dir);
        match self.hosts {
            HostsFile::Own(text) => in_place::write(&pod_dir.join(hosts::FILE), &text, true)?,
            HostsFile::Node(aliases) => hosts::write_host_network(&pod_dir, &settings.hosts_file, &aliases)?,
        }
        in_place::write(&pod_dir.join("etc-hostname"), &format!("{}\n", self.hostname), false)?;
        resolver::write(&pod_dir, &self.dns, &resolver::read_nodes(settings)?, settings)
    }
}

impl PreparedVolume {
    /// Its path on the node.
    fn path(&self) -> &Path {
        match self {
            Self::EmptyDir(empty_dir) => &empty_dir.path,
            Self::HostPath(host_path) => &host_path.path,
            Self::Claim(claim) => &claim.path,
            Self::Image(path) | Self::Mounted(path) => path,
            Self::Written(written) => &written.path,
        }
    }

    fn new(volume: &Volume, pod_dir: &Path, sources: Sources<'_>) -> Result<Self, VolumeError> {
        let name = &volume.name;
        match VolumeKind::find(volume).ok_or_else(|| unsupported(volume))? {
            VolumeKind::EmptyDir(source) => {
                EmptyDir::new(pod_dir, name, source, sources.pod.spec(), sources.node).map(Self::EmptyDir)
            }
            VolumeKind::Image(_) => Ok(Self::Image(plugin_directory::volume(pod_dir, VolumePlugin::Image, name))),
            VolumeKind::ConfigMap(_)
            | VolumeKind::Secret(_)
            | VolumeKind::Projected(_)
            | VolumeKind::DownwardApi(_) => {
                written(volume, pod_dir, sources)?.map(Self::Written).ok_or_else(|| unsupported(volume))
            }
            VolumeKind::HostPath(_)
            | VolumeKind::Nfs(_)
            | VolumeKind::Iscsi(_)
            | VolumeKind::Csi(_)
            | VolumeKind::FlexVolume(_)
            | VolumeKind::PersistentVolumeClaim(_)
            | VolumeKind::Ephemeral(_) => {
                let source = VolumeSource::find(volume, sources.pod, sources.objects, pod_dir)?;
                Ok(match source.ok_or_else(|| unsupported(volume))?.0 {
                    VolumeSource::Node(host_path) => Self::HostPath(host_path),
                    VolumeSource::Claim(claim) => Self::Claim(claim),
                    VolumeSource::Server(export) => Self::Mounted(export.path),
                    VolumeSource::Disk(mount) => Self::Mounted(mount.path),
                    VolumeSource::Driver(mount) => Self::Mounted(mount.path),
                    VolumeSource::Flex(mount) => Self::Mounted(mount.path),
                })
            }
        }
    }
}

/// A volume whose files the pod has for itself, as its containers get it.
#[derive(Debug)]
pub(super) struct PodVolume {
    pub path: PathBuf,
    /// Whether containers may only read it.
    pub only_read: bool,
    /// Whether its files get the container's SELinux label.
    pub labelled: bool,
}

/// The volume of that kind below `pod_dir`.
pub(super) fn pod_volume(volume: &Volume, pod_dir: &Path) -> Result<PodVolume, VolumeError> {
    let kind = VolumeKind::find(volume).ok_or_else(|| unsupported(volume))?;
    let at = |only_read, labelled| {
        let path = plugin_directory::volume(pod_dir, kind.plugin(), &volume.name);
        Ok(PodVolume { path, only_read, labelled })
    };
    match kind {
        VolumeKind::EmptyDir(_) => at(false, true),
        VolumeKind::Image(_) => at(true, false),
        VolumeKind::ConfigMap(_) | VolumeKind::Secret(_) | VolumeKind::Projected(_) | VolumeKind::DownwardApi(_) => {
            at(true, true)
        }
        // They are at the source of their data, which the caller has looked up first.
        VolumeKind::HostPath(_)
        | VolumeKind::Nfs(_)
        | VolumeKind::Iscsi(_)
        | VolumeKind::Csi(_)
        | VolumeKind::FlexVolume(_)
        | VolumeKind::PersistentVolumeClaim(_)
        | VolumeKind::Ephemeral(_) => Err(unsupported(volume)),
    }
}

/// Rewrites the pod's volumes that come from its objects and its own metadata. Returns the names of those whose
/// content changed. A volume that cannot be written does not prevent the others.
pub(super) fn update(written: Vec<Result<WrittenVolume, VolumeError>>) -> Result<Vec<String>, VolumeError> {
    let mut changed = Vec::new();
    let mut failed = None;
    for volume in written {
        match volume.and_then(|volume| Ok((volume.set_up()?, volume))) {
            Ok((false, _)) => {}
            Ok((true, volume)) => {
                changed.push(volume.path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            }
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(changed), Err)
}

/// The volumes that [`update`] writes, with their content.
pub(super) fn written_volumes(sources: Sources<'_>, pod_dir: &Path) -> Vec<Result<WrittenVolume, VolumeError>> {
    let volumes = sources.pod.spec().volumes.iter().flatten();
    volumes.filter_map(|volume| written(volume, pod_dir, sources).transpose()).collect()
}

/// The volume with its files; `None` if it is of another kind.
fn written(volume: &Volume, pod_dir: &Path, sources: Sources<'_>) -> Result<Option<WrittenVolume>, VolumeError> {
    let Some((path, memory)) = written::location(pod_dir, volume) else { return Ok(None) };
    let Some(payload) = payload(volume, sources)? else { return Ok(None) };
    let group = sources.pod.spec().security_context.as_ref().and_then(|context| context.fs_group);
    let group = group.map(u32::try_from).transpose().map_err(|_| VolumeError::Unsupported {
        volume: volume.name.clone(),
        reason: "fsGroup is not a group id".to_owned(),
    })?;
    let memory = memory.then(|| tmpfs::size(None, sources.pod.spec(), sources.node));
    Ok(Some(WrittenVolume { path, memory, group, payload }))
}

fn unsupported(volume: &Volume) -> VolumeError {
    let [others @ .., last] = VolumeKind::KEYS;
    VolumeError::Unsupported {
        volume: volume.name.clone(),
        reason: format!("{} is not supported; use {} or {last}", kind(volume), others.join(", ")),
    }
}

/// The volume's kind as the manifest names it: the key besides `name`.
fn kind(volume: &Volume) -> String {
    let fields = serde_json::to_value(volume).ok();
    let key = fields.as_ref().and_then(|fields| fields.as_object()?.keys().find(|key| *key != "name"));
    key.cloned().unwrap_or_else(|| "a volume without a source".to_owned())
}
