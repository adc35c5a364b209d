//! The way from snapshots to snapshots with pods, over restarts and with and without memory.

use limpet_core::fixtures::observed;
use limpet_core::source::view::View;
use limpet_core::source::{Health, SourceSnapshot};
use limpet_model::manifest;
use limpet_model::object::ObjectKind;
use serde_json::{Value, json};

use super::*;
use crate::memory::IndexFailures;

const NODE: &str = "edge1";

fn zones(_: Option<&str>) -> Option<TimeZone> {
    Some(TimeZone::UTC)
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn deployment(image: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": image}]}},
        },
    })
}

/// A file source.
#[derive(Default)]
struct Source(View);

impl Source {
    fn write(&mut self, document: &Value) -> Arc<SourceSnapshot> {
        let read = manifest::read(document.to_string().as_bytes(), "web.yaml", SourceKind::File, NODE);
        self.0.accept(&Arc::from("web.yaml"), read, Default::default);
        self.0.finish_update(true, Health::Good);
        self.0.snapshot()
    }

    fn remove(&mut self) -> Arc<SourceSnapshot> {
        self.0.remove(&Arc::from("web.yaml"));
        self.0.finish_update(true, Health::Good);
        self.0.snapshot()
    }
}

fn snapshots(file: &Arc<SourceSnapshot>) -> Snapshots {
    let mut all = Snapshots::default();
    all[SourceKind::File.index()] = Arc::clone(file);
    all
}

/// A turn whose memory is written at once. Returns the pods that are wanted, and the memory.
fn turn(
    controllers: &mut Controllers,
    file: &Arc<SourceSnapshot>,
    pods: &ObservedPods,
    adopted: Option<Vec<Arc<PodRecord>>>,
) -> (Arc<SourceSnapshot>, Vec<MemoryChange>) {
    let all = snapshots(file);
    let changes = controllers.turn(&all, pods, adopted, at(1_000));
    controllers.remembered();
    (Arc::clone(&controllers.expand(all)[SourceKind::File.index()]), changes)
}

fn ready(snapshot: &SourceSnapshot) -> ObservedPods {
    let pods = snapshot.pods.values().map(|record| {
        let mut pod = ObservedPod::clone(&observed(json!({"metadata": {"name": "x"}})));
        pod.record = Arc::clone(record);
        pod.status = serde_json::from_value(json!({
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:10:00Z"}],
        }))
        .unwrap();
        (record.key.clone(), Arc::new(pod))
    });
    ObservedPods::new(pods.collect())
}

#[test]
fn a_deployment_becomes_pods_of_its_source_and_an_edit_replaces_them() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let file = source.write(&deployment("i:1", 2));
    let (first, changes) = turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    assert_eq!((first.pods.len(), changes.len(), first.ready), (2, 1, true));
    let record = first.pods.values().next().unwrap();
    assert_eq!((&*record.origin, record.source), ("web.yaml", SourceKind::File));
    let up = ready(&first);
    let (same, changes) = turn(&mut controllers, &file, &up, None);
    assert!(Arc::ptr_eq(&same, &first) && changes.is_empty(), "nothing has changed");
    let file = source.write(&deployment("i:1", 3));
    let (more, _) = turn(&mut controllers, &file, &up, None);
    assert!(first.pods.iter().all(|(key, record)| Arc::ptr_eq(&more.pods[key], record)) && more.pods.len() == 3);
    let up = ready(&more);
    let file = source.write(&deployment("i:2", 3));
    let (rolling, _) = turn(&mut controllers, &file, &up, None);
    let images = |snapshot: &SourceSnapshot| {
        let image = |record: &Arc<PodRecord>| record.spec().containers[0].image.clone().unwrap();
        let mut all: Vec<String> = snapshot.pods.values().map(image).collect();
        all.sort();
        all
    };
    assert_eq!(images(&rolling), ["i:1", "i:1", "i:1", "i:2"]);
    let file = source.remove();
    let (gone, changes) = turn(&mut controllers, &file, &ready(&rolling), None);
    assert!(gone.pods.is_empty() && controllers.is_idle() && changes[0].memory.is_none());
}

