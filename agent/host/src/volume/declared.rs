//! Files of a single container: its termination message, and the volumes that its image declares (`VOLUME`), a
//! directory for each, as in containerd's CRI plugin. The caller reads the image and fills them. All count as the
//! container's storage and are removed with its record.

use std::io;
use std::path::{Path, PathBuf};

use super::{Mount, Propagation, VolumeError, Volumes, blocking, files, removal, termination};
use crate::blocking::{DEADLINE, Progress};
use crate::selinux;
use limpet_model::pod::PodUid;

/// The directory of a container's volumes, beside its termination message.
fn directory(pod_dir: &Path, container: &str, container_id: &str) -> PathBuf {
    pod_dir.join("containers").join(container).join(format!("{container_id}-volumes"))
}

impl Volumes {
    /// The directory with the files of the container's instances.
    pub fn container_dir(&self, uid: &PodUid, container: &str) -> PathBuf {
        self.pod_dir(uid).join("containers").join(container)
    }

    /// Creates empty directories for the volumes that a container's image declares. Removes what an earlier attempt
    /// left. Blocks.
    ///
    /// # Errors
    ///
    /// They cannot be created.
    pub fn make_declared(
        &self,
        uid: &PodUid,
        container: &str,
        container_id: &str,
        count: usize,
    ) -> Result<Vec<PathBuf>, VolumeError> {
        let directory = directory(&self.pod_dir(uid), container, container_id);
        remove(&directory)?;
        let made = (0..count).map(|index| {
            let volume = directory.join(index.to_string());
            files::make_dirs(&directory, 0o750)?;
            files::make_dirs(&volume, 0o755)?;
            Ok(volume)
        });
        made.collect()
    }

    /// Adds the mounts of those volumes, at `paths` of the container at which nothing else is mounted. Blocks.
    ///
    /// # Errors
    ///
    /// One cannot be labelled.
    pub fn mount_declared(
        &self,
        uid: &PodUid,
        (container, container_id): (&str, &str),
        paths: &[PathBuf],
        label: Option<&str>,
        mounts: &mut Vec<Mount>,
    ) -> Result<(), VolumeError> {
        let directory = directory(&self.pod_dir(uid), container, container_id);
        for (index, path) in paths.iter().enumerate() {
            if mounts.iter().any(|mount| mount.container_path == *path) {
                continue;
            }
            let volume = directory.join(index.to_string());
            if let Some(label) = label {
                selinux::relabel(&volume, label).map_err(|source| VolumeError::Label {
                    path: volume.clone(),
                    label: label.to_owned(),
                    source,
                })?;
            }
            mounts.push(Mount {
                host_path: volume,
                container_path: path.clone(),
                read_only: false,
                propagation: Propagation::Private,
            });
        }
        Ok(())
    }

    /// Removes an exited container's termination message and volumes, when its record is removed too.
    ///
    /// # Errors
    /// They cannot be removed.
    pub async fn remove_container_files(
        &self,
        uid: &PodUid,
        container: &str,
        container_id: &str,
    ) -> Result<(), VolumeError> {
        let message = termination::path(&self.pod_dir(uid), container, container_id);
        let volumes = directory(&self.pod_dir(uid), container, container_id);
        let work = move |_: &Progress| {
            match std::fs::remove_file(&message) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(VolumeError::io("remove", message)(error));
                }
                _ => {}
            }
            remove(&volumes)
        };
        blocking(self.pod_dir(uid), DEADLINE, work).await
    }

    /// The files that the agent provides to all containers of the pod. Containers may write to them.
    pub fn provided_files(&self, uid: &PodUid) -> [PathBuf; 3] {
        ["etc-hosts", "etc-hostname", "etc-resolv.conf"].map(|name| self.pod_dir(uid).join(name))
    }
}

fn remove(directory: &Path) -> Result<(), VolumeError> {
    match (directory.parent(), directory.file_name().and_then(|name| name.to_str())) {
        (Some(parent), Some(name)) => removal::remove(parent, name),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::tests::Node;
    use super::*;

    #[tokio::test]
    async fn a_containers_own_files_go_with_it() {
        let (node, uid) = (Node::new(), PodUid::new("uid"));
        node.prepare(json!({})).await.unwrap();
        let message = node.volumes.termination_log(&uid, "c", "id");
        for _try in 0..2 {
            let made = node.volumes.make_declared(&uid, "c", "id", 2).unwrap();
            assert_eq!(made, [0, 1].map(|index| node.pod_dir().join(format!("containers/c/id-volumes/{index}"))));
            assert_eq!(std::fs::read_dir(&made[1]).unwrap().count(), 0, "what the last try has left is gone");
            std::fs::write(made[1].join("data"), "data").unwrap();
        }
        node.volumes.make_declared(&uid, "c", "other", 1).unwrap();
        std::fs::write(&message, "bye").unwrap();
        for _again in 0..2 {
            node.volumes.remove_container_files(&uid, "c", "id").await.unwrap();
            let left: Vec<_> = std::fs::read_dir(node.volumes.container_dir(&uid, "c")).unwrap().collect();
            assert_eq!(left.len(), 1, "{left:?}");
        }
    }

    #[test]
    fn a_mount_of_the_container_wins() {
        let (node, uid) = (Node::new(), PodUid::new("uid"));
        let hosts = Mount {
            host_path: "/h".into(),
            container_path: "/etc/hosts".into(),
            read_only: false,
            propagation: Propagation::Private,
        };
        let mut mounts = vec![hosts.clone()];
        let paths = ["/etc/hosts", "/var/lib/data"].map(PathBuf::from);
        node.volumes.mount_declared(&uid, ("c", "id"), &paths, None, &mut mounts).unwrap();
        let host_path = node.pod_dir().join("containers/c/id-volumes/1");
        assert_eq!(mounts, [hosts.clone(), Mount { host_path, container_path: "/var/lib/data".into(), ..hosts }]);
    }
}
