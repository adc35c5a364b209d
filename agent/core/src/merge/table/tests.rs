//! kubelet's test cases for merging (`pkg/kubelet/config/config_test.go`) and cases it does not test, as tables.
#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use limpet_model::manifest::restore;
use limpet_model::pod::Fingerprint;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::qos::QosClass;

/// A pod in short form: its name, or `namespace/name`, then its special properties. `image=2`: edited in place;
/// `spec=2`: another incarnation; `uid=u`: set in the manifest; `ends`, `ends=5`: being deleted, with that grace
/// period; `status=a`; `file=b`: its origin.
fn pod(words: &str, source: SourceKind) -> Arc<PodRecord> {
    let mut words = words.split(' ');
    let name = words.next().unwrap();
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let mut pod = Pod::default();
    let (mut image, mut spec, mut uid, mut origin) = ("1", "1", None, "a");
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("image", value) => image = value,
            ("spec", value) => spec = value,
            ("uid", value) => uid = Some(value.to_owned()),
            ("file", value) => origin = value,
            ("status", value) => pod.status = Some(PodStatus { message: Some(value.into()), ..PodStatus::default() }),
            ("ends", grace) => {
                pod.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
                pod.metadata.deletion_grace_period_seconds = grace.parse().ok();
            }
            (other, _) => panic!("{other}"),
        }
    }
    let hash = |text: String| {
        let mut hash = [0; 16];
        hash[..text.len()].copy_from_slice(text.as_bytes());
        Fingerprint(hash)
    };
    Arc::new(PodRecord {
        ephemeral: Vec::new(),
        qos_class: QosClass::BestEffort,
        cgroup_limits: CgroupLimits::BEST_EFFORT,
        key: PodKey::new(namespace, name),
        uid: PodUid::new(uid.unwrap_or_else(|| format!("{source}.{namespace}.{name}.{spec}"))),
        fingerprint: hash(format!("{spec} {image}")),
        immutable_fingerprint: hash(spec.to_owned()),
        source,
        origin: Arc::from(origin),
        manifest: Arc::from(&b"{}"[..]),
        pod,
    })
}

fn view(pods: &[&str], source: SourceKind) -> Arc<SourceSnapshot> {
    let pods = pods.iter().map(|words| pod(words, source)).map(|record| (record.key.clone(), record));
    Arc::new(SourceSnapshot { pods: pods.collect(), ready: true, ..SourceSnapshot::default() })
}

fn emitted(changes: &[PodChange]) -> Vec<String> {
    changes.iter().map(|change| format!("{} {}", change.verb(), change.record().uid)).collect()
}

