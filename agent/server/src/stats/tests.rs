//! Documents of one reading, and the page of each route.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{cadvisor, resource, summary};
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_host::cgroup::usage::{
    CpuQuota, CpuUsage, Depth, DeviceIo, GroupUsage, MemoryUsage, Pressures, SampleTime, SwapUsage,
};
use limpet_host::disk_usage::{DiskUsage, Walk};
use limpet_host::file_system::Space;
use limpet_host::machine::{Machine, MachineIds, Processors};
use limpet_host::proc_files::{Interface, ProcessIds, Stall, Stalls, Traffic};
use limpet_model::fixtures::record;
use limpet_model::pod::PodUid;
use limpet_telemetry::usage::claims::ClaimMeter;
use limpet_telemetry::usage::disks::{
    ContainerDisk, Dated, DiskMeter, Disks, ImageDisk, MeasureDisks, PodDisk, VolumeDisk,
};
use limpet_telemetry::usage::rates::NanoCores;
use limpet_telemetry::usage::{ContainerUsage, Meter, NodeUsage, PodUsage, ReadUsage};

/// A reading that never changes.
#[derive(Debug)]
struct Fixed(NodeUsage);

impl ReadUsage for Fixed {
    fn read(&self, _: Arc<ObservedPods>, _: Depth) -> BoxFuture<'_, io::Result<NodeUsage>> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}

impl MeasureDisks for Fixed {
    fn pod<'a>(&'a self, _: &'a ObservedPod) -> BoxFuture<'a, PodDisk> {
        Box::pin(async { PodDisk::default() })
    }

    fn claims<'a>(&'a self, _: &'a ObservedPod) -> BoxFuture<'a, Vec<VolumeDisk>> {
        Box::pin(async { Vec::new() })
    }

    fn images(&self, _: HashSet<String>) -> BoxFuture<'_, Option<ImageDisk>> {
        Box::pin(async { None })
    }
}

/// A meter whose reading never changes.
pub(crate) fn meter() -> Meter {
    let (reader, minute) = (Arc::new(Fixed(usage())), Duration::from_secs(60));
    let disks = Arc::clone(&reader) as Arc<dyn MeasureDisks>;
    let claims = ClaimMeter::new(Arc::clone(&disks), minute);
    Meter::new(reader, DiskMeter::new(disks, minute, TaskTracker::new(), CancellationToken::new()), claims)
}

fn group(path: &str, scale: u64) -> GroupUsage {
    GroupUsage {
        path: path.to_owned(),
        taken: SampleTime { at: Timestamp::constant(1_000, 250_000_000), uptime: Duration::from_secs(7) },
        cpu: Some(CpuUsage { total: 1_500_000_000 * scale, user: 1_000_000_000, system: 500_000_000, quota: None }),
        memory: Some(MemoryUsage {
            usage: 3_000 * scale,
            working_set: 2_000 * scale,
            rss: 1_000,
            cache: 2_000,
            page_faults: 9,
            major_page_faults: 1,
            ..MemoryUsage::default()
        }),
        swap: Some(SwapUsage { usage: 10, limit: None }),
        ..GroupUsage::default()
    }
}

fn container() -> ContainerUsage {
    let mut group = group("/kubepods/podu1/c1", 1);
    let quota = CpuQuota { quota: 50_000, period: 100_000, periods: 4, throttled_periods: 2, throttled: 2_500_000_000 };
    group.cpu.as_mut().unwrap().quota = Some(quota);
    let memory = group.memory.as_mut().unwrap();
    (memory.limit, memory.peak, memory.limit_hits) = (Some(5_000), Some(4_000), Some(1));
    (group.threads, group.threads_limit) = (Some(4), Some(99));
    group.swap = Some(SwapUsage { usage: 10, limit: Some(100) });
    group.processes = Some(3);
    group.oom_kills = Some(0);
    let stalls = Stalls { some: Stall { total: 2_000_000, avg10: 1.5, ..Stall::default() }, full: Stall::default() };
    group.pressure = Pressures { cpu: Some(stalls), memory: Some(stalls), io: Some(stalls) };
    group.io =
        vec![DeviceIo { device: "/dev/sda".to_owned(), read_bytes: 8_192, written_bytes: 4_096, reads: 2, writes: 1 }];
    ContainerUsage {
        name: "main".to_owned(),
        id: "c1".to_owned(),
        image: "web:1".to_owned(),
        started: Some(Timestamp::constant(900, 500_000_000)),
        group,
    }
}

