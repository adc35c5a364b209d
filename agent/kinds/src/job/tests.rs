//! Tables: what a Job's controller makes of a situation, step by step.

use jiff::SignedDuration;
use limpet_model::object::workload::WorkloadSpec;
use limpet_model::object::{ObjectKey, ObjectKind};
use limpet_model::source::SourceKind;
use serde_json::{Value, json};

use super::*;

/// A Job and its pods, with a clock.
struct Scene {
    key: ObjectKey,
    spec: Job,
    memory: JobMemory,
    pods: Vec<WantedPod>,
    seen: BTreeMap<String, Seen>,
    now: Timestamp,
    said: Vec<String>,
}

fn spec(fields: Value) -> Job {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i:1"}]}});
    let mut document = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "build", "namespace": "shop"},
        "spec": {"template": template},
    });
    for (field, value) in fields.as_object().unwrap() {
        document["spec"][field] = value.clone();
    }
    if let Some(policy) = document["spec"].as_object_mut().unwrap().remove("restartPolicy") {
        document["spec"]["template"]["spec"]["restartPolicy"] = policy;
    }
    let read = limpet_model::manifest::read(document.to_string().as_bytes(), "job.yaml", SourceKind::File, "edge1");
    assert_eq!(read.faults, []);
    match &read.objects[0].workload.as_ref().unwrap().spec {
        WorkloadSpec::Job(job) => Job::clone(job),
        other => panic!("{other:?}"),
    }
}

impl Scene {
    fn new(fields: Value) -> Self {
        Self {
            key: ObjectKey::new(ObjectKind::Job, "shop", "build"),
            spec: spec(fields),
            memory: JobMemory::default(),
            pods: Vec::new(),
            seen: BTreeMap::new(),
            now: at(10_000),
            said: Vec::new(),
        }
    }

    fn step(&mut self) -> Next {
        let seen = self.seen.iter().map(|(name, seen)| (name.as_str(), seen.clone())).collect();
        let situation = Situation {
            node_name: "edge1",
            key: &self.key,
            spec: &self.spec,
            hash: "h",
            observed: &seen,
            clock: Clock { now: self.now, earliest: at(1_000) },
        };
        // What is remembered goes through the disk.
        self.memory = serde_json::from_str(&serde_json::to_string(&self.memory).unwrap()).unwrap();
        let mut notices = Notices::default();
        let next = step(&mut self.memory, &mut self.pods, &situation, &mut notices);
        self.said.extend(
            notices
                .0
                .into_iter()
                .map(|notice| notice.reason.into_owned())
                .filter(|reason| !reason.starts_with("Successful")),
        );
        next
    }

    /// The pods that are to run, run; the others have gone.
    fn settle(&mut self) {
        let names: BTreeSet<String> = self.pods.iter().map(|pod| pod.name.clone()).collect();
        self.seen.retain(|name, _| names.contains(name));
        for name in names {
            self.seen.entry(name).or_default().facts.phase = crate::facts::Phase::Running;
        }
    }

    /// The first pod that runs, or the one of that index, ends.
    fn end(&mut self, index: Option<u32>, code: i32) {
        self.settle();
        let has_ended = |pod: &WantedPod| self.seen.get(&pod.name).is_some_and(|seen| seen.succeeded.is_some());
        let is_open = |pod: &&WantedPod| {
            let of_index = index.is_none_or(|index| pod.task.as_ref().unwrap().index == Some(index));
            !pod.has_ended() && !has_ended(pod) && of_index
        };
        let name = self.pods.iter().find(is_open).unwrap().name.clone();
        let seen = self.seen.get_mut(&name).unwrap();
        seen.succeeded = Some(code == 0);
        seen.finished_at = Some(self.now);
        seen.exits = if code == 0 { Vec::new() } else { vec![("a".to_owned(), code)] };
    }

    /// Takes the steps until nothing changes, with pods that end gone.
    fn run(&mut self) -> Next {
        self.step();
        self.settle();
        self.step()
    }

    fn running(&self) -> usize {
        self.pods.iter().filter(|pod| !pod.has_ended()).count()
    }

    fn indexes(&self) -> Vec<u32> {
        let open = self.pods.iter().filter(|pod| !pod.has_ended());
        open.filter_map(|pod| pod.task.as_ref().unwrap().index).collect()
    }

