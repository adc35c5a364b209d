//! Where volumes of drivers lie, in kubelet's layout, and what is written down there. Everything but the paths blocks.
//!
//! | | file systems | block devices |
//! |---|---|---|
//! | staged on | `<staged>/<driver>/<sha256 of the handle>/globalmount` | `<staged>/volumeDevices/staging/<volume>` |
//! | written down in | the directory above it | `<staged>/volumeDevices/<volume>/data` |
//! | published on | `<pod>/volumes/kubernetes.io~csi/<volume>/mount` | `<staged>/volumeDevices/publish/<volume>/<pod's UID>` |
//! | of a pod by | what is written down in the directory above it | a link to it in `<pod>/volumeDevices/kubernetes.io~csi` |

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::files::{self, VolumeData, gone};
use limpet_host::mount_table;
use limpet_model::object::csi::staging_directory;
use limpet_model::pod::PodUid;

/// The directory at which a driver mounts a pod's volume.
const MOUNT: &str = "mount";
/// The directory at which a driver stages a volume.
const GLOBAL_MOUNT: &str = "globalmount";
/// The directory of block devices.
const DEVICES: &str = "volumeDevices";
/// The directory with the record of a block device.
const DATA: &str = "data";
/// The key that limpet adds to a record once everything that a pod needs is done.
const PUBLISHED: &str = "limpet.dev/published";

/// The directories of the node.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// The directory of all pods.
    pub(super) pods: PathBuf,
    /// The directory of staged volumes.
    pub(super) staged: PathBuf,
}

impl Layout {
    /// The layout below kubelet's directories.
    pub(super) fn new(root_dir: &Path, plugin_dir: Option<&Path>) -> Self {
        let staged = plugin_dir.unwrap_or(root_dir).join("plugins/kubernetes.io/csi");
        Self { pods: root_dir.join("pods"), staged }
    }

    /// The directory with the pod's volumes.
    fn volumes(&self, pod: &str) -> PathBuf {
        self.pods.join(pod).join("volumes/kubernetes.io~csi")
    }

    /// The directory with the links to the pod's block devices.
    fn devices(&self, pod: &str) -> PathBuf {
        self.pods.join(pod).join(DEVICES).join("kubernetes.io~csi")
    }

    /// The entry that shows that the pod has the volume: a directory, or a link to a device.
    fn entry(&self, data: &VolumeData, pod: &str) -> PathBuf {
        let directory = if data.block { self.devices(pod) } else { self.volumes(pod) };
        directory.join(data.name())
    }

    /// Where the driver publishes the volume for the pod.
    pub(super) fn target(&self, data: &VolumeData, uid: &PodUid) -> PathBuf {
        match data.block {
            true => self.staged.join(DEVICES).join("publish").join(data.name()).join(uid.as_str()),
            false => self.entry(data, uid.as_str()).join(MOUNT),
        }
    }

    /// Where the driver stages the volume.
    pub(super) fn staging(&self, data: &VolumeData) -> PathBuf {
        match data.block {
            true => self.staged.join(DEVICES).join("staging").join(data.name()),
            false => self.record(data).join(GLOBAL_MOUNT),
        }
    }

    /// The directory with a staged volume's record.
    fn record(&self, data: &VolumeData) -> PathBuf {
        match data.block {
            true => self.staged.join(DEVICES).join(data.name()).join(DATA),
            false => self.staged.join(&data.driver).join(staging_directory(&data.handle)),
        }
    }

