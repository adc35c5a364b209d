//! Reports whether the host has what a pod requests by name: profiles of security modules, and devices of plugins.
//! [`limpet_core::outcome`] decides what happens to a pod for which something is missing.

use k8s_openapi::api::core::v1::PodSpec;

use super::ContainerdExecutor;
use limpet_core::admission::HostLack;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::{apparmor, selinux};
use limpet_model::pod::PodRecord;
use limpet_model::pod::apparmor::needs;

impl ContainerdExecutor {
    /// Checks for what the pod names, in kubelet's order, and then gives its containers the processors and the
    /// devices of plugins that they request.
    ///
    /// # Errors
    ///
    /// Something is missing.
    pub(super) async fn provide(&self, record: &PodRecord) -> Result<(), HostLack> {
        profiles(record.spec(), self.contexts.is_some()).await?;
        self.allocate_cpus(record).await?;
        self.device_plugins.allocate(record).await.map_err(|why| HostLack::Devices(why.to_string()))
    }
}

/// Checks that the security profiles exist that the pod names. For a pod that names none, the host is not read.
/// `has_labels`: the host's SELinux policy has labels for containers.
async fn profiles(spec: &PodSpec, has_labels: bool) -> Result<(), HostLack> {
    let needs = needs(spec);
    let lacks_labels = !has_labels && selinux::names_labels(spec);
    if !needs.host && !lacks_labels {
        return Ok(());
    }
    let host = needs.host;
    let loaded: Vec<String> = needs.loaded.iter().map(|name| (*name).to_owned()).collect();
    let looked = blocking::run("/sys/kernel/security".into(), DEADLINE, move |_| {
        if lacks_labels && selinux::is_enforcing() {
            return Err(HostLack::SelinuxLabels);
        }
        if host { confined(&loaded) } else { Ok(()) }
    });
    looked.await.unwrap_or_else(|error| Err(HostLack::AppArmorUnknown(error.to_string())))
}

/// Whether the host has AppArmor, and these profiles.
fn confined(profiles: &[String]) -> Result<(), HostLack> {
    if !apparmor::is_enabled() {
        return Err(HostLack::AppArmor);
    }
    for name in profiles {
        if !apparmor::is_loaded(name).map_err(|error| HostLack::AppArmorUnknown(error.to_string()))? {
            return Err(HostLack::AppArmorProfile(name.clone()));
        }
    }
    Ok(())
}
