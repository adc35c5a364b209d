//! Whether a bundle replaces the one that a node has. Pure.

use limpet_core::node_place::NodePlace;
use serde::{Deserialize, Serialize};

use crate::document::BundleConfig;

/// The bundle that a node has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedBundle {
    pub name: String,
    pub version: String,
    /// Its serial; 0 after `limpet bundle reset-serial`.
    pub serial: u64,
    /// The digest of its own manifest, which has those of all its parts.
    pub digest: String,
}

impl AppliedBundle {
    /// Of a bundle with that digest.
    pub fn new(config: &BundleConfig, digest: &str) -> Self {
        let BundleConfig { name, version, serial, .. } = config.clone();
        Self { name, version, serial, digest: digest.to_owned() }
    }
}

/// What is done with a bundle whose signature is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It replaces what the node has.
    Apply,
    /// It is what the node has already.
    Unchanged,
    /// It is older than what the node has, or another one of the same serial.
    Replayed,
    /// It would replace what the node has, but is for other nodes first.
    Outside,
}

/// Decides by serial, content and the node's place alone: no clock is involved. `stage`: the place, and for how many percent of
/// the nodes the bundle is; `None`: it is for this node in any case.
pub fn decide(applied: Option<&AppliedBundle>, offered: &AppliedBundle, stage: Option<(NodePlace, u8)>) -> Decision {
    match by_serial(applied, offered) {
        Decision::Apply if stage.is_some_and(|(place, percent)| !place.is_within(percent)) => Decision::Outside,
        decision => decision,
    }
}

fn by_serial(applied: Option<&AppliedBundle>, offered: &AppliedBundle) -> Decision {
    match applied {
        None => Decision::Apply,
        Some(applied) if offered.serial > applied.serial => Decision::Apply,
        Some(applied) if (offered.serial, &offered.digest) == (applied.serial, &applied.digest) => Decision::Unchanged,
        Some(_) => Decision::Replayed,
    }
}

/// Why a bundle is refused as [`Decision::Replayed`], and what helps.
pub fn replay_message(applied: &AppliedBundle, offered: &AppliedBundle) -> String {
    format!(
        "its serial {} is not higher than {}, which this node has by {} {}: create the bundle again with a higher serial; \
         if the older one is wanted, run limpet bundle reset-serial on the node",
        offered.serial, applied.serial, applied.name, applied.version
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(serial: u64, digest: &str) -> AppliedBundle {
        AppliedBundle { name: "plant".to_owned(), version: "1".to_owned(), serial, digest: digest.to_owned() }
    }

    #[test]
    fn only_a_higher_serial_replaces_a_bundle() {
        let table = [
            (None, bundle(0, "a"), Decision::Apply),
            (None, bundle(7, "a"), Decision::Apply),
            (Some(bundle(7, "a")), bundle(8, "b"), Decision::Apply),
            (Some(bundle(7, "a")), bundle(8, "a"), Decision::Apply),
            (Some(bundle(7, "a")), bundle(7, "a"), Decision::Unchanged),
            (Some(bundle(7, "a")), bundle(7, "b"), Decision::Replayed),
            (Some(bundle(7, "a")), bundle(6, "b"), Decision::Replayed),
            (Some(bundle(7, "a")), bundle(6, "a"), Decision::Replayed),
            (Some(bundle(u64::MAX, "a")), bundle(u64::MAX, "b"), Decision::Replayed),
            // After a reset of the serial, also the same one again, whose serial counts from then on.
            (Some(bundle(0, "a")), bundle(7, "a"), Decision::Apply),
            (Some(bundle(0, "a")), bundle(6, "b"), Decision::Apply),
        ];
        for (applied, offered, expected) in table {
            assert_eq!(decide(applied.as_ref(), &offered, None), expected, "{applied:?} {offered:?}");
        }
    }

    #[test]
    fn a_stage_keeps_a_new_bundle_from_nodes_outside_of_it_and_nothing_else() {
        let (edge1, has) = (NodePlace::new("edge1"), bundle(7, "a"));
        let inside = (1..=100).find(|percent| edge1.is_within(*percent)).unwrap_or(100);
        for (offered, percent, expected) in [
            (bundle(8, "b"), inside, Decision::Apply),
            (bundle(8, "b"), 100, Decision::Apply),
            (bundle(8, "b"), inside - 1, Decision::Outside),
            (bundle(8, "b"), 0, Decision::Outside),
            (bundle(7, "a"), 0, Decision::Unchanged),
            (bundle(6, "b"), 0, Decision::Replayed),
        ] {
            assert_eq!(decide(Some(&has), &offered, Some((edge1, percent))), expected, "{offered:?} {percent}");
        }
    }
}
