//! flexVolume: a volume that a driver mounts, a program below `volumePluginDir` that the node's owner has installed,
//! by Kubernetes' [FlexVolume](https://git.k8s.io/design-proposals-archive/storage/flexvolume-deployment.md) calls
//! `init`, `mount` and `unmount`.
//!
//! A driver with the capability `attach` needs a controller that attaches the volume to the node, and is refused. A
//! mount outlives the agent: the next agent finds it mounted, with its [`record`].

mod driver;
mod record;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::FlexVolumeSource;

use self::driver::{CallError, Capabilities, Driver, RESERVED, call};
use self::record::Record;
use super::secret_values::SecretValues;
use super::{VolumeError, blocking, files, mounted, removal, sub_path};
use crate::blocking::DEADLINE;
use crate::boot::boot_id;
use crate::fs_group;
use crate::keyed_lock::KeyedLock;
use limpet_model::object::{ObjectKind, SecretBytes};
use limpet_model::pod::PodRecord;

/// A volume to be mounted by a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlexMount {
    /// The volume's name.
    pub volume: String,
    /// Where it is mounted.
    pub path: PathBuf,
    pod_dir: PathBuf,
    driver: Driver,
    /// The options in the manifest and those that kubelet adds.
    options: BTreeMap<String, String>,
    secret: SecretValues,
    /// The pod's `fsGroup`, and whether `fsGroupChangePolicy` is `OnRootMismatch`; `None` for a read-only volume.
    group: Option<(u32, bool)>,
}

impl FlexMount {
    /// The pod's volume from its manifest. `secret` has the values of its Secret.
    pub(super) fn new(
        pod: &PodRecord,
        pod_dir: &Path,
        volume: &str,
        source: &FlexVolumeSource,
        secret: SecretValues,
    ) -> Result<Self, VolumeError> {
        let driver = Driver::parse(&source.driver).ok_or_else(|| VolumeError::Unsupported {
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
            pod_dir: pod_dir.to_owned(),
            driver,
            options,
            secret,
            group: group.filter(|_| !read_only).map(|group| (group, policy == Some("OnRootMismatch"))),
        })
    }

    /// Has the driver mount it unless it is mounted. `locks` has one lock per path, since containers of a pod start
    /// concurrently.
    pub(super) async fn set_up(&self, plugin_dir: &Path, locks: &KeyedLock<PathBuf>) -> Result<(), VolumeError> {
        let _guard = locks.lock(self.path.clone()).await;
        let mount = self.clone();
        let (is_there, is_mounted) = beside(&self.path, move || mount.look()).await?;
        if is_there {
            return Ok(());
        }
        let program = self.driver.program(plugin_dir);
        let able = self.call(&program, &["init"]).await?;
        if able.attach {
            let reason = "its driver attaches volumes (capability attach), which a controller of a cluster has to do";
            return Err(self.failed(reason.to_owned()));
        }
        // A mount without a record was left by an agent that ended at this point.
        if !is_mounted {
            self.mount(&program).await?;
        }
        if able.fs_group {
            self.set_group().await?;
        }
        let mount = self.clone();
        beside(&self.path, move || mount.note(able)).await
    }

    /// Whether a driver has mounted or filled it, and whether something is mounted there. Blocks.
    fn look(&self) -> Result<(bool, bool), VolumeError> {
        let is_mounted = mounted::is_mounted(&self.path)?;
        let record = record::read(&self.pod_dir, &self.driver.0, &self.volume);
        Ok((record.is_some_and(|record| is_mounted || !record.mounted), is_mounted))
    }

    /// Records that it is mounted. Blocks.
    fn note(&self, able: Capabilities) -> Result<(), VolumeError> {
        let boot = boot_id().map_err(VolumeError::io("read", "/proc"))?;
        let record = Record { boot, mounted: mounted::is_mounted(&self.path)?, relabel: able.relabel };
        record::write(&self.pod_dir, &self.driver.0, &self.volume, &record)
    }

    async fn mount(&self, program: &Path) -> Result<(), VolumeError> {
        let options = self.options()?;
        let path = self.path.clone();
        beside(&self.path, move || files::make_dirs(&path, 0o750)).await?;
        let mounted = self.call(program, &["mount", &self.path.to_string_lossy(), &options]).await;
        if mounted.is_err() {
            // As in kubelet, a volume that was never mounted is not unmounted, although the driver may have stopped
            // halfway.
            let path = self.path.clone();
            let _ =
                beside(&self.path, move || std::fs::remove_dir(&path).map_err(VolumeError::io("remove", &path))).await;
        }
        mounted.map(drop)
    }

    async fn set_group(&self) -> Result<(), VolumeError> {
        let Some((group, on_root_mismatch)) = self.group else { return Ok(()) };
        let path = self.path.clone();
        let set = move |_: &_| Ok(fs_group::set(&path, group, on_root_mismatch));
        // A server's share may not support owners; like kubelet, this mounts it anyway.
        if let Err(error) = blocking(self.path.clone(), fs_group::DEADLINE, set).await? {
            tracing::warn!(volume = self.volume, %error, "the files of the volume do not get the pod's fsGroup");
        }
        Ok(())
    }

