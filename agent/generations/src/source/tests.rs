//! A node in memory: one source, pods that behave as their image says, a disk that survives, and a clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use limpet_core::source::{Snapshots, SourceSnapshot};
use limpet_core::status::observed::{ObservedContainer, ObservedPod, ObservedPods};
use limpet_model::manifest;
use limpet_model::object::ObjectKey;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use proptest::prelude::*;

use crate::archive::{Save, StoredManifest};
use crate::settings::CheckAction;
use crate::{Archive, Facts, Generations, Moment, Order, Outcome, Policies, Policy, Settings, State};

const SOURCE: SourceKind = SourceKind::File;

/// A pod of that image, which says how it behaves: `good`, `never` (gets ready), `crash`, `fail`, `missing` (cannot be
/// pulled), and with `+config` it is as its ConfigMap says.
fn pod(name: &str, image: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: 'a.io/{image}', \
         envFrom: [{{configMapRef: {{name: {name}, optional: true}}}}]}}]}}}}"
    )
}

fn config(name: &str, behaviour: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{is: {behaviour}}}}}")
}

fn snapshot(documents: &[String]) -> Arc<SourceSnapshot> {
    let text = documents.join("\n---\n");
    let read = manifest::read(text.as_bytes(), "all.yaml", SOURCE, "edge1");
    assert!(read.faults.is_empty(), "{:?}", read.faults);
    Arc::new(SourceSnapshot {
        pods: read.pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect(),
        objects: read.objects.into_iter().map(|object| (object.key.clone(), object)).collect(),
        ready: true,
        ..SourceSnapshot::default()
    })
}

#[derive(Debug, Default, Clone)]
struct Disk {
    manifests: BTreeMap<u64, StoredManifest>,
    document: Option<Vec<u8>>,
}

impl Disk {
    fn write(&mut self, save: &Save) {
        for (number, stored) in &save.manifests {
            match stored {
                Some(stored) => drop(self.manifests.insert(*number, stored.clone())),
                None => drop(self.manifests.remove(number)),
            }
        }
        self.document = Some(save.document.clone());
    }

    fn load(&self) -> (State, Archive) {
        let restore = |number: u64| {
            let stored = self.manifests.get(&number)?;
            manifest::restore_last_good(&stored.manifest, &stored.origin, SOURCE, "edge1").ok()
        };
        let loaded = self.document.as_ref().map(|document| Archive::load(document, restore).unwrap());
        loaded.unwrap_or_default()
    }
}

struct Node {
    settings: Settings,
    generations: Generations,
    disk: Disk,
    raw: Arc<SourceSnapshot>,
    observed: ObservedPods,
    uptime: Duration,
    boots: u32,
    check: Result<(), String>,
    is_paused: bool,
    /// The images of the pods at each switch.
    switches: RefCell<Vec<String>>,
    reasons: Vec<&'static str>,
    restarted: Vec<PodKey>,
    /// Orders to restart pods get lost: the agent ends before.
    loses_orders: bool,
}

impl Node {
    fn new(policy: Policy) -> Self {
        Self::with(Settings { policies: Policies::default().with(SOURCE, policy), ..Settings::default() })
    }

    fn with(settings: Settings) -> Self {
        let disk = Disk::default();
        let (generations, _) = Self::open(&settings, &disk, 1, Duration::ZERO);
        Self {
            settings,
            generations,
            disk,
            raw: Arc::default(),
            observed: ObservedPods::default(),
            uptime: Duration::ZERO,
            boots: 1,
            check: Ok(()),
            is_paused: false,
            switches: RefCell::default(),
            reasons: Vec::new(),
            restarted: Vec::new(),
            loses_orders: false,
        }
    }

    fn open(settings: &Settings, disk: &Disk, boots: u32, uptime: Duration) -> (Generations, Vec<Save>) {
        let (state, archive) = disk.load();
        let names = (&Arc::from("edge1"), &Arc::from(format!("boot {boots}")));
        let now = Moment { uptime, wall: Timestamp::UNIX_EPOCH };
        Generations::new(settings.clone(), names, [(SOURCE, state, archive)], now)
    }

