//! Supervisor and workers over the fake executor, with a virtual clock: back-off, adoption, termination, shutdown, and
//! calls that hang. Each case scripts what the processes and the calls do.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "simulate/agent.rs"]
mod agent;
#[path = "workers/eviction.rs"]
mod eviction;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agent::{Agent, NODE, pass};
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::view::{Contents, View};
use limpet_model::container::ContainerId;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::manifest;
use limpet_model::node::{NodeAddresses, Pressure};
use limpet_model::source::SourceKind;
use limpet_model::verdict::{Eviction, PodVerdict};
use limpet_worker::fake::Fault;
use limpet_worker::fake::world::{Behaviour, World};
use limpet_worker::inbox::EvictionOrder;
use serde_json::{Value, json};
use tokio::sync::oneshot;

const SECOND: Duration = Duration::from_secs(1);
/// Processes that run until SIGTERM, and end at once then.
const OBEDIENT: Behaviour = Behaviour { exits: None, obeys: Some(Duration::ZERO) };

/// A node, its manifests, and its agent while there is one.
struct Node {
    world: Arc<Mutex<World>>,
    view: View,
    agent: Option<Agent>,
}

impl Node {
    fn new(behaviour: Behaviour) -> Self {
        let mut world = World::new(1, true);
        world.behaviour = Some(behaviour);
        let mut node = Self { world: Arc::new(Mutex::new(world)), view: View::default(), agent: None };
        node.start_agent();
        node
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn start_agent(&mut self) {
        let network = network(NodeAddresses::single([10, 0, 0, 1].into()));
        self.agent = Some(Agent::start(&self.world, &mut self.view, network));
    }

    async fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill().await;
        self.world().events = None;
    }

    /// Writes the manifest of a pod with one container of that image.
    fn write(&mut self, name: &str, image: &str) {
        self.write_with(name, image, &json!([]));
    }

    /// The same with the environment `env`.
    fn write_with(&mut self, name: &str, image: &str, env: &Value) {
        self.write_container(name, json!({ "image": image, "env": env }));
    }

    /// Writes the manifest of a pod whose only container is `container`.
    fn write_container(&mut self, name: &str, container: Value) {
        self.write_pod(name, json!({ "containers": [container] }));
    }

    /// Writes the manifest of a pod of that spec, which has one container.
    fn write_pod(&mut self, name: &str, spec: Value) {
        self.write_incarnation(json!({ "name": name }), spec);
    }

