//! A complete input that tests modify, and tests of the whole document.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use oci_spec::image::ImageConfiguration;
use oci_spec::runtime::{Capabilities, Capability, LinuxDevice, LinuxDeviceType};
use serde_json::{Value, json};

use super::*;
use limpet_host::volume::{self, Propagation};
use limpet_model::cpu_set::CpuSet;
use limpet_model::fixtures::record_of_spec as record;
use limpet_model::pod::compute_resources::CpuQuotas;
use limpet_model::pod::downward::NodeLimits;
use limpet_model::pod::memory_qos::MemoryQos;
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::swap::SwapBehavior;
use limpet_model::sandbox::Namespaces;
use limpet_model::user_namespace::IdRange;

/// All inputs of a spec, with plain defaults.
pub(crate) struct Fixture {
    pub(crate) pod: PodRecord,
    pub(crate) image: LocalImage,
    pub(crate) user: ProcessUser,
    pub(crate) sandbox: Sandbox,
    pub(crate) addresses: PodAddresses,
    pub(crate) node_addresses: NodeAddresses,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) node: NodeFacts,
    pub(crate) host: HostInput,
    pub(crate) objects: PodObjects,
    pub(crate) class_devices: Vec<String>,
    pub(crate) given: Vec<limpet_model::device_allocation::DeviceAllocation>,
    pub(crate) cpus: Option<ContainerCpus>,
    pub(crate) block_devices: Vec<volume::BlockDevice>,
    pub(crate) labels: Option<ContainerLabels>,
}

impl Fixture {
    /// A pod with one container `c` with these fields, and an image with this `config`.
    pub(crate) fn new(mut container: Value, config: Value) -> Self {
        container["name"] = "c".into();
        Self::of_pod(json!({"containers": [container]}), config)
    }

    pub(crate) fn of_pod(spec: Value, config: Value) -> Self {
        let image: ImageConfiguration = serde_json::from_value(json!({
            "architecture": "amd64", "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": []},
        }))
        .unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        Self {
            pod: record(spec),
            image: LocalImage {
                name: "docker.io/library/web:1".into(),
                digest: "sha256:0".into(),
                chain_id: "sha256:1".into(),
                config: image,
                size: 0,
            },
            user: ProcessUser { uid: 7, gid: 8, additional_gids: vec![8, 9], home: "/home/seven".to_owned() },
            sandbox: Sandbox {
                id: None,
                namespaces: Namespaces {
                    network: Some("/run/ns/net".into()),
                    ipc: Some("/run/ns/ipc".into()),
                    uts: Some("/run/ns/uts".into()),
                    ..Namespaces::default()
                },
                shm: "/run/shm".into(),
                hostname: "web-node".to_owned(),
                ids: None,
                level: None,
            },
            addresses: PodAddresses { ips: vec![ip("10.1.0.2"), ip("fd00::2")] },
            node_addresses: [ip("192.0.2.1"), ip("2001:db8::1")].into_iter().collect(),
            mounts: Vec::new(),
            objects: PodObjects::default(),
            class_devices: Vec::new(),
            given: Vec::new(),
            cpus: None,
            block_devices: Vec::new(),
            labels: None,
            node: NodeFacts {
                name: "node".to_owned(),
                memory_capacity: 4_000_000_000,
                limits: NodeLimits {
                    cpu: Amount::from_units(4),
                    memory: Amount::from_units(4_000_000_000),
                    ephemeral_storage: Amount::from_units(1 << 33),
                },
                swap_capacity: 2_000_000_000,
                swap_behavior: SwapBehavior::NoSwap,
                single_process_oom_kill: false,
                cpu_quotas: CpuQuotas::default(),
                memory_qos: MemoryQos::default(),
                oom_score_floor: -1_000,
                cgroup_v2: false,
                systemd_cgroup: false,
                service: None,
                seccomp_default: false,
                seccomp_dir: "/var/lib/limpet/seccomp".into(),
                runtime_endpoint: "/run/containerd/containerd.sock".into(),
                devices: BTreeMap::new(),
                cdi_dirs: Vec::new(),
                huge_pages: BTreeMap::new(),
                limits_huge_pages: false,
            },
            host: HostInput {
                capabilities: Capabilities::from([Capability::SysAdmin, Capability::Chown]),
                swap_limit: true,
                ..HostInput::default()
            },
        }
    }

    pub(crate) fn input(&self) -> SpecInput<'_> {
        SpecInput {
            pod: &self.pod,
            container: &self.pod.spec().containers[0],
            image: &self.image,
            user: &self.user,
            sandbox: &self.sandbox,
            addresses: &self.addresses,
            node_addresses: self.node_addresses,
            mounts: &self.mounts,
            cgroups_path: "/kubepods/podx/y",
            node: &self.node,
            pod_dir: Path::new("/var/lib/limpet/pods/x"),
            objects: &self.objects,
            class_devices: &self.class_devices,
            given: &self.given,
            cpus: self.cpus.as_ref(),
            block_devices: &self.block_devices,
            labels: self.labels.as_ref(),
            shim_group: ShimGroup::Pod,
        }
    }

    pub(crate) fn spec(&self) -> Result<Value, SpecError> {
        assemble(&self.input(), &self.host).map(|spec| serde_json::to_value(spec).unwrap())
    }
}