#[test]
fn nothing_takes_effect_before_it_is_written() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let all = snapshots(&source.write(&deployment("i:1", 1)));
    let changes = controllers.turn(&all, &ObservedPods::default(), Some(Vec::new()), at(1));
    assert_eq!((changes.len(), controllers.expand(all.clone())[0].pods.len()), (1, 0));
    controllers.remembered();
    assert_eq!(controllers.expand(all)[0].pods.len(), 1);
}

#[test]
fn an_update_goes_on_after_a_restart_where_it_was() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let file = source.write(&deployment("i:1", 3));
    let (first, _) = turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let file = source.write(&deployment("i:2", 3));
    let (middle, changes) = turn(&mut controllers, &file, &ready(&first), None);
    let memory = Memory::from_bytes(&changes[0].memory.as_ref().unwrap().to_bytes()).unwrap();
    let mut again = Controllers::new(NODE, zones, [(changes[0].id.clone(), memory)]);
    let (restored, changes) = turn(&mut again, &file, &ObservedPods::default(), None);
    assert_eq!((restored.pods.clone(), changes.len(), restored.ready), (middle.pods.clone(), 0, true));
}

#[test]
fn what_is_remembered_is_wanted_before_a_change_is_written() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let file = source.write(&deployment("i:1", 2));
    let (first, changes) = turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let mut again = Controllers::new(NODE, zones, [(changes[0].id.clone(), changes[0].memory.clone().unwrap())]);
    let all = snapshots(&source.write(&deployment("i:2", 3)));
    let changes = again.turn(&all, &ObservedPods::default(), None, at(1));
    let restored = Arc::clone(&again.expand(all)[SourceKind::File.index()]);
    assert_eq!((changes.len(), restored.ready, &restored.pods), (1, true, &first.pods));
}

#[test]
fn without_memory_the_running_pods_say_what_was() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let file = source.write(&deployment("i:1", 3));
    let (first, _) = turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let file = source.write(&deployment("i:2", 3));
    let (middle, _) = turn(&mut controllers, &file, &ready(&first), None);
    let running: Vec<Arc<PodRecord>> = middle.pods.values().cloned().collect();
    let mut again = Controllers::new(NODE, zones, []);
    let (held, changes) = turn(&mut again, &file, &ObservedPods::default(), None);
    assert!(held.pods.is_empty() && !held.ready && changes.is_empty(), "it is not known yet what runs");
    let (recalled, _) = turn(&mut again, &file, &ready(&first), Some(running));
    assert!(recalled.ready);
    assert_eq!(recalled.pods.keys().collect::<Vec<_>>(), middle.pods.keys().collect::<Vec<_>>());
    assert!(recalled.pods.iter().all(|(key, record)| middle.pods[key].fingerprint == record.fingerprint));
}

#[test]
fn a_source_with_precedence_has_the_workload() {
    let mut controllers = Controllers::new(NODE, zones, []);
    let deployment_of = |source: SourceKind, image: &str| {
        let read = manifest::read(deployment(image, 1).to_string().as_bytes(), "web.yaml", source, NODE);
        let objects = read.objects.into_iter().map(|object| (object.key.clone(), object)).collect();
        Arc::new(SourceSnapshot { objects, ready: true, ..SourceSnapshot::default() })
    };
    let mut all = Snapshots::default();
    all[SourceKind::Push.index()] = deployment_of(SourceKind::Push, "pushed:1");
    let pods = |controllers: &mut Controllers, all: &Snapshots, adopted| {
        controllers.turn(all, &ObservedPods::default(), adopted, at(1));
        controllers.remembered();
        controllers.expand(all.clone()).map(|snapshot| snapshot.pods.len())
    };
    assert_eq!(pods(&mut controllers, &all, Some(Vec::new())), [0, 1, 0, 0, 0]);
    all[SourceKind::File.index()] = deployment_of(SourceKind::File, "file:1");
    assert_eq!(pods(&mut controllers, &all, None), [1, 0, 0, 0, 0]);
    all[SourceKind::File.index()] = Arc::new(SourceSnapshot { ready: true, ..SourceSnapshot::default() });
    assert_eq!(pods(&mut controllers, &all, None), [0, 1, 0, 0, 0]);
}

