//! One container's mounts, in the order in which they are mounted.
//!
//! As in kubelet and containerd: the container's `volumeMounts`; then `/etc/hosts` (writable, even with a read-only
//! root), `/etc/hostname` and `/etc/resolv.conf` (read-only with a read-only root), unless the container mounts
//! something there itself; then the termination message's file. All are sorted by depth, so that a mount on `/etc`
//! does not hide the one on `/etc/hosts`.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};

use super::preparation::PodVolume;
use super::source::VolumeSource;
use super::sub_path::SubPath;
use super::{Mount, Propagation, VolumeError, hosts, preparation, propagation, read_only, resolver, termination};
use crate::blocking::Progress;
use crate::selinux;
use limpet_model::object::PodObjects;
use limpet_model::pod::PodRecord;

/// The default path of the termination message in the container.
const DEFAULT_TERMINATION_PATH: &str = "/dev/termination-log";

/// What the mounts of a container are made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources<'a> {
    pub pod: &'a PodRecord,
    pub objects: &'a PodObjects,
    pub pod_dir: &'a Path,
    /// The SELinux label for its files; `None` if they keep theirs.
    pub label: Option<&'a str>,
}

impl Sources<'_> {
    fn relabel(&self, path: &Path) -> Result<(), VolumeError> {
        let Some(label) = self.label else { return Ok(()) };
        // The node's volume may be behind a symlink.
        let labelled = path.canonicalize().and_then(|path| selinux::relabel(&path, label));
        labelled.map_err(|source| VolumeError::Label { path: path.to_owned(), label: label.to_owned(), source })
    }
}

/// Creates the container's own files (termination message, subPaths) and its missing hostPaths, labels what only the
/// pod uses, and lists the container's mounts.
pub(super) fn container_mounts(
    sources: Sources<'_>,
    container: &Container,
    container_id: &str,
    progress: &Progress,
) -> Result<Vec<Mount>, VolumeError> {
    let mut mounts = Vec::new();
    for (index, wanted) in container.volume_mounts.iter().flatten().enumerate() {
        mounts.push(volume_mount(sources, container, wanted, index, progress)?);
    }
    let pod_dir = sources.pod_dir;
    progress.at(pod_dir);
    let read_only_root =
        container.security_context.as_ref().and_then(|context| context.read_only_root_filesystem).unwrap_or(false);
    for (target, file, read_only) in [
        ("/etc/hosts", hosts::FILE, false),
        ("/etc/hostname", "etc-hostname", read_only_root),
        ("/etc/resolv.conf", resolver::FILE, read_only_root),
    ] {
        let file = pod_dir.join(file);
        sources.relabel(&file)?;
        add_file(&mut mounts, target.into(), file, read_only);
    }
    let message = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    let message = absolute(message.unwrap_or(DEFAULT_TERMINATION_PATH));
    let file = termination::make(pod_dir, &container.name, container_id)?;
    sources.relabel(&file)?;
    add_file(&mut mounts, message, file, false);
    mounts.sort_by_key(|mount| mount.container_path.components().count());
    Ok(mounts)
}

/// Adds a file of the agent's unless the container mounts something there itself.
fn add_file(mounts: &mut Vec<Mount>, container_path: PathBuf, host_path: PathBuf, read_only: bool) {
    if !mounts.iter().any(|mount| mount.container_path == container_path) {
        mounts.push(Mount { host_path, container_path, read_only, propagation: Propagation::Private });
    }
}

