//! What differs in the start of an ephemeral container: the processes that it sees, and what it may not request.

use std::path::PathBuf;

use limpet_core::outcome::Failure;
use limpet_core::state::{CONFIG_ERROR, Life};
use limpet_model::pod::ephemeral::unsupported;
use limpet_model::sandbox::Sandbox;

use super::Start;
use super::failed::{StartFailure, config_error};

impl Start<'_> {
    /// The namespaces that the container joins: its pod's, and the PID namespace of an ephemeral container's target.
    pub(super) fn joined(&self) -> Result<Sandbox, StartFailure> {
        let mut sandbox = self.sandbox.sandbox.clone();
        if let Some((field, why)) = self.pod.record.ephemeral_of(&self.slot.name).and_then(unsupported) {
            return Err(config_error(format!("{field} {why}")));
        }
        if let Some(target) = self.pod.target_of(self.slot) {
            sandbox.namespaces.pid = Some(self.pid_namespace(target)?);
        }
        Ok(sandbox)
    }

    /// The PID namespace of another container of the pod.
    fn pid_namespace(&self, target: &str) -> Result<PathBuf, StartFailure> {
        let slot = self.pod.containers.iter().find(|slot| slot.name == target);
        match slot.and_then(|slot| slot.instance.as_ref()).map(|instance| &instance.life) {
            Some(Life::Running { pid, process, .. })
                if *pid != 0 && process.as_ref().is_none_or(|process| process.is_alive()) =>
            {
                Ok(format!("/proc/{pid}/ns/pid").into())
            }
            _ => {
                let message = format!("unable to find target container {target}");
                Err(StartFailure::Before(Failure { reason: CONFIG_ERROR, message, transient: true }))
            }
        }
    }
}