#[test]
fn memory_of_a_workload_that_went_while_the_agent_was_off_is_forgotten() {
    let id = WorkloadId {
        source: SourceKind::File,
        key: ObjectKey::new(limpet_model::object::ObjectKind::Deployment, "default", "gone"),
    };
    let mut controllers = Controllers::new(NODE, zones, [(id.clone(), Memory::default())]);
    let file = Arc::new(SourceSnapshot::default());
    assert_eq!(turn(&mut controllers, &file, &ObservedPods::default(), None).1, []);
    let file = Arc::new(SourceSnapshot { ready: true, ..SourceSnapshot::default() });
    let (_, changes) = turn(&mut controllers, &file, &ObservedPods::default(), None);
    assert_eq!(changes, [MemoryChange { id, memory: None }]);
}

fn job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i:1"}]}}},
    })
}

/// The pods as they are observed when they have succeeded.
fn succeeded(snapshot: &SourceSnapshot) -> ObservedPods {
    let ended = ready(snapshot).pods.into_iter().map(|(key, pod)| {
        let mut pod = ObservedPod::clone(&pod);
        pod.status.phase = Some("Succeeded".to_owned());
        (key, Arc::new(pod))
    });
    ObservedPods::new(ended.collect())
}

/// A Job that has finished, with its pod.
fn finished(controllers: &mut Controllers, source: &mut Source) -> (Arc<SourceSnapshot>, ObservedPods) {
    let file = source.write(&job());
    let (wanted, _) = turn(controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let ended = succeeded(&wanted);
    let (ended_pods, changes) = turn(controllers, &file, &ended, None);
    let memory = changes[0].memory.clone().unwrap();
    assert!(memory.job.unwrap().finished.is_some() && ended_pods.pods.values().all(|record| record.has_ended()));
    (wanted, ended)
}

#[test]
fn who_waits_for_a_job_waits_for_its_pods_that_have_not_ended() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let mut document = job();
    document["spec"]["parallelism"] = json!(2);
    document["spec"]["completions"] = json!(2);
    let file = source.write(&document);
    let (wanted, _) = turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let id = WorkloadId { source: SourceKind::File, key: ObjectKey::new(ObjectKind::Job, "default", "web") };
    assert_eq!(controllers.progress(&id).unwrap().pods.len(), 2);
    let failed = ready(&wanted).pods.into_iter().take(1).map(|(key, pod)| {
        let mut pod = ObservedPod::clone(&pod);
        pod.status.phase = Some("Failed".to_owned());
        (key, Arc::new(pod))
    });
    let failed = ObservedPods::new(failed.collect());
    let (left, _) = turn(&mut controllers, &file, &failed, None);
    assert_eq!(left.pods.len(), 2, "the one that failed is kept");
    let progress = controllers.progress(&id).unwrap();
    assert!(progress.is_complete && progress.failure.is_none());
    let waited: Vec<_> = progress.pods.iter().map(PodKey::name).collect();
    assert!(waited.len() == 1 && !failed.pods.keys().any(|key| key.name() == waited[0]), "{waited:?}");
}

fn names(snapshot: &SourceSnapshot) -> Vec<&str> {
    snapshot.pods.keys().map(PodKey::name).collect()
}

#[test]
fn a_job_that_was_removed_and_comes_at_once_runs_again() {
    let mut edited = job();
    edited["spec"]["backoffLimit"] = json!(3);
    for document in [job(), edited] {
        let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
        let (first, ended) = finished(&mut controllers, &mut source);
        // The snapshot without it is never seen.
        source.remove();
        let file = source.write(&document);
        let (again, changes) = turn(&mut controllers, &file, &ended, None);
        assert!(again.pods.len() == 1 && names(&again) != names(&first), "{:?}", again.pods);
        assert_eq!(changes.len(), 1);
        let (same, changes) = turn(&mut controllers, &file, &ended, None);
        assert!(Arc::ptr_eq(&same, &again) && changes.is_empty(), "it begins once");
    }
}