pub(super) fn usage() -> NodeUsage {
    let traffic = |bytes| Traffic { bytes, packets: 2, errors: 1, dropped: 0 };
    let interface = |name: &str| Interface { name: name.to_owned(), received: traffic(100), sent: traffic(200) };
    let mut node = group("/", 10);
    node.memory.as_mut().unwrap().limit = Some(100_000);
    NodeUsage {
        booted: Some(Timestamp::constant(800, 0)),
        huge_pages: 30_000,
        group: node,
        all_pods: Some(group("/kubepods", 2)),
        levels: Vec::new(),
        interfaces: Some(vec![interface("ens3")]),
        disk: Some(Space { capacity: 1_000, available: 300, free: 400, inodes: 50, inodes_free: 20, device: 1 }),
        machine: Some(Machine {
            ids: MachineIds { machine: "m".to_owned(), system: "s".to_owned(), boot: "b".to_owned() },
            processors: Processors { logical: 4, physical: Some(2), sockets: Some(1) },
            memory: 100_000,
            swap: 7,
        }),
        process_ids: Some(ProcessIds { limit: 1_000, used: 100 }),
        pods: vec![PodUsage {
            record: record(json!({"metadata": {"name": "web-edge1", "namespace": "default", "uid": "u1"}})),
            started: Some(Timestamp::constant(850, 0)),
            group: Some(group("/kubepods/podu1", 2)),
            interfaces: Some(vec![interface("eth0")]),
            containers: vec![container()],
        }],
    }
}