    fn now(&self) -> Moment {
        Moment { uptime: self.uptime, wall: Timestamp::UNIX_EPOCH }
    }

    fn publish(&mut self, documents: &[String]) {
        self.raw = snapshot(documents);
        self.run(true);
    }

    fn snapshots(&self) -> Snapshots {
        let mut snapshots = Snapshots::default();
        snapshots[SOURCE.index()] = Arc::clone(&self.raw);
        snapshots
    }

    fn effective(&mut self) -> Arc<SourceSnapshot> {
        let snapshots = self.snapshots();
        Arc::clone(&self.generations.expand(snapshots)[SOURCE.index()])
    }

    /// Turns until nothing changes. `writes`: what is decided reaches the disk; otherwise the agent ends there.
    fn run(&mut self, writes: bool) {
        for _ in 0..20 {
            let (snapshots, now) = (self.snapshots(), self.now());
            let rollout = |_: SourceKind, _: &ObjectKey| None;
            let facts = Facts { observed: &self.observed, rollout: &rollout, is_paused: self.is_paused };
            let saves = self.generations.turn(&snapshots, &facts, now);
            let mut has_changed = !saves.is_empty();
            if !writes && has_changed {
                return;
            }
            saves.iter().for_each(|save| self.disk.write(save));
            if has_changed {
                self.generations.remembered();
            }
            self.start_pods();
            let preparations: Vec<_> =
                self.generations.preparations().map(|(_, preparation)| Arc::clone(preparation)).collect();
            for preparation in preparations {
                let images = preparation.pods.iter().filter_map(|pod| pod.spec().containers[0].image.as_deref());
                let missing: Vec<&str> = images.filter(|image| image.contains("missing")).collect();
                has_changed |= missing.is_empty();
                let result = if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} is not there")) };
                self.generations.prepared(SOURCE, preparation.attempt, result);
            }
            let checks: Vec<_> = self.generations.checks().collect();
            for (source, number) in checks {
                has_changed = true;
                self.generations.checked(source, number, self.check.clone(), now);
            }
            self.reasons.extend(self.generations.take_notices().iter().map(|notice| notice.reason));
            let restarts = self.generations.take_restarts();
            if !self.loses_orders {
                has_changed |= !restarts.is_empty();
                restarts.iter().for_each(|key| self.restart_pod(key));
            }
            self.restarted.extend(restarts);
            if !has_changed {
                return;
            }
        }
        panic!("it never rests: {:?}", self.generations.views());
    }

    /// The containers of a pod begin anew.
    fn restart_pod(&mut self, key: &PodKey) {
        let Some(pod) = self.observed.pods.get(key) else { return };
        let mut pod = ObservedPod::clone(pod);
        pod.containers.values_mut().for_each(|container| container.restart_count += 1);
        self.observed = ObservedPods::new(self.observed.pods.update(key.clone(), Arc::new(pod)));
    }

    /// What is in effect runs, as its images say.
    fn start_pods(&mut self) {
        let effective = self.effective();
        let images = self.images();
        if self.switches.borrow().last() != Some(&images) {
            self.switches.borrow_mut().push(images);
        }
        let mut pods: OrdMap<PodKey, Arc<ObservedPod>> = OrdMap::new();
        for (key, record) in &effective.pods {
            let before = self.observed.pods.get(key).filter(|before| before.record.uid == record.uid);
            pods.insert(key.clone(), Arc::new(behave(record, &effective, before, self.uptime)));
        }
        self.observed = ObservedPods::new(pods);
    }

    /// Lets time pass, a second at a time.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.uptime += Duration::from_secs(1);
            self.start_pods();
            self.run(true);
        }
    }

    /// The agent ends and starts again, within the same boot or with another.
    fn restart(&mut self, reboots: bool) {
        if reboots {
            self.boots += 1;
            self.uptime = Duration::from_secs(20);
            self.observed = ObservedPods::default();
        }
        let (generations, saves) = Self::open(&self.settings, &self.disk, self.boots, self.uptime);
        self.generations = generations;
        if !saves.is_empty() {
            saves.iter().for_each(|save| self.disk.write(save));
            self.generations.remembered();
        }
        self.run(true);
    }

    /// The images and ConfigMaps in effect.
    fn images(&mut self) -> String {
        let effective = self.effective();
        let image = |pod: &Arc<PodRecord>| {
            let image = pod.spec().containers[0].image.clone().unwrap_or_default();
            format!("{}={}", pod.key.name().trim_end_matches("-edge1"), image.trim_start_matches("a.io/"))
        };
        let pods = effective.pods.values().map(image);
        let configs = effective.objects.keys().map(|key| format!("{}:{}", key.name, setting(&effective, &key.name)));
        pods.chain(configs).collect::<Vec<_>>().join(" ")
    }

    fn outcomes(&self) -> Vec<String> {
        let view = &self.generations.views()[0];
        let text = |generation: &crate::GenerationView| {
            let runs = if view.running == Some(generation.number) { "*" } else { "" };
            match &generation.outcome {
                Outcome::Good => format!("{}{runs} good", generation.number),
                Outcome::OnTrial => format!("{}{runs} on trial", generation.number),
                Outcome::Refused(why) => format!("{}{runs} refused: {why}", generation.number),
            }
        };
        view.generations.iter().map(text).collect()
    }
}