fn spec(container: Value) -> Value {
    Fixture::new(container, json!({"Cmd": ["run"]})).spec().unwrap()
}

#[test]
fn command_and_args_override_as_kubernetes_says() {
    let both = json!({"Entrypoint": ["/entry"], "Cmd": ["cmd"]});
    let cases = [
        (json!({}), both.clone(), json!(["/entry", "cmd"])),
        (json!({"command": ["/c"]}), both.clone(), json!(["/c"])),
        (json!({"args": ["a", "b"]}), both.clone(), json!(["/entry", "a", "b"])),
        (json!({"command": ["/c"], "args": ["a"]}), both.clone(), json!(["/c", "a"])),
        (json!({"command": []}), both.clone(), json!(["/entry", "cmd"])),
        (json!({}), json!({"Cmd": ["cmd"]}), json!(["cmd"])),
        (json!({}), json!({"Entrypoint": [""], "Cmd": ["cmd"]}), json!(["cmd"])),
        (
            json!({"command": ["$(A)", "$$(A)", "$(B)"], "args": ["-$(A)-"], "env": [{"name": "A", "value": "x"}]}),
            both.clone(),
            json!(["x", "$(A)", "$(B)", "-x-"]),
        ),
    ];
    for (container, image, wanted) in cases {
        let made = Fixture::new(container.clone(), image).spec().unwrap();
        assert_eq!(made["process"]["args"], wanted, "{container}");
    }
    assert!(matches!(Fixture::new(json!({}), json!({})).spec(), Err(SpecError::NoCommand)));
}

#[test]
fn working_directory_is_the_pods_then_the_images() {
    let image = json!({"Cmd": ["run"], "WorkingDir": "/srv"});
    for (container, image, wanted) in [
        (json!({}), json!({"Cmd": ["run"]}), "/"),
        (json!({}), image.clone(), "/srv"),
        (json!({"workingDir": "/work"}), image.clone(), "/work"),
        (json!({"workingDir": ""}), image.clone(), "/srv"),
        (json!({"workingDir": "rel"}), image, "rel"),
        (json!({}), json!({"Cmd": ["run"], "WorkingDir": "srv"}), "/srv"),
    ] {
        assert_eq!(Fixture::new(container, image).spec().unwrap()["process"]["cwd"], wanted);
    }
}