#[test]
fn the_summary_is_kubelets() {
    let rates = NanoCores::from([("/kubepods/podu1/c1".to_owned(), 250_000_000)]);
    let document = summary::summary("edge1", &usage(), &rates, None);
    let (time, boot) = ("1970-01-01T00:16:40Z", "1970-01-01T00:13:20Z");
    let node = &document["node"];
    assert_eq!(node["nodeName"], "edge1");
    assert_eq!(node["startTime"], boot);
    assert_eq!(node["cpu"], json!({ "time": time, "usageCoreNanoSeconds": 15_000_000_000_u64 }));
    let memory = json!({
        "time": time, "availableBytes": 100_000 - 20_000 - 30_000, "usageBytes": 30_000, "workingSetBytes": 20_000,
        "rssBytes": 1_000, "pageFaults": 9, "majorPageFaults": 1,
    });
    assert_eq!(node["memory"], memory);
    let disk = json!({
        "time": time, "availableBytes": 300, "capacityBytes": 1_000, "usedBytes": 600,
        "inodes": 50, "inodesFree": 20, "inodesUsed": 30,
    });
    assert_eq!(node["fs"], disk);
    assert_eq!(node["rlimit"], json!({ "time": time, "maxpid": 1_000, "curproc": 100 }));
    assert_eq!(node["systemContainers"][0]["name"], "pods");
    assert_eq!((&node["network"]["name"], &node["network"]["interfaces"][0]["name"]), (&json!(""), &json!("ens3")));

    let pod = &document["pods"][0];
    assert_eq!(pod["podRef"], json!({ "name": "web-edge1", "namespace": "default", "uid": "u1" }));
    let eth0 = json!({ "name": "eth0", "rxBytes": 100, "rxErrors": 1, "txBytes": 200, "txErrors": 1 });
    let mut network = eth0.clone();
    network["time"] = json!(time);
    network["interfaces"] = json!([eth0]);
    assert_eq!(pod["network"], network);
    assert_eq!(pod["process_stats"], json!({ "process_count": 3 }));
    assert_eq!(pod["memory"].get("availableBytes"), None, "the pod has no limit");

    let container = &pod["containers"][0];
    let some = json!({ "total": 2_000_000, "avg10": 1.5, "avg60": 0.0, "avg300": 0.0 });
    let full = json!({ "total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0 });
    let psi = json!({ "some": some, "full": full });
    let cpu = json!({
        "time": time, "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 1_500_000_000, "psi": psi,
    });
    assert_eq!(container["cpu"], cpu);
    assert_eq!((&container["memory"]["availableBytes"], &container["memory"]["psi"]), (&json!(3_000), &psi));
    assert_eq!(container["swap"], json!({ "time": time, "swapAvailableBytes": 90, "swapUsageBytes": 10 }));
    assert_eq!(container["io"], json!({ "time": time, "psi": psi }));
}

/// A measurement that is half a minute old.
fn disks() -> Disks {
    let whole = |bytes, inodes| Some(Walk { seen: DiskUsage { bytes, inodes }, complete: true });
    let space = Space { capacity: 500, available: 100, free: 200, inodes: 0, inodes_free: 0, device: 2 };
    let volume = |name: &str, used, space, ephemeral| {
        let claim = (name == "data").then(|| "claimed".to_owned());
        VolumeDisk { name: name.to_owned(), claim, used, space, ephemeral }
    };
    let pod = PodDisk {
        containers: vec![ContainerDisk {
            name: "main".to_owned(),
            id: "c1".to_owned(),
            layer: Some(DiskUsage { bytes: 70, inodes: 7 }),
            logs: whole(20, 2),
            files: whole(0, 0),
        }],
        volumes: vec![
            volume("data", whole(4, 1), usage().disk, true),
            volume("token", whole(9, 3), Some(space), false),
            volume("vast", Some(Walk { seen: DiskUsage { bytes: 8, inodes: 1 }, complete: false }), Some(space), false),
        ],
        files: Walk { complete: true, ..Walk::default() },
    };
    let at = Timestamp::constant(970, 0);
    let images = ImageDisk { space: Some(space), used: DiskUsage { bytes: 170, inodes: 17 } };
    let pods = [(PodUid::new("u1"), Arc::new(Dated::new(at, pod)))].into();
    Disks { images: Some(Dated::new(at, images)), pods }
}

#[test]
fn file_systems_are_kubelets_with_the_time_they_were_measured() {
    let document = summary::summary("edge1", &usage(), &NanoCores::new(), Some(&disks()));
    let time = "1970-01-01T00:16:10Z";
    let images = json!({ "time": time, "availableBytes": 100, "capacityBytes": 500, "usedBytes": 170 });
    assert_eq!(document["node"]["runtime"], json!({ "imageFs": images, "containerFs": images }));
    let pod = &document["pods"][0];
    let node = |used: u64, inodes: u64| {
        json!({
            "time": time, "availableBytes": 300, "capacityBytes": 1_000, "usedBytes": used,
            "inodesFree": 20, "inodes": 50, "inodesUsed": inodes,
        })
    };
    let layer = json!({ "time": time, "availableBytes": 100, "capacityBytes": 500, "usedBytes": 70 });
    let container = &pod["containers"][0];
    assert_eq!((&container["rootfs"], &container["logs"]), (&layer, &node(20, 2)));
    assert_eq!(pod["ephemeral-storage"], node(70 + 20 + 4, 7 + 2 + 1));
    let named = |mut stats: Value, name| {
        stats["name"] = json!(name);
        stats
    };
    let token = json!({ "time": time, "availableBytes": 100, "capacityBytes": 500, "usedBytes": 9 });
    let vast = json!({ "time": time, "availableBytes": 100, "capacityBytes": 500 });
    let mut data = named(node(4, 1), "data");
    data["pvcRef"] = json!({ "name": "claimed", "namespace": pod["podRef"]["namespace"] });
    assert_eq!(pod["volume"], json!([data, named(token, "token"), named(vast, "vast")]));

    let mut started_since = usage();
    started_since.pods[0].containers[0].id = "c2".to_owned();
    let document = summary::summary("edge1", &started_since, &NanoCores::new(), Some(&disks()));
    let container = &document["pods"][0]["containers"][0];
    assert_eq!(
        (container.get("rootfs"), &container["logs"]),
        (None, &node(20, 2)),
        "another layer than the measured one"
    );
}

#[test]
fn what_is_not_known_is_left_out() {
    let document = summary::summary("edge1", &NodeUsage::default(), &NanoCores::new(), Some(&Disks::default()));
    assert_eq!(document, json!({ "node": { "nodeName": "edge1", "startTime": null }, "pods": [] }));
}

#[test]
fn resource_metrics_are_kubelets() {
    let page = resource::page(Some(&usage()));
    let expected = r#"# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="default",pod="web-edge1"} 1.5 1000250
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="main",namespace="default",pod="web-edge1"} 2000 1000250
# HELP container_swap_usage_bytes [ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems
# TYPE container_swap_usage_bytes gauge
container_swap_usage_bytes{container="main",namespace="default",pod="web-edge1"} 10 1000250
# HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="main",namespace="default",pod="web-edge1"} 900.5
# HELP container_swap_limit_bytes [ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems
# TYPE container_swap_limit_bytes gauge
container_swap_limit_bytes{container="main",namespace="default",pod="web-edge1"} 100 1000250
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 15 1000250
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 20000 1000250
# HELP node_swap_usage_bytes [ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems
# TYPE node_swap_usage_bytes gauge
node_swap_usage_bytes 10 1000250
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="default",pod="web-edge1"} 3 1000250
# HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="default",pod="web-edge1"} 4000 1000250
# HELP pod_swap_usage_bytes [ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems
# TYPE pod_swap_usage_bytes gauge
pod_swap_usage_bytes{namespace="default",pod="web-edge1"} 10 1000250
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
"#;
    assert_eq!(page, expected);
    assert!(resource::page(None).ends_with("\nresource_scrape_error 1\n"));
}

