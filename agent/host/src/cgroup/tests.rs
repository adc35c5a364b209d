//! Tests with the kernel's cgroups, below a separate root. They are skipped where none can be created.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use futures_util::FutureExt as _;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::*;
use limpet_model::fixtures::record_of_spec as record;
use limpet_tests::need::need;
use limpet_tests::process::signal_pid;
use limpet_tests::wait;

/// A cgroup root that is removed with the test.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Self {
        Self(format!("/limpet-test-cgroup-{name}-{}", std::process::id()).into())
    }

    async fn open(&self, pids: Option<i64>) -> Option<Cgroups> {
        let settings = CgroupSettings { root: self.0.clone(), pod_pids_limit: pids, ..CgroupSettings::default() };
        let cgroups = Cgroups::open(&settings).await;
        need(cgroups.map_err(|error| format!("cannot make cgroups here: {error}")))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let Ok(hierarchies) = Hierarchies::find() else { return };
        for path in hierarchies.all_paths(self.0.strip_prefix("/").unwrap()) {
            files::remove(&path).unwrap();
        }
    }
}

fn pod(uid: &str, resources: Value) -> PodRecord {
    let mut pod = record(json!({"containers": [{"name": "c", "resources": resources}]}));
    pod.uid = PodUid::new(uid);
    pod
}

fn burstable(uid: &str, cpu: &str) -> PodRecord {
    pod(uid, json!({"requests": {"cpu": cpu}}))
}

impl Cgroups {
    /// The content of a v1 file of a group, or of its v2 counterpart.
    fn read(&self, group: &str, controller: &str, v1: &str, v2: &str) -> String {
        let group = self.shared.layout.directory(&self.shared.layout.level(QosClass::Guaranteed)).join(group);
        let path = self.shared.hierarchies.path(controller, &group).unwrap();
        fs::read_to_string(path.join(if self.is_v2() { v2 } else { v1 })).unwrap().trim().to_owned()
    }

    fn shares(&self, group: &str) -> String {
        self.read(group, "cpu", "cpu.shares", "cpu.weight")
    }

    /// v1 shares as v2's weight where v2 is in use.
    fn in_shares(&self, shares: u64) -> String {
        GroupLimits::weighing(shares).settings(self.is_v2())[0].value.clone()
    }
}

#[tokio::test]
async fn all_pods_have_a_limit_together_once_they_use_less() {
    let root = Root::new("all-pods");
    let Some(cgroups) = root.open(None).await else { return };
    let read = || cgroups.read("", "memory", "memory.limit_in_bytes", "memory.max");
    let limits = AllPodsLimits { millicores: 500, memory: Some(64 << 20), pids: Some(5_000) };
    cgroups.limit_all_pods(limits).await.unwrap();
    assert_eq!((read(), cgroups.shares("")), ((64 << 20).to_string(), cgroups.in_shares(512)));
    assert_eq!(cgroups.read("", "pids", "pids.max", "pids.max"), "5000");

    // With cgroup v2, processes can only be in leaves.
    let level = cgroups.shared.layout.directory(&cgroups.shared.layout.level(QosClass::BestEffort));
    let leaf = cgroups.shared.hierarchies.path("memory", &level.join("podm")).unwrap();
    fs::create_dir(&leaf).unwrap();
    let procs = leaf.join("cgroup.procs");
    let mut shell =
        Command::new("sh").args(["-c", "read go && { sleep 600 & wait; }"]).stdin(Stdio::piped()).spawn().unwrap();
    let moved = fs::write(&procs, shell.id().to_string());
    // Its child process uses memory of the group.
    let begun = shell.stdin.take().unwrap().write_all(b"go\n");
    let in_use = || cgroups.memory_of_all_pods().is_some_and(|bytes| bytes > 0);
    let forked = wait::until_true(wait::SOON, "memory in use", in_use);
    let tiny = cgroups.limit_all_pods(AllPodsLimits { memory: Some(0), pids: Some(4_000), ..limits }).await;
    let pids = || fs::read_to_string(&procs).unwrap().lines().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>();
    // The shell may be about to fork.
    let ended = wait::until_true(wait::SOON, "an empty group", || {
        let left = pids();
        left.iter().for_each(|pid| signal_pid(*pid, Signal::KILL));
        left.is_empty()
    });
    shell.wait().unwrap();
    ended.unwrap();
    moved.and(begun).unwrap();
    forked.unwrap();
    assert!(matches!(tiny, Err(CgroupError::MemoryInUse { limit: 0, .. })), "{tiny:?}");
    assert_eq!(read(), (64 << 20).to_string());
    assert_eq!(cgroups.read("", "pids", "pids.max", "pids.max"), "4000", "limited all the same");

    cgroups.limit_all_pods(AllPodsLimits { memory: None, pids: None, ..limits }).await.unwrap();
    assert_eq!(cgroups.read("", "pids", "pids.max", "pids.max"), "max");
    assert!(!read().starts_with(&(64 << 20).to_string()));
}