#[test]
fn a_plain_container_is_confined() {
    let spec = spec(json!({}));
    assert_eq!(spec["root"], json!({"path": "rootfs", "readonly": false}));
    assert_eq!(spec["process"]["user"], json!({"uid": 7, "gid": 8, "additionalGids": [8, 9]}));
    assert_eq!(spec["process"]["terminal"], false);
    assert_eq!(spec["process"]["noNewPrivileges"], false);
    assert!(spec["process"].get("rlimits").is_none());
    assert!(spec.get("hostname").is_none(), "the joined UTS namespace has one");
    assert!(spec.get("hooks").is_none());
    assert!(spec["linux"].get("seccomp").is_none());
    assert!(spec["linux"].get("devices").is_none());
    let capabilities = &spec["process"]["capabilities"];
    assert_eq!(capabilities["bounding"].as_array().unwrap().len(), 14);
    assert!(capabilities.get("ambient").is_none() && capabilities.get("inheritable").is_none());
    assert_eq!(spec["linux"]["maskedPaths"].as_array().unwrap().len(), MASKED_PATHS.len());
    assert_eq!(spec["linux"]["readonlyPaths"], json!(READONLY_PATHS));
    assert_eq!(spec["linux"]["resources"]["devices"], json!([{"allow": false, "access": "rwm"}]));
    assert_eq!(spec["linux"]["cgroupsPath"], "/kubepods/podx/y");
    assert_eq!(spec["annotations"], json!({"io.containerd.runc.v2.group": "0123456789abcdef0123456789abcdef"}));
}

#[test]
fn one_shim_serves_a_pod_or_the_node() {
    let fixture = Fixture::new(json!({}), json!({"Cmd": ["run"]}));
    for (group, name) in [("pod", fixture.pod.uid.as_str()), ("node", "_node")] {
        let shim_group = ShimGroup::parse(group).unwrap();
        let spec = assemble(&SpecInput { shim_group, ..fixture.input() }, &fixture.host).unwrap();
        assert_eq!(spec.annotations().as_ref().unwrap()["io.containerd.runc.v2.group"], name);
    }
    assert_eq!(ShimGroup::parse("Node"), None);
}

#[test]
fn a_scope_stops_after_the_agent_and_before_containerd_within_its_grace_period() {
    let spec = json!({"terminationGracePeriodSeconds": 45, "containers": [{"name": "c"}]});
    let mut fixture = Fixture::of_pod(spec, json!({"Cmd": ["run"]}));
    fixture.node.systemd_cgroup = true;
    fixture.node.service = Some(r"edge\x2dagent.service".to_owned());
    let annotations = fixture.spec().unwrap()["annotations"].clone();
    assert_eq!(annotations["org.systemd.property.TimeoutStopUSec"], "uint64 45000000");
    assert_eq!(annotations["org.systemd.property.After"], "['containerd.service']");
    assert_eq!(annotations["org.systemd.property.Before"], r"['edge\\x2dagent.service']");
    fixture.node.service = None;
    assert!(fixture.spec().unwrap()["annotations"].get("org.systemd.property.Before").is_none());
}

