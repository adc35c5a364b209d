//! The block devices that a container gets of its volumes (`volumeDevices`).

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, VolumeDevice};

use super::VolumeError;
use super::source::VolumeSource;
use crate::blocking::Progress;
use limpet_model::object::PodObjects;
use limpet_model::pod::PodRecord;

/// A block device of the host at a path of the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice {
    /// Path on the host, of a block device or a link to one.
    pub host_path: PathBuf,
    /// Path in the container, absolute.
    pub container_path: PathBuf,
    /// The container may only read it.
    pub read_only: bool,
}

/// Checks and lists the container's block devices.
pub(super) fn container_devices(
    pod: &PodRecord,
    objects: &PodObjects,
    container: &Container,
    pod_dir: &Path,
    progress: &Progress,
) -> Result<Vec<BlockDevice>, VolumeError> {
    let wanted = container.volume_devices.iter().flatten();
    wanted.map(|device| block_device(pod, objects, container, device, pod_dir, progress)).collect()
}

fn block_device(
    pod: &PodRecord,
    objects: &PodObjects,
    container: &Container,
    wanted: &VolumeDevice,
    pod_dir: &Path,
    progress: &Progress,
) -> Result<BlockDevice, VolumeError> {
    if !wanted.device_path.starts_with('/') {
        let (container, path) = (container.name.clone(), wanted.device_path.clone());
        return Err(VolumeError::DevicePath { container, path });
    }
    let no_volume = || VolumeError::NoSuchVolume { container: container.name.clone(), volume: wanted.name.clone() };
    let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == wanted.name);
    let volume = volume.ok_or_else(no_volume)?;
    let (device, read_only) = match VolumeSource::find(volume, pod, objects, pod_dir)? {
        Some((VolumeSource::Node(path), read_only)) => (path, read_only),
        Some((VolumeSource::Disk(mount), read_only)) => (mount.device(), read_only),
        Some((
            VolumeSource::Claim(_) | VolumeSource::Server(_) | VolumeSource::Driver(_) | VolumeSource::Flex(_),
            _,
        ))
        | None => return Err(no_volume()),
    };
    progress.at(&device.path);
    device.set_up()?;
    Ok(BlockDevice { host_path: device.path, container_path: PathBuf::from(&wanted.device_path), read_only })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use limpet_model::object::claim;
    use limpet_model::source::SourceKind;
    use limpet_tests::need;
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    use serde_json::{Value, json};

    use super::super::tests::record;
    use super::*;

    /// The devices of a container with this one of a volume with this source; the claim `c` is a local volume of `mode`.
    fn devices(mode: &str, at: &Path, source: Value, device: Value) -> Result<Vec<BlockDevice>, String> {
        let mut volume = source;
        volume["name"] = json!("v");
        let container = json!({"name": "c", "volumeDevices": [device]});
        let mut pod = record(json!({"containers": [container], "volumes": [volume]}));
        pod.source = SourceKind::Api;
        let claim = serde_json::from_value(json!({"metadata": {"uid": "u"}})).unwrap();
        let spec = json!({"volumeMode": mode, "local": {"path": at}, "claimRef": {"uid": "u"}});
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
        let objects =
            PodObjects::collect(&pod, |key| claim::record(key.clone(), "", &claim, &volume).ok().map(Arc::new));
        let devices =
            container_devices(&pod, &objects, &pod.spec().containers[0], Path::new("/pod"), &Progress::new(at));
        devices.map_err(|error| error.to_string())
    }

    #[test]
    fn a_device_is_a_block_device_of_the_host_or_of_a_claim() {
        if need::root("device nodes").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (node, missing) = (dir.path().join("disk"), dir.path().join("none"));
        mknodat(CWD, &node, FileType::BlockDevice, Mode::from_raw_mode(0o600), makedev(7, 0)).unwrap();
        let at = json!({"name": "v", "devicePath": "/dev/data"});
        let host = |path: &Path| json!({"hostPath": {"path": path}});
        let claim = |read_only: bool| json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": read_only}});
        let expected = |read_only: bool| {
            Ok(vec![BlockDevice { host_path: node.clone(), container_path: "/dev/data".into(), read_only }])
        };
        assert_eq!(devices("Block", &node, host(&node), at.clone()), expected(false));
        assert_eq!(devices("Block", &node, claim(false), at.clone()), expected(false));
        assert_eq!(devices("Block", &node, claim(true), at.clone()), expected(true));

        let no_device = devices("Block", &node, host(&missing), at.clone()).unwrap_err();
        assert!(no_device.ends_with(" is not a block device"), "{no_device}");
        assert!(!missing.exists(), "a missing device is not made");
        let directory = devices("Block", dir.path(), claim(false), at.clone()).unwrap_err();
        assert!(directory.ends_with(" is not a block device"), "{directory}");
        let mounted = devices("Filesystem", &node, claim(false), at).unwrap_err();
        assert!(
            mounted.ends_with("volume v has volumeMode Filesystem, but is specified in volumeDevices"),
            "{mounted}"
        );
        let relative = devices("Block", &node, host(&node), json!({"name": "v", "devicePath": "data"})).unwrap_err();
        assert_eq!(relative, "container \"c\": error DevicePath `data` must be an absolute path");
    }
}
