//! One run of a node in a cluster whose line is bad: what befalls both, and what must hold once the line is good again.
//!
//! The node itself is well, so nothing may restart: whatever the line does, a container runs once, from the moment its
//! pod is known until its pod is deleted. Afterwards the cluster's view is the node's, and everything was reported.

mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::SignedDuration;
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::view::{Contents, View};
use limpet_model::manifest;
use limpet_model::node::NodeAddresses;
use limpet_model::source::SourceKind;
use limpet_worker::fake::world::{Behaviour, World};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent::{Agent, Membership, NODE, pass};
use crate::run::Report;
use crate::server::{Backup, Line, PODS, SETTINGS, Server};

/// After the last fault: longer than it takes until a dead connection is noticed, with the longest pause and deadline.
const SETTLE_TIME: Duration = Duration::from_secs(200);
/// At most so many pods of each side.
const MAX_PODS_PER_SIDE: usize = 3;

pub(crate) fn run(seed: u64, trace: bool) -> Report {
    // What the agent spreads over time comes from here.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let place = PathBuf::from(format!("/dev/shm/limpet-simulate-{}-{seed}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let report = runtime.block_on(async {
        let mut node = Node::new(seed, trace, place.clone());
        node.live().await;
        node.settle().await;
        node.report()
    });
    drop(runtime);
    std::fs::remove_dir_all(&place).unwrap();
    report
}

struct Node {
    rng: fastrand::Rng,
    world: Arc<Mutex<World>>,
    server: Server,
    place: PathBuf,
    agent: Option<Agent>,
    /// The version of each static pod.
    files: BTreeMap<String, u32>,
    view: View,
    made: u32,
    /// The names of all pods that the apiserver has ever bound to the node.
    bound_before: BTreeSet<String>,
    changes: u64,
    /// With the number of the lease's renewals before it.
    backup: Option<(Backup, u64)>,
    /// A pod of the apiserver's was deleted since the backup.
    deleted: bool,
    /// Pods that a restored cluster may not have, although they were not deleted.
    restored: bool,
    violations: Vec<String>,
    begun: Instant,
}

