//! Restarts of pods that may have read what was undone. They are remembered until they have taken place, so that the end of the
//! agent loses none of them.

use limpet_core::status::observed::ObservedPod;

use super::{SourceGenerations, Step};
use crate::Moment;
use crate::readiness::{Facts, restarts_of};
use crate::settings::Settings;

impl SourceGenerations {
    /// Orders the restarts that are due, once for each life of the agent, and returns the state without those that have taken
    /// place, or are not needed any more.
    pub(super) fn settle_restarts(&mut self, facts: &Facts<'_>, settings: &Settings, now: Moment) -> Option<Step> {
        if self.state.restarts.is_empty() || facts.is_paused {
            return None;
        }
        // A pod that runs is found again soon after the start of the agent.
        let since = *self.restarts_since.get_or_insert(now.uptime);
        let may_appear = now.uptime < since + settings.progress_deadline;
        let observed = |name: &str| -> Option<&ObservedPod> {
            let mut pods = facts.observed.pods.values().filter(|pod| pod.record.source == self.source);
            pods.find(|pod| pod.record.key.to_string() == *name).map(|pod| &**pod)
        };
        let mut left = self.state.restarts.clone();
        left.retain(|name, (uid, count)| match observed(name) {
            Some(pod) => {
                pod.record.uid.as_str() == *uid && restarts_of(pod) <= *count && pod.terminating_since.is_none()
            }
            None => may_appear,
        });
        for name in left.keys().filter(|name| !self.ordered.contains(*name)) {
            if let Some(pod) = observed(name) {
                self.restarts.push(pod.record.key.clone());
            }
        }
        self.ordered.extend(self.restarts.iter().map(ToString::to_string));
        if left.len() == self.state.restarts.len() {
            return None;
        }
        let mut state = self.state.clone();
        state.restarts = left;
        Some(Step { state, notices: Vec::new() })
    }
}