#[tokio::test]
async fn a_group_of_others_is_limited_in_what_is_named_and_never_made() {
    let root = Root::new("reserved");
    let Some(cgroups) = root.open(None).await else { return };
    let (name, hierarchies) = (root.0.join("node"), &cgroups.shared.hierarchies);
    let limits = ReservedLimits { millicores: Some(500), memory: Some(64 << 20), pids: Some(300) };
    let missing = cgroups.limit_reserved(&name, limits).await;
    assert!(matches!(&missing, Err(CgroupError::Missing(path)) if !path.exists()), "{missing:?}");
    let nothing = cgroups.limit_reserved(&name, ReservedLimits::default()).await;
    assert!(matches!(nothing, Err(CgroupError::Missing(_))), "also where nothing is reserved: {nothing:?}");

    let directory = name.strip_prefix("/").unwrap();
    files::create(hierarchies, directory).unwrap();
    let read = |controller: &str, v1: &str, v2: &str| {
        let path = hierarchies.path(controller, directory).unwrap();
        fs::read_to_string(path.join(if cgroups.is_v2() { v2 } else { v1 })).unwrap().trim().to_owned()
    };
    let all = || {
        let (shares, pids) = (read("cpu", "cpu.shares", "cpu.weight"), read("pids", "pids.max", "pids.max"));
        (shares, read("memory", "memory.limit_in_bytes", "memory.max"), pids)
    };
    let expected = (cgroups.in_shares(512), (64 << 20).to_string(), "300".to_owned());
    cgroups.limit_reserved(&name, limits).await.unwrap();
    assert_eq!(all(), expected);
    let weight = ReservedLimits { millicores: Some(1_000), ..ReservedLimits::default() };
    cgroups.limit_reserved(&name, weight).await.unwrap();
    assert_eq!(all(), (cgroups.in_shares(1_024), expected.1, expected.2), "what is not named stays");
}

#[tokio::test]
async fn pods_get_kubelets_groups_and_limits() {
    let root = Root::new("limits");
    let Some(cgroups) = root.open(Some(77)).await else { return };
    let limits = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
    let guaranteed = pod("g", limits);
    cgroups.ensure_pod(&guaranteed).await.unwrap();
    cgroups.ensure_pod(&guaranteed).await.unwrap();
    assert_eq!(cgroups.shares("podg"), cgroups.in_shares(512));
    assert_eq!(cgroups.read("podg", "memory", "memory.limit_in_bytes", "memory.max"), "67108864");
    assert_eq!(cgroups.read("podg", "pids", "pids.max", "pids.max"), "77");
    let quota = cgroups.read("podg", "cpu", "cpu.cfs_quota_us", "cpu.max");
    assert_eq!(quota.split(' ').next(), Some("50000"));
    cgroups.ensure_pod(&pod("b", json!({}))).await.unwrap();
    assert_eq!(cgroups.shares("besteffort/podb"), cgroups.in_shares(2));
    assert_eq!(cgroups.pods().await.unwrap(), [PodUid::new("b"), PodUid::new("g")]);
}

#[tokio::test]
async fn a_limit_that_is_lifted_is_removed() {
    let root = Root::new("lifted");
    let Some(cgroups) = root.open(None).await else { return };
    cgroups.ensure_pod(&pod("x", json!({"requests": {"cpu": "1m"}, "limits": {"memory": "64Mi"}}))).await.unwrap();
    let memory = || cgroups.read("burstable/podx", "memory", "memory.limit_in_bytes", "memory.max");
    assert_eq!(memory(), "67108864");
    cgroups.ensure_pod(&burstable("x", "1m")).await.unwrap();
    assert_ne!(memory(), "67108864");
}

