//! Whether an apiserver continues the history of the one before it: a cluster may have been restored from a backup, or another
//! may answer in its place. What such an apiserver does not have was not deleted.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// By what a cluster is known again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterHistory {
    /// The newest resource version that was seen. They rise by every change in the cluster.
    pub version: u64,
    /// Digests of the certificates of the authorities that the server's certificate may be of.
    pub authorities: BTreeSet<String>,
    /// The UID of the Service `default/kubernetes`, which every apiserver makes once and a node may read; empty: it is not
    /// known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_uid: String,
}

/// Why what the apiserver does not have counts as not deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryBreak {
    /// It has gone back: an older state was restored.
    Restored {
        /// The newest version from before.
        before: u64,
        /// The version it is at.
        now: u64,
    },
    /// The node's lease in it is older than a renewal that it has confirmed: an older state was restored.
    LeaseWentBack {
        /// The confirmed renewal.
        renewed: String,
        /// The version in the lease.
        found: String,
    },
    /// Its certificate is from another authority, and it has none of the pods.
    Replaced,
    /// Its Service `default/kubernetes` is another one, and it has none of the pods: the cluster was recreated with the
    /// same certificates.
    Recreated,
}

impl std::fmt::Display for HistoryBreak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Restored { before, now } => {
                write!(f, "the cluster was restored from an older backup (version {now}, {before} before)")
            }
            Self::LeaseWentBack { renewed, found } => {
                write!(
                    f,
                    "the cluster was restored from an older backup (the node's lease is of {found}, it was renewed at {renewed})"
                )
            }
            Self::Replaced => f.write_str("another cluster answers (its certificate authority is a different one)"),
            Self::Recreated => f.write_str(
                "another cluster answers (its Service default/kubernetes is a different one: its data is new)",
            ),
        }
    }
}

/// The resource version of an object; 0: it is not a number.
pub fn version_of(object: &serde_json::Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// The node's lease as a renewal left it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Its `renewTime`, by the node's clock; empty: none is known.
    pub time: String,
    /// Its resource version; 0: it is not known.
    pub version: u64,
}

/// How the lease that was found breaks with the last renewal that the apiserver has confirmed. Versions say it whatever
/// the node's clock was set to meanwhile. Where one is not known times do: both have the form of a MicroTime, so their text
/// is in the order of time.
pub fn lease_break(renewed: &Renewal, found: &Renewal) -> Option<HistoryBreak> {
    let is_older = match (renewed.version, found.version) {
        (0, _) | (_, 0) => found.time < renewed.time,
        (renewed, found) => found < renewed,
    };
    let went_back = || HistoryBreak::LeaseWentBack { renewed: renewed.time.clone(), found: found.time.clone() };
    is_older.then(went_back)
}

/// Finds out that an apiserver has lost its last writes, as one whose etcd does not sync has after a power cut: then a
/// renewal of the lease has an older version than what was seen of the pods before. The lease itself may not have gone
/// back.
#[derive(Debug, Default)]
pub struct LostWrites {
    /// What was seen of the pods when it was found; 0: renewals have been newer than the pods since.
    found_at: u64,
    /// Leases are kept in another etcd than pods; their versions cannot be compared.
    is_incomparable: bool,
}

impl LostWrites {
    /// Whether a renewal shows it for the first time. `pods`: the newest version that was seen of the pods before the
    /// renewal was sent. `renewal`: the version that it was answered with. 0 is unknown. If true, everything must be
    /// listed again.
    pub fn is_found(&mut self, pods: u64, renewal: u64) -> bool {
        if self.is_incomparable || pods == 0 || renewal == 0 {
            return false;
        }
        if renewal >= pods {
            self.found_at = 0;
            return false;
        }
        // The pods were listed since, and are as far as before.
        self.is_incomparable = self.found_at != 0 && pods >= self.found_at;
        self.found_at = pods;
        !self.is_incomparable
    }
}

impl ClusterHistory {
    /// Notes a version that was seen; one that is not a number is ignored.
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

    /// Whether both are known to have a Service of their own.
    fn has_other_service(&self, other: &Self) -> bool {
        let (one, other) = (&self.service_uid, &other.service_uid);
        !one.is_empty() && !other.is_empty() && one != other
    }

    /// How `listed`, by which a list came, breaks with this one. `knows_pods`: the list has a pod that was known before;
    /// then only the authority was renewed.
    pub fn break_with(&self, listed: &Self, knows_pods: bool) -> Option<HistoryBreak> {
        // One that names no authority any more is as foreign as one that names others.
        if !self.authorities.is_empty() && !self.shares_authority(listed) && !knows_pods {
            return Some(HistoryBreak::Replaced);
        }
        if self.has_other_service(listed) && !knows_pods {
            return Some(HistoryBreak::Recreated);
        }
        // Versions that are not numbers, as of servers other than Kubernetes, cannot be compared.
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
        let mut found = |pods, renewal| lost.is_found(pods, renewal);
        assert!(!found(0, 5) && !found(7, 0) && !found(7, 8) && !found(8, 8));
        assert!(found(20, 12));
        // The pods are not listed yet, then they are.
        assert!(!found(0, 13) && !found(13, 14));
        // It happens again, to a cluster with later versions.
        assert!(found(90, 80));
        // The pods were listed again, and the list is as new as before.
        assert!(!found(0, 81) && !found(91, 82) && !found(100, 83));
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
            // The authority is renewed: both for a time, or at once.
            (history(950, &["a", "b"]), false, None),
            (history(950, &["b"]), true, None),
            (history(950, &["b"]), false, Some(HistoryBreak::Replaced)),
            // One that names neither a version nor an authority.
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
        for (renewed, found, breaks) in [
            (at("", 0), at(earlier, 7), false),
            (at(earlier, 0), at(earlier, 7), false),
            (at(earlier, 0), at(later, 7), false),
            (at(later, 0), at(earlier, 7), true),
            (at(later, 9), at(earlier, 7), true),
            (at(later, 9), at(later, 9), false),
            // The node's clock was ahead at the first renewal, and is right.
            (at(later, 7), at(earlier, 9), false),
            // It was behind, and is right; the backup is older.
            (at(earlier, 9), at(later, 7), true),
        ] {
            assert_eq!(lease_break(&renewed, &found).is_some(), breaks, "{renewed:?} {found:?}");
        }
    }

    #[test]
    fn the_newest_version_counts() {
        let mut history = history(5, &[]);
        ["7", "6", "", "x"].into_iter().for_each(|version| history.saw(version));
        assert_eq!(history.version, 7);
    }
}
