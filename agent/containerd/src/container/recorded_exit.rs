//! Exits of containers as limpet's shim records them, so that they are known even if neither agent nor containerd was
//! running.
//!
//! containerd forgets a task whose shim has gone. The shim writes a container's exit to a directory of the agent's
//! before it reports the exit to anyone, so an exit while shim, containerd and agent were down is known exactly.

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

use super::Containers;
use limpet_host::blocking::{self, DEADLINE};
use limpet_model::container::{ContainerId, Task};

/// The fields of a record that the agent reads.
#[derive(Deserialize)]
struct Record {
    code: i32,
    seconds: i64,
    nanoseconds: i32,
}

impl Containers {
    /// The recorded exits of these containers.
    pub(super) async fn recorded_exits(&self, ids: Vec<ContainerId>) -> Vec<(ContainerId, Task)> {
        if ids.is_empty() || !self.config.exit_dir.exists() {
            return Vec::new();
        }
        let directory = self.config.exit_dir.clone();
        let read = blocking::run(directory.clone(), DEADLINE, move |_| {
            ids.into_iter().filter_map(|id| read(&directory, &id).map(|ended| (id, ended))).collect()
        });
        read.await.unwrap_or_default()
    }

    pub(super) fn remove_recorded_exit(&self, id: &ContainerId) {
        match std::fs::remove_file(self.config.exit_dir.join(id.as_str())) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::debug!(container = %id, %error, "removing the record of an exit failed; it remains until the next boot");
            }
            _ => {}
        }
    }
}

fn read(directory: &Path, id: &ContainerId) -> Option<Task> {
    let text = std::fs::read(directory.join(id.as_str())).ok()?;
    let Record { code, seconds, nanoseconds } = serde_json::from_slice(&text).ok()?;
    Some(Task::Stopped { code, at: Timestamp::new(seconds, nanoseconds).ok()? })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_read_as_the_shim_has_recorded_it() {
        let directory = tempfile::tempdir().unwrap();
        let record = r#"{"code":137,"signal":9,"seconds":1767323045,"nanoseconds":678901234,"oomKills":1,"pid":7}"#;
        std::fs::write(directory.path().join("c1"), record).unwrap();
        std::fs::write(directory.path().join("c2"), "{").unwrap();
        let at = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        assert_eq!(read(directory.path(), &ContainerId::new("c1")), Some(Task::Stopped { code: 137, at }));
        assert_eq!(read(directory.path(), &ContainerId::new("c2")), None);
        assert_eq!(read(directory.path(), &ContainerId::new("c3")), None);
    }
}
