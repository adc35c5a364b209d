//! What has to be in place before a pod's first container: worked out purely, then done on another thread.

use k8s_openapi::api::core::v1::{HostAlias, Volume};

use super::dns::DnsRequest;
use super::empty_dir::EmptyDir;
use super::host_path::HostPath;
use super::{Settings, VolumeError, Warning, files, hostname, hosts, resolver};
use crate::network::PodAddresses;
use crate::pod::{PodRecord, PodUid};

/// The work, owning all it needs.
#[derive(Debug)]
pub(super) struct Preparation {
    uid: PodUid,
    volumes: Vec<VolumeKind>,
    hosts: Hosts,
    hostname: String,
    dns: DnsRequest,
}

/// A supported volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum VolumeKind {
    EmptyDir(EmptyDir),
    HostPath(HostPath),
}

/// What `/etc/hosts` is to say.
#[derive(Debug)]
enum Hosts {
    /// This.
    Own(String),
    /// What the node's own says, and these.
    Node(Vec<HostAlias>),
}

impl Preparation {
    pub(super) fn of(
        pod: &PodRecord,
        addresses: &PodAddresses,
        hostname: &str,
        settings: &Settings,
    ) -> Result<Self, VolumeError> {
        let spec = pod.spec();
        let aliases = spec.host_aliases.as_deref().unwrap_or_default();
        let hosts = if pod.host_network() {
            Hosts::Node(aliases.to_vec())
        } else {
            let names = hostname::pod_hostname(pod, &settings.cluster.domain)?;
            Hosts::Own(hosts::own_network(addresses, &names, aliases))
        };
        let pod_dir = settings.pod_dir(&pod.uid);
        let fs_group = spec.security_context.as_ref().and_then(|context| context.fs_group);
        let volumes = spec.volumes.iter().flatten().map(|volume| VolumeKind::of(volume, &pod_dir, fs_group));
        Ok(Self {
            uid: pod.uid.clone(),
            volumes: volumes.collect::<Result<_, _>>()?,
            hosts,
            hostname: hostname.to_owned(),
            dns: DnsRequest::of(pod),
        })
    }

    /// Does it. What is right already is left alone.
    pub(super) fn run(self, settings: &Settings) -> Result<Vec<Warning>, VolumeError> {
        let pod_dir = settings.pod_dir(&self.uid);
        files::make_dirs(&pod_dir, 0o750)?;
        for volume in &self.volumes {
            match volume {
                VolumeKind::EmptyDir(empty_dir) => empty_dir.set_up()?,
                VolumeKind::HostPath(host_path) => host_path.set_up()?,
            }
        }
        let hosts = match self.hosts {
            Hosts::Own(text) => text,
            Hosts::Node(aliases) => {
                // A node without the file still has host-network pods.
                hosts::host_network(&files::read(&settings.hosts_file)?.unwrap_or_default(), &aliases)
            }
        };
        files::write_in_place(&pod_dir.join("etc-hosts"), &hosts, true)?;
        files::write_in_place(&pod_dir.join("etc-hostname"), &format!("{}\n", self.hostname), false)?;
        resolver::write(&pod_dir, &self.dns, &resolver::read_nodes(settings)?, settings)
    }
}

impl VolumeKind {
    /// The volume as one of the supported kinds.
    pub(super) fn of(volume: &Volume, pod_dir: &std::path::Path, fs_group: Option<i64>) -> Result<Self, VolumeError> {
        if let Some(source) = &volume.empty_dir {
            return EmptyDir::of(pod_dir, &volume.name, source, fs_group).map(Self::EmptyDir);
        }
        if let Some(source) = &volume.host_path {
            return HostPath::of(&volume.name, source).map(Self::HostPath);
        }
        Err(VolumeError::Unsupported {
            volume: volume.name.clone(),
            reason: format!("{} is not supported; use emptyDir or hostPath", kind(volume)),
        })
    }

    /// Where it lies on the node.
    pub(super) fn path(&self) -> &std::path::Path {
        match self {
            Self::EmptyDir(empty_dir) => &empty_dir.path,
            Self::HostPath(host_path) => &host_path.path,
        }
    }
}

/// The volume's kind as the manifest names it: the key besides `name`.
fn kind(volume: &Volume) -> String {
    let fields = serde_json::to_value(volume).ok();
    let key = fields.as_ref().and_then(|fields| fields.as_object()?.keys().find(|key| *key != "name"));
    key.cloned().unwrap_or_else(|| "a volume without a source".to_owned())
}