#[test]
fn cadvisors_series_name_the_group_and_what_it_belongs_to() {
    let page = cadvisor::page(Some(&usage()));
    let container =
        r#"container="main",id="/kubepods/podu1/c1",image="web:1",name="c1",namespace="default",pod="web-edge1"}"#;
    let pod = r#"container="",id="/kubepods/podu1",image="",name="",namespace="default",pod="web-edge1"}"#;
    let node = r#"container="",id="/",image="",name="",namespace="",pod=""}"#;
    let lines = [
        format!("container_cpu_usage_seconds_total{{cpu=\"total\",{container} 1.5 1000250"),
        format!("container_cpu_usage_seconds_total{{cpu=\"total\",{node} 15 1000250"),
        format!("container_cpu_cfs_throttled_seconds_total{{{container} 2.5 1000250"),
        format!("container_memory_working_set_bytes{{{pod} 4000 1000250"),
        format!(
            "container_memory_failures_total{{failure_type=\"pgmajfault\",scope=\"hierarchy\",{container} 1 1000250"
        ),
        format!("container_network_receive_bytes_total{{interface=\"eth0\",{pod} 100 1000250"),
        format!("container_network_transmit_errors_total{{interface=\"ens3\",{node} 1 1000250"),
        format!("container_pressure_memory_waiting_seconds_total{{{container} 2 1000250"),
        format!("container_spec_memory_limit_bytes{{{container} 5000 1000250"),
        format!("container_processes{{{container} 3 1000250"),
        format!("container_start_time_seconds{{{container} 900.5"),
        "container_scrape_error 0".to_owned(),
        format!("container_fs_reads_bytes_total{{device=\"/dev/sda\",{container} 8192 1000250"),
        format!("container_fs_writes_total{{device=\"/dev/sda\",{container} 1 1000250"),
        r#"machine_cpu_cores{boot_id="b",machine_id="m",system_uuid="s"} 4"#.to_owned(),
        r#"machine_memory_bytes{boot_id="b",machine_id="m",system_uuid="s"} 100000"#.to_owned(),
        "machine_scrape_error 0".to_owned(),
    ];
    for line in lines {
        assert!(page.lines().any(|other| other == line), "{line} is not in:\n{page}");
    }
    let throttled = page.lines().filter(|line| line.starts_with("container_cpu_cfs_periods_total{"));
    assert_eq!(throttled.count(), 1, "the others have no quota");
    let failed = cadvisor::page(None);
    assert!(failed.contains("\ncontainer_scrape_error 1\n") && failed.ends_with("\nmachine_scrape_error 1\n"));
}
