//! Whether the host has what a pod requests by name: profiles of security modules, devices of plugins. Node-level
//! checks run earlier: see [`limpet_core::allocation`].

use k8s_openapi::api::core::v1::PodSpec;

use super::ContainerdExecutor;
use limpet_core::admission::UNEXPECTED;
use limpet_core::outcome::Failure;
use limpet_core::state::PodState;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::{apparmor, selinux};
use limpet_model::pod::apparmor::needs;
use limpet_model::source::SourceKind;
use limpet_model::verdict::PodVerdict;
use limpet_telemetry::event::EventType;

/// The node does not run a pod.
pub(super) enum NotAdmitted {
    /// It would refuse it at every try.
    Never(PodVerdict),
    /// It may do so later.
    Yet(Failure),
}

/// Why the host does not have what a pod requests: the reason, and the message for people.
enum Refusal {
    /// Until the host is another one: a module of the kernel.
    Lasting(&'static str, String),
    /// Until it is loaded.
    Passing(&'static str, String),
}

impl ContainerdExecutor {
    /// kubelet's checks, with its reasons and messages; then its containers get the devices of plugins that they request.
    pub(super) async fn admit(&self, pod: &PodState) -> Result<(), NotAdmitted> {
        profiles(pod.record.spec(), self.contexts.is_some()).await.map_err(|refusal| match refusal {
            Refusal::Lasting(reason, message) => self.reject(pod, reason, &message),
            Refusal::Passing(reason, message) => self.refuse(pod, reason, message, false),
        })?;
        let allocated = self.device_plugins.allocate(&pod.record).await;
        allocated.map_err(|why| {
            self.refuse(pod, UNEXPECTED, format!("Allocate failed due to {why}, which is unexpected"), true)
        })
    }

    /// For good what is a pod of the apiserver's, which has a controller that makes another one; every other pod is
    /// tried again.
    fn refuse(&self, pod: &PodState, reason: &'static str, message: String, transient: bool) -> NotAdmitted {
        if pod.record.source == SourceKind::Api {
            return self.reject(pod, reason, &message);
        }
        tracing::warn!(pod = %pod.record.key, reason, message, "the node cannot run the pod yet");
        self.reporter.event(pod, None, EventType::Warning, reason, message.clone());
        NotAdmitted::Yet(Failure { reason, message, transient })
    }

    fn reject(&self, pod: &PodState, reason: &'static str, message: &str) -> NotAdmitted {
        let verdict = PodVerdict::rejected(reason, message);
        self.reporter.report_not_admitted(pod, &verdict);
        NotAdmitted::Never(verdict)
    }
}

/// Security modules: what the pod names must be there. For a pod that names nothing the host is not read. `has_labels`:
/// the host's SELinux has labels for containers.
async fn profiles(spec: &PodSpec, has_labels: bool) -> Result<(), Refusal> {
    let needs = needs(spec);
    let lacks_labels = !has_labels && selinux::names_labels(spec);
    if !needs.host && !lacks_labels {
        return Ok(());
    }
    let host = needs.host;
    let loaded: Vec<String> = needs.loaded.iter().map(|name| (*name).to_owned()).collect();
    let looked = blocking::run("/sys/kernel/security".into(), DEADLINE, move |_| {
        if lacks_labels && selinux::is_enforcing() {
            return Err(Refusal::Lasting("SELinux", selinux::REFUSED.to_owned()));
        }
        if host { confined(&loaded) } else { Ok(()) }
    });
    looked.await.unwrap_or_else(|error| Err(Refusal::Passing("AppArmor", unconfined(&error))))
}

fn unconfined(why: &impl std::fmt::Display) -> String {
    format!("Cannot enforce AppArmor: {why}")
}

/// Whether the host has AppArmor, and these profiles.
fn confined(profiles: &[String]) -> Result<(), Refusal> {
    if !apparmor::is_enabled() {
        return Err(Refusal::Lasting("AppArmor", unconfined(&"AppArmor is not enabled on the host")));
    }
    let refused = |why: &dyn std::fmt::Display| Refusal::Passing("AppArmor", unconfined(&why));
    for name in profiles {
        if !apparmor::is_loaded(name).map_err(|error| refused(&error))? {
            return Err(refused(&format_args!("profile {name:?} is not loaded; load it with apparmor_parser")));
        }
    }
    Ok(())
}