    /// Records that the pod has the volume, and creates the directory in which its driver publishes it.
    pub(super) fn begin(&self, data: &VolumeData, uid: &PodUid) -> io::Result<()> {
        let entry = self.entry(data, uid.as_str());
        if !data.block {
            return files::write(&entry, data);
        }
        files::write(&self.record(data), data)?;
        let target = self.target(data, uid);
        for path in [&entry, &target] {
            path.parent().map_or(Ok(()), files::make)?;
        }
        match symlink(target, entry) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Records that everything that the pod needs is done. For a device, its mount is the record.
    pub(super) fn published(&self, data: &VolumeData, uid: &PodUid) -> io::Result<()> {
        if data.block {
            return Ok(());
        }
        let mut published = data.clone();
        published.more.insert(PUBLISHED.to_owned(), true.to_string());
        files::write(&self.entry(data, uid.as_str()), &published)
    }

    /// Whether everything that the pod needs of the volume is done, by this or an earlier agent, and was not undone.
    pub(super) fn is_published(&self, data: &VolumeData, uid: &PodUid) -> io::Result<bool> {
        let entry = self.entry(data, uid.as_str());
        let done = match data.block {
            true => is_there(&entry)?,
            false => files::read(&entry)?.is_some_and(|record| record.is(data) && record.more.contains_key(PUBLISHED)),
        };
        Ok(done && is_mounted(&self.target(data, uid))?)
    }

    /// Removes the pod's entry of the volume, after the driver has unpublished it.
    pub(super) fn end(&self, data: &VolumeData, uid: &PodUid) -> io::Result<()> {
        let entry = self.entry(data, uid.as_str());
        if !data.block {
            return files::remove(&entry, MOUNT);
        }
        files::remove_point(&self.target(data, uid))?;
        gone(fs::remove_file(entry))
    }

    /// Records that the volume is staged, and creates the directory for that.
    pub(super) fn begin_stage(&self, data: &VolumeData) -> io::Result<()> {
        if !data.block {
            let staged = VolumeData { more: Default::default(), ..data.clone() };
            files::write(&self.record(data), &staged)?;
        }
        files::make(&self.staging(data))
    }

    /// Whether there is any record of the volume other than pods'.
    pub(super) fn is_known(&self, data: &VolumeData) -> io::Result<bool> {
        Ok(files::read(&self.record(data))?.is_some())
    }

    /// Whether the volume is, or may be, staged.
    pub(super) fn is_staged(&self, data: &VolumeData) -> io::Result<bool> {
        match data.block {
            true => is_there(&self.staging(data)),
            false => Ok(!data.is_ephemeral() && files::read(&self.record(data))?.is_some()),
        }
    }

    /// Removes what is left of a volume that no pod uses, after the driver has unstaged it.
    pub(super) fn end_stage(&self, data: &VolumeData) -> io::Result<()> {
        if data.is_ephemeral() {
            return Ok(());
        }
        let record = self.record(data);
        if !data.block {
            return files::remove(&record, GLOBAL_MOUNT);
        }
        remove_unmounted(&self.staging(data))?;
        let publish = self.staged.join(DEVICES).join("publish").join(data.name());
        gone(fs::remove_dir(publish))?;
        files::remove(&record, "")?;
        // kubelet has another directory beside it.
        let _ = record.parent().map(fs::remove_dir);
        Ok(())
    }

    /// The volumes of the pod.
    pub(super) fn volumes_of(&self, uid: &PodUid) -> io::Result<Vec<VolumeData>> {
        let mut volumes = Vec::new();
        for path in files::directories(&self.volumes(uid.as_str()))? {
            volumes.extend(named(&path, files::read(&path)?, false));
        }
        for path in files::links(&self.devices(uid.as_str()))? {
            let record = path.file_name().map(|name| self.staged.join(DEVICES).join(name).join(DATA));
            let data = record.map(|record| files::read(&record)).transpose()?.flatten();
            volumes.extend(named(&path, data, true));
        }
        Ok(volumes)
    }

    /// The staged volumes, and the published devices.
    pub(super) fn all_staged(&self) -> io::Result<Vec<VolumeData>> {
        let mut volumes = Vec::new();
        for driver in files::directories(&self.staged)? {
            let is_devices = driver.file_name().is_some_and(|name| name == DEVICES);
            for path in files::directories(&driver)? {
                let data = files::read(&if is_devices { path.join(DATA) } else { path.clone() });
                match (data, is_devices) {
                    (Ok(data), true) => volumes.extend(named(&path, data, true)),
                    (Ok(data), false) => volumes.extend(data),
                    (Err(error), _) => {
                        tracing::warn!(path = %path.display(), %error, "checking whether a volume is staged failed")
                    }
                }
            }
        }
        Ok(volumes)
    }

    /// Whether any pod uses this volume.
    pub(super) fn is_used(&self, data: &VolumeData) -> io::Result<bool> {
        for pod in files::directories(&self.pods)? {
            let name = pod.file_name().unwrap_or_default().to_string_lossy();
            if data.block {
                if is_there(&self.entry(data, &name))? {
                    return Ok(true);
                }
                continue;
            }
            for directory in files::directories(&self.volumes(&name))? {
                // What cannot be read may belong to this volume.
                if files::read(&directory)?.is_some_and(|record| record.is(data)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The volume that was found at `path`, which provides its name.
fn named(path: &Path, data: Option<VolumeData>, block: bool) -> Option<VolumeData> {
    let mut data = data?;
    data.set_name(path.file_name()?.to_str()?);
    Some(VolumeData { block, ..data })
}

/// Whether anything exists at `path`, even a dangling link. If that is unknown, a volume must be taken neither for
/// unused nor for removed.
fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether something is mounted on `path`, by the mount table alone.
pub(super) fn is_mounted(path: &Path) -> io::Result<bool> {
    match real(path)? {
        Some(real) => Ok(mount_table::mount_points()?.contains(&real)),
        None => Ok(false),
    }
}

/// The path with its parent resolved; the last component is not accessed, because its server may not answer. `None`
/// if it does not exist.
fn real(path: &Path) -> io::Result<Option<PathBuf>> {
    match path.parent().unwrap_or(path).canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        parent => Ok(Some(parent?.join(path.file_name().unwrap_or_default()))),
    }
}

/// Removes a directory with what a driver has left in it, unless something is mounted there.
fn remove_unmounted(path: &Path) -> io::Result<()> {
    let Some(real) = real(path)? else { return Ok(()) };
    if let Some(point) = mount_table::mount_points()?.iter().find(|point| point.starts_with(&real)) {
        let message = format!("{} is still mounted", point.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
    }
    gone(fs::remove_dir_all(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn data(name: &str, block: bool) -> VolumeData {
        let more = [("volumeLifecycleMode", "Persistent"), ("specVolID", name)];
        let more = more.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), more, block }
    }

    #[test]
    fn what_is_begun_is_found_used_and_ended() {
        for block in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let layout = Layout::new(dir.path(), Some(&dir.path().join("p")));
            let (uid, other, data) = (PodUid::new("u-1"), PodUid::new("u-2"), data("pv", block));
            assert!(!layout.is_used(&data).unwrap() && layout.all_staged().unwrap().is_empty());
            layout.begin(&data, &uid).unwrap();
            layout.begin(&data, &other).unwrap();
            layout.begin_stage(&data).unwrap();
            layout.published(&data, &uid).unwrap();
            assert!(!layout.is_published(&data, &uid).unwrap(), "nothing is mounted");
            let volumes = layout.volumes_of(&uid).unwrap();
            assert!(
                volumes.len() == 1 && volumes[0].is(&data) && volumes[0].block == block && volumes[0].name() == "pv"
            );
            let staged = layout.all_staged().unwrap();
            assert!(staged.len() == 1 && staged[0].is(&data) && staged[0].block == block);
            assert_eq!(layout.staging(&staged[0]), layout.staging(&data));
            layout.end(&data, &other).unwrap();
            assert!(layout.is_used(&data).unwrap() && layout.is_staged(&data).unwrap());
            layout.end(&data, &uid).unwrap();
            assert!(!layout.is_used(&data).unwrap() && layout.is_staged(&data).unwrap());
            fs::write(layout.staging(&data).join("left"), "").unwrap_or_default();
            if !block {
                fs::remove_file(layout.staging(&data).join("left")).unwrap();
            }
            layout.end_stage(&data).unwrap();
            assert!(!layout.is_staged(&data).unwrap() && layout.all_staged().unwrap().is_empty());
            layout.end_stage(&data).unwrap();
        }
    }

    #[test]
    fn a_device_that_cannot_be_looked_for_is_not_unused() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), Some(&dir.path().join("p")));
        layout.begin(&data("pv", true), &PodUid::new("u-1")).unwrap();
        assert!(layout.is_used(&data("pv", true)).unwrap() && !layout.is_used(&data("other", true)).unwrap());
        layout.begin_stage(&data("pv", true)).unwrap();
        let too_long = data(&"n".repeat(300), true);
        assert!(layout.is_used(&too_long).is_err() && layout.is_staged(&too_long).is_err());
    }

    #[test]
    fn places_are_kubelets() {
        let layout = Layout::new(Path::new("/k"), None);
        let uid = PodUid::new("u-1");
        let plugins = "/k/plugins/kubernetes.io/csi";
        let hash = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        let (files, device) = (data("pv", false), data("pv", true));
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        assert_eq!(text(layout.staging(&files)), format!("{plugins}/d/{hash}/globalmount"));
        assert_eq!(text(layout.target(&files, &uid)), "/k/pods/u-1/volumes/kubernetes.io~csi/pv/mount");
        assert_eq!(text(layout.staging(&device)), format!("{plugins}/volumeDevices/staging/pv"));
        assert_eq!(text(layout.target(&device, &uid)), format!("{plugins}/volumeDevices/publish/pv/u-1"));
        assert_eq!(text(layout.entry(&device, "u-1")), "/k/pods/u-1/volumeDevices/kubernetes.io~csi/pv");
        assert_eq!(text(layout.record(&device)), format!("{plugins}/volumeDevices/pv/data"));
    }
}
