//! Probes of containers: their kinds, and what is recorded of their results.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, Probe};
use serde::{Deserialize, Serialize};

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Its failure restarts the container.
    Liveness,
    /// Its result decides whether the container is ready.
    Readiness,
    /// The other two begin only after it has succeeded. Its failure restarts the container.
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
    pub fn probe_of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Startup => container.startup_probe.as_ref(),
        }
    }
}

impl fmt::Display for ProbeKind {
    /// Writes it as kubelet's metrics and events name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

/// The results of a container's probes, from which a restarted agent continues. By default there are none yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRecord {
    /// Whether its startup probe has succeeded.
    #[serde(default)]
    pub started: bool,
    /// Whether its readiness probe succeeds.
    #[serde(default)]
    pub ready: bool,
    /// The probe because of whose failures the container is being ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<ProbeKind>,
}
