#![allow(clippy::unwrap_used)]
//! A pod and its objects: what waits for them, what an edit triggers, and what is retried at once.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fixtures::{READY, now as fixtures_now, ready, sandbox};
use super::outcome::{self, Failure, Outcome};
use super::plan::{Action, Step, plan};
use super::state::{CONFIG_ERROR, FAILED_MOUNT, ImageState, PodState, SandboxState};
use super::status::generate::generate;
use crate::state::Now;
use limpet_model::object::{ObjectKey, ObjectKind, ObjectState, PodObjects};
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;

/// A pod that mounts the ConfigMap `m` and pulls with the Secret `s`.
fn pod() -> PodState {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "containers": [{"name": "main", "image": "app:1", "envFrom": [{"configMapRef": {"name": "m"}}]}],
        "volumes": [{"name": "v", "configMap": {"name": "m"}}], "imagePullSecrets": [{"name": "s"}],
    }});
    let record: PodRecord =
        limpet_model::manifest::restore(pod.to_string().as_bytes(), "web.yaml", SourceKind::File, "node").unwrap();
    PodState::new(Arc::new(record), Timestamp::UNIX_EPOCH)
}

/// The pod's objects when the ConfigMap holds `value`.
fn objects(pod: &PodState, value: &str) -> Arc<PodObjects> {
    let map: Value = json!({"metadata": {"name": "m"}, "data": {"k": value}});
    let map = Arc::new(limpet_model::object::decode(&map, ObjectKind::ConfigMap, Arc::from("m.yaml")).0.unwrap());
    Arc::new(PodObjects::collect(&pod.record, |key| (*key == map.key).then(|| Arc::clone(&map))))
}

fn failure(reason: &'static str) -> Failure {
    Failure { reason, message: "configmap \"m\" not found".to_owned(), transient: false }
}

fn planned(pod: &PodState, now: Now) -> Vec<Action> {
    match plan(pod, READY, now.mono) {
        Step::Do(actions) => actions,
        Step::Wait(_) | Step::Finished => Vec::new(),
    }
}

#[test]
fn nothing_starts_before_the_source_has_reported_its_objects() {
    let mut pod = pod();
    let now = fixtures_now();
    assert_eq!(plan(&pod, READY, now.mono), Step::Wait(None));
    pod.take_objects(Arc::default());
    assert_eq!(planned(&pod, now), [Action::PrepareSandbox, Action::EnsureImage(0)]);
}

/// A pod of a source that has not reported. `map` has a ConfigMap in its environment, `key` a Secret, and `plain`
/// none.
fn unreported(more: Value) -> PodState {
    let environment = |kind: &str, name: &str| json!([{"name": "V", "valueFrom": {kind: {"name": name, "key": "k", "optional": true}}}]);
    let mut spec = json!({"containers": [
        {"name": "map", "image": "app:1", "env": environment("configMapKeyRef", "m")},
        {"name": "key", "image": "app:1", "env": environment("secretKeyRef", "s")},
        {"name": "plain", "image": "app:1"},
    ]});
    more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
    let record: PodRecord =
        limpet_model::manifest::restore(pod.to_string().as_bytes(), "web.yaml", SourceKind::Http, "node").unwrap();
    PodState::new(Arc::new(record), Timestamp::UNIX_EPOCH)
}

fn message(pod: &PodState, index: usize) -> String {
    let status = generate(pod, READY, "BestEffort", fixtures_now(), None);
    let slot = &pod.containers[index].name;
    let container_status = status.container_statuses.unwrap().into_iter().find(|status| status.name == *slot).unwrap();
    let waiting = container_status.state.unwrap().waiting.unwrap();
    format!("{} {}", waiting.reason.unwrap(), waiting.message.unwrap_or_default())
}

#[test]
fn each_part_of_a_pod_waits_for_its_own_objects_alone() {
    let now = fixtures_now();
    let mut in_environment = ready(unreported(json!({})));
    assert_eq!(planned(&in_environment, now), [Action::Start(2)]);
    let output = "ContainerCreating waits for ConfigMap default/m: the source http has not reported it yet";
    assert_eq!(message(&in_environment, 0), output);
    // One object is known not to exist, so an optional reference no longer waits for anything.
    let state = |key: &ObjectKey| match key.kind {
        ObjectKind::ConfigMap => ObjectState::Absent,
        _ => ObjectState::Unknown,
    };
    in_environment.take_objects(Arc::new(PodObjects::collect(&in_environment.record, state)));
    assert_eq!(planned(&in_environment, now), [Action::Start(0), Action::Start(2)]);
    assert!(message(&in_environment, 1).contains("waits for Secret default/s"));

    let volume = json!({"volumes": [{"name": "v", "configMap": {"name": "v"}}]});
    let mut with_volume = unreported(volume);
    assert_eq!(planned(&with_volume, now), [0, 1, 2].map(Action::EnsureImage), "no sandbox, but the images");
    assert!(message(&with_volume, 2).contains("waits for ConfigMap default/v"));
    assert_eq!(with_volume.volumes_version(), None);
    with_volume.take_objects(Arc::new(PodObjects::collect(&with_volume.record, |key| match &*key.name {
        "v" => ObjectState::Absent,
        _ => ObjectState::Unknown,
    })));
    assert!(with_volume.volumes_version().is_some() && planned(&with_volume, now).contains(&Action::PrepareSandbox));

    let with_secret = unreported(json!({"imagePullSecrets": [{"name": "p"}]}));
    assert_eq!(planned(&with_secret, now), [Action::PrepareSandbox], "a sandbox, but no image");
    assert!(message(&with_secret, 2).contains("waits for Secret default/p"));
}

