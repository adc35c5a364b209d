//! Whether an apiserver continues the history of the one before it. A cluster may have been restored from a backup,
//! or another one may answer in its place. What is missing from such an apiserver was not deleted.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// What identifies a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterHistory {
    /// The newest resource version that was seen. It rises with every change in the cluster.
    pub version: u64,
    /// Digests of the certificates of the authorities that may have issued the server's certificate.
    pub authorities: BTreeSet<String>,
    /// The UID of the Service `default/kubernetes`, which every apiserver makes once and a node may read; empty if it
    /// is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_uid: String,
}

/// Why what is missing from the apiserver does not count as deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryBreak {
    /// Its version has gone back, because an older state was restored.
    Restored {
        /// The newest version before.
        before: u64,
        /// The version it has now.
        now: u64,
    },
    /// The node's lease is older than a renewal that the apiserver has confirmed, because an older state was
    /// restored.
    LeaseWentBack {
        /// The confirmed renewal.
        renewed: String,
        /// The renewal in the lease. It is kept on disk by an earlier name.
        #[serde(rename = "found")]
        stored: String,
    },
    /// Its certificate is from another authority, and it has none of the pods.
    Replaced,
    /// Its Service `default/kubernetes` is another one, and it has none of the pods: the cluster was recreated with
    /// the same certificates.
    Recreated,
}

impl std::fmt::Display for HistoryBreak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Restored { before, now } => {
                write!(f, "the cluster was restored from an older backup (version {now}, {before} before)")
            }
            Self::LeaseWentBack { renewed, stored } => {
                write!(
                    f,
                    "the cluster was restored from an older backup (the node's lease is of {stored}, it was renewed at {renewed})"
                )
            }
            Self::Replaced => f.write_str("another cluster answers (its certificate authority is a different one)"),
            Self::Recreated => f.write_str(
                "another cluster answers (its Service default/kubernetes is a different one: its data is new)",
            ),
        }
    }
}

/// The resource version of an object; 0 if it is not a number.
pub fn version_of(object: &serde_json::Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// The node's lease after a renewal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Its `renewTime`, by the node's clock; empty if none is known.
    pub time: String,
    /// Its resource version; 0 if it is not known.
    pub version: u64,
}

/// How the current lease contradicts the last renewal that the apiserver has confirmed. Versions tell, even if the
/// node's clock was set in between. If one is not known, times do. Both have the form of a MicroTime, so the order of
/// their texts is that of time.
pub fn lease_break(renewed: &Renewal, stored: &Renewal) -> Option<HistoryBreak> {
    let is_older = match (renewed.version, stored.version) {
        (0, _) | (_, 0) => stored.time < renewed.time,
        (renewed, stored) => stored < renewed,
    };
    let went_back = || HistoryBreak::LeaseWentBack { renewed: renewed.time.clone(), stored: stored.time.clone() };
    is_older.then(went_back)
}

/// Detects that an apiserver has lost its last writes, which happens after a power cut if its etcd does not sync. A
/// renewal of the lease then has an older version than the pods seen before, although the lease itself may not have
/// gone back.
#[derive(Debug, Default)]
pub struct LostWrites {
    /// The newest version of the pods when the loss was detected; 0 if renewals have been newer than the pods since.
    found_at: u64,
    /// Whether leases are kept in another etcd than pods, so that their versions cannot be compared.
    is_incomparable: bool,
}

impl LostWrites {
    /// Whether a renewal shows a loss for the first time. `pods` is the newest version of the pods that was seen
    /// before the renewal was sent, and `renewal` the version in its answer; 0 means unknown. If true, everything
    /// must be listed again.
    pub fn is_found(&mut self, pods: u64, renewal: u64) -> bool {
        if self.is_incomparable || pods == 0 || renewal == 0 {
            return false;
        }
        if renewal >= pods {
            self.found_at = 0;
            return false;
        }
        // The pods were listed since then, and their version is not older.
        self.is_incomparable = self.found_at != 0 && pods >= self.found_at;
        self.found_at = pods;
        !self.is_incomparable
    }
}

impl ClusterHistory {
    /// Records a version; one that is not a number is ignored.
    pub fn saw(&mut self, version: &str) {
        self.version = self.version.max(version.parse().unwrap_or_default());
    }

    /// Whether the same authority may have issued the certificates of both servers.
    pub fn shares_authority(&self, other: &Self) -> bool {
        !self.authorities.is_disjoint(&other.authorities)
    }

    /// Whether both are known to have the same Service `default/kubernetes`.
    pub fn has_same_service(&self, other: &Self) -> bool {
        !self.service_uid.is_empty() && self.service_uid == other.service_uid
    }

    /// Whether both are known to have a Service, and these differ.
    fn has_other_service(&self, other: &Self) -> bool {
        let (uid, other) = (&self.service_uid, &other.service_uid);
        !uid.is_empty() && !other.is_empty() && uid != other
    }

