//! Whether the node runs a pod at all: what it refuses would be refused at every try.

use k8s_openapi::api::core::v1::PodSpec;

use super::ContainerdExecutor;
use crate::status::event::EventType;
use limpet_core::admission::UNEXPECTED;
use limpet_core::outcome::Failure;
use limpet_core::state::PodState;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::sandbox::sysctl;
use limpet_host::{apparmor, selinux};
use limpet_model::pod::apparmor::needs;
use limpet_model::pod::device::pod_devices;
use limpet_model::source::SourceKind;
use limpet_model::verdict::PodVerdict;

/// The node does not run a pod.
pub(super) enum NotAdmitted {
    /// It would refuse it at every try.
    Never(PodVerdict),
    /// It may do so later.
    Yet(Failure),
}

impl ContainerdExecutor {
    /// kubelet's checks, with its reasons and messages; then its containers get the devices of plugins that they ask for.
    pub(super) async fn admit(&self, pod: &PodState) -> Result<(), NotAdmitted> {
        let admitted = match self.permitted(pod.record.spec()) {
            Ok(()) => profiles(pod.record.spec()).await,
            refused => refused,
        };
        admitted.map_err(|(reason, message)| self.reject(pod, reason, message))?;
        let allocated = self.device_plugins.allocate(&pod.record).await;
        allocated.map_err(|why| {
            let message = format!("Allocate failed due to {why}, which is unexpected");
            // The apiserver's pods have a controller that makes another one.
            if pod.record.source == SourceKind::Api {
                return self.reject(pod, UNEXPECTED, message);
            }
            tracing::warn!(pod = %pod.record.key, message, "no devices yet");
            self.reporter.event(pod, None, EventType::Warning, UNEXPECTED, message.clone());
            NotAdmitted::Yet(Failure { reason: UNEXPECTED, message, transient: true })
        })
    }

    fn reject(&self, pod: &PodState, reason: &'static str, message: String) -> NotAdmitted {
        tracing::warn!(pod = %pod.record.key, reason, message, "pod rejected");
        let verdict = PodVerdict::rejected(reason, &message);
        self.reporter.event(pod, None, EventType::Warning, reason, message);
        NotAdmitted::Never(verdict)
    }

    fn permitted(&self, spec: &PodSpec) -> Result<(), (&'static str, String)> {
        if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
            let message = "Failed to admit pod as the OS field doesn't match node OS".to_owned();
            return Err(("PodOSNotSupported", message));
        }
        self.has_so_many(spec).map_err(|why| (UNEXPECTED, format!("Allocate failed due to {why}")))?;
        let allowed = sysctl::check_sysctls(spec, &self.config.allowed_unsafe_sysctls);
        allowed.map_err(|error| ("SysctlForbidden", error.to_string()))
    }

    /// Whether there can be as many exclusive devices of the table as the pod asks for; whether they are free is the
    /// worker's to know.
    fn has_so_many(&self, spec: &PodSpec) -> Result<(), String> {
        for (name, count) in pod_devices(spec) {
            if self.node.devices.get(name).is_some_and(|device| device.exclusive) && count > 1 {
                return Err(format!(
                    "requested number of devices unavailable for {name}. Requested: {count}, Available: 1, which is unexpected"
                ));
            }
        }
        Ok(())
    }
}

/// Security modules: what the pod names must be there. A pod that names nothing costs no look at the host.
async fn profiles(spec: &PodSpec) -> Result<(), (&'static str, String)> {
    let needs = needs(spec);
    let labelled = selinux::names_labels(spec);
    if !needs.host && !labelled {
        return Ok(());
    }
    let host = needs.host;
    let loaded: Vec<String> = needs.loaded.iter().map(|name| (*name).to_owned()).collect();
    let looked = blocking::run("/sys/kernel/security".into(), DEADLINE, move |_| {
        if labelled && selinux::is_enforcing() {
            return Err(("SELinux", selinux::REFUSED.to_owned()));
        }
        if host { confined(&loaded).map_err(apparmor_refusal) } else { Ok(()) }
    });
    looked.await.unwrap_or_else(|error| Err(apparmor_refusal(error.to_string())))
}

fn apparmor_refusal(why: String) -> (&'static str, String) {
    ("AppArmor", format!("Cannot enforce AppArmor: {why}"))
}

/// Whether the host has AppArmor, and these profiles.
fn confined(profiles: &[String]) -> Result<(), String> {
    if !apparmor::is_enabled() {
        return Err("AppArmor is not enabled on the host".to_owned());
    }
    for name in profiles {
        if !apparmor::is_loaded(name).map_err(|error| error.to_string())? {
            return Err(format!("profile {name:?} is not loaded; load it with apparmor_parser"));
        }
    }
    Ok(())
}