fn setting(snapshot: &SourceSnapshot, name: &str) -> String {
    let object = snapshot.objects.values().find(|object| *object.key.name == *name);
    let text = object.and_then(|object| object.data.get("is")?.bytes.expose_text().map(str::to_owned));
    text.unwrap_or_default()
}

fn behave(
    record: &Arc<PodRecord>,
    snapshot: &SourceSnapshot,
    before: Option<&Arc<ObservedPod>>,
    uptime: Duration,
) -> ObservedPod {
    let image = record.spec().containers[0].image.clone().unwrap_or_default();
    let configured = setting(snapshot, record.key.name().trim_end_matches("-edge1"));
    let behaviour = if image.contains("+config") || image.contains("config") { configured } else { image };
    let crashes = behaviour.contains("crash");
    // A container that is edited in place is restarted for that.
    let is_edited = |before: &Arc<ObservedPod>| before.record.spec().containers != record.spec().containers;
    let restarts = before.map_or(0, |before| before.containers["c"].restart_count + u32::from(is_edited(before)));
    let restart_count = restarts + u32::from(crashes && uptime.as_secs().is_multiple_of(10));
    let ready = behaviour.contains("good");
    let condition = PodCondition {
        type_: "Ready".to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        ..PodCondition::default()
    };
    let phase = if behaviour.contains("fail") { "Failed" } else { "Running" };
    ObservedPod {
        record: Arc::clone(record),
        allocated: None,
        static_cpus: false,
        status: PodStatus { phase: Some(phase.to_owned()), conditions: Some(vec![condition]), ..PodStatus::default() },
        note: None,
        terminating_since: None,
        containers: [("c".to_owned(), ObservedContainer { restart_count, ..ObservedContainer::default() })].into(),
    }
}

/// A node whose generation 1 is good.
fn good_node(policy: Policy) -> Node {
    let mut node = Node::new(policy);
    node.publish(&[pod("a", "good:1"), pod("b", "config"), config("b", "good")]);
    node.wait(11);
    assert_eq!(node.outcomes(), ["1* good"]);
    node
}

#[test]
fn a_good_update_is_committed_and_the_first_runs_without_any_before_it() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "good:2"), pod("b", "config"), config("b", "good")]);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(9);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(2);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
    assert!(node.generations.due().is_none() && !node.generations.awaits_pods());
    assert_eq!(node.reasons, ["GenerationStarted", "GenerationCommitted", "GenerationStarted", "GenerationCommitted"]);
}

