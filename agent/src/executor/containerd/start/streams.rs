//! Where a container's output goes, and where its input comes from.

use std::path::PathBuf;
use std::sync::Arc;

use limpet_containerd::attach::AttachPoint;
use limpet_containerd::container::TaskStreams;
use limpet_containerd::container::runtime::{RUNC_SHIM, RuntimeClass};
use limpet_log::config::{self, Writer};

use super::failed::{StartFailure, config_error};
use super::{ContainerdExecutor, Start};

/// Whether it has an input and no terminal.
pub(super) fn has_input(start: &Start<'_>) -> bool {
    start.container.stdin == Some(true) && start.container.tty != Some(true)
}

impl ContainerdExecutor {
    /// The logger, and for a container with a terminal or an input the place where clients attach.
    pub(super) fn streams(&self, start: &Start<'_>, class: Option<&RuntimeClass>) -> Result<TaskStreams, StartFailure> {
        let (tty, stdin) = (start.container.tty.unwrap_or(false), start.container.stdin.unwrap_or(false));
        let input = has_input(start).then(|| self.containers.attach_point(&start.id));
        if let Some(input) = &input {
            if let Some(class) = class.filter(|class| class.runtime != RUNC_SHIM) {
                let message =
                    format!("stdin without tty needs the shim {RUNC_SHIM}; its runtime class has {}", class.runtime);
                return Err(config_error(message));
            }
            let made = match self.containers.has_shim(class) {
                true => input.make(true),
                false => input.make_input(&self.executable, &self.containers.runtime_binary(class)),
            };
            made.map_err(|error| config_error(format!("make the input of {}: {error}", start.id)))?;
        }
        let terminal = tty.then(|| self.containers.attach_point(&start.id));
        if let Some(terminal) = &terminal {
            let made = terminal.make(stdin);
            made.map_err(|error| config_error(format!("make the terminal of {}: {error}", start.id)))?;
        }
        let owner = start.sandbox.sandbox.ids.zip(start.user.get()).and_then(|(ids, user)| ids.on_node(user.uid));
        let log_path = self.log_path(start);
        let log_uri = config::uri(
            if self.containers.has_shim(class) { Writer::Shim } else { Writer::Process(&self.executable) },
            self.settings.logs.rotation,
            &log_path,
            terminal.as_ref().map(AttachPoint::directory),
            owner,
        );
        let point = terminal.filter(|_| stdin).or(input);
        Ok(TaskStreams { log_uri, tty, input: point })
    }

    pub(super) fn log_path(&self, start: &Start<'_>) -> PathBuf {
        self.logs.log_path(&start.pod.record, &start.slot.name, start.attempt)
    }

    pub(super) async fn create_link(&self, start: &Start<'_>) {
        let (record, name) = (Arc::clone(&start.pod.record), start.slot.name.clone());
        let (id, attempt) = (start.id.clone(), start.attempt);
        self.on_logs(&start.pod.record.uid, move |logs| {
            if let Err(error) = logs.create_link(&record, &name, id.as_str(), attempt) {
                tracing::warn!(pod = %record.key, container = name, %error, "linking the container's log failed");
            }
        })
        .await;
    }
}
