//! Property tests: whatever the order of publications, the merged state equals the naive one, and the changes lead to
//! it.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdMap;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use limpet_model::pod::Fingerprint;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::qos::QosClass;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Everything by which the merge distinguishes two versions of a pod, from few values, so that collisions are common.
#[derive(Debug, Clone, PartialEq)]
struct Version {
    spec: u8,
    image: u8,
    uid: Option<u8>,
    origin: u8,
    deleting: bool,
    status: u8,
}

#[derive(Debug, Clone)]
enum Publication {
    /// The snapshot is rebuilt, so it shares nothing with the previous one.
    Rebuilt(BTreeMap<&'static str, Version>),
    /// One key of the previous snapshot is changed or removed.
    Edited(&'static str, Option<Version>),
}

fn version() -> impl Strategy<Value = Version> {
    let uid = prop_oneof![3 => Just(None), 2 => (0u8..3).prop_map(Some)];
    (0u8..2, 0u8..2, uid, 0u8..2, prop::bool::weighted(0.2), 0u8..2)
        .prop_map(|(spec, image, uid, origin, deleting, status)| Version { spec, image, uid, origin, deleting, status })
}

fn publication() -> impl Strategy<Value = Publication> {
    prop_oneof![
        1 => prop::collection::btree_map(select(&NAMES[..]), version(), 0..5).prop_map(Publication::Rebuilt),
        2 => (select(&NAMES[..]), prop::option::weighted(0.8, version()))
            .prop_map(|(name, version)| Publication::Edited(name, version)),
    ]
}

fn record(name: &str, version: &Version, source: SourceKind) -> Arc<PodRecord> {
    let Version { spec, image, uid, origin, deleting, status } = version.clone();
    let mut pod = Pod::default();
    pod.metadata.deletion_timestamp = deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
    pod.status = Some(PodStatus { message: Some(status.to_string()), ..PodStatus::default() });
    let written = uid.map(|uid| format!("written-{uid}"));
    let mut whole = [spec; 16];
    whole[0] = image;
    whole[1] = uid.map_or(9, |uid| uid);
    Arc::new(PodRecord {
        ephemeral: Vec::new(),
        qos_class: QosClass::BestEffort,
        cgroup_limits: CgroupLimits::BEST_EFFORT,
        key: PodKey::new("default", name),
        uid: PodUid::new(written.unwrap_or_else(|| format!("{source}-{name}-{spec}"))),
        fingerprint: Fingerprint(whole),
        immutable_fingerprint: Fingerprint([spec; 16]),
        source,
        origin: Arc::from(origin.to_string()),
        manifest: Arc::from(&b"{}"[..]),
        pod,
    })
}

type Pods = OrdMap<PodKey, Arc<PodRecord>>;

fn apply(pods: &Pods, publication: &Publication, source: SourceKind) -> Pods {
    let built = |name: &&'static str, version: &Version| {
        let record = record(name, version, source);
        (record.key.clone(), record)
    };
    match publication {
        Publication::Rebuilt(all) => all.iter().map(|(name, version)| built(name, version)).collect(),
        Publication::Edited(name, Some(version)) => {
            let (key, record) = built(name, version);
            pods.update(key, record)
        }
        Publication::Edited(name, None) => pods.without(&PodKey::new("default", *name)),
    }
}

/// The merged state, computed without regard to cost.
fn naive(snapshots: &Snapshots) -> BTreeMap<PodKey, Arc<PodRecord>> {
    let mut first: BTreeMap<PodKey, Arc<PodRecord>> = BTreeMap::new();
    for snapshot in snapshots.iter().rev() {
        first.extend(snapshot.pods.iter().map(|(key, record)| (key.clone(), Arc::clone(record))));
    }
    let mut in_order: Vec<&Arc<PodRecord>> = first.values().collect();
    in_order.sort_by_key(|record| (record.source, &record.key));
    let mut taken = BTreeSet::new();
    in_order
        .into_iter()
        .filter(|record| taken.insert(&record.uid))
        .map(|record| (record.key.clone(), Arc::clone(record)))
        .collect()
}

/// Every pod that some source publishes and that does not run, as `loser of winner`, under both keys.
fn naive_duplicates(snapshots: &Snapshots) -> BTreeSet<(PodKey, String)> {
    let running = naive(snapshots);
    let mut duplicates = BTreeSet::new();
    for key in snapshots.iter().flat_map(|snapshot| snapshot.pods.keys()) {
        let mut claims = snapshots.iter().filter_map(|snapshot| snapshot.pods.get(key));
        let first = claims.next().unwrap();
        for loser in claims {
            duplicates.insert((key.clone(), format!("{} {} of {} {}", loser.source, key, first.source, key)));
        }
        let holder = running.values().find(|holder| holder.uid == first.uid).unwrap();
        if holder.key != *key {
            let text = format!("{} {} of {} {}", first.source, key, holder.source, holder.key);
            duplicates.extend([(key.clone(), text.clone()), (holder.key.clone(), text)]);
        }
    }
    duplicates
}

/// Applies a change to `pods`, and checks that it is valid for them.
fn apply_change(pods: &mut BTreeMap<PodKey, Arc<PodRecord>>, change: &PodChange) -> Result<(), TestCaseError> {
    let key = change.record().key.clone();
    let before = match change {
        PodChange::Removed(_) => pods.remove(&key),
        _ => pods.insert(key, Arc::clone(change.record())),
    };
    match change {
        PodChange::Removed(old) => prop_assert_eq!(before.as_ref(), Some(old)),
        PodChange::Added(_) => prop_assert!(before.is_none()),
        PodChange::Updated { old, new } | PodChange::Deleting { old, new } | PodChange::Reconciled { old, new } => {
            prop_assert_eq!(before.as_ref(), Some(old));
            prop_assert_ne!(old, new, "a change without a difference");
            prop_assert!(old.is_same_incarnation(new));
            prop_assert_eq!(matches!(change, PodChange::Deleting { .. }), new.is_deleting() && is_edited(old, new));
            prop_assert_eq!(matches!(change, PodChange::Reconciled { .. }), !is_edited(old, new));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_interleaving_results_in_the_naive_state(
        // Rounds of publications, several of which may be merged at once.
        rounds in prop::collection::vec(
            prop::collection::vec((select(&SourceKind::ALL[..]), publication()), 1..5), 1..10,
        ),
    ) {
        let mut table = MergeTable::default();
        let mut snapshots = Snapshots::default();
        let mut followed = BTreeMap::new();
        for publications in rounds {
            for (source, publication) in publications {
                let pods = apply(&snapshots[source.index()].pods, &publication, source);
                snapshots[source.index()] =
                    Arc::new(SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() });
            }
            let before = followed.clone();
            let delta = table.absorb(snapshots.clone());

            prop_assert!(delta.changes.is_sorted_by_key(|change| (rank(change), change.record().key.clone())));
            for change in &delta.changes {
                apply_change(&mut followed, change)?;
            }
            let merged: BTreeMap<_, _> = table.desired().pods.iter().map(|(k, r)| (k.clone(), Arc::clone(r))).collect();
            prop_assert_eq!(&merged, &naive(&snapshots));
            prop_assert_eq!(&followed, &merged);
            if before == merged {
                prop_assert!(delta.changes.is_empty());
            }
            let mut uids = BTreeSet::new();
            prop_assert!(merged.values().all(|record| uids.insert(&record.uid)), "one UID runs twice");

            let duplicates: BTreeSet<(PodKey, String)> = (table.desired().duplicates.iter())
                .flat_map(|(key, duplicates)| duplicates.iter().map(move |each| (key, each)))
                .map(|(key, Duplicate { winner, loser })| {
                    (key.clone(), format!("{} {} of {} {}", loser.source, loser.key, winner.source, winner.key))
                })
                .collect();
            prop_assert_eq!(duplicates, naive_duplicates(&snapshots));
            prop_assert!(table.absorb(snapshots.clone()).is_empty(), "unchanged snapshots");
        }
    }

    /// Merging publications together may change the intermediate changes, but not the final state.
    #[test]
    fn coalescing_does_not_affect_the_final_state(
        publications in prop::collection::vec((select(&SourceKind::ALL[..]), publication()), 1..20),
        merged_after in subsequence((0..20).collect::<Vec<usize>>(), 0..20),
    ) {
        let (mut eager, mut lazy) = (MergeTable::default(), MergeTable::default());
        let mut snapshots = Snapshots::default();
        for (index, (source, publication)) in publications.iter().enumerate() {
            let pods = apply(&snapshots[source.index()].pods, publication, *source);
            snapshots[source.index()] = Arc::new(SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() });
            eager.absorb(snapshots.clone());
            if merged_after.contains(&index) {
                lazy.absorb(snapshots.clone());
            }
        }
        lazy.absorb(snapshots);
        prop_assert_eq!(&eager.desired().pods, &lazy.desired().pods);
        prop_assert_eq!(eager.desired().ready, lazy.desired().ready);
    }
}
