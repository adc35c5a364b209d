//! The decisions of an upgrade: what a starter does with the journal, and when a version on trial is accepted. Pure
//! functions; each may be asked again after a power cut at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::journal::{Baseline, Journal, Step};

/// How often a version is started that ends before it is accepted. A power cut counts, too.
pub(crate) const MAX_ATTEMPTS: u32 = 3;
/// How long an agent has to be as it was before, until it is accepted: one that crashes soon is not.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);

/// What a starter does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// Run the present executable.
    Present,
    /// Count this attempt, have it watched, and run the new one.
    Trial { attempt: u32 },
    /// Put the new one in its place, if a power cut came between, and run it.
    Install,
    /// Discard the new one and run the present one.
    Undo { reason: String },
}

/// What to start by the journal. `is_staged`: the new executable is there.
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

/// What an agent says of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) containerd: bool,
    /// The UIDs of pods that have been started or adopted, by their names.
    pub(crate) pods: BTreeMap<String, String>,
    /// The sources that can be read.
    pub(crate) sources: BTreeSet<String>,
}

impl Observation {
    /// What an upgrade from here must not lose.
    pub(crate) fn baseline(&self) -> Baseline {
        Baseline {
            containerd: self.containerd,
            pods: self.pods.keys().cloned().collect(),
            sources: self.sources.clone(),
        }
    }
}

/// What is not as it was before; `None`: everything is.
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

/// What a guardian does with the version on trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Wait,
    Accept,
    Undo { reason: String },
}

/// One attempt, as its guardian sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attempt {
    /// Since when the node has been as before, from the start of the attempt.
    healthy_since: Option<Duration>,
}

impl Attempt {
    /// Judges what is seen `elapsed` after the start.
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