impl Node {
    fn new(seed: u64, trace: bool, place: PathBuf) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(rng.u64(..), false);
        world.behaviour = Some(Behaviour { exits: None, obeys: Some(Duration::from_millis(100)) });
        let world = Arc::new(Mutex::new(world));
        let server = Server::new(rng.u64(..), trace);
        let mut node = Self {
            rng,
            world,
            server,
            place,
            agent: None,
            files: BTreeMap::new(),
            view: View::default(),
            made: 0,
            bound_before: BTreeSet::new(),
            changes: 0,
            backup: None,
            deleted: false,
            restored: false,
            violations: Vec::new(),
            begun: Instant::now(),
        };
        if node.rng.bool() {
            let (rate, slow) = (node.rng.u32(0..200), node.rng.u64(0..6_000));
            node.server.set_faults(rate, Duration::from_millis(slow));
        }
        node.start_agent();
        node
    }

    async fn live(&mut self) {
        for _ in 0..self.rng.usize(6..24) {
            self.step().await;
            let pause = match self.rng.u32(0..5) {
                0 => Duration::ZERO,
                1 => Duration::from_millis(self.rng.u64(0..200)),
                2 | 3 => Duration::from_millis(self.rng.u64(0..10_000)),
                _ => Duration::from_secs(self.rng.u64(0..120)),
            };
            self.pass(pause).await;
        }
    }

    async fn step(&mut self) {
        match self.rng.u32(0..35) {
            0..=3 => self.bind(),
            4..=6 => self.delete_bound(),
            7..=9 => self.create_own(),
            10 | 11 => self.edit_own(),
            12 | 13 => self.remove_own(),
            14..=19 => self.line_changes(),
            20 => self.flap().await,
            21 => self.network_changes(),
            22 | 23 => self.restart_agent().await,
            24 => self.server_restarts(),
            25 => self.touch_mirror(),
            26 => self.server_compacts(),
            27 => self.back_up(),
            28 => self.restore(),
            29 => self.delete_node_object(),
            30 | 31 => self.credentials_change(),
            32 | 33 => self.take_for_lost(),
            _ => self.clock_steps(),
        }
    }

    fn note(&self, step: String) {
        self.server.note(|| format!("-- {step}"));
    }

    /// The apiserver binds a pod to the node.
    fn bind(&mut self) {
        if self.bound().len() >= MAX_PODS_PER_SIDE {
            return;
        }
        let name = self.name_to_bind();
        self.note(format!("bind {name}"));
        // Half of them cannot start without an object of the apiserver's.
        let settings = if self.rng.bool() { json!([{ "configMapRef": { "name": SETTINGS } }]) } else { json!([]) };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": {
                "nodeName": NODE, "restartPolicy": "Always", "terminationGracePeriodSeconds": self.rng.u32(1..30),
                "hostNetwork": true, "automountServiceAccountToken": false, "enableServiceLinks": false,
                "containers": [{ "name": "main", "image": "image:1", "imagePullPolicy": "IfNotPresent", "envFrom": settings }],
            },
            "status": { "phase": "Pending" },
        });
        self.server.store(&format!("{PODS}/{name}"), pod);
    }

    /// A new name, or as a StatefulSet's successor has it: that of a pod that is gone, of which the node may still know.
    fn name_to_bind(&mut self) -> String {
        let there = self.server.pods();
        let gone: Vec<&String> = self.bound_before.iter().filter(|name| !there.contains_key(*name)).collect();
        if self.rng.bool()
            && let Some(name) = self.rng.choice(gone)
        {
            return name.clone();
        }
        self.made += 1;
        let name = format!("bound-{}", self.made);
        self.bound_before.insert(name.clone());
        name
    }

    /// The pods that the apiserver has itself, and has not deleted.
    fn bound(&self) -> Vec<String> {
        let pods = self.server.pods();
        let live = |(name, pod): (&String, &Value)| {
            let is_bound = name.starts_with("bound-") && pod["metadata"]["deletionTimestamp"].is_null();
            is_bound.then(|| name.clone())
        };
        pods.iter().filter_map(live).collect()
    }

    fn delete_bound(&mut self) {
        let Some(name) = self.rng.choice(self.bound()) else { return };
        let path = format!("{PODS}/{name}");
        self.deleted = true;
        if self.rng.u32(0..4) == 0 {
            self.note(format!("delete {name} by force"));
            self.server.remove(&path);
            return;
        }
        self.note(format!("delete {name}"));
        if let Some(mut pod) = self.server.get(&path) {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = pod["spec"]["terminationGracePeriodSeconds"].clone();
            self.server.store(&path, pod);
        }
    }

    fn create_own(&mut self) {
        if self.files.len() >= MAX_PODS_PER_SIDE {
            return;
        }
        self.made += 1;
        let name = format!("own-{}", if self.rng.bool() { self.made } else { self.rng.u32(1..self.made + 1) });
        if self.files.contains_key(&name) {
            return;
        }
        self.note(format!("create {name}"));
        let version = self.rng.u32(..);
        self.read(&name, version);
    }

    fn edit_own(&mut self) {
        let names: Vec<String> = self.files.keys().cloned().collect();
        let Some(name) = self.rng.choice(names) else { return };
        self.note(format!("edit {name}"));
        let version = self.files[&name].wrapping_add(1);
        self.read(&name, version);
    }

    fn remove_own(&mut self) {
        let names: Vec<String> = self.files.keys().cloned().collect();
        let Some(name) = self.rng.choice(names) else { return };
        self.note(format!("remove {name}"));
        self.files.remove(&name);
        self.view.remove(&Arc::from(name.as_str()));
        self.publish();
    }

    /// The source reads the file of a static pod.
    fn read(&mut self, name: &str, version: u32) {
        let text = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "hostNetwork": true, "terminationGracePeriodSeconds": 2,
                "containers": [{ "name": "main", "image": "image:1", "env": [{ "name": "V", "value": version.to_string() }] }],
            },
        });
        let origin: Arc<str> = Arc::from(name);
        let read = manifest::read(text.to_string().as_bytes(), &origin, SourceKind::File, NODE);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        self.view.accept(&origin, read, Contents::default);
        self.files.insert(name.to_owned(), version);
        self.publish();
    }

    fn publish(&mut self) {
        if let Some(agent) = &self.agent {
            agent.publish(&mut self.view);
        }
    }

    fn line_changes(&mut self) {
        let lines = [Line::Open, Line::Open, Line::Open, Line::Refused, Line::Deaf, Line::Mute, Line::Cut];
        let line = lines[self.rng.usize(0..lines.len())];
        self.note(format!("the line is {line:?}"));
        self.server.set_line(line);
    }

    /// The node's certificate expires, or has been renewed.
    fn credentials_change(&mut self) {
        let expired = self.rng.bool();
        self.note(format!("the node's credentials are expired: {expired}"));
        self.server.set_expired(expired);
    }

    /// The node's clock is set: by an hour or by a year, forth or back.
    fn clock_steps(&mut self) {
        let hours = [1, -1, 24 * 365, -24 * 365][self.rng.usize(0..4)];
        self.note(format!("the node's clock is set by {hours} hours"));
        self.world.lock().unwrap().set_clock_by(SignedDuration::from_hours(hours));
    }

    /// Many changes in short time.
    async fn flap(&mut self) {
        self.note("the line flaps".to_owned());
        for _ in 0..self.rng.u32(5..40) {
            let line = [Line::Refused, Line::Deaf, Line::Mute, Line::Cut][self.rng.usize(0..4)];
            for line in [line, Line::Open] {
                self.server.set_line(line);
                let hold = Duration::from_millis(self.rng.u64(10..1_000));
                self.pass(hold).await;
            }
        }
    }

    /// The kernel reports a link that comes or goes.
    fn network_changes(&mut self) {
        self.note("the node's links change".to_owned());
        self.changes += 1;
        if let Some(agent) = &self.agent {
            agent.network.send_replace(self.network());
        }
    }

    fn network(&self) -> NodeNetwork {
        NodeNetwork { addresses: NodeAddresses::single([10, 0, 0, 1].into()), changes: self.changes }
    }

    async fn restart_agent(&mut self) {
        let kill = self.rng.bool();
        self.note(format!("the agent restarts, killed: {kill}"));
        if let Some(agent) = self.agent.take() {
            if kill { agent.kill().await } else { agent.stop().await }
        }
        self.world.lock().unwrap().events = None;
        let away = Duration::from_millis(self.rng.u64(0..30_000));
        self.pass(away).await;
        self.start_agent();
    }

    fn start_agent(&mut self) {
        let network = self.network();
        let membership = Membership { client: self.server.client(), database: self.place.join("limpet.db") };
        self.agent = Some(Agent::join(&self.world, &mut self.view, network, membership));
    }

    fn server_restarts(&mut self) {
        self.note("the server restarts".to_owned());
        self.server.restart();
    }

    fn server_compacts(&mut self) {
        self.note("the server forgets older changes".to_owned());
        self.server.compact();
    }

    fn back_up(&mut self) {
        self.note("a backup is made".to_owned());
        self.backup = Some((self.server.back_up(), self.server.renewals()));
        self.deleted = false;
    }

    fn restore(&mut self) {
        let Some((backup, renewals)) = self.backup.take() else { return };
        // The lease shows it by a renewal since then that the node knows of: the second one follows an answer to the
        // first, or its loss. And a deletion that the node has begun is not taken back.
        let renewed = self.server.renewals() > renewals + 1;
        if renewed && !self.deleted {
            self.note("the backup is restored".to_owned());
            self.server.restore(backup);
            self.restored = true;
        }
    }

    /// Somebody deletes a mirror, or edits one.
    fn touch_mirror(&mut self) {
        let mirrors: Vec<String> = self.server.pods().into_keys().filter(|name| name.starts_with("own-")).collect();
        let Some(name) = self.rng.choice(mirrors) else { return };
        let path = format!("{PODS}/{name}");
        self.note(format!("touch the mirror {name}"));
        if self.rng.bool() {
            self.server.remove(&path);
        } else if let Some(mut mirror) = self.server.get(&path) {
            mirror["spec"]["activeDeadlineSeconds"] = json!(1);
            self.server.store(&path, mirror);
        }
    }

    /// kube-controller-manager takes the node for lost: none of its pods is ready.
    fn take_for_lost(&mut self) {
        self.note("the node is taken for lost".to_owned());
        for (name, mut pod) in self.server.pods() {
            let conditions = pod["status"]["conditions"].as_array_mut();
            let Some(ready) = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready") else {
                continue;
            };
            ready["status"] = json!("False");
            self.server.store(&format!("{PODS}/{name}"), pod);
        }
    }

    fn delete_node_object(&mut self) {
        self.note("the Node object is deleted".to_owned());
        self.server.remove(&format!("/api/v1/nodes/{NODE}"));
    }

    async fn pass(&mut self, time: Duration) {
        pass(&self.world, time).await;
    }

    /// The line is good again: everything comes to rest.
    async fn settle(&mut self) {
        self.note("the line is good".to_owned());
        self.server.set_faults(0, Duration::ZERO);
        self.server.set_expired(false);
        self.server.set_line(Line::Open);
        self.pass(SETTLE_TIME).await;
        if self.restored {
            self.check_held();
            self.note("the cluster is accepted".to_owned());
            self.agent.as_ref().unwrap().accept_cluster().await;
            self.pass(Duration::from_secs(120)).await;
        }
        self.check();
    }

    fn report(self) -> Report {
        let mut trace = self.server.take_trace();
        trace.extend(self.violations.iter().map(|what| format!("VIOLATION {what}")));
        Report {
            starts: self.world.lock().unwrap().starts(),
            violations: self.violations,
            trace,
            virtual_seconds: self.begun.elapsed().as_secs(),
        }
    }
}
