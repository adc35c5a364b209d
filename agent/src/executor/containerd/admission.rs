//! Whether the host has what a pod asks for by name: profiles of security modules, devices of plugins. Node-level
//! checks run earlier: see [`crate::worker::node_claims`].

use k8s_openapi::api::core::v1::PodSpec;

use super::ContainerdExecutor;
use crate::status::event::EventType;
use limpet_core::admission::UNEXPECTED;
use limpet_core::outcome::Failure;
use limpet_core::state::PodState;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::{apparmor, selinux};
use limpet_model::pod::apparmor::needs;
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
        profiles(pod.record.spec()).await.map_err(|(reason, message)| self.reject(pod, reason, message))?;
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
        let verdict = PodVerdict::rejected(reason, &message);
        self.reporter.report_claim(pod, &verdict);
        NotAdmitted::Never(verdict)
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
