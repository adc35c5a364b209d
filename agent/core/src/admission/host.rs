//! What a pod needs and the host lacks: profiles of security modules, devices of plugins, processors. The executor
//! reports it, and [`crate::outcome`] applies what is decided here. Part of [`super`].

use std::fmt;

use super::{Refusal, UNEXPECTED};
use crate::cpu_allocation::SMT_ALIGNMENT;
use limpet_model::source::SourceKind;
use limpet_model::verdict::PodVerdict;

/// kubelet's reason for a pod whose AppArmor profile cannot be enforced.
const APPARMOR: &str = "AppArmor";

/// What a pod needs and the host does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostLack {
    /// SELinux is enforcing, and its policy has no labels for containers.
    SelinuxLabels,
    /// The kernel runs without AppArmor.
    AppArmor,
    /// An AppArmor profile is not loaded.
    AppArmorProfile(String),
    /// It cannot be read whether the profiles are loaded.
    AppArmorUnknown(String),
    /// A device plugin has refused devices, in its words.
    Devices(String),
    /// There are too few processors that a container could have exclusively.
    Processors(String),
    /// A container would not get all processors of a core, as `full-pcpus-only` requires.
    WholeCores(String),
}

impl HostLack {
    /// kubelet's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SelinuxLabels => "SELinux",
            Self::AppArmor | Self::AppArmorProfile(_) | Self::AppArmorUnknown(_) => APPARMOR,
            Self::Devices(_) | Self::Processors(_) => UNEXPECTED,
            Self::WholeCores(_) => SMT_ALIGNMENT,
        }
    }

    /// Why the node does not admit the pod now.
    pub fn refusal(&self) -> Refusal {
        Refusal { reason: self.reason().to_owned(), message: self.to_string() }
    }

    /// How the pod fails for it; `None` if it is tried again. It fails for good if no attempt would help. A pod of the
    /// apiserver fails in any case, because its controller makes another one.
    pub(crate) fn verdict(&self, source: SourceKind) -> Option<PodVerdict> {
        (self.is_lasting() || source.traits().is_replaced).then(|| self.refusal().for_good())
    }

    /// Whether no attempt can succeed until another kernel or policy runs.
    fn is_lasting(&self) -> bool {
        matches!(self, Self::SelinuxLabels | Self::AppArmor)
    }

    /// Whether it is expected to pass by itself: a restarting plugin is back soon, and pods end.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Devices(_) | Self::Processors(_) | Self::WholeCores(_))
    }
}

/// kubelet's messages.
impl fmt::Display for HostLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SelinuxLabels => f.write_str(
                "this host enforces SELinux, and its policy has no labels for containers; install the policy for \
                 containers (container-selinux) and start limpet again, remove seLinuxOptions, or set SELinux to permissive",
            ),
            Self::AppArmor => f.write_str("Cannot enforce AppArmor: AppArmor is not enabled on the host"),
            Self::AppArmorProfile(name) => write!(
                f,
                "Cannot enforce AppArmor: profile {name:?} is not loaded; load it with apparmor_parser"
            ),
            Self::AppArmorUnknown(why) => write!(f, "Cannot enforce AppArmor: {why}"),
            Self::WholeCores(why) => f.write_str(why),
            Self::Devices(why) | Self::Processors(why) => write!(f, "Allocate failed due to {why}, which is unexpected"),
        }
    }
}
