//! Tables: which runs of a CronJob begin, with which clocks.

use jiff::SignedDuration;
use limpet_model::object::workload::{PodTemplate, WorkloadSpec};
use limpet_model::source::SourceKind;
use serde_json::{Value, json};

use super::*;

/// A CronJob with a clock.
struct Scene {
    spec: CronJob,
    template: PodTemplate,
    memory: Memory,
    pace: Pace,
    /// The pods that have succeeded.
    over: BTreeSet<String>,
    now: Timestamp,
    said: Vec<String>,
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

impl Scene {
    fn new(fields: Value, now: &str) -> Self {
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i:1"}]}});
        let mut document = json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "backup", "namespace": "shop"},
            "spec": {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": template}}},
        });
        for (field, value) in fields.as_object().unwrap() {
            document["spec"][field] = value.clone();
        }
        let text = document.to_string();
        let read = limpet_model::manifest::read(text.as_bytes(), "cron.yaml", SourceKind::File, "edge1");
        assert_eq!(read.faults, []);
        let workload = read.objects[0].workload.as_ref().unwrap();
        let spec = match &workload.spec {
            WorkloadSpec::CronJob(spec) => CronJob::clone(spec),
            other => panic!("{other:?}"),
        };
        let mut memory = Memory::default();
        memory.begin_revision(&workload.template.hash(), &workload.template, None);
        let (pace, over, said) = (Pace::default(), BTreeSet::new(), Vec::new());
        Self { spec, template: workload.template.clone(), memory, pace, over, now: time(now), said }
    }

    fn step_in(&mut self, zone: Option<TimeZone>) -> Option<Timestamp> {
        let key = ObjectKey::new(ObjectKind::CronJob, "shop", "backup");
        let pods = self.memory.pods.clone();
        let mut seen: BTreeMap<&str, BTreeMap<&str, Seen>> = BTreeMap::new();
        for pod in &pods {
            let is_over = self.over.contains(&pod.name);
            let what = Seen { succeeded: is_over.then_some(true), finished_at: Some(self.now), ..Seen::default() };
            seen.entry(&pod.task.as_ref().unwrap().job).or_default().insert(&pod.name, what);
        }
        let clock = Clock { now: self.now, earliest: time("2026-11-01T00:00:00Z") };
        let hash = self.template.hash();
        let situation =
            Situation { node_name: "edge1", key: &key, spec: &self.spec, hash: &hash, observed: &seen, clock };
        // What is remembered goes through the disk.
        self.memory = Memory::from_bytes(&self.memory.to_bytes()).unwrap();
        let mut notices = Notices::default();
        let at = step(&mut self.memory, &mut self.pace, &situation, zone.as_ref(), &mut notices);
        let new = notices.0.into_iter().filter(|notice| notice.object.kind == ObjectKind::CronJob);
        self.said.extend(new.map(|notice| notice.reason.into_owned()));
        at
    }

    fn step(&mut self) -> Option<Timestamp> {
        self.step_in(Some(TimeZone::UTC))
    }

    /// At that time. Returns the minutes at which Jobs began that are still there, of one hour.
    fn at(&mut self, now: &str) -> Vec<String> {
        self.now = time(now);
        self.step();
        self.jobs()
    }

    fn jobs(&self) -> Vec<String> {
        let jobs = &self.memory.cron.as_ref().unwrap().jobs;
        jobs.iter().map(|made| made.scheduled.strftime("%dT%H:%M").to_string()).collect()
    }

    fn finish_all(&mut self) {
        self.over.extend(self.memory.pods.iter().map(|pod| pod.name.clone()));
    }
}

#[test]
fn a_job_begins_at_each_time_and_is_named_by_its_minutes() {
    let mut scene = Scene::new(json!({}), "2026-11-29T10:17:30Z");
    assert_eq!((scene.step(), scene.jobs()), (Some(time("2026-11-29T11:00:00Z")), vec![]));
    assert_eq!(scene.at("2026-11-29T11:00:00Z"), ["29T11:00"]);
    let made = &scene.memory.cron.as_ref().unwrap().jobs[0];
    assert_eq!((made.name.as_str(), scene.memory.pods.len()), ("backup-29932500", 1));
    assert_eq!(scheduled("backup", "backup-29932500"), Some(time("2026-11-29T11:00:00Z")));
    assert_eq!(scene.step(), Some(time("2026-11-29T12:00:00Z")));
    assert_eq!((scene.jobs().len(), scene.memory.pods.len()), (1, 1), "it does not begin twice");
    scene.finish_all();
    scene.step();
    assert_eq!(scene.said, ["SuccessfulCreate", "SawCompletedJob"]);
}

#[test]
fn after_a_power_cut_the_last_run_that_was_missed_begins() {
    let mut scene = Scene::new(json!({}), "2026-11-29T10:17:30Z");
    scene.step();
    assert_eq!(scene.at("2026-11-29T14:30:00Z"), ["29T14:00"]);
    scene.finish_all();
    scene.step();
    scene.pace = Pace::default();
    assert_eq!(scene.at("2026-12-09T14:30:00Z"), ["29T14:00", "09T14:00"]);
    assert_eq!(scene.said, ["SuccessfulCreate", "SawCompletedJob", "TooManyMissedTimes", "SuccessfulCreate"]);
}