#[test]
fn a_source_without_anything_has_no_generation_to_return_to() {
    let mut node = Node::new(Policy::All);
    node.raw = Arc::new(SourceSnapshot { ready: true, ..SourceSnapshot::default() });
    node.wait(20);
    assert!(node.outcomes().is_empty());
    node.publish(&[pod("a", "fail")]);
    node.wait(400);
    assert_eq!((node.outcomes(), node.images().as_str()), (vec!["1* on trial".to_owned()], "a=fail"));
}

#[test]
fn a_version_that_is_prepared_waits_for_containerd() {
    let mut node = good_node(Policy::All);
    node.is_paused = true;
    node.publish(&[pod("a", "good:2")]);
    assert_eq!(node.outcomes(), ["1* good"]);
    assert!(node.generations.due().is_some(), "nothing wakes it");
    node.is_paused = false;
    node.wait(11);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
}

#[test]
fn a_boot_is_judged_once_by_what_runs() {
    let mut node = good_node(Policy::All);
    node.restart(true);
    node.generations.begin_boot_check();
    let mut verdicts = Vec::new();
    for second in 0..30 {
        let (observed, now, is_paused) = (node.observed.clone(), node.now(), second < 5);
        let facts = Facts { observed: &observed, rollout: &|_, _| None, is_paused };
        verdicts.extend(node.generations.boot_verdict(&facts, now));
        node.wait(1);
    }
    assert_eq!(verdicts, [Ok(())]);
}

#[test]
fn what_does_not_work_is_undone_and_not_tried_again_until_it_changes() {
    for (image, seconds, why) in [
        ("never", 301, "pod default/a-edge1 is not ready"),
        ("crash", 45, "pod default/a-edge1 was restarted 4 times"),
        ("fail", 1, "pod default/a-edge1 has failed"),
    ] {
        let mut node = good_node(Policy::All);
        let bad = [pod("a", image), pod("b", "config"), config("b", "good")];
        node.publish(&bad);
        node.wait(seconds);
        assert_eq!(node.outcomes(), ["1* good".to_owned(), format!("2 refused: {why}")]);
        assert_eq!(node.images(), "a=good:1 b=config b:good");
        node.restart(false);
        node.restart(true);
        node.publish(&bad);
        node.wait(400);
        assert_eq!(node.outcomes().len(), 2, "{image} is tried again");
        assert_eq!(node.generations.views()[0].refused, Some(2));
        node.publish(&[pod("a", "good:3"), pod("b", "config"), config("b", "good")]);
        node.wait(11);
        assert_eq!(node.outcomes()[2], "3* good");
        node.publish(&bad);
        node.wait(400);
        assert_eq!(node.images(), "a=good:3 b=config b:good", "{image} is remembered");
    }
}

#[test]
fn the_restart_that_an_update_needs_itself_does_not_count() {
    let policies = Policies::default().with(SOURCE, Policy::All);
    let mut node = Node::with(Settings { policies, max_restarts: 0, ..Settings::default() });
    node.publish(&[pod("a", "good:1"), pod("b", "good")]);
    node.wait(11);
    node.publish(&[pod("a", "good:2"), pod("b", "good")]);
    node.wait(11);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
    node.publish(&[pod("a", "crash"), pod("b", "good")]);
    node.wait(10);
    assert_eq!(node.outcomes()[2], "3 refused: pod default/a-edge1 was restarted 1 times");
}

#[test]
fn a_config_map_that_breaks_a_sibling_returns_with_everything_else() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "good:2"), pod("b", "config"), config("b", "never")]);
    node.wait(301);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
    assert_eq!(node.restarted, [PodKey::new("default", "b-edge1")], "it may have read what was undone");
    node.restart(false);
    node.wait(400);
    assert_eq!((node.restarted.len(), node.generations.awaits_pods()), (1, false), "restarted twice");
}

