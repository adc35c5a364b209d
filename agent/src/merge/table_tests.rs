#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::pod::{Fingerprint, PodUid};
use crate::source::SourceSnapshot;

fn pod(name: &str, immutable: u8, whole: u8, source: SourceKind) -> Arc<PodRecord> {
    Arc::new(PodRecord {
        key: PodKey::new("default", name),
        uid: PodUid::new(format!("{source}-{name}-{immutable}")),
        fingerprint: Fingerprint([whole; 16]),
        immutable_fingerprint: Fingerprint([immutable; 16]),
        source,
        origin: Arc::from("a.yaml"),
        manifest: Arc::from(&b"{}"[..]),
        pod: k8s_openapi::api::core::v1::Pod::default(),
    })
}

fn snapshots(file: &[(&str, u8, u8)], http: &[(&str, u8, u8)]) -> Snapshots {
    let view = |pods: &[(&str, u8, u8)], source| {
        let pods = pods.iter().map(|(name, immutable, whole)| {
            let record = pod(name, *immutable, *whole, source);
            (record.key.clone(), record)
        });
        Arc::new(SourceSnapshot { pods: pods.collect(), ready: true, ..SourceSnapshot::default() })
    };
    [view(file, SourceKind::File), Arc::default(), view(http, SourceKind::Http), Arc::default()]
}

fn told(outcome: &Outcome) -> Vec<String> {
    outcome.changes.iter().map(|change| format!("{} {}", change.verb(), change.record().uid)).collect()
}

#[test]
fn changes_come_as_remove_add_update_and_nothing_for_the_same() {
    let mut table = MergeTable::default();
    let first = table.absorb(snapshots(&[("1", 1, 1), ("2", 1, 1), ("3", 1, 1)], &[]));
    assert_eq!(told(&first), ["ADD file-1-1", "ADD file-2-1", "ADD file-3-1"]);
    assert!(first.readiness_changed);

    let same = table.absorb(snapshots(&[("1", 1, 1), ("2", 1, 1), ("3", 1, 1)], &[]));
    assert!(same.changes.is_empty() && !same.readiness_changed);

    let next = table.absorb(snapshots(&[("2", 1, 2), ("3", 1, 1), ("4", 1, 1)], &[]));
    assert_eq!(told(&next), ["REMOVE file-1-1", "ADD file-4-1", "UPDATE file-2-1"]);
}

#[test]
fn another_incarnation_is_removed_then_added() {
    let mut table = MergeTable::default();
    table.absorb(snapshots(&[("1", 1, 1)], &[]));
    let next = table.absorb(snapshots(&[("1", 2, 2)], &[]));
    assert_eq!(told(&next), ["REMOVE file-1-1", "ADD file-1-2"]);
}

#[test]
fn a_file_wins_over_a_url_and_the_loser_is_reported_and_takes_over() {
    let mut table = MergeTable::default();
    table.absorb(snapshots(&[("1", 1, 1)], &[("1", 1, 1)]));
    let duplicate = &table.desired().duplicates[&PodKey::new("default", "1")][0];
    assert_eq!((duplicate.winner.source, duplicate.loser.source), (SourceKind::File, SourceKind::Http));

    let next = table.absorb(snapshots(&[], &[("1", 1, 1)]));
    assert_eq!(told(&next), ["REMOVE file-1-1", "ADD http-1-1"]);
    assert!(table.desired().duplicates.is_empty());
}

#[test]
fn a_source_that_has_not_spoken_is_not_ready() {
    let mut table = MergeTable::default();
    let silent: Snapshots = Default::default();
    assert!(!table.absorb(silent).readiness_changed);
    assert!(!table.desired().is_ready(SourceKind::File));
    table.absorb(snapshots(&[], &[]));
    assert!(table.desired().is_ready(SourceKind::File) && !table.desired().is_ready(SourceKind::Api));
}

proptest! {
    /// However the sources change, the merged state is the naive one, and the changes applied in order rebuild it.
    #[test]
    fn changes_rebuild_the_state(rounds in prop::collection::vec(
        (prop::collection::btree_map(0u8..6, (0u8..3, 0u8..3), 0..6), prop::collection::btree_map(0u8..6, (0u8..3, 0u8..3), 0..6)),
        1..8,
    )) {
        let mut table = MergeTable::default();
        let mut rebuilt: BTreeMap<PodKey, Arc<PodRecord>> = BTreeMap::new();
        for (file, http) in rounds {
            let list = |pods: &BTreeMap<u8, (u8, u8)>| {
                pods.iter().map(|(name, (a, b))| (name.to_string(), *a, *b)).collect::<Vec<_>>()
            };
            let (file, http) = (list(&file), list(&http));
            let borrow = |pods: &[(String, u8, u8)]| -> Vec<(String, u8, u8)> { pods.to_vec() };
            let file_refs: Vec<(&str, u8, u8)> = file.iter().map(|(n, a, b)| (n.as_str(), *a, *b)).collect();
            let http_refs: Vec<(&str, u8, u8)> = http.iter().map(|(n, a, b)| (n.as_str(), *a, *b)).collect();
            let outcome = table.absorb(snapshots(&file_refs, &http_refs));
            for change in &outcome.changes {
                match change {
                    PodChange::Removed(old) => { prop_assert!(rebuilt.remove(&old.key).is_some()); }
                    PodChange::Added(new) => { prop_assert!(rebuilt.insert(new.key.clone(), Arc::clone(new)).is_none()); }
                    _ => { prop_assert!(rebuilt.insert(change.record().key.clone(), Arc::clone(change.record())).is_some()); }
                }
            }
            let mut naive: BTreeMap<String, (SourceKind, u8, u8)> = BTreeMap::new();
            for (name, a, b) in borrow(&http) { naive.insert(name, (SourceKind::Http, a, b)); }
            for (name, a, b) in borrow(&file) { naive.insert(name, (SourceKind::File, a, b)); }
            let merged: BTreeMap<String, (SourceKind, u8, u8)> = table.desired().pods.iter().map(|(key, record)| {
                (key.name().to_owned(), (record.source, record.immutable_fingerprint.0[0], record.fingerprint.0[0]))
            }).collect();
            prop_assert_eq!(&merged, &naive);
            let from_changes: BTreeMap<String, (SourceKind, u8, u8)> = rebuilt.iter().map(|(key, record)| {
                (key.name().to_owned(), (record.source, record.immutable_fingerprint.0[0], record.fingerprint.0[0]))
            }).collect();
            prop_assert_eq!(&from_changes, &naive);
        }
    }
}
