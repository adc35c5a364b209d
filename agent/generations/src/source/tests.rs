//! A node in memory: one source, pods that behave as their image says, a disk that survives, and a clock.

mod history;
mod life;
mod policy;
mod restart;
mod trial;

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