#[tokio::test]
async fn the_burstable_level_has_the_weight_of_its_pods_requests() {
    let root = Root::new("burstable");
    let Some(cgroups) = root.open(None).await else { return };
    for (uid, cpu, shares) in [("a", "500m", 512), ("b", "1", 1_536), ("a", "1", 2_048)] {
        cgroups.ensure_pod(&burstable(uid, cpu)).await.unwrap();
        assert_eq!(cgroups.shares("burstable"), cgroups.in_shares(shares), "{uid} {cpu}");
    }
    cgroups.remove_pod(&PodUid::new("b")).await.unwrap();
    assert_eq!(cgroups.shares("burstable"), cgroups.in_shares(1_024));
}

/// Needs cgroup v2, which the machine of `cargo xtask test-vm` has.
#[tokio::test]
async fn what_pods_request_is_kept_up_to_the_level_of_all_pods() {
    let root = Root::new("kept");
    let tiered = MemoryQos { keeps_requests: true, throttling: Some(0.5) };
    let here = CgroupSettings { root: root.0.clone(), ..CgroupSettings::default() };
    let settings = CgroupSettings { memory_qos: tiered, ..here.clone() };
    let open = async |settings: &CgroupSettings| need(Cgroups::open(settings).await.map_err(|error| error.to_string()));
    let Some(cgroups) = open(&settings).await else { return };
    if !cgroups.is_v2() {
        return;
    }
    let read = |group: &str, file: &str| cgroups.read(group, "memory", file, file);
    let guaranteed = pod("g", json!({"limits": {"cpu": "1", "memory": "8Mi"}}));
    let other = pod("b", json!({"requests": {"memory": "4Mi"}}));
    let mib = |count: u64| (count << 20).to_string();
    cgroups.ensure_pod(&guaranteed).await.unwrap();
    cgroups.ensure_pod(&other).await.unwrap();
    assert_eq!((read("podg", "memory.min"), read("podg", "memory.low")), (mib(8), mib(0)));
    assert_eq!((read("burstable/podb", "memory.min"), read("burstable/podb", "memory.low")), (mib(0), mib(4)));
    assert_eq!(
        (read("", "memory.min"), read("", "memory.low"), read("burstable", "memory.low")),
        (mib(12), mib(4), mib(4))
    );
    cgroups.remove_pod(&other.uid).await.unwrap();
    assert_eq!(
        (read("", "memory.min"), read("", "memory.low"), read("burstable", "memory.low")),
        (mib(8), mib(0), mib(0))
    );
    let other_configuration = open(&here).await.unwrap();
    assert_eq!(other_configuration.read("", "memory", "memory.min", "memory.min"), mib(0));
}

#[tokio::test]
async fn pods_that_were_found_running_count_for_the_burstable_level() {
    let root = Root::new("adopted");
    let Some(before) = root.open(None).await else { return };
    let pods = [("a", "500m"), ("b", "1"), ("c", "500m")].map(|(uid, cpu)| burstable(uid, cpu));
    for pod in &pods {
        before.ensure_pod(pod).await.unwrap();
    }
    let cgroups = root.open(None).await.unwrap();
    assert_eq!(cgroups.shares("burstable"), cgroups.in_shares(2_048), "as it was");
    pods.iter().for_each(|pod| cgroups.adopt_pod(pod));
    cgroups.adopt_pod(&pod("d", json!({})));
    cgroups.ensure_pod(&pods[0]).await.unwrap();
    assert_eq!(cgroups.shares("burstable"), cgroups.in_shares(2_048), "the sum of all");
    cgroups.remove_pod(&pods[1].uid).await.unwrap();
    assert_eq!(cgroups.shares("burstable"), cgroups.in_shares(1_024));
}

