//! Which pods go first when there are too many: the order of Kubernetes' `ActivePodsWithRanks`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::facts::Facts;
use crate::memory::WantedPod;

/// The names of `count` of `pods`, those that are missed least.
pub(crate) fn choose<'a>(
    pods: impl Iterator<Item = &'a WantedPod>,
    facts: &BTreeMap<&str, Facts>,
    count: usize,
) -> Vec<String> {
    let mut pods: Vec<(Facts, &WantedPod)> =
        pods.map(|pod| (facts.get(pod.name.as_str()).copied().unwrap_or_default(), pod)).collect();
    pods.sort_by_key(|(facts, pod)| {
        (
            // One that has ended serves nobody.
            facts.phase != crate::facts::Phase::Ended,
            facts.phase,
            facts.ready_since.is_some(),
            facts.deletion_cost,
            Reverse(facts.ready_since),
            Reverse(facts.restarts),
            Reverse((pod.made, pod.serial)),
        )
    });
    pods.into_iter().take(count).map(|(_, pod)| pod.name.clone()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::facts::Phase;

    #[test]
    fn those_that_serve_least_go_first() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pod = |name: &str, serial| WantedPod {
            name: name.to_owned(),
            hash: "h".to_owned(),
            serial,
            made: at(1),
            task: None,
        };
        let pods = ["pending", "unready", "cheap", "young", "restarted", "old", "ended", "older"];
        let pods: Vec<WantedPod> = pods.iter().zip(0..).map(|(name, serial)| pod(name, serial)).collect();
        let ready = |since| Facts { phase: Phase::Running, ready_since: Some(at(since)), ..Facts::default() };
        let facts = BTreeMap::from([
            ("unready", Facts { phase: Phase::Running, ..Facts::default() }),
            ("cheap", Facts { deletion_cost: -1, ..ready(3) }),
            ("young", ready(9)),
            ("restarted", Facts { restarts: 2, ..ready(5) }),
            ("old", ready(5)),
            ("older", ready(4)),
            ("ended", Facts { phase: Phase::Ended, ..Facts::default() }),
        ]);
        let order = choose(pods.iter(), &facts, 8);
        assert_eq!(order, ["ended", "pending", "unready", "cheap", "young", "restarted", "old", "older"]);
        assert_eq!(choose(pods.iter(), &facts, 1), ["ended"]);
    }
}
