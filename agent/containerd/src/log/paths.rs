//! Paths of container logs: kubelet's layout, so that log collectors and node tools find them.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use limpet_model::pod::{PodRecord, PodUid};

use crate::settings::LogSettings;

/// The longest file name, to which kubelet truncates its links' names.
const NAME_LIMIT: usize = 255;

/// The two directories of logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPaths {
    /// kubelet's `podLogsDir`: `/var/log/pods`.
    pub pods: PathBuf,
    /// kubelet's links by container: `/var/log/containers`.
    pub containers: PathBuf,
}

impl LogPaths {
    pub fn new(settings: &LogSettings) -> Self {
        Self { pods: settings.pods_dir.clone(), containers: settings.containers_dir.clone() }
    }

    /// `<pods>/<namespace>_<name>_<uid>`.
    pub fn pod_log_dir(&self, record: &PodRecord) -> PathBuf {
        self.pods.join(format!("{}_{}_{}", record.key.namespace(), record.key.name(), record.uid))
    }

    /// `<pods>/<namespace>_<name>_<uid>/<container>`.
    pub fn container_log_dir(&self, record: &PodRecord, container: &str) -> PathBuf {
        self.pod_log_dir(record).join(container)
    }

    /// The log of a container's `attempt`: its restart count, 0 for the first.
    pub fn log_path(&self, record: &PodRecord, container: &str, attempt: u32) -> PathBuf {
        self.container_log_dir(record, container).join(format!("{attempt}.log"))
    }

    /// kubelet's link to a container's log: `<containers>/<pod>_<namespace>_<container>-<container id>.log`.
    pub fn link_path(&self, record: &PodRecord, container: &str, container_id: &str) -> PathBuf {
        let mut name = format!("{}_{}_{container}-{container_id}", record.key.name(), record.key.namespace());
        // The name is ASCII by Kubernetes' rules for names.
        name.truncate(NAME_LIMIT - ".log".len());
        name.push_str(".log");
        self.containers.join(name)
    }

    /// Creates a container's link, replacing an existing one.
    ///
    /// # Errors
    /// When the directory or the link cannot be created.
    pub fn create_link(
        &self,
        record: &PodRecord,
        container: &str,
        container_id: &str,
        attempt: u32,
    ) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.containers)?;
        let link = self.link_path(record, container, container_id);
        remove_file(&link)?;
        symlink(self.log_path(record, container, attempt), &link)?;
        Ok(link)
    }

    /// Removes a container's link, if it exists. A failure is logged.
    pub fn remove_link(&self, record: &PodRecord, container: &str, container_id: &str) {
        log_failure(record.uid.as_str(), remove_file(&self.link_path(record, container, container_id)));
    }

    /// Removes one attempt's log, with the files rotated from it, and its link.
    pub fn remove_attempt(&self, record: &PodRecord, container: &str, attempt: u32, container_id: &str) {
        self.remove_link(record, container, container_id);
        log_failure(record.uid.as_str(), remove_log(&self.log_path(record, container, attempt)));
    }

    /// Removes every log of a deleted pod, and the links to them.
    pub fn remove_pod_logs(&self, record: &PodRecord) {
        log_failure(record.uid.as_str(), self.remove_directory(&self.pod_log_dir(record)));
    }

    /// The same for a pod of which only the UID is known.
    ///
    /// # Errors
    ///
    /// Logs exist and cannot be removed.
    pub fn remove_logs_of(&self, uid: &PodUid) -> io::Result<()> {
        let directories = list(&self.pods)?;
        let mut matching = directories.iter().filter(|directory| pod_uid(directory) == Some(uid.as_str()));
        matching.try_for_each(|directory| self.remove_directory(directory))
    }

    /// Removes a pod's directory and the links into it.
    fn remove_directory(&self, directory: &Path) -> io::Result<()> {
        for link in list(&self.containers)? {
            if fs::read_link(&link).is_ok_and(|target| target.starts_with(directory)) {
                remove_file(&link)?;
            }
        }
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Logs a failed removal. Old logs only take up disk space, so no pod waits for their removal.
fn log_failure(uid: &str, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!(uid, %error, "removing old logs failed");
    }
}

/// Removes one attempt's log: the file at `path` and those rotated from it.
///
/// # Errors
/// The first file that exists and cannot be removed.
pub fn remove_log(path: &Path) -> io::Result<()> {
    generations(path)?.iter().try_for_each(|file| remove_file(file))
}

/// The highest attempt with a log in a container's directory. Logs survive reboots, so restart counts continue from it,
/// as in kubelet.
pub fn newest_attempt(directory: &Path) -> Option<u32> {
    list(directory).ok()?.iter().filter_map(|path| attempt(path.file_name()?)).max()
}

/// The highest attempt below `current` with a log, which `--previous` shows.
pub fn previous_attempt(directory: &Path, current: u32) -> Option<u32> {
    list(directory)
        .ok()?
        .iter()
        .filter_map(|path| attempt(path.file_name()?))
        .filter(|attempt| *attempt < current)
        .max()
}

/// The attempt a log file belongs to: `3.log`, `3.log.20260102-150405`.
fn attempt(name: &OsStr) -> Option<u32> {
    let (number, rest) = name.to_str()?.split_once('.')?;
    (rest == "log" || rest.starts_with("log.")).then(|| number.parse().ok()).flatten()
}