#[test]
fn a_restart_that_the_end_of_the_agent_has_lost_is_ordered_again() {
    let mut node = good_node(Policy::All);
    node.loses_orders = true;
    node.publish(&[pod("a", "good:1"), pod("b", "config"), config("b", "never")]);
    node.wait(301);
    assert_eq!((node.images().as_str(), node.restarted.len()), ("a=good:1 b=config b:good", 1));
    node.wait(400);
    assert_eq!(node.restarted.len(), 1, "ordered twice in one life");
    assert!(node.generations.awaits_pods());
    node.loses_orders = false;
    // The pods are not found at once.
    let observed = std::mem::take(&mut node.observed);
    node.restart(false);
    node.observed = observed;
    node.wait(2);
    assert_eq!((node.restarted.len(), node.generations.awaits_pods()), (2, false));
    node.restart(false);
    node.wait(2);
    assert_eq!(node.restarted.len(), 2);
}

#[test]
fn probes_have_time_to_fail_where_only_a_config_map_has_changed() {
    let reader = |word: &str| {
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {containers: [{name: c, image: a.io/config, \
                   readinessProbe: {tcpSocket: {port: 80}}, envFrom: [{configMapRef: {name: b}}]}]}}";
        [pod.to_owned(), config("b", word)]
    };
    let mut node = Node::new(Policy::All);
    node.publish(&reader("good"));
    node.wait(11);
    node.publish(&reader("good, too"));
    node.wait(32);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(2);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
}

#[test]
fn with_the_policy_pods_config_maps_stay_as_they_are() {
    let mut node = good_node(Policy::Pods);
    node.publish(&[pod("a", "good:1"), pod("b", "config"), config("b", "never")]);
    assert_eq!((node.images().as_str(), node.outcomes().len()), ("a=good:1 b=config b:never", 1));
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.wait(301);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
}

#[test]
fn nothing_is_switched_while_an_image_is_missing() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "missing"), pod("b", "config"), config("b", "never")]);
    node.wait(1_000);
    assert_eq!((node.images().as_str(), node.outcomes().len()), ("a=good:1 b=config b:good", 1));
    assert_eq!(node.reasons.iter().filter(|reason| **reason == "GenerationWaiting").count(), 1);
    let images = node.generations.images();
    assert!(images.contains("a.io/missing:latest") && images.contains("a.io/good:1"), "{images:?}");
    node.publish(&[pod("a", "good:1"), pod("b", "config"), config("b", "good")]);
    assert!(node.generations.views()[0].waiting.is_none());
}

#[test]
fn what_had_not_worked_before_is_not_judged() {
    let mut node = Node::new(Policy::All);
    node.publish(&[pod("a", "good:1"), pod("b", "never")]);
    node.wait(400);
    assert_eq!(node.outcomes(), ["1* on trial"]);
    assert!(node.reasons.contains(&"GenerationNotReady"));
    node.publish(&[pod("a", "good:2"), pod("b", "never")]);
    node.wait(11);
    assert_eq!(node.outcomes(), ["2* good"]);
    // What an update has broken is judged in the next one.
    node.publish(&[pod("a", "never"), pod("b", "never")]);
    node.publish(&[pod("a", "never"), pod("b", "never"), pod("c", "good")]);
    node.wait(301);
    assert_eq!(node.images(), "a=good:2 b=never");
}

#[test]
fn an_edit_during_a_trial_returns_to_the_good_one_or_replaces_the_other() {
    let mut node = good_node(Policy::All);
    let first = [pod("a", "good:1"), pod("b", "config"), config("b", "good")];
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.publish(&first);
    assert_eq!(node.outcomes(), ["1* good"]);
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.wait(100);
    node.publish(&[pod("a", "never:2"), pod("b", "config"), config("b", "good")]);
    node.wait(250);
    assert_eq!(node.outcomes(), ["1 good", "4* on trial"], "its time began anew");
    node.wait(60);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
}

