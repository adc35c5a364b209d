//! `shutdownGracePeriod` and its siblings: how long pods have when the node shuts down.

use std::time::Duration;

use super::super::tree::Map;
use super::ConfigDiagnostics;
use limpet_core::node_shutdown::{ShutdownGroup, ShutdownPolicy};
use limpet_model::go_duration;

const TOTAL: &str = "shutdownGracePeriod";
const CRITICAL: &str = "shutdownGracePeriodCriticalPods";
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";

impl ConfigDiagnostics {
    /// Reads the policy; `None` if the shutdown is not delayed.
    pub(super) fn shutdown(&mut self, map: &Map<'_>) -> Option<ShutdownPolicy> {
        let (total, critical) = (self.period(map, TOTAL), self.period(map, CRITICAL));
        let groups = self.groups(map);
        if critical > total {
            let (_, at) = map.text(CRITICAL)?;
            let message = format!("is more than {TOTAL}, of which it is a part");
            self.error(Some(at), CRITICAL, message);
            return None;
        }
        if groups.is_empty() {
            return (!total.is_zero()).then(|| ShutdownPolicy::of_periods(total, critical));
        }
        if !total.is_zero() {
            let at = map.text(TOTAL).map(|(_, at)| at);
            self.error(at, TOTAL, format!("excludes {BY_PRIORITY}; use one of them"));
        }
        ShutdownPolicy::by_priority(groups)
    }

    fn period(&mut self, map: &Map<'_>, key: &'static str) -> Duration {
        let Some((text, at)) = map.text(key) else { return Duration::ZERO };
        match go_duration::parse(text).filter(|period| period.is_zero() || *period >= Duration::from_secs(1)) {
            Some(period) => period,
            None => {
                self.error(Some(at), key, format!("{text:?} is neither 0s nor a duration of 1s or more such as 30s"));
                Duration::ZERO
            }
        }
    }

    fn groups(&mut self, map: &Map<'_>) -> Vec<ShutdownGroup> {
        let mut groups = Vec::new();
        for (group, at) in map.maps(BY_PRIORITY) {
            let number = |key| group.int(key).map_or(0, |(number, _)| number);
            let known = ["priority", "shutdownGracePeriodSeconds"];
            if let Some(entry) = group.entries.iter().find(|entry| !known.contains(&&*entry.key)) {
                let message = format!("{:?} is unknown; use {}", entry.key, known.join(" and "));
                self.error(Some(entry.position), BY_PRIORITY, message);
            }
            match (i32::try_from(number(known[0])), u64::try_from(number(known[1]))) {
                (Ok(priority), Ok(seconds)) => {
                    groups.push(ShutdownGroup { priority, grace: Some(Duration::from_secs(seconds)) });
                }
                (Err(_), _) => self.error(Some(at), BY_PRIORITY, "priority is not a number of 32 bits"),
                (_, Err(_)) => self.error(Some(at), BY_PRIORITY, "shutdownGracePeriodSeconds is not 0 or more"),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{KUBELET_HEAD, load_text};
    use super::*;

    fn groups(text: &str) -> Result<Vec<(i32, u64)>, Vec<String>> {
        let shown = |group: &ShutdownGroup| (group.priority, group.grace.unwrap_or_default().as_secs());
        let config = load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0?;
        Ok(config.shutdown.iter().flat_map(ShutdownPolicy::groups).map(shown).collect())
    }

    #[test]
    fn the_periods_make_two_groups_and_priorities_as_many_as_are_named() {
        let table: [(&str, &[(i32, u64)]); 5] = [
            ("", &[]),
            ("shutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\n", &[]),
            ("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n", &[(0, 20), (2_000_000_000, 10)]),
            ("shutdownGracePeriod: 1m\n", &[(0, 60), (2_000_000_000, 0)]),
            (
                "shutdownGracePeriodByPodPriority:\n- {priority: 100, shutdownGracePeriodSeconds: 5}\n\
                 - {shutdownGracePeriodSeconds: 60}\n",
                &[(0, 60), (100, 5)],
            ),
        ];
        for (text, expected) in table {
            assert_eq!(groups(text), Ok(expected.to_vec()), "{text}");
        }
    }

    #[test]
    fn mistakes_name_the_key() {
        for (text, error) in [
            ("shutdownGracePeriod: 10ms\n", "shutdownGracePeriod: \"10ms\" is neither 0s nor"),
            (
                "shutdownGracePeriod: 5s\nshutdownGracePeriodCriticalPods: 6s\n",
                "shutdownGracePeriodCriticalPods: is more than shutdownGracePeriod",
            ),
            (
                "shutdownGracePeriod: 5s\nshutdownGracePeriodByPodPriority: [{priority: 1}]\n",
                "excludes shutdownGracePeriodByPodPriority",
            ),
            ("shutdownGracePeriodByPodPriority: [{seconds: 1}]\n", "\"seconds\" is unknown"),
            ("shutdownGracePeriodByPodPriority: [{shutdownGracePeriodSeconds: -1}]\n", "is not 0 or more"),
        ] {
            let errors = groups(text).map_err(|errors| errors.join("\n"));
            assert!(errors.as_ref().is_err_and(|errors| errors.contains(error)), "{text}: {errors:?}");
        }
    }
}