/// The UID in a pod directory's name. Neither namespaces nor names contain an underscore.
fn pod_uid(directory: &Path) -> Option<&str> {
    directory.file_name()?.to_str()?.splitn(3, '_').nth(2)
}

/// The files of one log, oldest first: those rotated from `path`, then `path`. Omits compressed and temporary files,
/// which only kubelet creates.
pub(super) fn generations(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(Vec::new()) };
    let mut files: Vec<_> = list(directory)?
        .into_iter()
        .filter(|file| {
            let rest = file.file_name().and_then(|file| file.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()));
            rest.is_some_and(|rest| rest.starts_with(b".") && !rest.ends_with(b".gz") && !rest.ends_with(b".tmp"))
        })
        .collect();
    files.sort();
    if path.exists() {
        files.push(path.to_owned());
    }
    Ok(files)
}

/// Calls `search` with the files of one log, oldest first. If a rotation meanwhile has changed the names, it is
/// called again. Rotations are rare, as each follows the writing of a whole file.
///
/// # Errors
///
/// The error of `search`, or the directory cannot be listed.
pub(super) fn among_generations<T>(path: &Path, search: impl Fn(&[PathBuf]) -> io::Result<T>) -> io::Result<T> {
    let mut files = generations(path)?;
    loop {
        let result = search(&files);
        let now = generations(path)?;
        if now == files {
            return result;
        }
        files = now;
    }
}

/// The paths in a directory; none if it does not exist.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use limpet_model::pod::compute_resources::CgroupLimits;
    use limpet_model::pod::qos::QosClass;
    use limpet_model::pod::{Fingerprint, PodKey};
    use limpet_model::source::SourceKind;

    fn record(uid: &str) -> PodRecord {
        PodRecord {
            ephemeral: Vec::new(),
            qos_class: QosClass::BestEffort,
            cgroup_limits: CgroupLimits::BEST_EFFORT,
            key: PodKey::new("default", "web-edge1"),
            uid: PodUid::new(uid),
            fingerprint: Fingerprint([0; 16]),
            immutable_fingerprint: Fingerprint([0; 16]),
            source: SourceKind::File,
            origin: "web.yaml".into(),
            manifest: Arc::from(&b""[..]),
            pod: Default::default(),
        }
    }

    fn paths(root: &Path) -> LogPaths {
        LogPaths { pods: root.join("pods"), containers: root.join("containers") }
    }

    #[test]
    fn paths_are_kubelets() {
        let paths = LogPaths::new(&LogSettings::default());
        let record = record("abc");
        assert_eq!(paths.log_path(&record, "app", 2), Path::new("/var/log/pods/default_web-edge1_abc/app/2.log"));
        assert_eq!(
            paths.link_path(&record, "app", "0123"),
            Path::new("/var/log/containers/web-edge1_default_app-0123.log")
        );
        let long = paths.link_path(&record, "app", &"f".repeat(300));
        assert_eq!(long.file_name().unwrap().len(), 255);
    }

    #[test]
    fn links_are_created_replaced_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let (paths, record) = (paths(root.path()), record("abc"));
        paths.create_link(&record, "app", "id", 0).unwrap();
        let link = paths.create_link(&record, "app", "id", 1).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), paths.log_path(&record, "app", 1));
        paths.remove_link(&record, "app", "id");
        paths.remove_link(&record, "app", "id");
        assert!(fs::symlink_metadata(link).is_err());
    }

    #[test]
    fn a_pods_logs_are_removed_with_their_links_and_no_others() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path());
        for uid in ["abc", "abcd", "b_c"] {
            let record = record(uid);
            fs::create_dir_all(paths.container_log_dir(&record, "app")).unwrap();
            fs::write(paths.log_path(&record, "app", 0), "").unwrap();
            paths.create_link(&record, "app", uid, 0).unwrap();
        }
        paths.remove_pod_logs(&record("abc"));
        paths.remove_pod_logs(&record("abc"));
        paths.remove_logs_of(&PodUid::new("b_c")).unwrap();
        paths.remove_logs_of(&PodUid::new("b_c")).unwrap();
        assert!(!paths.pod_log_dir(&record("b_c")).exists());
        assert!(!paths.pod_log_dir(&record("abc")).exists());
        assert!(paths.pod_log_dir(&record("abcd")).exists());
        assert_eq!(fs::read_dir(&paths.containers).unwrap().count(), 1);
    }

    #[test]
    fn attempts_are_read_from_file_names() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("app");
        assert_eq!(newest_attempt(&directory), None);
        fs::create_dir(&directory).unwrap();
        for name in ["2.log", "10.log.20260102-150405", "x.log", "99.txt", "7.logx", ".log"] {
            fs::write(directory.join(name), "").unwrap();
        }
        assert_eq!(newest_attempt(&directory), Some(10));
        assert_eq!(previous_attempt(&directory, 10), Some(2));
        assert_eq!(previous_attempt(&directory, 2), None);
    }

    #[test]
    fn removing_a_log_removes_its_rotated_files() {
        let root = tempfile::tempdir().unwrap();
        for name in ["1.log", "1.log.20260102-150405", "11.log", "1.logs"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        remove_log(&root.path().join("1.log")).unwrap();
        let mut left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["1.logs", "11.log"]);
    }
}