    /// How the history of the server that sent a list contradicts this one. `knows_pods`: the list has a pod that was
    /// known before, so only the authority was renewed.
    pub fn break_with(&self, listed: &Self, knows_pods: bool) -> Option<HistoryBreak> {
        // A server that no longer names its authority is as foreign as one that names another.
        if !self.authorities.is_empty() && !self.shares_authority(listed) && !knows_pods {
            return Some(HistoryBreak::Replaced);
        }
        if self.has_other_service(listed) && !knows_pods {
            return Some(HistoryBreak::Recreated);
        }
        // Versions that are not numbers, as servers other than Kubernetes may have, cannot be compared.
        let restored = listed.version != 0 && listed.version < self.version;
        restored.then_some(HistoryBreak::Restored { before: self.version, now: listed.version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(version: u64, authorities: &[&str]) -> ClusterHistory {
        let authorities = authorities.iter().map(|name| (*name).to_owned()).collect();
        ClusterHistory { version, authorities, service_uid: String::new() }
    }

    #[test]
    fn a_renewal_that_is_older_than_the_pods_shows_lost_writes_unless_leases_have_an_etcd_of_their_own() {
        let mut lost = LostWrites::default();
        let mut is_found = |pods, renewal| lost.is_found(pods, renewal);
        assert!(!is_found(0, 5) && !is_found(7, 0) && !is_found(7, 8) && !is_found(8, 8));
        assert!(is_found(20, 12));
        // First the pods are not listed yet, then they are.
        assert!(!is_found(0, 13) && !is_found(13, 14));
        // It happens again, to a cluster with later versions.
        assert!(is_found(90, 80));
        // The pods were listed again, and the list is as new as before.
        assert!(!is_found(0, 81) && !is_found(91, 82) && !is_found(100, 83));
    }

    fn with_service(history: ClusterHistory, uid: &str) -> ClusterHistory {
        ClusterHistory { service_uid: uid.to_owned(), ..history }
    }

    #[test]
    fn a_list_breaks_with_what_was_known() {
        let known = history(900, &["a"]);
        let back = HistoryBreak::Restored { before: 900, now: 850 };
        for (listed, knows_pods, expected) in [
            (history(900, &["a"]), true, None),
            (history(901, &["a"]), false, None),
            (history(850, &["a"]), true, Some(back.clone())),
            (history(850, &["a"]), false, Some(back)),
            // The authority is renewed, with both in use for a time, or at once.
            (history(950, &["a", "b"]), false, None),
            (history(950, &["b"]), true, None),
            (history(950, &["b"]), false, Some(HistoryBreak::Replaced)),
            // This server names neither a version nor an authority.
            (history(0, &[]), true, None),
            (history(0, &[]), false, Some(HistoryBreak::Replaced)),
        ] {
            assert_eq!(known.break_with(&listed, knows_pods), expected, "{listed:?} {knows_pods}");
        }
        assert_eq!(ClusterHistory::default().break_with(&history(1, &["a"]), false), None, "the first list");
        let known = with_service(known, "s-1");
        for (uid, knows_pods, expected) in [
            ("s-1", false, None),
            ("s-2", false, Some(HistoryBreak::Recreated)),
            // The Service was deleted and recreated.
            ("s-2", true, None),
            ("", false, None),
        ] {
            let listed = with_service(history(5000, &["a"]), uid);
            assert_eq!(known.break_with(&listed, knows_pods), expected, "{uid} {knows_pods}");
        }
    }

    #[test]
    fn a_lease_that_is_older_than_its_renewal_is_of_a_restored_cluster() {
        let (earlier, later) = ("2026-11-25T02:00:00.000001Z", "2026-11-25T02:00:10.000000Z");
        let at = |time: &str, version| Renewal { time: time.to_owned(), version };
        for (renewed, stored, breaks) in [
            (at("", 0), at(earlier, 7), false),
            (at(earlier, 0), at(earlier, 7), false),
            (at(earlier, 0), at(later, 7), false),
            (at(later, 0), at(earlier, 7), true),
            (at(later, 9), at(earlier, 7), true),
            (at(later, 9), at(later, 9), false),
            // The node's clock was ahead at the first renewal, and is right now.
            (at(later, 7), at(earlier, 9), false),
            // It was behind, and is right now; the backup is older.
            (at(earlier, 9), at(later, 7), true),
        ] {
            assert_eq!(lease_break(&renewed, &stored).is_some(), breaks, "{renewed:?} {stored:?}");
        }
    }

    #[test]
    fn the_newest_version_counts() {
        let mut history = history(5, &[]);
        ["7", "6", "", "x"].into_iter().for_each(|version| history.saw(version));
        assert_eq!(history.version, 7);
    }
}
