//! The journal of an upgrade, a small file beside the executables: what is on trial, how often it was started, and
//! how it ended. A starter of any earlier release may read it, so its form changes only by optional fields.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// The state of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "step")]
pub enum Step {
    /// The new executable is beside the current one. It is started until it is accepted or undone.
    #[serde(rename_all = "camelCase")]
    Trial {
        /// How often it was started.
        attempts: u32,
    },
    /// It is accepted, and will replace the current one.
    Accepted,
    /// It has replaced the current one.
    Installed { at: Time },
    /// It was discarded.
    Undone { at: Time, reason: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    #[serde(flatten)]
    pub step: Step,
    /// The version that ran before.
    pub from: String,
    /// The version on trial.
    pub to: String,
    /// How long one attempt may take until the node is in its former state.
    pub deadline_seconds: u64,
    /// The socket of the agent.
    pub socket: PathBuf,
    pub baseline: Baseline,
    /// Whether the agent has reported the end.
    #[serde(default)]
    pub reported: bool,
}

/// The former state of the node, which has to be restored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Baseline {
    /// containerd was connected.
    #[serde(default)]
    pub containerd: bool,
    /// The UIDs of pods that had been started.
    #[serde(default)]
    pub pods: BTreeSet<String>,
    /// The sources that could be read.
    #[serde(default)]
    pub sources: BTreeSet<String>,
}

impl Journal {
    /// Whether nothing is left to do for it.
    pub fn is_over(&self) -> bool {
        matches!(self.step, Step::Installed { .. } | Step::Undone { .. })
    }

    /// Of an upgrade from version 1 to 2.
    #[cfg(test)]
    pub(crate) fn fixture(step: Step) -> Self {
        Self {
            step,
            from: "1".to_owned(),
            to: "2".to_owned(),
            deadline_seconds: 40,
            socket: PathBuf::from("/run/limpet/limpet.sock"),
            baseline: Baseline::default(),
            reported: false,
        }
    }

    pub(crate) fn at(self, step: Step) -> Self {
        Self { step, ..self }
    }
}