#[test]
fn a_check_has_to_be_passed_before_the_deadline() {
    let policies = Policies::default().with(SOURCE, Policy::All);
    let check = Some(CheckAction::Url("http://127.0.0.1/".to_owned()));
    let mut node = Node::with(Settings { policies, check, ..Settings::default() });
    node.publish(&[pod("a", "good:1")]);
    node.wait(11);
    assert_eq!(node.outcomes(), ["1* good"]);
    node.check = Err("refused".to_owned());
    node.publish(&[pod("a", "good:2")]);
    node.wait(100);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.check = Ok(());
    node.wait(6);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
    node.check = Err("refused".to_owned());
    node.publish(&[pod("a", "good:3")]);
    node.wait(306);
    assert_eq!(node.outcomes()[2], "3 refused: the check failed: refused");
}

#[test]
fn two_starts_of_the_node_during_a_trial_end_it_before_any_pod_starts() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.restart(true);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.boots += 1;
    let (generations, saves) = Node::open(&node.settings, &node.disk, node.boots, node.uptime);
    assert_eq!(saves.len(), 1);
    node.generations = generations;
    node.generations.remembered();
    assert_eq!(node.images(), "a=good:1 b=config b:good");
    assert_eq!(node.outcomes()[1], "2 refused: the node was started 2 times before it was good");
}

#[test]
fn nothing_is_judged_while_containerd_is_away_and_the_time_begins_anew() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.is_paused = true;
    node.wait(1_000);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.is_paused = false;
    node.wait(299);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(2);
    assert_eq!(node.outcomes()[0], "1* good");
}

#[test]
fn a_user_returns_to_a_good_generation_and_the_newer_one_stays_away() {
    let mut node = good_node(Policy::All);
    let order = |number| Order { source: None, number };
    assert!(node.generations.order(order(None), node.now()).is_err());
    let second = [pod("a", "good:2")];
    node.publish(&second);
    node.wait(11);
    assert_eq!(node.generations.order(order(None), node.now()), Ok((SOURCE, 1)));
    node.run(true);
    assert_eq!(node.outcomes(), ["1* good", "2 refused: a user returned to generation 1"]);
    node.publish(&second);
    node.restart(true);
    node.wait(400);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
    assert!(node.generations.order(order(Some(1)), node.now()).is_err(), "in effect already");
    assert!(node.generations.order(order(Some(2)), node.now()).is_err(), "not good");
    assert!(node.generations.order(order(Some(9)), node.now()).is_err(), "not there");
}

#[test]
fn a_pod_that_a_user_has_deleted_does_not_come_back() {
    let mut node = good_node(Policy::All);
    let mut deleting = SourceSnapshot::clone(&node.raw);
    let key = PodKey::new("default", "a-edge1");
    let mut record = PodRecord::clone(&deleting.pods[&key]);
    record.pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    deleting.pods.insert(key.clone(), Arc::new(record));
    node.raw = Arc::new(deleting);
    node.run(true);
    assert!(node.effective().pods[&key].is_deleting(), "it ends as its user wants");
    node.publish(&[pod("b", "config"), config("b", "never")]);
    node.wait(301);
    assert_eq!(node.images(), "b=config b:good");
}

#[test]
fn what_nobody_returns_to_is_forgotten_on_disk_too() {
    let mut node = Node::new(Policy::All);
    for number in 1..=8 {
        node.publish(&[pod("a", &format!("good:{number}")), pod("b", "good")]);
        node.wait(11);
        node.publish(&[pod("a", &format!("fail:{number}")), pod("b", "good")]);
        node.wait(2);
    }
    let outcomes = node.outcomes();
    assert_eq!(outcomes.len(), 6, "{outcomes:?}");
    assert_eq!(node.disk.manifests.len(), 7, "one of b, six of a");
    node.restart(true);
    assert_eq!(node.outcomes(), outcomes);
}

