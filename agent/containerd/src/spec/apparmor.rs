//! Which AppArmor profile a container gets.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec};

use super::{SpecError, is_privileged};
use limpet_host::apparmor::{self, DEFAULT_PROFILE};
use limpet_model::pod::apparmor::profile_of;

/// The profile that the container's process gets; `None`: none.
pub(super) enum Profile<'a> {
    /// None.
    Unconfined,
    /// containerd's default; `true`: the Pod names it.
    Default(bool),
    /// A profile that the node has loaded.
    Localhost(&'a str),
}

/// As containerd's CRI plugin: a privileged container has none, and a container without a profile has the default.
pub(super) fn wanted<'a>(pod: &'a PodSpec, container: &'a Container) -> Profile<'a> {
    let of = |profile: &'a AppArmorProfile| match profile.type_.as_str() {
        "Localhost" => Profile::Localhost(profile.localhost_profile.as_deref().unwrap_or_default()),
        "RuntimeDefault" => Profile::Default(true),
        _ => Profile::Unconfined,
    };
    if is_privileged(container) {
        return Profile::Unconfined;
    }
    profile_of(pod, container).map_or(Profile::Default(false), of)
}

/// The name of the profile for `process.apparmorProfile`, loaded if it is the default one. May run apparmor_parser.
///
/// # Errors
/// When the Pod names a profile that this host cannot give it.
pub(super) fn profile(pod: &PodSpec, container: &Container) -> Result<Option<String>, SpecError> {
    let wanted = wanted(pod, container);
    if matches!(wanted, Profile::Unconfined) || !apparmor::is_enabled() {
        // A pod that names a profile is not admitted to a host without AppArmor.
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