    /// Whether its files get the SELinux label of the container. Blocks.
    pub(super) fn is_relabelled(&self) -> bool {
        record::read(&self.pod_dir, &self.driver.0, &self.volume).is_none_or(|record| record.relabel)
    }

    /// The options for the driver.
    fn options(&self) -> Result<String, VolumeError> {
        let missing = |name: &String| VolumeError::NoObject {
            volume: self.volume.clone(),
            kind: ObjectKind::Secret,
            name: name.clone(),
        };
        let secret = self.secret.as_ref().map_err(missing)?.iter();
        let mut options: BTreeMap<String, String> =
            secret.map(|(key, value)| (format!("kubernetes.io/secret/{key}"), encoded(value))).collect();
        options.extend(self.options.clone());
        serde_json::to_string(&options).map_err(|error| self.failed(error.to_string()))
    }

    async fn call(&self, program: &Path, arguments: &[&str]) -> Result<Capabilities, VolumeError> {
        let what = arguments.first().copied().unwrap_or_default();
        call(program, arguments).await.map_err(|error| self.failed(error.reason(what)))
    }

    /// The error of a call, with the Secret's values removed, because a driver may quote its arguments.
    fn failed(&self, reason: String) -> VolumeError {
        let values = self.secret.iter().flatten().map(|(_, value)| encoded(value));
        let reason = values.filter(|value| !value.is_empty()).fold(reason, |text, value| text.replace(&value, "***"));
        VolumeError::Mount { volume: self.volume.clone(), export: self.driver.name(), reason }
    }
}

fn encoded(value: &SecretBytes) -> String {
    BASE64_STANDARD.encode(value.expose())
}

/// A volume that a driver has, or may have, mounted or filled.
#[derive(Debug, Clone)]
struct Mounted {
    volume: String,
    path: PathBuf,
    driver: Driver,
}

/// Has the drivers unmount all volumes that they have mounted for the pod, concurrently. Without its driver, a mount
/// is detached with the pod's other mounts.
///
/// # Errors
///
/// A driver fails: the volume may still be in use elsewhere, so the call has to be repeated.
pub(super) async fn unmount_all(pod_dir: &Path, plugin_dir: &Path) -> Result<(), VolumeError> {
    let directory = pod_dir.join("volumes");
    let mounted = blocking(directory.clone(), DEADLINE, move |_| volumes(&directory)).await?;
    let unmounted = join_all(mounted.iter().map(|volume| volume.unmount(pod_dir, plugin_dir))).await;
    unmounted.into_iter().collect()
}

impl Mounted {
    async fn unmount(&self, pod_dir: &Path, plugin_dir: &Path) -> Result<(), VolumeError> {
        let program = self.driver.program(plugin_dir);
        let (parts, tool) = (sub_path::directory(pod_dir, &self.volume), program.clone());
        let has_driver = beside(&self.path, move || {
            // They would keep the file system in use.
            removal::detach_below(&parts)?;
            Ok(tool.is_file())
        });
        if !has_driver.await? {
            return Ok(());
        }
        let unmounted = call(&program, &["unmount", &self.path.to_string_lossy()]).await;
        let (volume, pod_dir) = (self.clone(), pod_dir.to_owned());
        beside(&self.path, move || volume.unmounted(&pod_dir, unmounted)).await
    }

    /// Applies the result of the call. Blocks.
    fn unmounted(&self, pod_dir: &Path, called: Result<Capabilities, CallError>) -> Result<(), VolumeError> {
        match called {
            // As in kubelet, the volume is then unmounted directly.
            Ok(_) | Err(CallError::NotSupported) => {}
            // Nothing is mounted there, and no record of this boot exists.
            Err(_) if self.is_nothing(pod_dir)? => {}
            Err(error) => {
                return Err(VolumeError::TearDown {
                    volume: self.volume.clone(),
                    driver: self.driver.name(),
                    reason: error.reason("unmount"),
                });
            }
        }
        removal::detach_below(&self.path)?;
        record::remove(pod_dir, &self.driver.0, &self.volume)?;
        // Files that a driver has created in it are removed with the pod's directory.
        let _ = std::fs::remove_dir(&self.path);
        Ok(())
    }

    fn is_nothing(&self, pod_dir: &Path) -> Result<bool, VolumeError> {
        let is_recorded = record::read(pod_dir, &self.driver.0, &self.volume).is_some();
        Ok(!is_recorded && !mounted::is_mounted(&self.path)?)
    }
}

/// Runs `work` on files beside the volume at `path`, never in it.
async fn beside<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    blocking(path.parent().unwrap_or(path).to_owned(), DEADLINE, move |_| work()).await
}

/// The volumes of drivers in the directory of a pod's volumes. Blocks.
fn volumes(directory: &Path) -> Result<Vec<Mounted>, VolumeError> {
    let mut volumes = Vec::new();
    for driver in files::directories(directory)?.into_iter().filter(|name| !name.starts_with(RESERVED)) {
        for volume in files::directories(&directory.join(&driver))? {
            let path = directory.join(&driver).join(&volume);
            volumes.push(Mounted { volume, path, driver: Driver(driver.clone()) });
        }
    }
    Ok(volumes)
}