#[test]
fn a_run_that_is_too_late_does_not_begin() {
    let mut scene = Scene::new(json!({"startingDeadlineSeconds": 600}), "2026-11-29T10:17:30Z");
    scene.step();
    assert_eq!(scene.at("2026-11-29T14:30:00Z"), Vec::<String>::new());
    assert_eq!(scene.step(), Some(time("2026-11-29T15:00:00Z")));
    assert_eq!(scene.at("2026-11-29T15:09:00Z"), ["29T15:00"]);
}

#[test]
fn without_a_clock_that_can_be_right_nothing_begins_and_nothing_twice() {
    let mut scene = Scene::new(json!({}), "1970-01-01T00:00:05Z");
    assert_eq!(scene.step(), Some(time("2026-11-01T00:00:00Z")));
    assert_eq!(scene.at("1970-01-05T00:00:05Z"), Vec::<String>::new());
    assert_eq!(scene.at("2026-11-29T10:17:00Z"), Vec::<String>::new(), "what was due before it was seen is not missed");
    assert_eq!(scene.at("2026-11-29T11:00:00Z"), ["29T11:00"]);
    // The clock is set back, and shows the same time again.
    assert_eq!(scene.at("2026-11-29T09:30:00Z"), ["29T11:00"]);
    assert_eq!(scene.step(), Some(time("2026-11-29T12:00:00Z")));
    assert_eq!(scene.at("2026-11-29T10:00:00Z"), ["29T11:00"]);
    assert_eq!(scene.at("2026-11-29T11:00:00Z"), ["29T11:00"]);
    assert_eq!(scene.at("1970-01-01T00:00:05Z"), ["29T11:00"]);
    assert_eq!(scene.at("2026-11-29T12:00:00Z"), ["29T11:00", "29T12:00"]);
}

#[test]
fn jobs_that_overlap_are_as_the_policy_says() {
    for (policy, jobs, reason) in [
        ("Allow", vec!["29T11:00", "29T12:00"], "SuccessfulCreate"),
        ("Forbid", vec!["29T11:00"], "JobAlreadyActive"),
        ("Replace", vec!["29T12:00"], "SuccessfulCreate"),
    ] {
        let mut scene = Scene::new(json!({"concurrencyPolicy": policy}), "2026-11-29T10:17:30Z");
        scene.step();
        scene.at("2026-11-29T11:00:00Z");
        assert_eq!(scene.at("2026-11-29T12:00:00Z"), jobs, "{policy}");
        scene.step();
        assert_eq!((scene.said.last().unwrap().as_str(), scene.memory.pods.len()), (reason, jobs.len()), "{policy}");
        // Once the other one has ended, the one that was held back begins.
        scene.finish_all();
        let after = scene.at("2026-11-29T12:30:00Z");
        assert_eq!(after.last().map(String::as_str), Some("29T12:00"), "{policy}");
    }
}

#[test]
fn the_history_is_limited_and_nothing_begins_while_suspended() {
    let mut scene = Scene::new(json!({"successfulJobsHistoryLimit": 2}), "2026-11-29T10:17:30Z");
    scene.step();
    for hour in 11..16 {
        scene.at(&format!("2026-11-29T{hour}:00:00Z"));
        scene.finish_all();
        scene.step();
    }
    assert_eq!((scene.jobs(), scene.memory.pods.len()), (vec!["29T14:00".to_owned(), "29T15:00".to_owned()], 2));
    scene.spec.suspend = true;
    assert_eq!((scene.at("2026-11-29T16:30:00Z").len(), scene.step()), (2, None));
    scene.spec.suspend = false;
    assert_eq!(scene.at("2026-11-29T16:30:00Z").last().unwrap(), "29T16:00");
}

#[test]
fn a_zone_that_the_node_lacks_is_reported_once() {
    let mut scene = Scene::new(json!({"timeZone": "Europe/Berlin"}), "2026-11-29T10:17:30Z");
    assert_eq!((scene.step_in(None), scene.step_in(None)), (None, None));
    assert_eq!(scene.said, ["UnknownTimeZone"]);
    let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
    scene.spec.schedule = limpet_model::object::workload::cron_job::Schedule::parse("0 3 * * *").unwrap();
    assert_eq!(scene.step_in(Some(berlin)), Some(time("2026-11-30T02:00:00Z")));
}

#[test]
fn a_job_keeps_its_template_and_its_pods_go_after_their_time() {
    let mut scene = Scene::new(json!({}), "2026-11-29T10:17:30Z");
    scene.spec.job["ttlSecondsAfterFinished"] = json!(60);
    scene.step();
    scene.at("2026-11-29T11:00:00Z");
    let hash = scene.memory.pods[0].hash.clone();
    scene.template = PodTemplate::new(&json!({"spec": {"restartPolicy": "Never", "containers": []}}));
    scene.memory.begin_revision(&scene.template.hash(), &scene.template, None);
    scene.step();
    assert_eq!((scene.memory.pods[0].hash.as_str(), scene.memory.revisions.len()), (hash.as_str(), 2));
    scene.finish_all();
    assert_eq!(scene.step(), Some(scene.now + SignedDuration::from_secs(60)));
    assert_eq!(scene.at("2026-11-29T11:01:00Z"), Vec::<String>::new());
    scene.step();
    assert_eq!((scene.memory.pods.len(), scene.memory.revisions.len()), (0, 1));
}
