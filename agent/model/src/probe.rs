//! Probes of containers: their kinds, and what is recorded of their results.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, Probe};
use serde::{Deserialize, Serialize};

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Its failure restarts the container.
    Liveness,
    /// Its result makes the container ready, or not.
    Readiness,
    /// The other two begin once it has succeeded; its failure restarts the container.
    Startup,
}

impl ProbeKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Liveness, Self::Readiness, Self::Startup];

    /// Whether its failure restarts the container.
    pub fn restarts(self) -> bool {
        self != Self::Readiness
    }

    /// The probe of this kind in the container's spec.
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Startup => container.startup_probe.as_ref(),
        }
    }
}

impl fmt::Display for ProbeKind {
    /// As kubelet's metrics and events name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

/// The results of a container's probes, from which a restarted agent continues. The default: none yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRecord {
    /// Its startup probe has succeeded.
    #[serde(default)]
    pub started: bool,
    /// Its readiness probe succeeds.
    #[serde(default)]
    pub ready: bool,
    /// The probe that has failed so often that the container is being ended for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<ProbeKind>,
}