fn volume_mount(
    sources: Sources<'_>,
    container: &Container,
    wanted: &VolumeMount,
    index: usize,
    progress: &Progress,
) -> Result<Mount, VolumeError> {
    let Sources { pod, pod_dir, .. } = sources;
    refuse_unsupported(wanted)?;
    let volumes = pod.spec().volumes.as_deref().unwrap_or_default();
    let volume = volumes
        .iter()
        .find(|volume| volume.name == wanted.name)
        .ok_or_else(|| VolumeError::NoSuchVolume { container: container.name.clone(), volume: wanted.name.clone() })?;
    let propagation = propagation::propagation_of(wanted);
    let FoundVolume { path, only_read, labelled } = find(sources, volume, propagation, progress)?;
    let sub_path = wanted.sub_path.as_deref().unwrap_or_default();
    let read_only_below = matches!(wanted.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"));
    let host_path = if sub_path.is_empty() && !read_only_below {
        labelled.then(|| sources.relabel(&path)).transpose()?;
        path
    } else {
        let part = SubPath { container: &container.name, volume: &wanted.name, sub_path, index };
        progress.at(&path);
        let bound = part.bind(pod_dir, &path).map_err(|error| match error {
            // A missing part of a volume is created; an image cannot be changed.
            VolumeError::Io { source, .. }
                if volume.image.is_some() && source.kind() == std::io::ErrorKind::ReadOnlyFilesystem =>
            {
                let (container, volume) = (container.name.clone(), volume.name.clone());
                VolumeError::NoImagePath { container, volume, sub_path: sub_path.to_owned() }
            }
            error => error,
        })?;
        labelled.then(|| sources.relabel(&bound)).transpose()?;
        if read_only_below {
            read_only::recursively(&bound)?;
        }
        bound
    };
    Ok(Mount {
        host_path,
        container_path: absolute(&wanted.mount_path),
        read_only: only_read || wanted.read_only.unwrap_or(false),
        propagation,
    })
}

/// A volume, found on the node.
struct FoundVolume {
    path: PathBuf,
    /// Whether containers may only read it.
    only_read: bool,
    /// Whether its files get the container's label. As in kubelet, those of a hostPath, an export or an image do not.
    labelled: bool,
}

/// Finds the volume. A volume on a server is mounted and responds.
fn find(
    sources: Sources<'_>,
    volume: &Volume,
    propagation: Propagation,
    progress: &Progress,
) -> Result<FoundVolume, VolumeError> {
    let Sources { pod, objects, pod_dir, .. } = sources;
    let mounted = |path: PathBuf, only_read: bool, labelled: bool| {
        answers(&path)?;
        propagation::prepare(propagation, &path)?;
        Ok(FoundVolume { path, only_read, labelled })
    };
    match VolumeSource::find(volume, pod, objects, pod_dir)? {
        Some((VolumeSource::Server(export), only_read)) => {
            progress.at(&export.path);
            export.check_mounted()?;
            mounted(export.path, only_read, false)
        }
        Some((VolumeSource::Disk(mount), only_read)) => {
            progress.at(&mount.path);
            mount.check_mounted()?;
            mounted(mount.path, only_read, !only_read)
        }
        Some((VolumeSource::Driver(mount), only_read)) => {
            progress.at(&mount.path);
            mount.check_mounted()?;
            mounted(mount.path, only_read, !only_read)
        }
        Some((VolumeSource::Flex(mount), only_read)) => {
            // A driver need not mount anything; it may fill the directory.
            progress.at(&mount.path);
            let labelled = !only_read && mount.is_relabelled();
            mounted(mount.path, only_read, labelled)
        }
        Some((VolumeSource::Claim(claim), only_read)) => {
            progress.at(&claim.path);
            claim.check()?;
            propagation::check(&volume.name, propagation, &claim.path)?;
            Ok(FoundVolume { path: claim.path, only_read, labelled: claim.writable })
        }
        Some((VolumeSource::Node(host_path), only_read)) => {
            // A path below `/run`, for example, may have been removed since the pod's first container started.
            progress.at(&host_path.path);
            host_path.set_up()?;
            propagation::check(&volume.name, propagation, &host_path.path)?;
            Ok(FoundVolume { path: host_path.path, only_read, labelled: host_path.owned })
        }
        None => {
            let PodVolume { path, only_read, labelled } = preparation::pod_volume(volume, pod_dir)?;
            propagation::prepare(propagation, &path)?;
            Ok(FoundVolume { path, only_read, labelled })
        }
    }
}

/// Waits for an export's server: here the wait has a deadline and a message, unlike in the OCI runtime.
fn answers(path: &Path) -> Result<(), VolumeError> {
    match std::fs::metadata(path) {
        // The server may refuse root and admit other users.
        Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => Err(VolumeError::io("stat", path)(error)),
        _ => Ok(()),
    }
}

/// Rejects unsupported fields, which would otherwise be silently ignored.
fn refuse_unsupported(wanted: &VolumeMount) -> Result<(), VolumeError> {
    let refuse = |reason: &str| {
        Err(VolumeError::Unsupported { volume: wanted.name.clone(), reason: format!("{reason} is not supported") })
    };
    if wanted.sub_path_expr.as_deref().is_some_and(|path| !path.is_empty()) {
        return refuse("a subPathExpr that was not expanded");
    }
    if wanted.bind_mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return refuse("bindMountOptions");
    }
    Ok(())
}

