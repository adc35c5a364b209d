//! The settings of eviction under node pressure, with kubelet's checks.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::quantity;
use super::super::tree::{Map, Position, Value};
use super::ConfigDiagnostics;
use limpet_core::eviction::{Amount, DEFAULT_HARD, EvictionPolicy, Signal, Threshold};
use limpet_model::go_duration;

const HARD: &str = "evictionHard";
const SOFT: &str = "evictionSoft";
const GRACE: &str = "evictionSoftGracePeriod";
const RECLAIM: &str = "evictionMinimumReclaim";

/// An entry of a map from a signal to a text.
type SignalEntry<'a> = (Signal, &'a str, Position);

impl ConfigDiagnostics {
    pub(super) fn eviction(&mut self, map: &Map<'_>, policy: &mut EvictionPolicy) {
        let hard = self.amounts(map, HARD);
        let soft = self.amounts(map, SOFT);
        let reclaims: BTreeMap<Signal, Amount> =
            self.amounts(map, RECLAIM).into_iter().filter_map(|(signal, amount, _)| Some((signal, amount?))).collect();
        let graces = self.graces(map);
        let min_reclaim = |signal: &Signal| reclaims.get(signal).copied();
        let named = !map.map(HARD).is_empty();
        let merges = map.bool("mergeDefaultEvictionSettings").is_some_and(|(on, _)| on);
        let default =
            |(signal, _): &(Signal, Amount)| !named || merges && !hard.iter().any(|(other, _, _)| other == signal);
        let defaults = DEFAULT_HARD.into_iter().filter(default);
        let given = hard.iter().filter_map(|(signal, value, _)| Some((*signal, (*value)?)));
        let mut thresholds: Vec<Threshold> = given
            .chain(defaults)
            .map(|(signal, value)| Threshold {
                signal,
                value,
                grace: Duration::ZERO,
                min_reclaim: min_reclaim(&signal),
            })
            .collect();
        for (signal, value, at) in soft {
            let Some(grace) = graces.get(&signal).copied() else {
                let message = format!("has no grace period; add {} to {GRACE}", signal.as_str());
                self.error(Some(at), &format!("{SOFT}.{}", signal.as_str()), message);
                continue;
            };
            let Some(value) = value else { continue };
            thresholds.push(Threshold { signal, value, grace, min_reclaim: min_reclaim(&signal) });
        }
        thresholds.sort_by_key(|threshold| threshold.signal);
        policy.thresholds = thresholds;
        self.periods(map, policy);
    }

    fn periods(&mut self, map: &Map<'_>, policy: &mut EvictionPolicy) {
        let key = "evictionPressureTransitionPeriod";
        if let Some((text, at)) = map.text(key) {
            match go_duration::parse(text) {
                // As in Kubernetes, zero stands for the default.
                Some(period) if period.is_zero() => {}
                Some(period) => policy.transition = period,
                None => self.error(Some(at), key, format!("{text:?} is not a duration such as 5m")),
            }
        }
        let key = "evictionMaxPodGracePeriod";
        if let Some((seconds, at)) = map.int(key) {
            match u64::try_from(seconds) {
                Ok(seconds) => policy.max_pod_grace = Duration::from_secs(seconds),
                Err(_) => self.error(Some(at), key, format!("{seconds} is not a number of seconds from 0 on")),
            }
        }
    }

    /// The amounts of a map of thresholds. `None` stands for kubelet's 0% and 100%, which switch the signal off.
    fn amounts(&mut self, map: &Map<'_>, key: &'static str) -> Vec<(Signal, Option<Amount>, Position)> {
        let mut amounts = Vec::new();
        for (signal, text, at) in self.entries(map, key) {
            let amount = match text.strip_suffix('%') {
                Some(_) if text == "0%" || text == "100%" => Ok(None),
                Some(percent) => percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).map_or_else(
                    || Err("is not a share from 0% to 100%"),
                    |percent: f32| Ok(Some(Amount::Share(percent / 100.0))),
                ),
                None => match quantity::bytes(text) {
                    Some(amount) if amount > 0 || key == RECLAIM => Ok(Some(Amount::Absolute(amount))),
                    _ => Err("is neither a quantity above zero, such as 100Mi, nor a share, such as 10%"),
                },
            };
            match amount {
                Ok(amount) => amounts.push((signal, amount, at)),
                Err(message) => {
                    self.error(Some(at), &format!("{key}.{}", signal.as_str()), format!("{text:?} {message}"));
                }
            }
        }
        amounts
    }

    fn graces(&mut self, map: &Map<'_>) -> BTreeMap<Signal, Duration> {
        let mut graces = BTreeMap::new();
        for (signal, text, at) in self.entries(map, GRACE) {
            match go_duration::parse(text) {
                Some(grace) => drop(graces.insert(signal, grace)),
                None => {
                    let message = format!("{text:?} is not a duration such as 1m30s");
                    self.error(Some(at), &format!("{GRACE}.{}", signal.as_str()), message);
                }
            }
        }
        graces
    }

    /// The entries of a map from signals to texts.
    fn entries<'a>(&mut self, map: &Map<'a>, key: &'static str) -> Vec<SignalEntry<'a>> {
        let mut entries = Vec::new();
        for entry in map.map(key) {
            let path = format!("{key}.{}", entry.key);
            let Some(signal) = Signal::named(&entry.key) else {
                if let Some(like) = entry.key.strip_prefix("containerfs.") {
                    let message =
                        format!("has no effect: the layers of containers lie with the images; use imagefs.{like}");
                    self.warn(Some(entry.position), &path, message);
                    continue;
                }
                let known: Vec<&str> = Signal::ALL.map(Signal::as_str).to_vec();
                self.error(
                    Some(entry.position),
                    &path,
                    format!("is not an eviction signal; use one of {}", known.join(", ")),
                );
                continue;
            };
            match &entry.node.value {
                Value::Text(text) => entries.push((signal, text.as_str(), entry.node.position)),
                Value::Null => {
                    let message = "has no value; write one, or remove the key";
                    self.error(Some(entry.node.position), &path, message);
                }
                other => {
                    let message = format!("expected text, found {}; write it in quotes", other.kind());
                    self.error(Some(entry.node.position), &path, message);
                }
            }
        }
        entries
    }
}

#[cfg(test)]
#[path = "eviction_tests.rs"]
#[allow(clippy::unwrap_used)]
pub(super) mod tests;