#[test]
fn an_edit_of_a_job_does_not_run_it_again() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let (first, ended) = finished(&mut controllers, &mut source);
    let mut document = job();
    document["spec"]["backoffLimit"] = json!(3);
    let (same, changes) = turn(&mut controllers, &source.write(&document), &ended, None);
    assert_eq!((names(&same), changes.len()), (names(&first), 0));
}

#[test]
fn a_job_with_another_template_than_the_remembered_one_runs_again() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let (first, ended) = finished(&mut controllers, &mut source);
    let (id, _, memory) = controllers.workloads().next().unwrap();
    let mut again = Controllers::new(NODE, zones, [(id.clone(), memory.clone())]);
    source.remove();
    let mut document = job();
    document["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let (wanted, _) = turn(&mut again, &source.write(&document), &ended, Some(Vec::new()));
    assert!(wanted.pods.len() == 1 && names(&wanted) != names(&first), "{:?}", wanted.pods);
}

#[test]
fn a_job_does_not_count_the_pods_of_the_one_before_of_its_name() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    // Another workload stays, so that pods continue to be observed.
    let read =
        manifest::read(job().to_string().replace("web", "other").as_bytes(), "other.yaml", SourceKind::File, NODE);
    source.0.accept(&Arc::from("other.yaml"), read, Default::default);
    let file = source.write(&job());
    let (first, _) = turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let ended = succeeded(&first);
    turn(&mut controllers, &file, &ended, None);
    turn(&mut controllers, &source.remove(), &ended, None);
    let (again, _) = turn(&mut controllers, &source.write(&job()), &ended, None);
    assert!(again.pods.len() == 2 && names(&again) != names(&first), "{:?}", names(&again));
}

#[test]
fn the_failures_of_an_index_are_an_annotation_also_without_memory() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let mut document = job();
    let limits = [("completions", json!(1)), ("completionMode", json!("Indexed")), ("backoffLimitPerIndex", json!(2))];
    limits.into_iter().for_each(|(field, value)| document["spec"][field] = value);
    let file = source.write(&document);
    turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let (id, _, memory) = controllers.workloads().next().unwrap();
    let mut memory = memory.clone();
    let failures = IndexFailures { counted: 2, ignored: 1 };
    memory.pods[0].task.as_mut().unwrap().failures = Some(failures);
    let mut controllers = Controllers::new(NODE, zones, [(id.clone(), memory)]);
    let (wanted, _) = turn(&mut controllers, &file, &ObservedPods::default(), Some(Vec::new()));
    let pods: Vec<Arc<PodRecord>> = wanted.pods.values().cloned().collect();
    let annotations = pods[0].pod.metadata.annotations.as_ref().unwrap();
    let value = |name: &str| annotations[&format!("batch.kubernetes.io/job-index-{name}-count")].as_str();
    assert_eq!((value("failure"), value("ignored-failure")), ("2", "1"));
    let mut again = Controllers::new(NODE, zones, []);
    let (recalled, _) = turn(&mut again, &file, &ObservedPods::default(), Some(pods.clone()));
    assert_eq!(recalled.pods.len(), 1);
    assert!(recalled.pods.values().all(|record| record.fingerprint == pods[0].fingerprint), "{:?}", recalled.pods);
}

#[test]
fn without_memory_a_job_has_no_pods_of_another_template() {
    let (mut controllers, mut source) = (Controllers::new(NODE, zones, []), Source::default());
    let mut document = job();
    let (first, _) = turn(&mut controllers, &source.write(&document), &ObservedPods::default(), Some(Vec::new()));
    source.remove();
    document["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let file = source.write(&document);
    let mut again = Controllers::new(NODE, zones, []);
    let running = first.pods.values().cloned().collect();
    let (wanted, _) = turn(&mut again, &file, &succeeded(&first), Some(running));
    assert!(wanted.pods.len() == 1 && names(&wanted) != names(&first), "{:?}", names(&wanted));
}