#[test]
fn a_privileged_container_is_not_confined() {
    let mut fixture = Fixture::new(
        json!({"securityContext": {"privileged": true, "seccompProfile": {"type": "RuntimeDefault"}}}),
        json!({"Cmd": ["run"]}),
    );
    fixture.node.cgroup_v2 = true;
    fixture.node.seccomp_default = true;
    let mut device = LinuxDevice::default();
    device.set_path("/dev/sda".into()).set_major(8);
    fixture.host.devices = vec![device];
    let spec = fixture.spec().unwrap();
    assert_eq!(spec["process"]["capabilities"]["effective"].as_array().unwrap().len(), 2);
    assert_eq!(spec["linux"]["maskedPaths"], json!([]));
    assert_eq!(spec["linux"]["readonlyPaths"], json!([]));
    assert_eq!(spec["linux"]["resources"]["devices"], json!([{"allow": true, "access": "rwm"}]));
    assert_eq!(spec["linux"]["devices"][0]["path"], "/dev/sda");
    assert!(spec["linux"].get("seccomp").is_none());
    let kinds: Vec<&str> =
        spec["linux"]["namespaces"].as_array().unwrap().iter().map(|ns| ns["type"].as_str().unwrap()).collect();
    assert!(!kinds.contains(&"cgroup"));
    for path in ["/sys", "/sys/fs/cgroup"] {
        let mounts = spec["mounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["destination"] == path).unwrap();
        assert!(mount["options"].as_array().unwrap().contains(&json!("rw")), "{path}");
    }
}

#[test]
fn security_context_shows_in_the_spec() {
    let container = json!({"tty": true, "securityContext": {
        "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "procMount": "Unmasked"}});
    let mut fixture = Fixture::new(container, json!({"Cmd": ["run"]}));
    fixture.host.apparmor = Some("tight".to_owned());
    let spec = fixture.spec().unwrap();
    assert_eq!(spec["root"]["readonly"], true);
    assert_eq!(spec["process"]["noNewPrivileges"], true);
    assert_eq!(spec["process"]["terminal"], true);
    assert_eq!(spec["process"]["apparmorProfile"], "tight");
    assert_eq!(spec["linux"]["maskedPaths"], json!([]));
}

#[test]
fn a_device_is_a_node_and_a_rule_of_the_cgroup() {
    let mut fixture = Fixture::new(json!({}), json!({"Cmd": ["run"]}));
    let mut device = LinuxDevice::default();
    device.set_path("/dev/ttyS0".into()).set_typ(LinuxDeviceType::C).set_major(4).set_minor(64);
    fixture.host.granted = vec![(device, "rw".to_owned())];
    let spec = fixture.spec().unwrap();
    assert_eq!(spec["linux"]["devices"][0]["path"], "/dev/ttyS0");
    // The requested device precedes the host's at that path.
    let mut other = LinuxDevice::default();
    other.set_path("/dev/ttyS0".into()).set_typ(LinuxDeviceType::C).set_major(4).set_minor(65);
    fixture.host.devices = vec![other];
    let devices = fixture.spec().unwrap()["linux"]["devices"].clone();
    assert_eq!((devices.as_array().unwrap().len(), &devices[0]["minor"]), (1, &json!(64)));
    let rules = &spec["linux"]["resources"]["devices"];
    assert_eq!(rules[0], json!({"allow": false, "access": "rwm"}));
    assert_eq!(rules[1], json!({"allow": true, "type": "c", "major": 4, "minor": 64, "access": "rw"}));
}

#[test]
fn huge_pages_of_every_size_are_limited_where_the_kernel_can() {
    let limits = json!({"resources": {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}});
    let mut fixture = Fixture::new(limits, json!({"Cmd": ["run"]}));
    fixture.node.huge_pages = BTreeMap::from([(2 << 20, 16), (1 << 30, 0)]);
    let limits = |fixture: &Fixture| fixture.spec().unwrap()["linux"]["resources"]["hugepageLimits"].clone();
    assert_eq!(limits(&fixture), Value::Null);
    fixture.node.limits_huge_pages = true;
    let wanted = json!([{"pageSize": "2MB", "limit": 4 << 20}, {"pageSize": "1GB", "limit": 0}]);
    assert_eq!(limits(&fixture), wanted);
}

#[test]
fn users_of_its_own_are_joined_and_mapped() {
    let mut fixture = Fixture::new(json!({"command": ["/run"]}), json!({}));
    let linux = |fixture: &Fixture| fixture.spec().unwrap()["linux"].clone();
    assert!(linux(&fixture).get("uidMappings").is_none_or(serde_json::Value::is_null));
    fixture.sandbox.namespaces.user = Some("/run/ns/user".into());
    fixture.sandbox.ids = IdRange::parse("131072 65536");
    let mapped = json!([{"containerID": 0, "hostID": 131_072, "size": 65_536}]);
    let linux = linux(&fixture);
    assert_eq!((&linux["uidMappings"], &linux["gidMappings"]), (&mapped, &mapped));
    let joined = json!({"type": "user", "path": "/run/ns/user"});
    assert!(linux["namespaces"].as_array().unwrap().contains(&joined), "{linux}");
}

#[test]
fn namespaces_are_joined_or_the_hosts() {
    let image = json!({"Cmd": ["run"]});
    let names = |fixture: &Fixture| fixture.spec().unwrap()["linux"]["namespaces"].clone();
    let mut fixture = Fixture::new(json!({}), image.clone());
    let joined = json!([
        {"type": "mount"}, {"type": "pid"}, {"type": "network", "path": "/run/ns/net"},
        {"type": "ipc", "path": "/run/ns/ipc"}, {"type": "uts", "path": "/run/ns/uts"},
    ]);
    assert_eq!(names(&fixture), joined);
    fixture.node.cgroup_v2 = true;
    assert_eq!(names(&fixture)[2], json!({"type": "cgroup"}));
    fixture.sandbox.namespaces.pid = Some("/run/ns/pid".into());
    assert_eq!(names(&fixture)[2], json!({"type": "pid", "path": "/run/ns/pid"}));
    assert_eq!(names(&fixture).as_array().unwrap().len(), 6, "no other pid namespace");
    let mut host = Fixture::of_pod(json!({"containers": [{"name": "c"}], "hostPID": true}), image);
    host.sandbox.namespaces = Namespaces::default();
    assert_eq!(names(&host), json!([{"type": "mount"}]));
}

#[test]
fn resources_become_cgroup_values() {
    let container = json!({"resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "1500m", "memory": "64Mi"}}});
    let mut fixture = Fixture::new(container, json!({"Cmd": ["run"]}));
    let resources = |fixture: &Fixture| fixture.spec().unwrap()["linux"]["resources"].clone();
    let v1 = resources(&fixture);
    assert_eq!(v1["cpu"], json!({"shares": 256, "quota": 150_000, "period": 100_000}));
    assert_eq!(v1["memory"], json!({"limit": 67_108_864, "swap": 67_108_864}));
    assert!(v1.get("unified").is_none() && v1.get("pids").is_none());
    fixture.node.cpu_quotas = CpuQuotas::InPeriods(20_000);
    assert_eq!(resources(&fixture)["cpu"], json!({"shares": 256, "quota": 30_000, "period": 20_000}));
    fixture.node.cpu_quotas = CpuQuotas::Off;
    assert_eq!(resources(&fixture)["cpu"], json!({"shares": 256}));
    fixture.node.cpu_quotas = CpuQuotas::default();
    let cpus = CpuSet::parse("0,2-3").unwrap();
    fixture.cpus = Some(ContainerCpus { cpus: cpus.clone(), exclusive: false });
    assert_eq!(
        resources(&fixture)["cpu"],
        json!({"shares": 256, "quota": 150_000, "period": 100_000, "cpus": "0,2-3"})
    );
    fixture.cpus = Some(ContainerCpus { cpus, exclusive: true });
    assert_eq!(
        resources(&fixture)["cpu"],
        json!({"shares": 256, "cpus": "0,2-3"}),
        "no quota of processors of its own"
    );
    fixture.cpus = None;
    fixture.node.cgroup_v2 = true;
    fixture.host.swap_limit = false;
    let v2 = resources(&fixture);
    assert_eq!(v2["memory"], json!({"limit": 67_108_864}));
    assert_eq!(v2["unified"], json!({"memory.oom.group": "1"}));
    fixture.node.memory_qos = MemoryQos { keeps_requests: true, throttling: None };
    let kept = json!({"memory.oom.group": "1", "memory.low": "67108864"});
    assert_eq!(resources(&fixture)["unified"], kept, "a limit without a request is one");
    assert_eq!(resources(&Fixture::new(json!({}), json!({"Cmd": ["run"]})))["cpu"], json!({"shares": 2}));
}

#[test]
fn no_container_swaps_where_the_kernel_can_limit_it() {
    let limited = json!({"resources": {"limits": {"memory": "64Mi"}}});
    for (container, memory) in [(json!({}), json!(null)), (limited, json!({"limit": 67_108_864}))] {
        let mut fixture = Fixture::new(container, json!({"Cmd": ["run"]}));
        fixture.node.cgroup_v2 = true;
        let resources = &fixture.spec().unwrap()["linux"]["resources"];
        assert_eq!(resources["unified"], json!({"memory.oom.group": "1", "memory.swap.max": "0"}));
        assert_eq!(resources["memory"], memory);
    }
}

#[test]
fn a_container_swaps_as_configured() {
    let burstable = json!({"resources": {"requests": {"memory": "400M"}, "limits": {"memory": "1G"}}});
    let mut fixture = Fixture::new(burstable, json!({"Cmd": ["run"]}));
    fixture.node.swap_behavior = SwapBehavior::LimitedSwap;
    let resources = |fixture: &Fixture| fixture.spec().unwrap()["linux"]["resources"].clone();
    assert_eq!(resources(&fixture)["memory"]["swap"], json!(1_000_000_000), "with cgroup v1 there is no swap");
    fixture.node.cgroup_v2 = true;
    fixture.node.single_process_oom_kill = true;
    assert_eq!(resources(&fixture)["unified"], json!({"memory.swap.max": "200000000"}));
    fixture.host.swap_limit = false;
    assert_eq!(resources(&fixture).get("unified"), None);
}

#[test]
fn oom_score_stays_above_the_floor() {
    let full = json!({"resources": {"limits": {"cpu": "1", "memory": "64Mi"}}});
    let mut fixture = Fixture::new(full, json!({"Cmd": ["run"]}));
    assert_eq!(fixture.spec().unwrap()["process"]["oomScoreAdj"], -997);
    fixture.node.oom_score_floor = 0;
    assert_eq!(fixture.spec().unwrap()["process"]["oomScoreAdj"], 0);
}

#[test]
fn propagation_reaches_the_root() {
    let mut fixture = Fixture::new(json!({}), json!({"Cmd": ["run"]}));
    let mount = |propagation| volume::Mount {
        host_path: "/h".into(),
        container_path: "/c".into(),
        read_only: false,
        propagation,
    };
    let propagation = |fixture: &Fixture| fixture.spec().unwrap()["linux"].get("rootfsPropagation").cloned();
    assert_eq!(propagation(&fixture), None);
    fixture.mounts = vec![mount(Propagation::HostToContainer), mount(Propagation::Private)];
    assert_eq!(propagation(&fixture), Some(json!("rslave")));
    fixture.mounts.push(mount(Propagation::Bidirectional));
    fixture.mounts.push(mount(Propagation::HostToContainer));
    assert_eq!(propagation(&fixture), Some(json!("rshared")));
}

#[test]
fn the_spec_is_built_on_this_host() {
    let fixture = Fixture::new(json!({"securityContext": {"privileged": true}}), json!({"Cmd": ["run"]}));
    let spec = serde_json::to_value(build(&fixture.input()).unwrap()).unwrap();
    let devices = spec["linux"]["devices"].as_array().unwrap();
    assert!(devices.iter().any(|device| device["path"] == "/dev/null"));
}

#[test]
fn labels_are_those_of_the_process_and_of_its_mounts() {
    let mut fixture = Fixture::new(json!({}), json!({"Cmd": ["run"]}));
    let plain = fixture.spec().unwrap();
    assert_eq!((&plain["process"]["selinuxLabel"], &plain["linux"]["mountLabel"]), (&Value::Null, &Value::Null));
    let file = "system_u:object_r:container_file_t:s0:c1,c2";
    for process in [Some("system_u:system_r:container_t:s0:c1,c2"), None] {
        fixture.labels = Some(ContainerLabels { process: process.map(str::to_owned), file: file.to_owned() });
        let spec = fixture.spec().unwrap();
        assert_eq!(spec["process"]["selinuxLabel"].as_str(), process);
        assert_eq!(spec["linux"]["mountLabel"], file);
    }
}
