//! Tables of kubelet's `cpu_assignment_test.go` and `policy_static_test.go`.

use serde_json::{Value, json};

use super::*;

fn cpus(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

/// A topology of processors whose core, socket and NUMA node are given by `place`.
fn topology(count: u32, place: impl Fn(u32) -> (u32, i64, u32)) -> CpuTopology {
    let processor = |cpu| {
        let (core, socket, numa_node) = place(cpu);
        (cpu, Processor { core, socket, numa_node })
    };
    CpuTopology::new((0..count).map(processor).collect())
}

fn two_cores() -> CpuTopology {
    topology(2, |cpu| (cpu, 0, 0))
}

/// One socket of four cores with two threads each.
fn single_socket() -> CpuTopology {
    topology(8, |cpu| (cpu % 4, 0, 0))
}

/// Two sockets of three cores with two threads each.
fn dual_socket() -> CpuTopology {
    topology(12, |cpu| (cpu % 6, i64::from(cpu % 2), cpu % 2))
}

/// Two sockets of two NUMA nodes of ten cores with two threads each.
fn multi_numa() -> CpuTopology {
    topology(80, |cpu| (cpu % 40, i64::from(cpu % 40 / 20), cpu % 40 / 10))
}

/// Two NUMA nodes of two sockets with two cores each. It is not one of kubelet's, and has the other order of levels.
fn sockets_in_nodes() -> CpuTopology {
    topology(8, |cpu| (cpu, i64::from(cpu / 2), cpu / 4))
}

#[test]
fn processors_are_taken_in_kubelets_order() {
    let table = [
        (single_socket(), "0-7", 0, ""),
        (single_socket(), "0-7", 1, "0"),
        (single_socket(), "1,3,5,6,7", 1, "6"),
        (single_socket(), "0-7", 2, "0,4"),
        (single_socket(), "0-7", 8, "0-7"),
        (single_socket(), "0-3,6", 2, "2,6"),
        (dual_socket(), "0-11", 6, "0,2,4,6,8,10"),
        (dual_socket(), "1-5,7-11", 1, "2"),
        (dual_socket(), "0-11", 8, "0-2,4,6-8,10"),
        (multi_numa(), "0-79", 40, "0-19,40-59"),
        (multi_numa(), "0-79", 20, "0-9,40-49"),
        (multi_numa(), "10-39,50-79", 20, "10-19,50-59"),
        (multi_numa(), "0-79", 60, "0-29,40-69"),
        (multi_numa(), "1-39,41-79", 60, "10-39,50-79"),
        (multi_numa(), "0-79", 64, "0-31,40-71"),
        (sockets_in_nodes(), "1-7", 4, "4-7"),
        (sockets_in_nodes(), "1-7", 2, "2-3"),
        (two_cores(), "0-1", 1, "0"),
        // Offline processors do not exist.
        (two_cores(), "0-5", 2, "0-1"),
    ];
    for (topology, available, count, wanted) in table {
        assert_eq!(take::take(&topology, &cpus(available), count), Ok(cpus(wanted)), "{count} of {available}");
    }
    let missing = take::take(&single_socket(), &cpus("0,2,4,6"), 5).unwrap_err();
    assert_eq!(missing.to_string(), "not enough cpus available to satisfy request: requested=5, available=4");
}

fn policy(topology: CpuTopology, reserved: &str) -> StaticPolicy {
    StaticPolicy::new(topology, &ReservedCpus::These(cpus(reserved)), CpuPolicyOptions::default()).unwrap()
}

#[test]
fn a_reservation_is_kubelets() {
    let reserved = |amount: &str| {
        let amount = ReservedCpus::Amount(limpet_model::pod::quantity::parse(amount).unwrap());
        StaticPolicy::new(single_socket(), &amount, CpuPolicyOptions::default())
            .map(|policy| policy.reserved().to_string())
            .map_err(|error| error.to_string())
    };
    // A part of a processor counts as one; two are the threads of one core.
    for (amount, wanted) in [("100m", "0"), ("1", "0"), ("1100m", "0,4"), ("2", "0,4")] {
        assert_eq!(reserved(amount).as_deref(), Ok(wanted), "{amount}");
    }
    assert!(reserved("0").unwrap_err().contains("greater than zero"));
    assert!(reserved("9").unwrap_err().contains("unable to reserve the required amount of CPUs"));
    let not_online = ReservedCpus::These(cpus("1-2"));
    let error = StaticPolicy::new(two_cores(), &not_online, CpuPolicyOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "reservedSystemCPUs: 1-2 is not a subset of online-cpus: 0-1");
}

fn kept(shared: &str, exclusive: &[(&str, &str)]) -> CpuAssignments {
    let containers = exclusive.iter().map(|(container, text)| ((*container).to_owned(), cpus(text)));
    let pods = [("fakePod".to_owned(), containers.collect::<BTreeMap<_, _>>())];
    CpuAssignments {
        shared: cpus(shared),
        exclusive: pods.into_iter().filter(|(_, containers)| !containers.is_empty()).collect(),
    }
}

#[test]
fn what_was_kept_must_fit() {
    let strict = CpuPolicyOptions { strict_reservation: true, ..CpuPolicyOptions::default() };
    let restore = |options, reserved: &str, kept: CpuAssignments| {
        let policy = StaticPolicy::new(dual_socket(), &ReservedCpus::These(cpus(reserved)), options).unwrap();
        policy.restore(Some(kept)).map(|fits| fits.shared.to_string()).map_err(|error| error.to_string())
    };
    let loose = CpuPolicyOptions::default();
    let table = [
        (loose, "11", kept("1-11", &[("0", "0")]), Ok("1-11")),
        (loose, "0", kept("", &[]), Ok("0-11")),
        (strict, "0", kept("", &[]), Ok("1-11")),
        (loose, "0", kept("", &[("0", "1")]), Err("default cpuset cannot be empty")),
        (loose, "0,6", kept("0-1", &[]), Err("not all reserved cpus: \"0,6\" are present in defaultCpuSet: \"0-1\"")),
        (
            strict,
            "0,6",
            kept("0-1", &[]),
            Err("some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-1\""),
        ),
        (
            loose,
            "11",
            kept("2-11", &[("0", "0-2")]),
            Err("pod: fakePod, container: 0 cpuset: \"0-2\" overlaps with default cpuset \"2-11\""),
        ),
        (
            loose,
            "11",
            kept("5-12", &[("0", "0-2"), ("1", "3-4")]),
            Err("current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-12\""),
        ),
        (
            loose,
            "10",
            kept("5-10", &[("0", "0-2"), ("1", "3-4")]),
            Err("current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-10\""),
        ),
    ];
    for (options, reserved, kept, wanted) in table {
        let wanted = wanted.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(restore(options, reserved, kept.clone()), wanted, "{kept:?}");
    }
}

fn container(name: &str, cpu: &str) -> Value {
    json!({"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}})
}

fn spec(inits: &[Value], containers: &[Value]) -> PodSpec {
    serde_json::from_value(json!({"initContainers": inits, "containers": containers})).unwrap()
}

#[test]
fn whole_processors_of_guaranteed_pods_are_exclusive() {
    let count = |spec: &PodSpec| exclusive_count(spec, &spec.containers[0]);
    assert_eq!(count(&spec(&[], &[container("a", "2")])), 2);
    assert_eq!(count(&spec(&[], &[container("a", "2000m")])), 2);
    assert_eq!(count(&spec(&[], &[container("a", "1500m")])), 0);
    assert_eq!(count(&spec(&[], &[container("a", "2"), json!({"name": "b"})])), 0, "burstable");
    let requests = json!({"name": "a", "resources": {"requests": {"cpu": "2"}}});
    assert_eq!(count(&spec(&[], &[requests])), 0, "burstable");
    let of_pod = json!({"containers": [container("a", "1")], "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}});
    assert_eq!(count(&serde_json::from_value(of_pod).unwrap()), 0, "as kubelet without PodLevelResourceManagers");
}

#[test]
fn a_pod_has_its_processors_until_it_is_gone() {
    let policy = policy(two_cores(), "0");
    let first = policy.restore(None).unwrap();
    let exclusive = spec(&[], &[container("a", "1"), container("b", "500m")]);
    let given = policy.allocate(&first, "u", &exclusive).unwrap();
    assert_eq!(
        (given.cpus("u", "a"), given.cpus("u", "b"), given.cpus("v", "a")),
        (&cpus("1"), &cpus("0"), &cpus("0"))
    );
    assert_eq!(policy.allocate(&given, "u", &exclusive), Ok(given.clone()), "it keeps what it has");
    let error = policy.allocate(&given, "v", &exclusive).unwrap_err();
    assert_eq!(error.to_string(), "not enough cpus available to satisfy request: requested=1, available=0");
    assert_eq!(policy.restore(Some(given.clone())), Ok(given.clone()), "over a restart");
    let mut after = given;
    assert!(after.release("u") && !after.release("u"));
    assert_eq!(after, first);
}

/// kubelet's `TestStaticPolicyReuseCPUs`, and a sidecar, which passes nothing on.
#[test]
fn what_an_init_container_has_is_passed_on() {
    let policy = policy(single_socket(), "7");
    let first = CpuAssignments { shared: cpus("0-7"), ..CpuAssignments::default() };
    let reused = policy.allocate(&first, "u", &spec(&[container("i", "4")], &[container("a", "2")])).unwrap();
    assert_eq!(
        (reused.cpus("u", "i"), reused.cpus("u", "a"), &reused.shared),
        (&cpus("0-1,4-5"), &cpus("0,4"), &cpus("2-3,6-7"))
    );
    let mut sidecar = container("i", "4");
    sidecar["restartPolicy"] = "Always".into();
    let beside = policy.allocate(&first, "u", &spec(&[sidecar], &[container("a", "2")])).unwrap();
    assert_eq!((beside.cpus("u", "i"), beside.cpus("u", "a")), (&cpus("0-1,4-5"), &cpus("2,6")));
    let mut after = beside;
    after.release("u");
    assert_eq!(after, first);
}

#[test]
fn whole_cores_alone_are_given_where_that_is_wanted() {
    let options = CpuPolicyOptions { full_cores_only: true, ..CpuPolicyOptions::default() };
    // A core with one reserved thread is not whole.
    let policy = StaticPolicy::new(single_socket(), &ReservedCpus::These(cpus("0")), options).unwrap();
    let first = policy.restore(None).unwrap();
    let allocate = |cpu| policy.allocate(&first, "u", &spec(&[], &[container("a", cpu)]));
    assert_eq!(allocate("2").unwrap().cpus("u", "a"), &cpus("1,5"));
    let part = allocate("3").unwrap_err();
    assert!(part.is_alignment());
    assert_eq!(part.to_string(), "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2");
    assert_eq!(
        allocate("8").unwrap_err().to_string(),
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2"
    );
}

#[test]
fn the_exclusive_processors_of_a_pod_that_runs_do_not_change() {
    const MESSAGE: &str = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    let spec = |cpu: &str, memory: &str, limit: &str| -> PodSpec {
        let resources =
            json!({ "requests": { "cpu": cpu, "memory": memory }, "limits": { "cpu": limit, "memory": memory } });
        let container =
            |name: &str, policy: Value| json!({ "name": name, "restartPolicy": policy, "resources": resources });
        let inits = [container("once", Value::Null), container("sidecar", json!("Always"))];
        serde_json::from_value(json!({ "initContainers": inits, "containers": [container("main", Value::Null)] }))
            .unwrap()
    };
    // Before, after, whether kubelet refuses it, whether other processors are exclusive.
    let table = [
        (spec("1", "1Mi", "1"), spec("2", "1Mi", "2"), true, true),
        (spec("2", "1Mi", "2"), spec("1", "2Mi", "1"), true, true),
        (spec("1", "1Mi", "1"), spec("1500m", "1Mi", "1500m"), true, true),
        (spec("500m", "1Mi", "500m"), spec("1", "1Mi", "1"), true, true),
        (spec("500m", "1Mi", "500m"), spec("600m", "1Mi", "600m"), true, false),
        (spec("1", "1Mi", "1"), spec("1", "2Mi", "1"), false, false),
        (spec("1", "1Mi", "1"), spec("1000m", "1Mi", "1000m"), false, false),
        (spec("1", "1Mi", "2"), spec("2", "1Mi", "3"), false, false),
    ];
    for (old, new, refused, exclusive) in table {
        let case = format!("{:?} -> {:?}", old.containers[0].resources, new.containers[0].resources);
        assert_eq!(infeasible(&old, &new), refused.then_some(MESSAGE), "{case}");
        assert_eq!(changes_exclusive(&old, &new), exclusive, "{case}");
    }
    // An init container has ended before anything changes.
    let (old, mut new) = (spec("1", "1Mi", "1"), spec("2", "1Mi", "2"));
    new.containers.clone_from(&old.containers);
    let before = old.init_containers.clone().unwrap();
    new.init_containers.as_mut().unwrap()[1].clone_from(&before[1]);
    assert_eq!((infeasible(&old, &new), changes_exclusive(&old, &new)), (None, false));
}