#[tokio::test]
async fn removal_finds_a_pod_of_any_class_and_is_idempotent() {
    let root = Root::new("removal");
    let Some(cgroups) = root.open(None).await else { return };
    cgroups.ensure_pod(&pod("x", json!({}))).await.unwrap();
    // Groups that an OCI runtime creates, even where limpet creates none.
    let layout = &cgroups.shared.layout;
    let container = layout.container_directory(QosClass::BestEffort, &PodUid::new("x"), "c1");
    for path in cgroups.shared.hierarchies.all_paths(&container) {
        fs::create_dir_all(path.join("nested")).unwrap();
    }
    let reopened = root.open(None).await.unwrap();
    assert_eq!(reopened.pods().await.unwrap(), [PodUid::new("x")], "found by an agent that did not create it");
    reopened.remove_pod(&PodUid::new("x")).await.unwrap();
    reopened.remove_pod(&PodUid::new("x")).await.unwrap();
    assert_eq!(reopened.pods().await.unwrap(), []);
}

#[tokio::test]
async fn a_group_with_processes_is_busy() {
    let root = Root::new("busy");
    let Some(cgroups) = root.open(None).await else { return };
    let pod = pod("x", json!({}));
    cgroups.ensure_pod(&pod).await.unwrap();
    let group = cgroups.shared.layout.directory(&cgroups.shared.layout.pod(QosClass::BestEffort, &pod.uid));
    let path = cgroups.shared.hierarchies.path("pids", &group).unwrap().join("c1");
    fs::create_dir(&path).unwrap();
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(path.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
    let of_pod = cgroups.shared.layout.pod(QosClass::BestEffort, &pod.uid);
    assert!(matches!(cgroups.exists_idle(&of_pod).await, Err(CgroupError::Busy(_))));
    assert_eq!(cgroups.process_of(&pod.uid, "c1"), Some(sleeper.id()));
    assert_eq!(cgroups.process_of(&pod.uid, "c2"), None);
    let outcome = cgroups.remove_pod(&pod.uid).await;
    assert!(matches!(&outcome, Err(CgroupError::Busy(busy)) if *busy == path), "{outcome:?}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(cgroups.exists_idle(&of_pod).await.unwrap());
    cgroups.remove_pod(&pod.uid).await.unwrap();
}

#[tokio::test]
async fn new_groups_take_processes_at_once() {
    let root = Root::new("cpuset");
    let Some(cgroups) = root.open(None).await else { return };
    let pod = burstable("x", "1m");
    cgroups.ensure_pod(&pod).await.unwrap();
    let group = cgroups.shared.layout.directory(&cgroups.shared.layout.pod(QosClass::Burstable, &pod.uid));
    let Some(path) = cgroups.shared.hierarchies.path("cpuset", &group) else { return };
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let entered = fs::write(path.join("cgroup.procs"), sleeper.id().to_string());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(entered.is_ok(), "{entered:?}");
}

#[tokio::test]
async fn kills_for_memory_are_counted() {
    let root = Root::new("oom");
    let Some(cgroups) = root.open(None).await else { return };
    let pod = pod("x", json!({}));
    cgroups.ensure_pod(&pod).await.unwrap();
    assert_eq!(cgroups.oom_kills(&pod, "c1"), None, "no such container");
    let group = cgroups.shared.layout.container_directory(QosClass::BestEffort, &pod.uid, "c1");
    let path = cgroups.shared.hierarchies.path("memory", &group).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(cgroups.oom_kills(&pod, "c1"), Some(0));
}

#[tokio::test]
async fn an_alarm_rings_when_the_pods_have_more_memory() {
    let root = Root::new("alarm");
    let Some(cgroups) = root.open(None).await else { return };
    let limits = AllPodsLimits { millicores: 1_000, memory: Some(64 << 20), pids: None };
    cgroups.limit_all_pods(limits).await.unwrap();
    let alarm = cgroups.memory_alarm(16 << 20).await.unwrap();
    let level = cgroups.shared.layout.directory(&cgroups.shared.layout.level(QosClass::BestEffort));
    let path = cgroups.shared.hierarchies.path("memory", &level).unwrap();
    assert!(alarm.rings().now_or_never().is_none(), "nothing runs");
    // Uses twice the common limit, so that the alarm fires with either version; the kernel kills the process for it.
    let script = "echo $$ > \"$1/cgroup.procs\"; exec dd if=/dev/zero of=/dev/null bs=128M count=1";
    let mut hog = Command::new("sh").args(["-c", script, "hog"]).arg(&path).stdout(Stdio::null()).spawn().unwrap();
    let rang = tokio::time::timeout(wait::SOON, alarm.rings()).await;
    let _ = hog.kill();
    hog.wait().unwrap();
    assert!(rang.is_ok());
}