    /// The same with that metadata.
    fn write_incarnation(&mut self, metadata: Value, mut spec: Value) {
        let name: Arc<str> = metadata["name"].as_str().unwrap().into();
        spec["hostNetwork"] = json!(true);
        spec["terminationGracePeriodSeconds"] = json!(7);
        spec["containers"][0]["name"] = json!("c");
        spec["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        let read = manifest::read(pod.to_string().as_bytes(), &name, SourceKind::File, NODE);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        self.view.accept(&name, read, Contents::default);
        self.agent.as_ref().unwrap().publish(&mut self.view);
    }

    fn remove(&mut self, name: &str) {
        self.view.remove(&Arc::from(name));
        self.agent.as_ref().unwrap().publish(&mut self.view);
    }

    async fn pass(&self, time: Duration) {
        pass(&self.world, time).await;
    }

    /// When steps whose text contains `what` took place, in whole seconds since the node's start.
    fn seconds_of(&self, what: &str) -> Vec<u64> {
        let mut world = self.world();
        let lines = world.trace.as_mut().unwrap();
        let matching = lines.iter().filter(|line| line.contains(what));
        matching.map(|line| line.trim_start().split('.').next().unwrap().parse().unwrap()).collect()
    }

    /// How many processes have ever been started.
    fn starts(&self) -> u64 {
        self.world().starts()
    }

    fn running(&self) -> Vec<u32> {
        self.world().running()
    }

    /// Why the container of a pod waits, as its status says it; `None`: it does not wait.
    fn waiting_reason(&self, name: &str) -> Option<String> {
        let observed = self.agent.as_ref().unwrap().observed.load();
        let pod = observed.pods.values().find(|pod| pod.record.key.name().starts_with(name))?;
        let container = pod.status.container_statuses.as_ref()?.first()?;
        container.state.as_ref()?.waiting.as_ref()?.reason.clone()
    }

    /// The reason in a pod's status; `None`: there is none.
    fn reason(&self, name: &str) -> Option<String> {
        let observed = self.agent.as_ref().unwrap().observed.load();
        let pod = observed.pods.values().find(|pod| pod.record.key.name().starts_with(name))?;
        pod.status.reason.clone()
    }

    /// The node is short of these from now on, and of nothing else.
    fn set_pressure(&self, conditions: &[Pressure]) {
        self.agent.as_ref().unwrap().pressure.send_replace(conditions.iter().copied().collect());
    }

    /// Has a pod ended for lack of disk; the result says when nothing is left of it.
    async fn evict(&self, name: &str) -> oneshot::Receiver<()> {
        let agent = self.agent.as_ref().unwrap();
        let observed = agent.observed.load();
        let record = &observed.pods.values().find(|pod| pod.record.key.name().starts_with(name)).unwrap().record;
        let eviction = Eviction { pressure: Pressure::Disk, grace_seconds: 1 };
        let verdict = PodVerdict::evicted_under_pressure(eviction, "low".to_owned());
        let (done, ended) = oneshot::channel();
        let order = EvictionOrder { key: record.key.clone(), uid: record.uid.clone(), verdict, done };
        agent.evictions.send(order).await.unwrap();
        ended
    }

    /// Writes the manifest of a pod that listens at a port of the node.
    fn write_listening(&mut self, name: &str, port: u16) {
        self.write_container(name, json!({ "image": "app:1", "ports": [{ "containerPort": port }] }));
    }

    /// The images of the pods that are to run.
    fn desired_images(&self) -> Vec<String> {
        let desired = self.agent.as_ref().unwrap().desired.load();
        desired.pods.values().filter_map(|record| record.spec().containers[0].image.clone()).collect()
    }

    fn assert_no_violation(&self) {
        assert!(self.world().violations.is_empty(), "{:?}", self.world().violations);
    }
}

fn network(addresses: NodeAddresses) -> NodeNetwork {
    NodeNetwork { addresses, changes: 0 }
}

fn differences(times: &[u64]) -> Vec<u64> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_crashing_container_waits_ten_seconds_doubling_to_five_minutes() {
    let mut node = Node::new(Behaviour { exits: Some((Duration::ZERO, 1)), obeys: None });
    node.write("web", "app:1");
    node.pass(Duration::from_secs(1_300)).await;
    let pauses = differences(&node.seconds_of("start "));
    // The first restart comes at once; calls take some milliseconds, so a pause may fall into the next second.
    let expected = [0, 10, 20, 40, 80, 160, 300, 300, 300];
    assert_eq!(pauses.len(), expected.len(), "{pauses:?}");
    for (pause, expected) in pauses.iter().zip(expected) {
        assert!(pause.abs_diff(expected) <= 1, "{pauses:?}");
    }
    assert_eq!(node.waiting_reason("web").as_deref(), Some("CrashLoopBackOff"));
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_run_of_more_than_ten_minutes_clears_the_back_off() {
    let mut node = Node::new(Behaviour { exits: Some((Duration::ZERO, 1)), obeys: None });
    node.write("web", "app:1");
    node.pass(SECOND * 40).await;
    node.world().behaviour = Some(Behaviour { exits: Some((SECOND * 601, 1)), obeys: None });
    node.pass(SECOND * 641).await;
    let before = node.starts();
    node.world().behaviour = Some(OBEDIENT);
    let restarted = node.seconds_of("start ");
    let exited = node.seconds_of("exit ");
    node.pass(SECOND * 5).await;
    assert!(node.starts() <= before + 1);
    assert!(restarted.last().unwrap().abs_diff(*exited.last().unwrap()) <= 1, "{restarted:?} {exited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_restarts_nothing_and_keeps_the_back_off() {
    let mut node = Node::new(OBEDIENT);
    node.write("web", "app:1");
    node.pass(SECOND).await;
    let pid = node.running();
    node.kill_agent().await;
    node.pass(SECOND * 20).await;
    node.start_agent();
    node.pass(SECOND * 20).await;
    assert_eq!((node.running(), node.starts()), (pid.clone(), 1), "adopted as it runs");

    // It exits while no agent runs: restarted once by the next agent, and the pause after that is kept.
    node.kill_agent().await;
    node.world().exit(pid[0], 1);
    node.pass(SECOND).await;
    node.start_agent();
    node.pass(SECOND).await;
    assert_eq!(node.starts(), 2);
    let pid = node.running();
    node.world().exit(pid[0], 1);
    node.pass(SECOND).await;
    node.kill_agent().await;
    node.start_agent();
    node.pass(SECOND * 5).await;
    assert_eq!(node.starts(), 2, "10 s are not over");
    node.pass(SECOND * 6).await;
    assert_eq!(node.starts(), 3);
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_a_new_agent_cannot_examine_restarts_nothing() {
    let mut node = Node::new(OBEDIENT);
    node.write("web", "app:1");
    node.pass(SECOND).await;
    node.kill_agent().await;
    for _ in 0..3 {
        node.world().faults.push_back(("FindSandbox", Fault::Before));
    }
    node.start_agent();
    node.pass(SECOND * 60).await;
    assert_eq!((node.starts(), node.running().len()), (1, 1));
    assert!(node.world().faults.is_empty(), "it was examined until that was answered");
    let pid = node.running();
    node.world().exit(pid[0], 1);
    node.pass(SECOND * 20).await;
    assert_eq!(node.starts(), 2, "its containers are restarted in it");
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn what_ignores_sigterm_is_killed_when_its_grace_is_over() {
    let mut node = Node::new(Behaviour { exits: None, obeys: None });
    node.write("web", "app:1");
    node.pass(SECOND).await;
    node.remove("web");
    node.pass(SECOND * 60).await;
    let (term, exit) = (node.seconds_of("SIGTERM"), node.seconds_of("exit "));
    assert_eq!((term.len(), exit.len()), (1, 1));
    assert!(exit[0] - term[0] == 7 || exit[0] - term[0] == 8, "{term:?} {exit:?}");
    assert_eq!(node.seconds_of("torn down").len(), 1);
    assert!(node.world().pods().is_empty());
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn of_quick_edits_only_the_last_version_starts() {
    let mut node = Node::new(OBEDIENT);
    node.write("web", "app:1");
    node.pass(SECOND).await;
    for image in 2..9 {
        node.write("web", &format!("app:{image}"));
    }
    node.pass(SECOND * 30).await;
    assert_eq!((node.starts(), node.running().len()), (2, 1));
    assert_eq!((node.desired_images(), node.waiting_reason("web")), (vec!["app:8".to_owned()], None));
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_delays_no_other_pod() {
    for call in ["PrepareSandbox", "EnsureImage", "Start"] {
        let mut node = Node::new(OBEDIENT);
        node.world().faults.push_back((call, Fault::Hang));
        node.write("stuck", "app:1");
        node.pass(SECOND).await;
        node.write("web", "app:1");
        node.pass(SECOND).await;
        assert_eq!(node.starts(), 1, "{call}: only web runs");
        let pid = node.running();
        node.world().exit(pid[0], 1);
        node.pass(SECOND).await;
        assert_eq!(node.starts(), 2, "{call}: its exit was met");
        node.remove("web");
        node.pass(SECOND).await;
        assert!(node.running().is_empty(), "{call}: its deletion was met");
        node.pass(SECOND * 600).await;
        assert_eq!(node.running().len(), 1, "{call}: the stuck pod runs in the end");
        node.assert_no_violation();
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_stops_leaves_containers_running_and_waits_ten_seconds_for_a_call() {
    let mut node = Node::new(OBEDIENT);
    node.write("web", "app:1");
    node.pass(SECOND).await;
    node.world().faults.push_back(("PrepareSandbox", Fault::Hang));
    node.write("stuck", "app:1");
    node.pass(SECOND).await;
    let begun = tokio::time::Instant::now();
    node.agent.take().unwrap().stop().await;
    assert_eq!(begun.elapsed().as_secs(), 10, "the call hangs for two minutes");
    assert_eq!(node.running().len(), 1);
    node.world().events = None;
    node.start_agent();
    node.pass(SECOND * 30).await;
    assert_eq!((node.running().len(), node.starts()), (2, 2));
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn each_kill_of_the_oom_killer_that_a_container_survives_is_reported_once() {
    let reported = |node: &Node| -> Vec<_> {
        let events = node.agent.as_ref().unwrap().events.snapshot();
        events.iter().filter(|event| event.reason == "OOMKilling").map(|event| event.message.to_string()).collect()
    };
    let message = |kills| format!("Memory limit reached: {kills} processes of container c were killed; it runs on");
    let mut node = Node::new(OBEDIENT);
    // Before the start is recorded, and without an event.
    node.world().oom_kills = 2;
    node.write("web", "app:1");
    node.pass(SECOND * 10).await;
    assert_eq!(reported(&node), [message(2)]);
    // Counted after the event.
    let pod = Arc::clone(node.agent.as_ref().unwrap().observed.load().pods.values().next().unwrap());
    let id = pod.status.container_statuses.as_ref().unwrap()[0].container_id.as_deref().unwrap();
    let id = ContainerId::new(id.trim_start_matches("containerd://"));
    node.world().events.as_ref().unwrap().try_send(LifecycleEvent::OutOfMemory { id }).unwrap();
    node.pass(SECOND).await;
    node.world().oom_kills = 5;
    node.pass(SECOND * 10).await;
    assert_eq!(reported(&node), [message(2), message(3)]);
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_tried_again_after_its_back_off() {
    let mut node = Node::new(OBEDIENT);
    for _ in 0..3 {
        node.world().faults.push_back(("Start", Fault::LostAnswer));
    }
    node.write("web", "app:1");
    node.pass(SECOND * 120).await;
    assert_eq!((node.starts(), node.running().len()), (1, 1), "a lost answer stands for a start that was done");
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_container_waits_for_the_address_that_its_environment_names() {
    let mut node = Node::new(OBEDIENT);
    node.agent.as_ref().unwrap().network.send_replace(network(NodeAddresses::NONE));
    let env = json!([{ "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.hostIP" } } }]);
    node.write_with("web", "app:1", &env);
    node.pass(SECOND * 100).await;
    assert_eq!((node.starts(), node.waiting_reason("web").as_deref()), (0, Some("CreateContainerConfigError")));
    node.agent.as_ref().unwrap().network.send_replace(network(NodeAddresses::single([10, 0, 0, 2].into())));
    node.pass(SECOND).await;
    assert_eq!((node.starts(), node.waiting_reason("web")), (1, None));
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_until_the_port_that_another_has_is_free() {
    let mut node = Node::new(OBEDIENT);
    node.write_listening("first", 80);
    node.pass(SECOND).await;
    node.write_listening("second", 80);
    node.write_listening("third", 81);
    node.pass(SECOND * 100).await;
    assert_eq!((node.starts(), node.reason("second").as_deref()), (2, Some("NodePorts")));

    // What runs has its port also for the next agent.
    node.kill_agent().await;
    node.start_agent();
    node.pass(SECOND * 10).await;
    assert_eq!((node.starts(), node.reason("second").as_deref()), (2, Some("NodePorts")));

    // An edit gives it away, and another edit takes it back without success.
    node.write_listening("first", 82);
    node.pass(SECOND * 10).await;
    assert_eq!((node.starts(), node.reason("second")), (4, None));
    node.write_listening("first", 80);
    node.pass(SECOND * 10).await;
    assert_eq!((node.starts(), node.reason("first").as_deref()), (4, Some("NodePorts")));

    // So does the end of the pod, and one that waits can go.
    node.remove("first");
    node.remove("second");
    node.write_listening("fourth", 80);
    node.pass(SECOND * 10).await;
    assert_eq!((node.starts(), node.reason("fourth"), node.running().len()), (5, None, 2));
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_finished_leaves_its_port_to_others() {
    let mut node = Node::new(Behaviour { exits: Some((SECOND * 5, 0)), obeys: None });
    let ports = json!([{ "containerPort": 80 }]);
    node.write_pod("job", json!({ "restartPolicy": "Never", "containers": [{ "image": "app:1", "ports": ports }] }));
    node.pass(SECOND).await;
    node.write_listening("web", 80);
    node.pass(SECOND).await;
    assert_eq!((node.starts(), node.reason("web").as_deref()), (1, Some("NodePorts")));
    node.pass(SECOND * 5).await;
    assert_eq!((node.starts(), node.reason("web")), (2, None));
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_agent_began_goes_also_when_an_edit_overtakes_its_worker() {
    let write = |node: &mut Node, uid: &str| {
        node.write_incarnation(json!({ "name": "web", "uid": uid }), json!({ "containers": [{ "image": "app:1" }] }));
    };
    // At one of these times the edit comes between the supervisor's first command and the worker's first look.
    for offset in 0..90 {
        let mut node = Node::new(OBEDIENT);
        node.world().faults.push_back(("PrepareSandbox", Fault::LostAnswer));
        write(&mut node, "first");
        while node.world().pods().is_empty() {
            node.pass(Duration::from_millis(1)).await;
        }
        node.kill_agent().await;
        node.start_agent();
        node.pass(Duration::from_millis(offset)).await;
        write(&mut node, "second");
        node.pass(SECOND * 60).await;
        let left: Vec<String> = node.world().pods().into_iter().collect();
        assert_eq!(left, ["second"], "edited after {offset} ms");
        node.assert_no_violation();
    }
}
