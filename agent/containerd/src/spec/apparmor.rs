//! Selects a container's AppArmor profile.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec};

use super::{SpecError, is_privileged};
use limpet_host::apparmor::{self, DEFAULT_PROFILE};
use limpet_model::pod::apparmor::profile_of;

pub(super) enum Profile<'a> {
    Unconfined,
    /// containerd's default; `true` if the Pod names it explicitly.
    Default(bool),
    /// A profile that is loaded on the node.
    Localhost(&'a str),
}

/// As in containerd's CRI plugin, a privileged container has no profile, and a container without one gets the
/// default.
pub(super) fn wanted<'a>(pod: &'a PodSpec, container: &'a Container) -> Profile<'a> {
    let named = |profile: &'a AppArmorProfile| match profile.type_.as_str() {
        "Localhost" => Profile::Localhost(profile.localhost_profile.as_deref().unwrap_or_default()),
        "RuntimeDefault" => Profile::Default(true),
        _ => Profile::Unconfined,
    };
    if is_privileged(container) {
        return Profile::Unconfined;
    }
    profile_of(pod, container).map_or(Profile::Default(false), named)
}

/// The profile for `process.apparmorProfile`; loads the default one. May run apparmor_parser.
///
/// # Errors
///
/// The Pod names a profile that this host cannot provide.
pub(super) fn profile(pod: &PodSpec, container: &Container) -> Result<Option<String>, SpecError> {
    let wanted = wanted(pod, container);
    if matches!(wanted, Profile::Unconfined) || !apparmor::is_enabled() {
        // Admission rejects a pod that names a profile on a host without AppArmor.
        return Ok(None);
    }
    match wanted {
        Profile::Unconfined => Ok(None),
        Profile::Localhost(name) => match apparmor::is_loaded(name) {
            Ok(true) => Ok(Some(name.to_owned())),
            Ok(false) => Err(SpecError::AppArmor(format!("apparmor profile not found {name}"))),
            Err(error) => Err(SpecError::AppArmor(error.to_string())),
        },
        Profile::Default(asked_for) => match apparmor::ensure_default() {
            Ok(()) => Ok(Some(DEFAULT_PROFILE.to_owned())),
            Err(error) if asked_for => Err(SpecError::AppArmor(error.to_string())),
            Err(error) => {
                tracing::warn!(%error, "a container runs without an AppArmor profile");
                Ok(None)
            }
        },
    }
}
