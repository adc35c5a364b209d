//! flexVolume: a volume that a driver of the node's owner mounts, a program below `volumePluginDir`, by Kubernetes'
//! [FlexVolume](https://git.k8s.io/design-proposals-archive/storage/flexvolume-deployment.md) calls `init`, `mount` and
//! `unmount`.
//!
//! A driver with the capability `attach` needs a controller that attaches the volume to the node, and is refused. A mount
//! outlives the agent: its successor finds it mounted.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::FlexVolumeSource;
use serde::Deserialize;
use tokio::process::Command;

use super::node_tools::output_text;
use super::{VolumeError, blocking, files, mounted};
use crate::blocking::DEADLINE;
use crate::program;
use limpet_model::object::SecretBytes;
use limpet_model::pod::PodRecord;

/// How long a driver may take for a call.
const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// Kubernetes' own kinds of volumes, whose directories no driver has.
const RESERVED: &str = "kubernetes.io~";

/// A volume to be mounted by a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlexMount {
    /// The volume's name.
    pub volume: String,
    /// Where it is mounted.
    pub path: PathBuf,
    driver: Driver,
    /// The options of the manifest and those that kubelet adds.
    options: BTreeMap<String, String>,
    /// The values of its Secret.
    secret: BTreeMap<String, SecretBytes>,
    /// The pod's `fsGroup`, and whether `fsGroupChangePolicy` is `OnRootMismatch`; `None` where nothing is written.
    group: Option<(u32, bool)>,
}

/// The name of a driver as a directory, `vendor~driver`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Driver(String);

impl Driver {
    /// `None`: it is no name that a directory of drivers can have.
    fn of(name: &str) -> Option<Self> {
        let is_name = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['~', '\0']);
        let escaped = name.replace('/', "~");
        (name.split('/').all(is_name) && !escaped.starts_with(RESERVED)).then_some(Self(escaped))
    }

    fn program(&self, plugin_dir: &Path) -> PathBuf {
        plugin_dir.join(&self.0).join(self.0.rsplit('~').next().unwrap_or(&self.0))
    }
}

/// What a driver answers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    status: String,
    message: String,
    capabilities: Capabilities,
}

/// What a driver can do; as kubelet has it, all that it does not deny.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Capabilities {
    attach: bool,
    fs_group: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { attach: true, fs_group: true }
    }
}