/// The path from the container's root without `.` and `..`: `a/../b/` becomes `/b`.
pub fn absolute(path: &str) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use limpet_model::object::claim;
    use limpet_model::source::SourceKind;
    use serde_json::json;

    use super::super::tests::record;
    use super::*;

    /// Lists container path, host path below the pod's directory (or absolute), and `ro` or `rw`.
    fn list(container: serde_json::Value) -> Result<Vec<(String, String, &'static str)>, VolumeError> {
        let dir = tempfile::tempdir().unwrap();
        let mut pod = record(json!({"volumes": [
            {"name": "data", "emptyDir": {}},
            {"name": "conf", "hostPath": {"path": dir.path().join("conf")}},
            {"name": "map", "configMap": {"name": "x"}},
            {"name": "disk", "cephfs": {"monitors": ["x"]}},
            {"name": "claimed", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "archive", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
            {"name": "far", "persistentVolumeClaim": {"claimName": "far"}},
            {"name": "lost", "persistentVolumeClaim": {"claimName": "lost"}},
        ]}));
        pod.source = SourceKind::Api;
        let container: Container = serde_json::from_value(container).unwrap();
        let objects = claims(dir.path());
        let sources = Sources { pod: &pod, objects: &objects, pod_dir: dir.path(), label: None };
        let mounts = container_mounts(sources, &container, "id", &Progress::new(dir.path()))?;
        let text = |path: &Path| path.strip_prefix(dir.path()).unwrap_or(path).display().to_string();
        let row = |mount: &Mount| {
            (text(&mount.container_path), text(&mount.host_path), if mount.read_only { "ro" } else { "rw" })
        };
        Ok(mounts.iter().map(row).collect())
    }

    /// The volume of the claim `data`, and one that no pod can use.
    fn claims(dir: &Path) -> PodObjects {
        let mut pod = record(json!({"volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "far"}},
        ]}));
        pod.source = SourceKind::Api;
        let claim = serde_json::from_value(json!({"metadata": {"uid": "c"}})).unwrap();
        let spec = json!({"claimRef": {"uid": "c"}, "hostPath": {"path": dir.join("claimed")}});
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
        PodObjects::collect(&pod, |key| {
            Some(Arc::new(match claim::of_object(&key.name) {
                "data" => claim::record(key.clone(), "", &claim, &volume).unwrap(),
                _ => claim::refusal(key.clone(), "", "PVC far is not bound".to_owned()),
            }))
        })
    }

    fn rows(rows: &[(&str, &str, &'static str)]) -> Vec<(String, String, &'static str)> {
        rows.iter().map(|(inside, outside, mode)| ((*inside).to_owned(), (*outside).to_owned(), *mode)).collect()
    }

    #[test]
    fn the_agents_files() {
        let wanted = rows(&[
            ("/etc/hosts", "etc-hosts", "rw"),
            ("/etc/hostname", "etc-hostname", "rw"),
            ("/etc/resolv.conf", "etc-resolv.conf", "rw"),
            ("/dev/termination-log", "containers/c/id", "rw"),
        ]);
        assert_eq!(list(json!({"name": "c"})).unwrap(), wanted);
        let wanted = rows(&[
            ("/last", "containers/c/id", "rw"),
            ("/etc/hosts", "etc-hosts", "rw"),
            ("/etc/hostname", "etc-hostname", "ro"),
            ("/etc/resolv.conf", "etc-resolv.conf", "ro"),
        ]);
        let container = json!({
            "name": "c", "terminationMessagePath": "/last", "securityContext": {"readOnlyRootFilesystem": true},
        });
        assert_eq!(list(container).unwrap(), wanted);
    }

    #[test]
    fn parents_come_first_and_the_containers_own_win() {
        let container = json!({"name": "c", "volumeMounts": [
            {"name": "data", "mountPath": "/etc/app/data"},
            {"name": "conf", "mountPath": "/etc/app", "readOnly": true},
            {"name": "data", "mountPath": "/etc/"},
            {"name": "conf", "mountPath": "etc/./resolv.conf"},
        ]});
        let data = "volumes/kubernetes.io~empty-dir/data";
        let wanted = rows(&[
            ("/etc", data, "rw"),
            ("/etc/app", "conf", "ro"),
            ("/etc/resolv.conf", "conf", "rw"),
            ("/etc/hosts", "etc-hosts", "rw"),
            ("/etc/hostname", "etc-hostname", "rw"),
            ("/dev/termination-log", "containers/c/id", "rw"),
            ("/etc/app/data", data, "rw"),
        ]);
        assert_eq!(list(container).unwrap(), wanted);
    }

    #[test]
    fn a_claim_is_the_path_of_its_volume() {
        let container = |volume: &str| json!({"name": "c", "volumeMounts": [{"name": volume, "mountPath": "/data"}]});
        let mount = |volume: &str| list(container(volume)).unwrap()[0].clone();
        assert_eq!(mount("claimed"), ("/data".to_owned(), "claimed".to_owned(), "rw"));
        assert_eq!(mount("archive"), ("/data".to_owned(), "claimed".to_owned(), "ro"));
        let error = |volume: &str| list(container(volume)).unwrap_err().to_string();
        assert_eq!(error("far"), "MountVolume.SetUp failed for volume \"far\" : PVC far is not bound");
        assert_eq!(
            error("lost"),
            "MountVolume.SetUp failed for volume \"lost\" : persistentvolumeclaim \"lost\" not found"
        );
    }

    #[test]
    fn a_host_path_that_is_missing_again_is_made_or_refused_by_its_type() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/app");
        for (kind, made) in [("DirectoryOrCreate", true), ("", true), ("FileOrCreate", true), ("Directory", false)] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let pod = record(json!({"volumes": [{"name": "conf", "hostPath": {"path": path, "type": kind}}]}));
            let mount = json!({"name": "c", "volumeMounts": [{"name": "conf", "mountPath": "/conf"}]});
            let container: Container = serde_json::from_value(mount).unwrap();
            let objects = claims(dir.path());
            let sources = Sources { pod: &pod, objects: &objects, pod_dir: dir.path(), label: None };
            let mounted = container_mounts(sources, &container, "id", &Progress::new(dir.path()));
            assert_eq!((mounted.is_ok(), path.exists()), (made, made), "{kind:?} {mounted:?}");
            std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        }
    }

    #[test]
    fn volumes_from_objects_are_read_only() {
        let mounts = list(json!({"name": "c", "volumeMounts": [{"name": "map", "mountPath": "/m"}]})).unwrap();
        assert_eq!(mounts[0], ("/m".to_owned(), "volumes/kubernetes.io~configmap/map".to_owned(), "ro"));
    }

    #[test]
    fn invalid_mounts_are_rejected() {
        let table = [
            (
                json!({"name": "none", "mountPath": "/x"}),
                "container \"c\" mounts volume \"none\", which the pod does not have",
            ),
            (
                json!({"name": "disk", "mountPath": "/x"}),
                "volume \"disk\": cephfs is not supported; use emptyDir, hostPath, nfs, iscsi, csi, flexVolume, image, configMap, secret, projected, downwardAPI, persistentVolumeClaim or ephemeral",
            ),
            (
                json!({"name": "data", "mountPath": "/x", "subPathExpr": "$(A)"}),
                "volume \"data\": a subPathExpr that was not expanded is not supported",
            ),
            (
                json!({"name": "data", "mountPath": "/x", "bindMountOptions": ["nodev"]}),
                "volume \"data\": bindMountOptions is not supported",
            ),
        ];
        for (mount, message) in table {
            let error = list(json!({"name": "c", "volumeMounts": [mount]})).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(error.is_final());
        }
    }
}
