#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::merge::PodChange;
use crate::merge::table::MergeTable;
use crate::source::change::ChangeLog;
use crate::source::view::{Contents, View};
use crate::source::{Health, Snapshots};
use limpet_model::manifest::Manifest;
use limpet_model::object::{ObjectKind, ObjectRecord};
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::qos::QosClass;
use limpet_model::pod::{Fault, Fingerprint, PodRecord, PodUid};
use limpet_model::source::SourceKind;

const FILES: [&str; 3] = ["a.yaml", "b.yaml", "c.yaml"];
const NAMES: [&str; 4] = ["k", "l", "m", "n"];

/// What happens to one file of a source.
#[derive(Debug, Clone)]
enum Edit {
    /// It is read: its pods and ConfigMaps by name and version, and whether it is rejected.
    Read(BTreeSet<(&'static str, u8)>, BTreeSet<(&'static str, u8)>, bool),
    /// Its last good version is used: equal content in other records.
    Restored(BTreeSet<(&'static str, u8)>),
    Vanishing(bool),
    Removed,
    /// The source's health changes.
    Health(bool),
}

fn names() -> impl Strategy<Value = BTreeSet<(&'static str, u8)>> {
    prop::collection::btree_set((select(&NAMES[..]), 0u8..2), 0..4)
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        5 => (names(), names(), prop::bool::weighted(0.2)).prop_map(|(pods, maps, broken)| Edit::Read(pods, maps, broken)),
        1 => names().prop_map(Edit::Restored),
        1 => any::<bool>().prop_map(Edit::Vanishing),
        1 => Just(Edit::Removed),
        1 => any::<bool>().prop_map(Edit::Health),
    ]
}

fn pod(name: &str, version: u8, origin: &str) -> Arc<PodRecord> {
    Arc::new(PodRecord {
        ephemeral: Vec::new(),
        qos_class: QosClass::BestEffort,
        cgroup_limits: CgroupLimits::BEST_EFFORT,
        key: PodKey::new("default", name),
        uid: PodUid::new(format!("{name}-{version}")),
        fingerprint: Fingerprint([version; 16]),
        immutable_fingerprint: Fingerprint([version; 16]),
        source: SourceKind::File,
        origin: Arc::from(origin),
        manifest: Arc::from(format!("{name} {version}").as_bytes()),
        pod: Pod::default(),
    })
}

fn map(name: &str, version: u8) -> Arc<ObjectRecord> {
    let value = serde_json::json!({"metadata": {"name": name}, "data": {"k": version.to_string()}});
    Arc::new(limpet_model::object::decode(&value, ObjectKind::ConfigMap, Arc::from("f.yaml")).0.unwrap())
}

fn apply(view: &mut View, health: &mut Health, name: &Arc<str>, edit: &Edit) {
    let pods = |pods: &BTreeSet<(&'static str, u8)>| -> Vec<Arc<PodRecord>> {
        pods.iter().map(|(pod_name, version)| pod(pod_name, *version, name)).collect()
    };
    match edit {
        Edit::Read(read, maps, broken) => {
            let faults = if *broken { vec![Fault::error("spec", "broken")] } else { Vec::new() };
            let objects = maps.iter().map(|(map_name, version)| map(map_name, *version)).collect();
            let manifest =
                Manifest { pods: pods(read), objects, faults, unknown_pod_refused: *broken, ..Manifest::default() };
            view.accept(name, manifest, Contents::default);
        }
        Edit::Restored(read) => {
            let pods = pods(read).into_iter().map(|pod| (pod.key.clone(), pod)).collect();
            view.restore(name, Arc::new(Contents { pods, ..Contents::default() }));
        }
        Edit::Vanishing(vanishing) => view.set_vanishing(name, *vanishing),
        Edit::Removed => view.remove(name),
        Edit::Health(good) => *health = if *good { Health::Good } else { Health::Starting },
    }
}

/// The keys under which two maps do not have the same record, by pointer: what a source edits, found naively.
fn touched<K: Ord + Clone, V: ?Sized>(before: &OrdMap<K, Arc<V>>, after: &OrdMap<K, Arc<V>>) -> BTreeSet<K> {
    let keys = before.keys().chain(after.keys());
    let same = |key: &K| match (before.get(key), after.get(key)) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    keys.filter(|key| !same(key)).cloned().collect()
}

fn set<K: Ord + Clone>(keys: &[K]) -> BTreeSet<K> {
    let set: BTreeSet<K> = keys.iter().cloned().collect();
    assert_eq!(set.len(), keys.len(), "a key is named twice");
    set
}

/// The snapshot without its revision, so that every reader has to compare.
fn unnumbered(snapshot: &SourceSnapshot) -> Arc<SourceSnapshot> {
    Arc::new(SourceSnapshot { revision: None, ..snapshot.clone() })
}

fn text(change: &PodChange) -> String {
    format!("{} {} {}", change.verb(), change.record().key, change.record().origin)
}

proptest! {
    /// A source's snapshots list the keys that a comparison finds, and readers of either get the same result.
    #[test]
    fn named_edits_are_what_a_comparison_finds(
        // The edits up to each snapshot, and whether the merge takes it or misses it.
        rounds in prop::collection::vec((prop::collection::vec((select(&FILES[..]), edit()), 1..4), any::<bool>()), 1..12),
    ) {
        let (mut view, mut health) = (View::default(), Health::Starting);
        let mut before = Arc::<SourceSnapshot>::default();
        let (mut naming, mut comparing) = (MergeTable::default(), MergeTable::default());
        let (mut names_log, mut compares_log) = (ChangeLog::new(SourceKind::File), ChangeLog::new(SourceKind::File));
        for (edits, missed) in rounds {
            for (name, edit) in edits {
                apply(&mut view, &mut health, &Arc::from(name), &edit);
            }
            let Some(after) = view.finish_update(true, health.clone()) else { continue };
            let compared = compare(&before, &after);
            if before.revision.is_some() {
                let named = between(&before, &after);
                prop_assert!(matches!(named, Cow::Borrowed(_)));
                let mut pods = touched(&before.pods, &after.pods);
                pods.extend(touched(&before.rivals, &after.rivals));
                prop_assert_eq!(&set(&named.pods), &pods);
                prop_assert!(set(&compared.pods).is_subset(&pods), "{:?}", compared);
                let objects = touched(&before.objects, &after.objects);
                prop_assert_eq!(&set(&named.objects), &objects);
                prop_assert!(set(&compared.objects).is_subset(&objects), "{:?}", compared);
                prop_assert_eq!(&named.rejected, &compared.rejected);
            }
            let changes = |log: &mut ChangeLog, snapshot| {
                let entered = log.enter(snapshot, jiff::Timestamp::UNIX_EPOCH, |_, _| Contents::default(), |_| None);
                entered.changes.to_vec()
            };
            prop_assert_eq!(
                changes(&mut names_log, Arc::clone(&after)),
                changes(&mut compares_log, unnumbered(&after))
            );
            if !missed {
                let with_file = |snapshot| {
                    let mut snapshots = Snapshots::default();
                    snapshots[SourceKind::File.index()] = snapshot;
                    snapshots
                };
                let (named, other) = (naming.absorb(with_file(Arc::clone(&after))), comparing.absorb(with_file(unnumbered(&after))));
                let texts = |changes: &[PodChange]| changes.iter().map(text).collect::<Vec<_>>();
                prop_assert_eq!(texts(&named.changes), texts(&other.changes));
                prop_assert_eq!(&named.objects_changed, &other.objects_changed);
                prop_assert_eq!(&naming.desired().pods, &comparing.desired().pods);
                prop_assert_eq!(naming.desired().duplicates.len(), comparing.desired().duplicates.len());
            }
            before = after;
        }
    }
}

fn snapshot(edits: &mut Edits, pods: &[&str]) -> SourceSnapshot {
    let pods: OrdMap<PodKey, Arc<PodRecord>> =
        pods.iter().map(|name| pod(name, 0, "f")).map(|pod| (pod.key.clone(), pod)).collect();
    SourceSnapshot { pods, revision: edits.next_revision(), ..SourceSnapshot::default() }
}

#[test]
fn a_reader_that_missed_a_snapshot_compares() {
    let mut edits = Edits::default();
    let key = |name: &str| PodKey::new("default", name);
    let first = snapshot(&mut edits, &[]);
    edits.pod(key("k"));
    let second = snapshot(&mut edits, &["k"]);
    edits.pod(key("l"));
    let third = snapshot(&mut edits, &["k", "l"]);
    assert!(matches!(between(&first, &second), Cow::Borrowed(_)));
    assert!(matches!(between(&second, &third), Cow::Borrowed(delta) if delta.pods == [key("l")]));
    for (before, after) in [(&first, &third), (&third, &second), (&SourceSnapshot::default(), &second)] {
        assert!(matches!(between(before, after), Cow::Owned(_)));
    }
    assert_eq!(between(&first, &third).pods, [key("k"), key("l")]);
    assert_eq!(between(&third, &second).pods, [key("l")]);
    // A source that starts again counts from the beginning.
    let mut again = Edits::default();
    snapshot(&mut again, &[]);
    snapshot(&mut again, &[]);
    assert_eq!(between(&second, &snapshot(&mut again, &["n"])).pods, [key("k"), key("n")]);
}

#[test]
fn too_many_keys_are_not_named() {
    let mut edits = Edits::default();
    let before = snapshot(&mut edits, &[]);
    (0..=MAX_KEYS).for_each(|number| edits.pod(PodKey::new("default", number.to_string())));
    let after = snapshot(&mut edits, &["k"]);
    assert!(after.revision.is_none());
    assert_eq!(between(&before, &after).pods, [PodKey::new("default", "k")]);
    edits.pod(PodKey::new("default", "l"));
    let next = snapshot(&mut edits, &["k", "l"]);
    assert_eq!(between(&after, &next).pods, [PodKey::new("default", "l")]);
    assert_eq!(next.revision.unwrap().number, 3);
}
