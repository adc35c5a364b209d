use limpet_model::container::ContainerId;
use limpet_model::fixtures::record_of_spec;
use serde_json::json;

use super::*;

fn online() -> CpuSet {
    topology::read(Path::new("/sys/devices/system")).unwrap().all()
}

fn settings(dir: &Path, policy: Option<CpuPolicyOptions>) -> CpuSettings {
    let first: CpuSet = online().iter().take(1).collect();
    CpuSettings {
        policy,
        retry_period: Duration::from_secs(10),
        reserved: ReservedCpus::These(first),
        root_dir: dir.to_owned(),
    }
}

async fn open(dir: &Path) -> Arc<ExclusiveCpus> {
    let opened = ExclusiveCpus::open(settings(dir, Some(CpuPolicyOptions::default()))).await;
    Arc::new(opened.unwrap().unwrap())
}

fn pod(uid: &str) -> PodRecord {
    let resources = json!({"limits": {"cpu": "1", "memory": "1Mi"}});
    let mut pod = record_of_spec(json!({"containers": [{"name": "main", "resources": resources}]}));
    pod.uid = PodUid::new(uid);
    pod
}

/// A machine with one processor has none left beside the reserved one.
fn has_two() -> bool {
    online().len() > 1
}

#[tokio::test]
async fn what_a_pod_has_is_kept_over_restarts_and_written_once() {
    if !has_two() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(checkpoint::FILE);
    let cpus = open(dir.path()).await;
    let all = cpus.container_cpus(&PodUid::new("other"), "main");
    assert!(file.exists() && !all.exclusive && all.cpus == online());
    cpus.allocate(&pod("u")).await.unwrap();
    let exclusive = cpus.container_cpus(&PodUid::new("u"), "main");
    assert!(exclusive.exclusive && exclusive.cpus.len() == 1);
    assert_eq!(cpus.container_cpus(&PodUid::new("other"), "main").cpus, online().difference(&exclusive.cpus));
    drop(cpus);

    let before = std::fs::metadata(&file).unwrap().modified().unwrap();
    let cpus = open(dir.path()).await;
    assert_eq!((cpus.container_cpus(&PodUid::new("u"), "main"), cpus.pods()), (exclusive, [PodUid::new("u")].into()));
    cpus.allocate(&pod("u")).await.unwrap();
    cpus.release(&PodUid::new("other")).await;
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), before, "written though nothing has changed");
    cpus.release(&PodUid::new("u")).await;
    assert!(!cpus.has_exclusive(&PodUid::new("u")));
    drop(cpus);
    assert_eq!(open(dir.path()).await.pods(), BTreeSet::new());
}

#[tokio::test]
async fn a_start_that_something_has_changed_during_is_made_up_for() {
    if !has_two() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cpus = open(dir.path()).await;
    let shared = cpus.container_cpus(&PodUid::new("s"), "main");
    let mut changes = cpus.changes.subscribe();
    cpus.started(&ContainerId::new("a"), &PodUid::new("s"), "main", Some(&shared));
    assert!(!changes.has_changed().unwrap());
    cpus.allocate(&pod("u")).await.unwrap();
    changes.borrow_and_update();
    cpus.started(&ContainerId::new("b"), &PodUid::new("s"), "main", Some(&shared));
    assert!(changes.has_changed().unwrap());
}

#[tokio::test]
async fn a_file_that_does_not_fit_is_kubelets_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(checkpoint::FILE);
    let failure = async |policy| ExclusiveCpus::open(settings(dir.path(), policy)).await.unwrap_err().to_string();
    let opened = ExclusiveCpus::open(settings(dir.path(), None)).await.unwrap();
    assert!(opened.is_none() && !file.exists(), "without the policy nothing is written");
    drop(open(dir.path()).await);
    let other_policy = failure(None).await;
    assert!(other_policy.contains("configured policy \"none\" differs from state checkpoint policy \"static\""));
    assert!(other_policy.contains("delete the CPU manager checkpoint file"), "{other_policy}");
    let shared: CpuSet = online().iter().chain([4_000]).collect();
    let kept = CpuAssignments { shared, ..CpuAssignments::default() };
    std::fs::write(&file, checkpoint::write(STATIC, &kept)).unwrap();
    let other_machine = failure(Some(CpuPolicyOptions::default())).await;
    assert!(other_machine.contains("doesn't match with CPUs in state"), "{other_machine}");
    std::fs::write(&file, "").unwrap();
    assert!(failure(Some(CpuPolicyOptions::default())).await.contains("could not restore state"));
    std::fs::remove_file(&file).unwrap();
    let absent =
        CpuSettings { reserved: ReservedCpus::These([4_000].into_iter().collect()), ..settings(dir.path(), None) };
    let error = ExclusiveCpus::open(absent).await.unwrap_err().to_string();
    assert!(error.contains("is not a subset of online-cpus"), "{error}");
}