/// What a source publishes, and the resulting changes.
type Publication<'a> = (SourceKind, &'a [&'a str], &'a [&'a str]);

use SourceKind::{Api, File, Http, Push};

#[test]
fn kubelets_cases() {
    let cases: &[(&str, &[Publication<'_>])] = &[
        ("one pod is added, with its source", &[(File, &["a"], &["ADD file.default.a.1"])]),
        (
            "the same name in another namespace is another pod",
            &[(Api, &["a"], &["ADD api.default.a.1"]), (Api, &["a", "b/a"], &["ADD api.b.a.1"])],
        ),
        ("an unchanged snapshot brings no change", &[(Http, &["a"], &["ADD http.default.a.1"]), (Http, &["a"], &[])]),
        (
            "an edit in place updates, and the removal carries the edited pod",
            &[(Api, &["a uid=u"], &["ADD u"]), (Api, &["a uid=u image=2"], &["UPDATE u"]), (Api, &[], &["REMOVE u"])],
        ),
        (
            "any other edit is another pod under the same name",
            &[
                (File, &["a"], &["ADD file.default.a.1"]),
                (File, &["a spec=2"], &["REMOVE file.default.a.1", "ADD file.default.a.2"]),
            ],
        ),
        (
            "the same with a UID of its own: the edit is found although the UID stays",
            &[(File, &["a uid=u"], &["ADD u"]), (File, &["a uid=u spec=2"], &["REMOVE u", "ADD u"])],
        ),
        (
            "a deletion is graceful, and emitted again only when the grace is shortened or the pod edited",
            &[
                (Api, &["a uid=u"], &["ADD u"]),
                (Api, &["a uid=u ends"], &["DELETE u"]),
                (Api, &["a uid=u ends"], &[]),
                (Api, &["a uid=u ends=5"], &["DELETE u"]),
                (Api, &["a uid=u ends=5 image=2"], &["DELETE u"]),
                (Api, &[], &["REMOVE u"]),
            ],
        ),
        ("a new pod that is being deleted is added", &[(Api, &["a uid=u ends"], &["ADD u"])]),
        ("a revoked deletion", &[(Api, &["a uid=u ends"], &["ADD u"]), (Api, &["a uid=u"], &["UPDATE u"])]),
        (
            "removed before added before updated before deleting before reconciled",
            &[
                (
                    Api,
                    &["1 uid=1", "2 uid=2", "3 uid=3", "5 uid=5", "6 uid=6"],
                    &["ADD 1", "ADD 2", "ADD 3", "ADD 5", "ADD 6"],
                ),
                (Api, &["1 uid=1", "2 uid=2", "3 uid=3", "5 uid=5", "6 uid=6"], &[]),
                (
                    Api,
                    &["2 uid=2 image=2", "3 uid=3", "4 uid=4", "5 uid=5 status=a", "6 uid=6 ends"],
                    &["REMOVE 1", "ADD 4", "UPDATE 2", "DELETE 6", "RECONCILE 5"],
                ),
            ],
        ),
        (
            "a status alone reconciles, with an edit it is an update",
            &[
                (Api, &["1 uid=1", "2 uid=2", "3 uid=3"], &["ADD 1", "ADD 2", "ADD 3"]),
                (Api, &["1 uid=1", "2 uid=2 status=a", "3 uid=3"], &["RECONCILE 2"]),
                (Api, &["1 uid=1", "2 uid=2 status=a", "3 uid=3"], &[]),
                (Api, &["1 uid=1", "2 uid=2 status=b image=2", "3 uid=3"], &["UPDATE 2"]),
            ],
        ),
        ("an empty snapshot, then a pod", &[(Http, &[], &[]), (Http, &[], &[]), (Http, &["a uid=u"], &["ADD u"])]),
        (
            "a renamed file updates only the pod's origin",
            &[(File, &["a uid=u"], &["ADD u"]), (File, &["a uid=u file=b"], &["UPDATE u"])],
        ),
        // Untested upstream: two sources with one name, added and removed in every order.
        (
            "the first source wins, whichever published first, and the next takes over",
            &[
                (Http, &["a"], &["ADD http.default.a.1"]),
                (Api, &["a"], &[]),
                (Push, &["a"], &["REMOVE http.default.a.1", "ADD push.default.a.1"]),
                (File, &["a"], &["REMOVE push.default.a.1", "ADD file.default.a.1"]),
                (Push, &["a image=2"], &[]),
                (Http, &[], &[]),
                (File, &[], &["REMOVE file.default.a.1", "ADD push.default.a.1"]),
                (Push, &[], &["REMOVE push.default.a.1", "ADD api.default.a.1"]),
                (Api, &[], &["REMOVE api.default.a.1"]),
            ],
        ),
        // Untested upstream: one UID twice.
        (
            "of two pods with one UID the first key runs, and the other once the first is gone",
            &[
                (File, &["b uid=u"], &["ADD u"]),
                (File, &["a uid=u", "b uid=u"], &["REMOVE u", "ADD u"]),
                (File, &["a uid=v", "b uid=u"], &["REMOVE u", "ADD v", "ADD u"]),
                (File, &["a uid=u", "b uid=u"], &["REMOVE v", "REMOVE u", "ADD u"]),
                (File, &["b uid=u"], &["REMOVE u", "ADD u"]),
            ],
        ),
        (
            "of one UID in two sources the first source's runs",
            &[
                (Http, &["a uid=u"], &["ADD u"]),
                (File, &["z uid=u"], &["REMOVE u", "ADD u"]),
                (File, &[], &["REMOVE u", "ADD u"]),
            ],
        ),
    ];
    for (case, steps) in cases {
        let mut table = MergeTable::default();
        let mut snapshots = Snapshots::default();
        for (number, (source, pods, expected)) in steps.iter().enumerate() {
            snapshots[source.index()] = view(pods, *source);
            let delta = table.absorb(snapshots.clone());
            assert_eq!(emitted(&delta.changes), *expected, "{case}: step {number}");
        }
    }
}

#[test]
fn a_metadata_edit_is_an_update_that_names_the_field() {
    let mut annotations = json!({});
    let mut labels = json!({ "app": "web" });
    let mut table = MergeTable::default();
    let mut publish = |annotations: &serde_json::Value, labels: &serde_json::Value| {
        let metadata = json!({ "name": "web", "annotations": annotations, "labels": labels });
        let manifest = json!({ "metadata": metadata, "spec": { "containers": [{ "name": "a", "image": "a:1" }] } });
        let web = Arc::new(restore(manifest.to_string().as_bytes(), "web.yaml", File, "edge1").unwrap());
        let pods = [web, pod("neighbour", File)].map(|record| (record.key.clone(), record));
        let snapshot = SourceSnapshot { pods: pods.into_iter().collect(), ready: true, ..SourceSnapshot::default() };
        let mut snapshots = Snapshots::default();
        snapshots[File.index()] = Arc::new(snapshot);
        let changes = table.absorb(snapshots).changes;
        changes.iter().filter_map(|change| Some(format!("{} {}", change.verb(), change.diff()?))).collect::<Vec<_>>()
    };
    assert!(publish(&annotations, &labels).is_empty(), "added");
    annotations["note"] = json!("a");
    assert_eq!(publish(&annotations, &labels), ["UPDATE annotations"], "key added");
    annotations["note"] = json!("b");
    assert_eq!(publish(&annotations, &labels), ["UPDATE annotations"], "value changed");
    annotations = json!({});
    assert_eq!(publish(&annotations, &labels), ["UPDATE annotations"], "key removed");
    labels["app"] = json!("shop");
    assert_eq!(publish(&annotations, &labels), ["UPDATE labels"]);
    assert!(publish(&annotations, &labels).is_empty());
}

#[test]
fn each_source_becomes_ready_by_itself_and_once() {
    let mut table = MergeTable::default();
    let mut snapshots = Snapshots::default();
    assert!(table.absorb(snapshots.clone()).is_empty());
    for (reported, source) in [Http, File, Api, Push].into_iter().enumerate() {
        snapshots[source.index()] = view(&[], source);
        let delta = table.absorb(snapshots.clone());
        assert!(delta.readiness_changed && delta.changes.is_empty(), "reported although there is no pod");
        let ready = SourceKind::ALL.into_iter().filter(|kind| table.desired().is_ready(*kind)).count();
        assert_eq!(ready, reported + 1);
        snapshots[source.index()] = view(&[], source);
        assert!(table.absorb(snapshots.clone()).is_empty(), "empty again: no change");
    }
}

/// `winner > loser` for every duplicate under the key, by source and key.
fn duplicates(table: &MergeTable, key: &str) -> Vec<String> {
    let named = |record: &PodRecord| format!("{} {}", record.source, record.key.name());
    let duplicates = table.desired().duplicates.get(&PodKey::new("default", key));
    let duplicates = duplicates.into_iter().flat_map(|duplicates| duplicates.iter());
    duplicates.map(|duplicate| format!("{} > {}", named(&duplicate.winner), named(&duplicate.loser))).collect()
}

#[test]
fn duplicates_are_reported_for_both_pods_and_only_when_they_change() {
    let mut table = MergeTable::default();
    let mut snapshots = Snapshots::default();
    let mut publish = |table: &mut MergeTable, source: SourceKind, pods: &[&str]| {
        snapshots[source.index()] = view(pods, source);
        table.absorb(snapshots.clone()).contested.iter().map(|key| key.name().to_owned()).collect::<Vec<_>>()
    };
    assert!(publish(&mut table, File, &["a", "b uid=u"]).is_empty());
    assert_eq!(publish(&mut table, Http, &["a", "c"]), ["a"]);
    assert_eq!(publish(&mut table, Api, &["a"]), ["a"]);
    assert_eq!(duplicates(&table, "a"), ["file a > http a", "file a > api a"]);

    assert_eq!(publish(&mut table, Http, &["a", "c", "d uid=u"]), ["b", "d"], "one UID, two keys");
    assert_eq!(duplicates(&table, "b"), ["file b > http d"]);
    assert_eq!(duplicates(&table, "d"), ["file b > http d"]);
    assert!(!table.desired().pods.contains_key(&PodKey::new("default", "d")));

    assert!(publish(&mut table, Push, &["e"]).is_empty(), "the others' duplicates are unchanged");
    assert_eq!(publish(&mut table, File, &[]), ["a", "b", "d"]);
    assert_eq!(duplicates(&table, "a"), ["http a > api a"]);
    assert!(duplicates(&table, "b").is_empty() && duplicates(&table, "d").is_empty());
    assert!(table.desired().pods.contains_key(&PodKey::new("default", "d")));
}

#[test]
fn a_duplicate_within_one_source_is_reported_too() {
    let mut table = MergeTable::default();
    let mut snapshot = (*view(&["a"], File)).clone();
    let rivals: Arc<[_]> = Arc::from([pod("a spec=2 file=b", File)]);
    snapshot.rivals.insert(PodKey::new("default", "a"), rivals);
    let mut snapshots = Snapshots::default();
    snapshots[File.index()] = Arc::new(snapshot);
    let delta = table.absorb(snapshots.clone());
    assert_eq!(emitted(&delta.changes), ["ADD file.default.a.1"]);
    assert_eq!(duplicates(&table, "a"), ["file a > file a"]);
    snapshots[File.index()] = view(&["a"], File);
    let delta = table.absorb(snapshots);
    assert!(delta.changes.is_empty() && delta.contested.len() == 1);
    assert!(duplicates(&table, "a").is_empty());
}