#[test]
fn a_refused_version_that_the_source_still_has_is_not_forgotten() {
    let mut node = Node::new(Policy::All);
    node.publish(&[pod("a", "good"), pod("b", "good")]);
    node.wait(11);
    let first = [pod("a", "fail:1"), pod("b", "good")];
    node.publish(&first);
    for number in 2..=3 {
        node.publish(&[pod("a", &format!("fail:{number}")), pod("b", "good")]);
    }
    // During a trial the source returns to what was refused first. The end of the trial makes one refused version too many.
    node.publish(&[pod("a", "never"), pod("b", "good")]);
    node.publish(&first);
    let switched = node.switches.borrow().len();
    node.wait(1_000);
    assert_eq!(node.images(), "a=good b=good");
    assert_eq!(node.switches.borrow().len(), switched + 1, "{:?}", node.outcomes());
}

/// What may happen to a node.
#[derive(Debug, Clone)]
enum Event {
    Publish(Vec<(&'static str, u8)>, &'static str),
    Wait(u64),
    /// The agent is killed before what it decides reaches the disk.
    KillBeforeWrite,
    Kill,
    Reboot,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let image = prop::sample::select(vec!["good", "never", "crash", "fail", "missing", "config"]);
    let pods = prop::collection::vec((image, 1_u8..3), 1..3);
    let config = prop::sample::select(vec!["good", "never", "crash"]);
    let event = prop_oneof![
        4 => (pods, config).prop_map(|(pods, config)| Event::Publish(pods, config)),
        4 => prop::sample::select(vec![1_u64, 5, 12, 60, 320]).prop_map(Event::Wait),
        1 => Just(Event::KillBeforeWrite),
        1 => Just(Event::Kill),
        1 => Just(Event::Reboot),
    ];
    prop::collection::vec(event, 1..30)
}

/// How many lives are tried: `PROPTEST_CASES`, or some for every run.
fn lives() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: lives(), ..ProptestConfig::default() })]

    /// No life with a good generation ends with neither it nor a better one, and no content that was refused is tried again.
    #[test]
    fn a_good_generation_always_returns(events in events()) {
        let mut node = good_node(Policy::All);
        for event in events {
            match event {
                Event::Publish(pods, config_is) => {
                    let mut documents = vec![config("p0", config_is)];
                    let pods = pods.iter().enumerate();
                    documents.extend(pods.map(|(at, (image, tag))| pod(&format!("p{at}"), &format!("{image}:{tag}"))));
                    node.publish(&documents);
                }
                Event::Wait(seconds) => node.wait(seconds),
                Event::KillBeforeWrite => {
                    node.uptime += Duration::from_secs(400);
                    node.start_pods();
                    node.run(false);
                    node.restart(false);
                }
                Event::Kill => node.restart(false),
                Event::Reboot => node.restart(true),
            }
            let view = &node.generations.views()[0];
            let is_good = |number: Option<u64>| {
                view.generations.iter().any(|generation| Some(generation.number) == number && generation.outcome == Outcome::Good)
            };
            let (state, _) = node.disk.load();
            let base = state.trial.as_ref().and_then(|trial| trial.base);
            prop_assert!(is_good(view.running) || is_good(base), "neither is good: {:?}", node.outcomes());
        }
        // The source rests: then what runs is good, and it stays. There are at most two switches: to its newest version, and
        // back.
        let switched = node.switches.borrow().len();
        node.wait(1_000);
        prop_assert!(node.switches.borrow().len() <= switched + 2, "back and forth: {:?}", &node.switches.borrow()[switched..]);
        let view = node.generations.views()[0].clone();
        let running = view.generations.iter().find(|generation| Some(generation.number) == view.running).unwrap();
        prop_assert_eq!(&running.outcome, &Outcome::Good);
        let (images, numbers) = (node.images(), node.outcomes());
        node.restart(true);
        node.restart(false);
        node.wait(1_000);
        prop_assert_eq!((node.images(), node.outcomes()), (images, numbers));
    }
}
