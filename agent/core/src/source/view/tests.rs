#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use k8s_openapi::api::core::v1::Pod;

use super::*;
use crate::source::delta;
use limpet_model::object::ObjectKind;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::qos::QosClass;
use limpet_model::pod::{Fingerprint, PodUid};
use limpet_model::source::SourceKind;

fn pod(name: &str, version: u8, origin: &str) -> Arc<PodRecord> {
    Arc::new(PodRecord {
        ephemeral: Vec::new(),
        qos_class: QosClass::BestEffort,
        cgroup_limits: CgroupLimits::BEST_EFFORT,
        key: PodKey::new("default", name),
        uid: PodUid::new(name),
        fingerprint: Fingerprint([version; 16]),
        immutable_fingerprint: Fingerprint([version; 16]),
        source: SourceKind::File,
        origin: Arc::from(origin),
        manifest: Arc::from(format!("{name} {version}").as_bytes()),
        pod: Pod::default(),
    })
}

/// A file with `pods` as (name, version), broken or not.
type FileText<'a> = (&'a [(&'a str, u8)], bool);

fn take(view: &mut View, name: &str, (pods, broken): FileText<'_>) {
    let pods = pods.iter().map(|(pod_name, version)| pod(pod_name, *version, name)).collect();
    let faults = if broken { vec![Fault::error("spec", "broken")] } else { Vec::new() };
    let manifest = Manifest { pods, faults, unknown_pod_refused: broken, ..Manifest::default() };
    view.accept(&Arc::from(name), manifest, Contents::default);
}

/// Pods that lose their key within the source, as `file: name version`.
fn rivals(snapshot: &SourceSnapshot) -> Vec<String> {
    let rivals = snapshot.rivals.values().flat_map(|rivals| rivals.iter());
    rivals.map(|pod| format!("{}: {}", pod.origin, String::from_utf8_lossy(&pod.manifest))).collect()
}

/// `name version` of every pod, then `!file kept…` of every rejection.
fn shape(snapshot: &SourceSnapshot) -> Vec<String> {
    let pods = snapshot.pods.values().map(|pod| String::from_utf8_lossy(&pod.manifest).into_owned());
    let rejected = snapshot.rejected.values().map(|rejection| {
        let kept = rejection.kept.iter().map(|key| format!(" {}", key.name()));
        std::iter::once(format!("!{}", rejection.origin)).chain(kept).collect::<String>()
    });
    pods.chain(rejected).collect()
}

#[test]
fn effective_pods_after_a_file_changed() {
    let cases: &[(&str, &[FileText<'_>], &[&str])] = &[
        ("good", &[(&[("a", 1)], false)], &["a 1"]),
        ("edited", &[(&[("a", 1)], false), (&[("a", 2)], false)], &["a 2"]),
        ("pod removed", &[(&[("a", 1), ("b", 1)], false), (&[("a", 1)], false)], &["a 1"]),
        ("broken from the start", &[(&[], true)], &["!f"]),
        ("one document broken from the start", &[(&[("a", 1)], true)], &["a 1", "!f"]),
        ("broken later", &[(&[("a", 1)], false), (&[], true)], &["a 1", "!f a"]),
        ("broken twice", &[(&[("a", 1)], false), (&[], true), (&[], true)], &["a 1", "!f a"]),
        ("one broken later", &[(&[("a", 1), ("b", 1)], false), (&[("a", 2)], true)], &["a 2", "b 1", "!f b"]),
        ("fixed", &[(&[("a", 1)], false), (&[], true), (&[("a", 2)], false)], &["a 2"]),
        ("fixed without the pod", &[(&[("a", 1)], false), (&[], true), (&[("b", 1)], false)], &["b 1"]),
        ("emptied on purpose", &[(&[("a", 1)], false), (&[], false)], &[]),
        ("twice in one file", &[(&[("a", 1), ("a", 2)], false)], &["a 1"]),
    ];
    for (case, versions, expected) in cases {
        let mut view = View::default();
        for version in *versions {
            take(&mut view, "f", *version);
            view.finish_update(true, Health::Good);
        }
        assert_eq!(shape(&view.snapshot), *expected, "{case}");
    }
}

fn finish(view: &mut View) -> Vec<String> {
    view.finish_update(true, Health::Good).map_or_else(Vec::new, |snapshot| shape(&snapshot))
}

#[test]
fn of_two_claims_the_one_in_effect_stays_and_the_other_is_rejected() {
    let mut view = View::default();
    take(&mut view, "ed.yaml", (&[("x", 1)], false));
    assert_eq!(finish(&mut view), ["x 1"]);
    // This file sorts first.
    take(&mut view, "ed copy.yaml", (&[("x", 2), ("y", 2)], false));
    assert_eq!(finish(&mut view), ["x 1", "y 2", "!ed copy.yaml"]);
    assert_eq!(rivals(&view.snapshot), ["ed copy.yaml: x 2"]);
    let message = view.snapshot.rejected["ed copy.yaml"].faults[0].to_string();
    assert!(message.contains("already defined in ed.yaml"), "{message}");
    let saved = |view: &View, name| view.effective(name).unwrap().manifests().len();
    assert_eq!((saved(&view, "ed.yaml"), saved(&view, "ed copy.yaml")), (1, 1), "only what is in effect is kept");
    // It is written by an editor that renames the file away first.
    view.set_vanishing(&Arc::from("ed.yaml"), true);
    assert_eq!(finish(&mut view), [""; 0], "the copy was rejected before");
    take(&mut view, "ed.yaml", (&[("x", 3)], false));
    assert_eq!(finish(&mut view), ["x 3", "y 2", "!ed copy.yaml"]);
    assert!(view.take_resettled().is_empty());
    view.remove(&Arc::from("ed.yaml"));
    assert_eq!(finish(&mut view), ["x 2", "y 2"]);
    assert_eq!(view.take_resettled(), [Arc::from("ed copy.yaml")].into());
    assert_eq!(saved(&view, "ed copy.yaml"), 2);
    view.remove(&Arc::from("ed copy.yaml"));
    assert_eq!(finish(&mut view), [""; 0]);
    assert_eq!((view.pods(), view.snapshot.rivals.len()), (0, 0));
}

#[test]
fn claims_that_are_read_together_are_settled_by_what_ran_and_then_by_name() {
    for (held, expected) in [("", "a"), ("b", "b"), ("c", "c")] {
        let mut view = View::default();
        for name in ["c", "b", "a"] {
            let manifest = Manifest { pods: vec![pod("x", 1, name)], ..Manifest::default() };
            let before = pod("x", 1, name);
            let before = Contents { pods: BTreeMap::from([(before.key.clone(), before)]), ..Contents::default() };
            view.accept(&Arc::from(name), manifest, || if name == held { before } else { Contents::default() });
        }
        let snapshot = view.finish_update(true, Health::Good).unwrap();
        assert_eq!(&*snapshot.pods.values().next().unwrap().origin, expected, "{held}");
        let mut again = View::from_snapshot(&snapshot);
        take(&mut again, "0", (&[("x", 9)], false));
        let snapshot = again.finish_update(true, Health::Good).unwrap();
        assert_eq!(&*snapshot.pods.values().next().unwrap().origin, expected, "{held}: a proposal");
    }
}

#[test]
fn a_file_that_is_renamed_takes_its_keys_with_it() {
    for (old, new) in [("a", "b"), ("b", "a")] {
        let mut view = View::default();
        take(&mut view, old, (&[("x", 1)], false));
        finish(&mut view);
        take(&mut view, new, (&[("x", 1)], false));
        view.set_vanishing(&Arc::from(old), true);
        assert_eq!(finish(&mut view), ["x 1"]);
        assert_eq!(&*view.snapshot.pods.values().next().unwrap().origin, new);
    }
}

#[test]
fn a_vanishing_file_keeps_keys_no_other_file_claims() {
    let mut view = View::default();
    take(&mut view, "a", (&[("x", 1)], false));
    view.finish_update(true, Health::Good);
    view.set_vanishing(&Arc::from("a"), true);
    assert!(view.finish_update(true, Health::Good).is_none());
}

#[test]
fn reading_unchanged_content_changes_nothing() {
    let mut view = View::default();
    take(&mut view, "a", (&[("x", 1)], true));
    let first = view.finish_update(true, Health::Good).unwrap();
    take(&mut view, "a", (&[("x", 1)], true));
    assert!(view.finish_update(true, Health::Good).is_none());
    let second = view.finish_update(true, Health::Unavailable("why".into())).unwrap();
    assert!(first.pods.ptr_eq(&second.pods));
}

#[test]
fn a_file_broken_since_before_the_start_gets_its_pods_from_the_store() {
    let mut view = View::default();
    let broken = Manifest::broken(Fault::error("", "broken"));
    let kept = |name, origin| {
        let pod = pod(name, 1, origin);
        Contents { pods: BTreeMap::from([(pod.key.clone(), pod)]), ..Contents::default() }
    };
    view.accept(&Arc::from("a"), broken, || kept("x", "a"));
    assert_eq!(shape(&view.finish_update(true, Health::Good).unwrap()), ["x 1", "!a x"]);
    assert_eq!(view.contents("a").unwrap().manifests(), [Arc::from(&b"x 1"[..])]);
    view.accept(&Arc::from("b"), Manifest::default(), || kept("y", "b"));
    assert!(view.contents("b").is_none());
    assert_eq!(shape(&view.snapshot), ["x 1", "!a x"]);
}

/// A ConfigMap whose key `k` is `value`; `fixed` makes it immutable.
fn map(name: &str, value: &str, fixed: bool) -> Arc<ObjectRecord> {
    let value = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}, "immutable": fixed,
    });
    Arc::new(limpet_model::object::decode(&value, ObjectKind::ConfigMap, Arc::from("f")).0.unwrap())
}

/// `name=value` of every object, then `!file` of every rejection.
fn objects(view: &View) -> Vec<String> {
    let value = |object: &Arc<ObjectRecord>| object.data["k"].bytes.expose_text().unwrap().to_owned();
    let objects = view.snapshot.objects.values().map(|object| format!("{}={}", object.key.name, value(object)));
    objects.chain(view.snapshot.rejected.keys().map(|origin| format!("!{origin}"))).collect()
}

fn take_objects(view: &mut View, name: &str, objects: Vec<Arc<ObjectRecord>>, broken: bool) {
    let faults = if broken { vec![Fault::error("data", "broken")] } else { Vec::new() };
    view.accept(
        &Arc::from(name),
        Manifest { objects, faults, unknown_object_refused: broken, ..Manifest::default() },
        Contents::default,
    );
    view.finish_update(true, Health::Good);
}

#[test]
fn objects_are_claimed_kept_and_removed_as_pods_are() {
    let mut view = View::default();
    take_objects(&mut view, "a", vec![map("x", "a", false), map("y", "a", false)], false);
    take_objects(&mut view, "b", vec![map("x", "b", false)], false);
    assert_eq!(objects(&view), ["x=a", "y=a", "!b"]);
    take_objects(&mut view, "a", vec![map("y", "new", false)], true);
    assert_eq!(objects(&view), ["x=a", "y=new", "!a", "!b"], "a broken document keeps its last good version");
    assert_eq!(view.contents("a").unwrap().manifests().len(), 2);
    view.remove(&Arc::from("a"));
    view.finish_update(true, Health::Good);
    assert_eq!(objects(&view), ["x=b"]);
    let before = Arc::clone(view.snapshot.objects.values().next().unwrap());
    take_objects(&mut view, "b", vec![map("x", "b", false)], false);
    assert!(Arc::ptr_eq(&before, view.snapshot.objects.values().next().unwrap()), "an equal object keeps its record");
    assert_eq!((view.pods(), view.is_empty()), (0, false));
}

#[test]
fn immutable_objects_keep_their_data() {
    let mut view = View::default();
    take_objects(&mut view, "a", vec![map("x", "1", false)], false);
    take_objects(&mut view, "a", vec![map("x", "2", true)], false);
    assert_eq!(objects(&view), ["x=2"]);
    for edit in [map("x", "3", true), map("x", "2", false)] {
        take_objects(&mut view, "a", vec![edit], false);
        assert_eq!(objects(&view), ["x=2", "!a"]);
    }
    take_objects(&mut view, "a", vec![map("x", "2", true)], false);
    assert_eq!(objects(&view), ["x=2"]);
    view.remove(&Arc::from("a"));
    take_objects(&mut view, "a", vec![map("x", "3", false)], false);
    assert_eq!(objects(&view), ["x=3"]);
}

#[test]
fn a_rejected_document_keeps_its_last_good_pod_and_a_missing_one_is_removed() {
    let mut view = View::default();
    take(&mut view, "a", (&[("x", 1), ("y", 1), ("z", 1)], false));
    view.finish_update(true, Health::Good);
    let rejected = [PodKey::new("default", "y")].into();
    let faults = vec![Fault::error("spec", "broken")];
    view.accept(
        &Arc::from("a"),
        Manifest { pods: vec![pod("x", 2, "a")], faults, refused: rejected, ..Manifest::default() },
        Contents::default,
    );
    assert_eq!(shape(&view.finish_update(true, Health::Good).unwrap()), ["x 2", "y 1", "!a y"]);
}

fn job(limit: u32) -> Manifest {
    let text = format!(
        "{{apiVersion: batch/v1, kind: Job, metadata: {{name: build}}, spec: {{backoffLimit: {limit}, template: {{spec: \
         {{restartPolicy: Never, containers: [{{name: a, image: 'i:1'}}]}}}}}}}}"
    );
    limpet_model::manifest::read(text.as_bytes(), "f", SourceKind::File, "node")
}

#[test]
fn a_workload_that_is_removed_and_comes_again_is_another_one() {
    let (mut view, [file, other]) = (View::default(), ["f", "g"].map(Arc::<str>::from));
    let key = ObjectKey::new(ObjectKind::Job, "default", "build");
    let publish = |view: &mut View| {
        view.finish_update(true, Health::Good);
        view.snapshot()
    };
    view.accept(&file, job(1), Contents::default);
    let first = publish(&mut view).incarnations.number(&key);
    view.accept(&file, job(2), Contents::default);
    assert_eq!((first, publish(&mut view).incarnations.number(&key)), (Some(1), Some(1)), "an edit");
    view.remove(&file);
    view.accept(&other, job(2), Contents::default);
    let moved = publish(&mut view);
    assert_eq!(moved.incarnations.number(&key), first, "it was never missing");
    view.remove(&other);
    assert_eq!(publish(&mut view).incarnations.number(&key), None);
    view.accept(&other, job(2), Contents::default);
    let again = publish(&mut view);
    assert_eq!(again.incarnations.number(&key), Some(2));
    assert_eq!((&moved.objects, delta::compare(&moved, &again).objects), (&again.objects, vec![key.clone()]));
    let rebuilt = publish(&mut View::from_snapshot(&again));
    assert_eq!(rebuilt.incarnations.number(&key), Some(2));
}