#[test]
fn an_edit_rewrites_the_volumes_and_nothing_else() {
    let mut pod = pod();
    let now = fixtures_now();
    pod.take_objects(objects(&pod, "1"));
    outcome::begin(&mut pod, &Action::PrepareSandbox);
    pod.containers[0].image = ImageState::Pulling;
    // The ConfigMap changes while the sandbox is prepared with its old version.
    pod.take_objects(objects(&pod, "2"));
    outcome::apply(&mut pod, Outcome::SandboxPrepared(Ok(sandbox(&[]))), now);
    assert_eq!(planned(&pod, now), [Action::UpdateVolumes]);
    outcome::begin(&mut pod, &Action::UpdateVolumes);
    assert_eq!(planned(&pod, now), []);
    outcome::apply(&mut pod, Outcome::VolumesUpdated(Ok(())), now);
    assert_eq!(planned(&pod, now), []);
    pod.take_objects(objects(&pod, "2"));
    assert_eq!(planned(&pod, now), [], "equal objects are no change");

    pod.take_objects(Arc::default());
    outcome::begin(&mut pod, &Action::UpdateVolumes);
    outcome::apply(&mut pod, Outcome::VolumesUpdated(Err(failure(FAILED_MOUNT))), now);
    assert!(matches!(plan(&pod, READY, now.mono), Step::Wait(Some(_))), "retried after a back-off");
    pod.take_objects(objects(&pod, "3"));
    assert_eq!(planned(&pod, now), [Action::UpdateVolumes], "and at once when the objects change");
}

#[test]
fn an_image_imported_from_an_archive_is_retried_at_once() {
    let mut pod = pod();
    let now = fixtures_now();
    pod.take_objects(objects(&pod, "1"));
    outcome::begin(&mut pod, &Action::PrepareSandbox);
    outcome::begin(&mut pod, &Action::EnsureImage(0));
    let fingerprint = pod.containers[0].fingerprint.clone();
    let failed = || {
        let (fingerprint, result) = (fingerprint.clone(), Err(failure("ErrImagePull")));
        Outcome::ImageEnsured { index: 0, attempt: 0, fingerprint, result }
    };
    outcome::apply(&mut pod, failed(), now);
    assert_eq!(planned(&pod, now), [], "it waits");
    pod.take_images(&HashSet::from(["docker.io/library/other:1".to_owned()]));
    assert_eq!(planned(&pod, now), [], "another image is of no use");
    let images = HashSet::from(["docker.io/library/app:1".to_owned()]);
    pod.take_images(&images);
    assert_eq!(planned(&pod, now), [Action::EnsureImage(0)]);

    outcome::begin(&mut pod, &Action::EnsureImage(0));
    pod.take_images(&images);
    outcome::apply(&mut pod, failed(), now);
    assert_eq!(planned(&pod, now), [Action::EnsureImage(0)], "it was imported during the pull");
    outcome::begin(&mut pod, &Action::EnsureImage(0));
    outcome::apply(&mut pod, failed(), now);
    assert_eq!(planned(&pod, now), [], "once");
}

#[test]
fn a_failure_for_a_missing_object_is_retried_at_once_when_it_appears() {
    let mut pod = pod();
    let now = fixtures_now();
    pod.take_objects(Arc::default());
    outcome::begin(&mut pod, &Action::PrepareSandbox);
    outcome::apply(&mut pod, Outcome::SandboxPrepared(Err(failure(FAILED_MOUNT))), now);
    pod.containers[0].image = ImageState::Pulling;
    assert_eq!(planned(&pod, now), []);
    pod.take_objects(objects(&pod, "1"));
    assert_eq!(planned(&pod, now), [Action::PrepareSandbox]);
    // The object appeared during the attempt that lacked it.
    outcome::begin(&mut pod, &Action::PrepareSandbox);
    pod.take_objects(objects(&pod, "2"));
    outcome::apply(&mut pod, Outcome::SandboxPrepared(Err(failure(FAILED_MOUNT))), now);
    assert_eq!(planned(&pod, now), [Action::PrepareSandbox]);
    outcome::begin(&mut pod, &Action::PrepareSandbox);
    outcome::apply(&mut pod, Outcome::SandboxPrepared(Err(failure("FailedCreatePodSandBox"))), now);
    pod.take_objects(objects(&pod, "3"));
    assert_eq!(planned(&pod, now), [], "another failure keeps its back-off");

    pod.sandbox = SandboxState::Ready(sandbox(&[]));
    pod.volumes.written = pod.volumes_version();
    outcome::begin(&mut pod, &Action::Start(0));
    let failed = || Outcome::Started { index: 0, result: Err(failure(CONFIG_ERROR)) };
    outcome::apply(&mut pod, failed(), now);
    assert!(pod.containers[0].retry.is_some());
    pod.take_objects(objects(&pod, "4"));
    assert!(pod.containers[0].retry.is_none());
    outcome::begin(&mut pod, &Action::Start(0));
    pod.take_objects(objects(&pod, "5"));
    outcome::apply(&mut pod, failed(), now);
    assert!(pod.containers[0].retry.is_none(), "the attempt ran without the new objects");
}