impl FlexMount {
    /// The volume of the pod as its manifest has it; `secret`: the values of its Secret.
    pub(super) fn of(
        pod: &PodRecord,
        pod_dir: &Path,
        volume: &str,
        source: &FlexVolumeSource,
        secret: BTreeMap<String, SecretBytes>,
    ) -> Result<Self, VolumeError> {
        let driver = Driver::of(&source.driver).ok_or_else(|| VolumeError::Unsupported {
            volume: volume.to_owned(),
            reason: format!("flexVolume.driver {:?} is no name of a driver; name one as vendor/driver", source.driver),
        })?;
        let read_only = source.read_only == Some(true);
        let spec = pod.spec();
        let context = spec.security_context.as_ref();
        let group = context.and_then(|context| u32::try_from(context.fs_group?).ok());
        let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
        let mut options: BTreeMap<String, String> = [
            ("kubernetes.io/fsType", source.fs_type.clone().unwrap_or_default()),
            ("kubernetes.io/readwrite", if read_only { "ro" } else { "rw" }.to_owned()),
            ("kubernetes.io/pvOrVolumeName", volume.to_owned()),
            ("kubernetes.io/pod.name", pod.key.name().to_owned()),
            ("kubernetes.io/pod.namespace", pod.key.namespace().to_owned()),
            ("kubernetes.io/pod.uid", pod.uid.to_string()),
            ("kubernetes.io/serviceAccount.name", spec.service_account_name.clone().unwrap_or_default()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        options.extend(group.map(|group| ("kubernetes.io/mounterArgs.FsGroup".to_owned(), group.to_string())));
        options.extend(source.options.clone().unwrap_or_default());
        Ok(Self {
            volume: volume.to_owned(),
            path: pod_dir.join("volumes").join(&driver.0).join(volume),
            driver,
            options,
            secret,
            group: group.filter(|_| !read_only).map(|group| (group, policy == Some("OnRootMismatch"))),
        })
    }

    /// Has the driver mount it, unless it is mounted.
    pub(super) async fn set_up(&self, plugin_dir: &Path) -> Result<(), VolumeError> {
        let path = self.path.clone();
        let subject = path.parent().unwrap_or(&path).to_owned();
        if blocking(subject, DEADLINE, move |_| mounted::is_mounted(&path)).await? {
            return Ok(());
        }
        let program = self.driver.program(plugin_dir);
        let failed = |reason| self.failed(reason);
        let init = call(&program, &["init"]).await.map_err(failed)?;
        if init.capabilities.attach {
            let reason = "its driver attaches volumes (capability attach), which a controller of a cluster has to do";
            return Err(failed(reason.to_owned()));
        }
        let path = self.path.clone();
        blocking(path.clone(), DEADLINE, move |_| files::make_dirs(&path, 0o750)).await?;
        let options = self.options().map_err(|error| failed(error.to_string()))?;
        call(&program, &["mount", &self.path.to_string_lossy(), &options]).await.map_err(failed)?;
        if let Some((group, on_root_mismatch)) = self.group.filter(|_| init.capabilities.fs_group) {
            let path = self.path.clone();
            let set = move |_: &_| {
                crate::fs_group::set(&path, group, on_root_mismatch).map_err(VolumeError::io("set fsGroup", &path))
            };
            // A share of a server may have no owners; kubelet mounts it all the same.
            if let Err(error) = blocking(self.path.clone(), CALL_DEADLINE, set).await {
                tracing::warn!(volume = self.volume, %error, "the files of the volume do not get the pod's fsGroup");
            }
        }
        Ok(())
    }

    /// The options as the driver gets them.
    fn options(&self) -> serde_json::Result<String> {
        let secret = |(key, value): (&String, &SecretBytes)| {
            (format!("kubernetes.io/secret/{key}"), BASE64_STANDARD.encode(value.expose()))
        };
        let mut options: BTreeMap<String, String> = self.secret.iter().map(secret).collect();
        options.extend(self.options.clone());
        serde_json::to_string(&options)
    }

    fn failed(&self, reason: String) -> VolumeError {
        VolumeError::Mount { volume: self.volume.clone(), export: self.driver.0.replace('~', "/"), reason }
    }
}

/// Has the drivers unmount all volumes that they have mounted for the pod.
///
/// # Errors
/// A driver fails: the volume may still be in use elsewhere, so the call is repeated with the pod's removal.
pub(super) async fn unmount_all(pod_dir: &Path, plugin_dir: &Path) -> Result<(), VolumeError> {
    let (directory, plugin_dir) = (pod_dir.join("volumes"), plugin_dir.to_owned());
    let find = {
        let directory = directory.clone();
        move |_: &_| mounted_volumes(&directory, &plugin_dir).map_err(VolumeError::io("read", &directory))
    };
    for (driver, program, path) in blocking(directory, DEADLINE, find).await? {
        let volume = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |reason| VolumeError::TearDown { volume, driver: driver.replace('~', "/"), reason };
        call(&program, &["unmount", &path.to_string_lossy()]).await.map_err(failed)?;
    }
    Ok(())
}

/// The volumes in the directory of a pod's volumes that drivers have mounted or filled, each with its driver's name and
/// program. Without its driver a mount is detached with the pod's other ones.
fn mounted_volumes(directory: &Path, plugin_dir: &Path) -> io::Result<Vec<(String, PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    for entry in entries(directory)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(RESERVED) {
            continue;
        }
        for volume in entries(&entry)? {
            let driver = Driver(name.clone());
            let program = driver.program(plugin_dir);
            // One that was never mounted, or is not any more, is an empty directory: a driver may fail to unmount it.
            if std::fs::remove_dir(&volume).is_err() && program.is_file() {
                found.push((driver.0, program, volume));
            }
        }
    }
    Ok(found)
}

/// What is in a directory; nothing where it does not exist.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// Calls the driver; the error is its message.
async fn call(program: &Path, arguments: &[&str]) -> Result<Answer, String> {
    let what = arguments.first().copied().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(arguments);
    let output = match program::run(command, b"", CALL_DEADLINE).await {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{} is not on this node: install the driver in volumePluginDir", program.display()));
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(format!("{what}: no answer from the driver for {} s", CALL_DEADLINE.as_secs()));
        }
        Err(error) => return Err(format!("{}: {error}", program.display())),
    };
    let answer: Answer = match serde_json::from_slice(&output.stdout) {
        Ok(answer) => answer,
        Err(_) if !output.success => return Err(format!("{what}: {}", output_text(&output))),
        Err(error) => return Err(format!("{what}: the driver's answer is not what FlexVolume requires: {error}")),
    };
    match (answer.status.as_str(), output.success) {
        ("Success", true) => Ok(answer),
        ("Success", false) => {
            Err(format!("{what}: the driver failed with the status Success: {}", output_text(&output)))
        }
        (status, _) => Err(format!("{what}: status {status}: {}", answer.message)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_a_program_below_the_directory_of_plugins() {
        let program = |name: &str| Driver::of(name).map(|driver| driver.program(Path::new("/plugins")));
        assert_eq!(program("fstab/cifs"), Some(PathBuf::from("/plugins/fstab~cifs/cifs")));
        assert_eq!(program("lvm"), Some(PathBuf::from("/plugins/lvm/lvm")));
        for name in ["", "/cifs", "fstab/", "../bin/sh", "a/../b", "a~..", ".hidden", "kubernetes.io/secret"] {
            assert_eq!(program(name), None, "{name}");
        }
    }

    #[test]
    fn a_driver_attaches_volumes_unless_it_denies_it() {
        let attaches = |text: &str| serde_json::from_str::<Answer>(text).unwrap().capabilities.attach;
        assert!(attaches(r#"{"status": "Success"}"#) && attaches(r#"{"status": "Success", "capabilities": {}}"#));
        assert!(!attaches(r#"{"status": "Success", "capabilities": {"attach": false, "supportsMetrics": true}}"#));
    }
}