    /// The failures of the index, counted and ignored, that its pod was made with.
    fn failures(&self, index: u32) -> Option<(u32, u32)> {
        let mut open = self.pods.iter().filter(|pod| !pod.has_ended()).filter_map(|pod| pod.task.as_ref());
        let failures = open.find(|task| task.index == Some(index)).unwrap().failures;
        failures.map(|failures| (failures.counted, failures.ignored))
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    fn verdict(&self) -> Option<(bool, &str)> {
        self.memory.finished?;
        self.memory.verdict.as_ref().map(|verdict| (verdict.complete, verdict.reason.as_str()))
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn pods_run_in_parallel_until_so_many_have_succeeded() {
    let mut scene = Scene::new(json!({"completions": 5, "parallelism": 2}));
    let mut most = 0;
    for round in 0..5 {
        scene.run();
        most = most.max(scene.running());
        assert_eq!((scene.running(), scene.verdict()), (2.min(5 - round), None));
        scene.end(None, 0);
    }
    scene.run();
    assert_eq!((scene.running(), scene.pods.len(), scene.verdict()), (0, 5, Some((true, "CompletionsReached"))));
    assert_eq!(scene.said, ["Completed"]);
    // Whatever is left of its pods: none runs again.
    scene.seen.clear();
    scene.pass(1_000_000);
    assert_eq!((scene.step(), scene.running(), scene.pods.len()), (Next::default(), 0, 5));
}

#[test]
fn without_completions_one_success_lets_the_others_end() {
    let mut scene = Scene::new(json!({"parallelism": 3}));
    scene.run();
    scene.end(None, 0);
    scene.run();
    assert_eq!((scene.running(), scene.verdict()), (2, None));
    scene.end(None, 1);
    scene.end(None, 0);
    scene.run();
    assert_eq!(scene.verdict(), Some((true, "CompletionsReached")));
}

#[test]
fn failures_pause_and_are_limited() {
    let mut scene = Scene::new(json!({"backoffLimit": 2}));
    for pause in [10, 20] {
        scene.run();
        scene.end(None, 1);
        let next = scene.step();
        assert_eq!((next.at.unwrap().duration_since(scene.now).as_secs(), scene.running()), (pause, 0));
        scene.pass(pause);
    }
    scene.run();
    scene.end(None, 1);
    scene.run();
    assert_eq!(scene.verdict(), Some((false, "BackoffLimitExceeded")));
    assert_eq!((scene.said, scene.memory.failed), (vec!["BackoffLimitExceeded".to_owned()], 3));
}

#[test]
fn a_job_that_fails_ends_its_pods_before_it_is_finished() {
    let mut scene = Scene::new(json!({"parallelism": 3, "completions": 3, "backoffLimit": 0}));
    scene.run();
    scene.end(None, 1);
    scene.step();
    assert_eq!((scene.running(), scene.verdict()), (0, None), "two still terminate");
    scene.settle();
    scene.step();
    assert_eq!((scene.verdict(), scene.memory.failed), (Some((false, "BackoffLimitExceeded")), 3));
}

#[test]
fn containers_that_restart_in_their_pod_count() {
    let mut scene = Scene::new(json!({"restartPolicy": "OnFailure", "backoffLimit": 2}));
    scene.run();
    for (restarts, verdict) in [(1, None), (2, Some((false, "BackoffLimitExceeded")))] {
        scene.settle();
        scene.seen.values_mut().for_each(|seen| seen.facts.restarts = restarts);
        scene.step();
        scene.settle();
        scene.step();
        assert_eq!(scene.verdict(), verdict);
    }
}

#[test]
fn each_index_succeeds_once() {
    let mut scene = Scene::new(json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"}));
    scene.run();
    assert_eq!(scene.indexes(), [0, 1]);
    assert!(scene.pods[0].name.starts_with("build-0-"), "{}", scene.pods[0].name);
    scene.end(Some(1), 0);
    scene.run();
    assert_eq!(scene.indexes(), [0, 2]);
    scene.end(Some(0), 3);
    scene.run();
    assert_eq!(scene.indexes(), [2], "the index that failed waits");
    scene.pass(10);
    scene.run();
    assert_eq!(scene.indexes(), [2, 0]);
    [0, 2].into_iter().for_each(|index| scene.end(Some(index), 0));
    scene.run();
    scene.end(Some(3), 0);
    scene.run();
    assert_eq!(
        (scene.verdict(), scene.memory.succeeded_indexes.to_string().as_str()),
        (Some((true, "CompletionsReached")), "0-3")
    );
}

#[test]
fn a_job_with_fewer_completions_needs_the_indexes_that_are_left() {
    let mut scene = Scene::new(json!({"completions": 6, "parallelism": 6, "completionMode": "Indexed"}));
    scene.run();
    [3, 4].into_iter().for_each(|index| scene.end(Some(index), 0));
    // Index 0 was made last.
    scene.end(Some(0), 1);
    scene.run();
    scene.pass(10);
    scene.run();
    assert_eq!(scene.indexes(), [1, 2, 5, 0]);
    scene.spec = spec(json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"}));
    scene.run();
    assert_eq!(scene.indexes(), [1, 2, 0], "the pod of an index that is gone goes first");
    assert_eq!((scene.verdict(), scene.memory.succeeded_indexes.count()), (None, 0));
    (0..3).for_each(|index| scene.end(Some(index), 0));
    scene.run();
    assert_eq!(scene.verdict(), Some((true, "CompletionsReached")));
}

#[test]
fn indexes_fail_one_by_one() {
    let fields = json!({
        "completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "maxFailedIndexes": 1,
    });
    let mut scene = Scene::new(fields);
    scene.run();
    assert_eq!(scene.failures(0), Some((0, 0)));
    scene.end(Some(0), 1);
    scene.run();
    assert_eq!(scene.indexes(), [1, 2]);
    scene.pass(10);
    scene.run();
    assert_eq!((scene.failures(0), scene.failures(1)), (Some((1, 0)), Some((0, 0))));
    scene.end(Some(0), 1);
    scene.run();
    scene.pass(1_000);
    scene.run();
    assert_eq!(
        (scene.indexes(), scene.memory.failed_indexes.to_string().as_str(), scene.verdict()),
        (vec![1, 2], "0", None)
    );
    let mut few = Scene {
        seen: scene.seen.clone(),
        pods: scene.pods.clone(),
        memory: scene.memory.clone(),
        ..Scene::new(json!({}))
    };
    few.spec = scene.spec.clone();
    [1, 2].into_iter().for_each(|index| few.end(Some(index), 0));
    few.run();
    assert_eq!(few.verdict(), Some((false, "FailedIndexes")), "the others have succeeded");
    for _ in 0..2 {
        scene.end(Some(1), 1);
        scene.run();
        scene.pass(10);
        scene.run();
    }
    assert_eq!(scene.verdict(), Some((false, "MaxFailedIndexesExceeded")));
}

#[test]
fn the_policy_says_what_a_failure_means() {
    let fields = |action: &str| {
        json!({
            "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 4,
            "podFailurePolicy": {"rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {"action": action, "onExitCodes": {"operator": "In", "values": [42]}},
            ]},
        })
    };
    for (action, code, failed, verdict) in [
        ("FailJob", 42, 2, Some((false, "PodFailurePolicy"))),
        ("FailJob", 1, 1, None),
        ("FailIndex", 42, 1, None),
        ("Count", 42, 1, None),
    ] {
        let mut scene = Scene::new(fields(action));
        scene.run();
        scene.end(Some(0), code);
        scene.run();
        assert_eq!((scene.memory.failed, scene.verdict()), (failed, verdict), "{action} {code}");
        assert_eq!(scene.memory.failed_indexes.has(0), action == "FailIndex");
        if verdict.is_some() {
            let name = &scene.pods[0].name;
            let message =
                format!("Container a for pod shop/{name} failed with exit code 42 matching FailJob rule at index 1");
            assert_eq!(scene.memory.verdict.as_ref().unwrap().message, message);
        }
    }
    let mut scene = Scene::new(fields("FailJob"));
    scene.run();
    scene.end(Some(0), 42);
    let evicted = ("DisruptionTarget".to_owned(), "True".to_owned());
    scene
        .seen
        .values_mut()
        .filter(|seen| seen.succeeded.is_some())
        .for_each(|seen| seen.conditions.push(evicted.clone()));
    scene.run();
    assert_eq!((scene.memory.failed, scene.verdict()), (0, None), "the first rule that applies counts");
    scene.pass(10);
    scene.run();
    assert_eq!(scene.indexes(), [1, 0]);
    assert_eq!((scene.failures(0), scene.failures(1)), (Some((0, 1)), Some((0, 0))));
}

#[test]
fn a_policy_of_success_ends_the_rest() {
    let rules = json!({"rules": [{"succeededIndexes": "0,2", "succeededCount": 1}, {"succeededCount": 3}]});
    let mut scene = Scene::new(json!({
        "completions": 4, "parallelism": 4, "completionMode": "Indexed", "successPolicy": rules,
    }));
    scene.run();
    scene.end(Some(1), 0);
    scene.run();
    assert_eq!(scene.running(), 3);
    scene.end(Some(2), 0);
    scene.run();
    assert_eq!((scene.running(), scene.verdict(), scene.memory.failed), (0, Some((true, "SuccessPolicy")), 0));
    assert_eq!(scene.memory.verdict.unwrap().message, "Matched rules at index 0");
}

#[test]
fn a_deadline_counts_the_time_in_which_it_is_active() {
    let mut scene = Scene::new(json!({"activeDeadlineSeconds": 60}));
    assert_eq!(scene.step().at, Some(at(10_060)));
    scene.settle();
    scene.pass(59);
    scene.step();
    scene.spec.suspend = true;
    scene.step();
    assert_eq!((scene.running(), scene.memory.started), (0, None));
    scene.pass(1_000);
    scene.spec.suspend = false;
    scene.run();
    assert_eq!((scene.running(), scene.verdict(), scene.memory.failed), (1, None, 0));
    scene.pass(60);
    scene.run();
    assert_eq!(scene.verdict(), Some((false, "DeadlineExceeded")));
    assert_eq!(scene.said, ["Suspended", "Resumed", "DeadlineExceeded"]);
}

#[test]
fn a_clock_that_is_set_ends_no_job() {
    let mut scene = Scene::new(json!({"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 60}));
    scene.now = at(5);
    scene.run();
    scene.now = at(20_000);
    assert_eq!((scene.run().at, scene.verdict()), (Some(at(20_060)), None));
    scene.end(None, 0);
    scene.now = at(6);
    scene.run();
    assert_eq!(scene.verdict(), Some((true, "CompletionsReached")));
    scene.now = at(30_000);
    assert_eq!(scene.step(), Next { at: Some(at(30_060)), is_expired: false });
    scene.pass(60);
    assert!(scene.step().is_expired && scene.pods.is_empty());
}

#[test]
fn a_pod_that_is_being_ended_is_replaced_at_once_or_once_it_has_failed() {
    for (policy, running) in [("TerminatingOrFailed", 1), ("Failed", 0)] {
        let mut scene = Scene::new(json!({"podReplacementPolicy": policy}));
        scene.run();
        let name = scene.pods[0].name.clone();
        scene.seen.get_mut(&name).unwrap().terminating = true;
        scene.step();
        scene.pass(10);
        scene.step();
        let others = scene.pods.iter().filter(|pod| pod.name != name).count();
        assert_eq!((others, scene.memory.failed), (running, u32::from(running > 0)), "{policy}");
        let seen = scene.seen.get_mut(&name).unwrap();
        (seen.succeeded, seen.terminating, seen.finished_at) = (Some(false), false, Some(scene.now));
        scene.run();
        scene.pass(10);
        scene.run();
        assert_eq!((scene.pods.iter().filter(|pod| pod.name != name).count(), scene.memory.failed), (1, 1), "{policy}");
    }
}

#[test]
fn of_many_pods_that_have_ended_the_newest_stay() {
    let mut scene = Scene::new(json!({"completions": 300, "parallelism": 300}));
    scene.run();
    (0..300).for_each(|_| scene.end(None, 0));
    scene.run();
    assert_eq!(
        (scene.pods.len(), scene.verdict(), scene.memory.succeeded),
        (100, Some((true, "CompletionsReached")), 300)
    );
}
