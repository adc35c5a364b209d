//! The SELinux labels with which a container is started, if the host has SELinux on and its policy has labels for
//! containers.

use std::sync::Arc;

use super::failed::StartFailure;
use super::{ContainerdExecutor, Start};
use limpet_core::outcome::Failure;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::selinux;
use limpet_model::selinux::{ContainerKind, ContainerLabels, labels, options_of};

/// Parts of the names, in containerd, of shims whose containers are virtual machines.
const MACHINES: [&str; 1] = ["io.containerd.kata"];

impl ContainerdExecutor {
    /// The container's labels, which the policy knows; `None` if nothing is labelled.
    pub(super) async fn labels(&self, start: &Start<'_>) -> Result<Option<Arc<ContainerLabels>>, StartFailure> {
        let (Some(contexts), Some(level)) = (&self.contexts, &start.sandbox.sandbox.level) else { return Ok(None) };
        let context = start.container.security_context.as_ref();
        let class = self.runtime_class(start.pod).map_err(super::config_error)?;
        let kind = ContainerKind {
            privileged: context.and_then(|context| context.privileged) == Some(true),
            virtual_machine: class.is_some_and(|class| MACHINES.iter().any(|name| class.runtime.contains(name))),
        };
        let options = options_of(start.pod.record.spec(), start.container);
        let labels = Arc::new(labels(contexts, options, level, kind).map_err(refused)?);
        let asked = Arc::clone(&labels);
        let unknown = blocking::run("/sys/fs/selinux".into(), DEADLINE, move |_| {
            asked.process.iter().chain([&asked.file]).find(|label| !selinux::knows(label)).cloned()
        });
        match unknown.await.map_err(|error| refused(error.to_string()))? {
            Some(label) => Err(refused(format!(
                "SELinux's policy does not know the label {label}; correct seLinuxOptions, or install what defines it"
            ))),
            None => Ok(Some(labels)),
        }
    }
}

fn refused(message: String) -> StartFailure {
    StartFailure::Before(Failure { reason: "CreateContainerError", message, transient: false })
}
