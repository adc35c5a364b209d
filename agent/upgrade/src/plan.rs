//! The decisions of an upgrade: what a starter does with the journal, and when a version on trial is accepted. Pure
//! functions, which can be called again after a power cut at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::journal::{Baseline, Journal, Step};

/// How often a version that ends before it is accepted is started. A power cut counts, too.
pub(crate) const MAX_ATTEMPTS: u32 = 3;
/// How long the node has to be in its former state before a version is accepted, so that one that soon crashes is
/// not.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);

/// What a starter does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// Run the current executable.
    Present,
    /// Count this attempt, have it watched, and run the new one.
    Trial { attempt: u32 },
    /// Move the new one to its place, if a power cut prevented that, and run it.
    Install,
    /// Discard the new one and run the current one.
    Undo { reason: String },
}

/// Decides what to start by the journal. `is_staged` tells whether the new executable exists.
pub(crate) fn start(journal: Option<&Journal>, is_staged: bool) -> Start {
    match journal.map(|journal| (&journal.step, journal)) {
        None | Some((Step::Installed { .. } | Step::Undone { .. }, _)) => Start::Present,
        Some((Step::Accepted, _)) => Start::Install,
        Some((Step::Trial { .. }, journal)) if !is_staged => {
            Start::Undo { reason: format!("the executable of limpet {} is missing", journal.to) }
        }
        Some((Step::Trial { attempts }, _)) if *attempts >= MAX_ATTEMPTS => {
            Start::Undo { reason: format!("it ended {attempts} times before the node was as before") }
        }
        Some((Step::Trial { attempts }, _)) => Start::Trial { attempt: attempts + 1 },
    }
}

/// The state of the node according to an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) containerd: bool,
    /// The UIDs of pods that have been started or adopted, by their names.
    pub(crate) pods: BTreeMap<String, String>,
    /// The sources that can be read.
    pub(crate) sources: BTreeSet<String>,
}

impl Observation {
    /// The state that an upgrade must preserve.
    pub(crate) fn baseline(&self) -> Baseline {
        Baseline {
            containerd: self.containerd,
            pods: self.pods.keys().cloned().collect(),
            sources: self.sources.clone(),
        }
    }
}

/// What differs from the former state; `None` if nothing does.
pub(crate) fn fault(baseline: &Baseline, observed: Option<&Observation>) -> Option<String> {
    let Some(observed) = observed else { return Some("the agent does not answer".to_owned()) };
    if baseline.containerd && !observed.containerd {
        return Some("containerd is not connected".to_owned());
    }
    let lost = baseline.pods.iter().filter(|uid| !observed.pods.contains_key(*uid)).count();
    if lost > 0 {
        return Some(format!("{lost} of {} pods were not taken over", baseline.pods.len()));
    }
    let source = baseline.sources.iter().find(|source| !observed.sources.contains(*source))?;
    Some(format!("the source {source} cannot be read"))
}

/// The guardian's decision about the version on trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Wait,
    Accept,
    Undo { reason: String },
}

/// One attempt, as its guardian sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attempt {
    /// When the node's present good state began, relative to the start of the attempt.
    healthy_since: Option<Duration>,
}

impl Attempt {
    /// Judges an observation `elapsed` after the start.
    pub(crate) fn judge(&mut self, fault: Option<String>, elapsed: Duration, deadline: Duration) -> Verdict {
        let Some(fault) = fault else {
            let since = *self.healthy_since.get_or_insert(elapsed);
            return if elapsed.saturating_sub(since) >= SETTLE { Verdict::Accept } else { Verdict::Wait };
        };
        self.healthy_since = None;
        match elapsed >= deadline {
            true => Verdict::Undo { reason: format!("{fault} after {} s", deadline.as_secs()) },
            false => Verdict::Wait,
        }
    }
}

#[cfg(test)]
mod tests;
