//! kubelet's `/metrics/cadvisor`: the series that the node's cgroups provide exactly, under cAdvisor's names.
//!
//! Every cgroup is a "container" here: the node, the levels above pods, pods, and containers. A pod's cgroup has the
//! pod's names, a container's also its name, image and id.

use jiff::Timestamp;

use super::exposition::{Family as Head, Kind, Page, Sample};
use super::resource::seconds;
use limpet_host::cgroup::usage::{CpuQuota, CpuUsage, DeviceIo, GroupUsage, MemoryUsage};
use limpet_host::machine::Machine;
use limpet_host::proc_files::{Interface, Stalls};
use limpet_telemetry::usage::NodeUsage;

/// The labels of every series.
pub(crate) const LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

/// Receives the families with their samples: a page, or CRI's messages.
pub(crate) trait Families {
    /// Receives one family. Its samples have the labels of the head, then [`LABELS`].
    fn take<'a>(&mut self, head: Head<'_>, samples: impl IntoIterator<Item = Sample<'a>>);
}

impl Families for Page {
    fn take<'a>(&mut self, head: Head<'_>, samples: impl IntoIterator<Item = Sample<'a>>) {
        self.add(head.name, head.kind, head.help, samples);
    }
}

type Labels<'a> = [(&'static str, &'a str); 6];

/// A cgroup with its labels.
struct Row<'a> {
    group: &'a GroupUsage,
    labels: Labels<'a>,
    started: Option<Timestamp>,
    interfaces: &'a [Interface],
}

/// A family: its name, kind, help text and value.
type Family<T> = (&'static str, Kind, &'static str, fn(&T) -> f64);

/// The same for a value that some cgroups lack.
type SomeFamily = (&'static str, Kind, &'static str, fn(&GroupUsage) -> Option<u64>);

/// The end of a family's name, its help text and its value.
type PressureFamily = (&'static str, &'static str, fn(&GroupUsage) -> Option<Stalls>);

/// The middle of a family's name, its help text and an interface's value.
type NetworkFamily = (&'static str, &'static str, fn(&Interface) -> u64);

/// The end of a family's name, its help text and a device's value.
type DiskFamily = (&'static str, &'static str, fn(&DeviceIo) -> u64);

/// The end of a family's name, its help text and its value; `None` if the machine does not report it.
type MachineFamily = (&'static str, &'static str, fn(&Machine) -> Option<u64>);

const CPU: [Family<CpuUsage>; 2] = [
    ("container_cpu_user_seconds_total", Kind::Counter, "Cumulative user cpu time consumed in seconds.", |cpu| {
        cpu.user as f64 / 1e9
    }),
    ("container_cpu_system_seconds_total", Kind::Counter, "Cumulative system cpu time consumed in seconds.", |cpu| {
        cpu.system as f64 / 1e9
    }),
];

const QUOTA: [Family<CpuQuota>; 5] = [
    ("container_cpu_cfs_periods_total", Kind::Counter, "Number of elapsed enforcement period intervals.", |quota| {
        quota.periods as f64
    }),
    ("container_cpu_cfs_throttled_periods_total", Kind::Counter, "Number of throttled period intervals.", |quota| {
        quota.throttled_periods as f64
    }),
    (
        "container_cpu_cfs_throttled_seconds_total",
        Kind::Counter,
        "Total time duration the container has been throttled.",
        |quota| quota.throttled as f64 / 1e9,
    ),
    ("container_spec_cpu_quota", Kind::Gauge, "CPU quota of the container.", |quota| quota.quota as f64),
    ("container_spec_cpu_period", Kind::Gauge, "CPU period of the container.", |quota| quota.period as f64),
];

const MEMORY: [Family<MemoryUsage>; 7] = [
    (
        "container_memory_usage_bytes",
        Kind::Gauge,
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |memory| memory.usage as f64,
    ),
    ("container_memory_working_set_bytes", Kind::Gauge, "Current working set in bytes.", |memory| {
        memory.working_set as f64
    }),
    ("container_memory_rss", Kind::Gauge, "Size of RSS in bytes.", |memory| memory.rss as f64),
    ("container_memory_cache", Kind::Gauge, "Number of bytes of page cache memory.", |memory| memory.cache as f64),
    ("container_memory_mapped_file", Kind::Gauge, "Size of memory mapped files in bytes.", |memory| {
        memory.mapped_file as f64
    }),
    ("container_memory_total_active_file_bytes", Kind::Gauge, "Current total active file in bytes.", |memory| {
        memory.active_file as f64
    }),
    ("container_memory_total_inactive_file_bytes", Kind::Gauge, "Current total inactive file in bytes.", |memory| {
        memory.inactive_file as f64
    }),
];

const SOME: [SomeFamily; 8] = [
    ("container_memory_swap", Kind::Gauge, "Container swap usage in bytes.", |group| Some(group.swap?.usage)),
    ("container_memory_max_usage_bytes", Kind::Gauge, "Maximum memory usage recorded in bytes", |group| {
        group.memory.as_ref()?.peak
    }),
    ("container_memory_failcnt", Kind::Counter, "Number of memory usage hits limits", |group| {
        group.memory.as_ref()?.limit_hits
    }),
    ("container_spec_memory_limit_bytes", Kind::Gauge, "Memory limit for the container.", |group| {
        group.memory.as_ref()?.limit
    }),
    ("container_processes", Kind::Gauge, "Number of processes running inside the container.", |group| group.processes),
    ("container_threads", Kind::Gauge, "Number of threads running inside the container", |group| group.threads),
    (
        "container_threads_max",
        Kind::Gauge,
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |group| group.threads_limit,
    ),
    (
        "container_oom_events_total",
        Kind::Counter,
        "Count of out of memory events observed for the container",
        |group| group.oom_kills,
    ),
];

/// Each entry makes two families: for some tasks waiting, and for all of them.
const PRESSURE: [PressureFamily; 3] = [
    ("cpu", "CPU", |group| group.pressure.cpu),
    ("memory", "memory", |group| group.pressure.memory),
    ("io", "IO", |group| group.pressure.io),
];

const NETWORK: [NetworkFamily; 8] = [
    ("receive_bytes", "Cumulative count of bytes received", |counters| counters.received.bytes),
    ("receive_packets", "Cumulative count of packets received", |counters| counters.received.packets),
    ("receive_packets_dropped", "Cumulative count of packets dropped while receiving", |counters| {
        counters.received.dropped
    }),
    ("receive_errors", "Cumulative count of errors encountered while receiving", |counters| counters.received.errors),
    ("transmit_bytes", "Cumulative count of bytes transmitted", |counters| counters.sent.bytes),
    ("transmit_packets", "Cumulative count of packets transmitted", |counters| counters.sent.packets),
    ("transmit_packets_dropped", "Cumulative count of packets dropped while transmitting", |counters| {
        counters.sent.dropped
    }),
    ("transmit_errors", "Cumulative count of errors encountered while transmitting", |counters| counters.sent.errors),
];

const DISKS: [DiskFamily; 4] = [
    ("reads_bytes", "Cumulative count of bytes read", |io| io.read_bytes),
    ("reads", "Cumulative count of reads completed", |io| io.reads),
    ("writes_bytes", "Cumulative count of bytes written", |io| io.written_bytes),
    ("writes", "Cumulative count of writes completed", |io| io.writes),
];

const MACHINE: [MachineFamily; 5] = [
    ("cpu_cores", "Number of logical CPU cores.", |machine| Some(machine.processors.logical as u64)),
    ("cpu_physical_cores", "Number of physical CPU cores.", |machine| Some(machine.processors.physical? as u64)),
    ("cpu_sockets", "Number of CPU sockets.", |machine| Some(machine.processors.sockets? as u64)),
    ("memory_bytes", "Amount of memory installed on the machine.", |machine| Some(machine.memory)),
    ("swap_bytes", "Amount of swap memory available on the machine.", |machine| Some(machine.swap)),
];

/// The page. After a failed reading it has only the error metric.
pub(super) fn page(usage: Option<&NodeUsage>) -> String {
    let mut page = Page::default();
    if let Some(usage) = usage {
        families(usage, &mut page);
    }
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    let value = if usage.is_some() { 0.0 } else { 1.0 };
    page.add("container_scrape_error", Kind::Gauge, help, [Sample { labels: Vec::new(), value, at: None }]);
    let machine = usage.and_then(|usage| usage.machine.as_ref());
    if let Some(machine) = machine {
        add_machine(&mut page, machine);
    }
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    let value = if machine.is_some() { 0.0 } else { 1.0 };
    page.add("machine_scrape_error", Kind::Gauge, help, [Sample { labels: Vec::new(), value, at: None }]);
    page.into_text()
}

/// Passes on every family, in a fixed order.
pub(crate) fn families(usage: &NodeUsage, into: &mut impl Families) {
    let rows = rows(usage);
    add_cpu(into, &rows);
    add_memory(into, &rows);
    for (name, kind, help, value) in SOME {
        let samples = rows.iter().filter_map(|row| Some(row.sample(value(row.group)? as f64)));
        into.take(Head { name, kind, help, labels: &[] }, samples);
    }
    add_pressure(into, &rows);
    add_network(into, &rows);
    add_disks(into, &rows);
    let started = rows.iter().filter_map(|row| Some(Sample { at: None, ..row.sample(seconds(row.started?)) }));
    let help = "Start time of the container since unix epoch in seconds.";
    into.take(Head { name: "container_start_time_seconds", kind: Kind::Gauge, help, labels: &[] }, started);
    let seen = rows.iter().map(|row| row.sample(row.group.taken.at.as_second() as f64));
    let help = "Last time a container was seen by the exporter";
    into.take(Head { name: "container_last_seen", kind: Kind::Gauge, help, labels: &[] }, seen);
}

fn rows(usage: &NodeUsage) -> Vec<Row<'_>> {
    let outside = usage.all_pods.iter().chain(&usage.levels).map(|group| Row::new(group, ["", "", "", "", ""]));
    let node = Row { interfaces: usage.interfaces.as_deref().unwrap_or_default(), ..Row::new(&usage.group, [""; 5]) };
    let mut rows: Vec<Row<'_>> = [node].into_iter().chain(outside).collect();
    for pod in &usage.pods {
        let (namespace, name) = (pod.record.key.namespace(), pod.record.key.name());
        if let Some(group) = &pod.group {
            let interfaces = pod.interfaces.as_deref().unwrap_or_default();
            rows.push(Row { interfaces, ..Row::new(group, ["", "", "", namespace, name]) });
        }
        rows.extend(pod.containers.iter().map(|container| Row {
            started: container.started,
            ..Row::new(&container.group, [&container.name, &container.image, &container.id, namespace, name])
        }));
    }
    rows
}

impl<'a> Row<'a> {
    fn new(group: &'a GroupUsage, [container, image, name, namespace, pod]: [&'a str; 5]) -> Self {
        let [c, i, m, n, s, p] = LABELS;
        let labels = [(c, container), (i, group.path.as_str()), (m, image), (n, name), (s, namespace), (p, pod)];
        Self { group, labels, started: None, interfaces: &[] }
    }

    fn sample(&self, value: f64) -> Sample<'a> {
        self.with(&[], value)
    }

    fn with(&self, more: &[(&'static str, &'a str)], value: f64) -> Sample<'a> {
        let labels = more.iter().chain(&self.labels).copied().collect();
        Sample { labels, value, at: Some(self.group.taken.at) }
    }
}

fn add_cpu(into: &mut impl Families, rows: &[Row<'_>]) {
    let total =
        rows.iter().filter_map(|row| Some(row.with(&[("cpu", "total")], row.group.cpu.as_ref()?.total as f64 / 1e9)));
    let help = "Cumulative cpu time consumed in seconds.";
    let name = "container_cpu_usage_seconds_total";
    into.take(Head { name, kind: Kind::Counter, help, labels: &["cpu"] }, total);
    for (name, kind, help, value) in CPU {
        let samples = rows.iter().filter_map(|row| Some(row.sample(value(row.group.cpu.as_ref()?))));
        into.take(Head { name, kind, help, labels: &[] }, samples);
    }
    for (name, kind, help, value) in QUOTA {
        let samples = rows.iter().filter_map(|row| Some(row.sample(value(&row.group.cpu.as_ref()?.quota?))));
        into.take(Head { name, kind, help, labels: &[] }, samples);
    }
}

fn add_memory(into: &mut impl Families, rows: &[Row<'_>]) {
    for (name, kind, help, value) in MEMORY {
        let samples = rows.iter().filter_map(|row| Some(row.sample(value(row.group.memory.as_ref()?))));
        into.take(Head { name, kind, help, labels: &[] }, samples);
    }
    let faults = rows.iter().filter_map(|row| Some((row, row.group.memory.as_ref()?))).flat_map(|(row, memory)| {
        [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)]
            .map(|(kind, count)| row.with(&[("failure_type", kind), ("scope", "hierarchy")], count as f64))
    });
    let help = "Cumulative count of memory allocation failures.";
    let labels = &["failure_type", "scope"];
    into.take(Head { name: "container_memory_failures_total", kind: Kind::Counter, help, labels }, faults);
}

fn add_pressure(into: &mut impl Families, rows: &[Row<'_>]) {
    for (name, what, stalls) in PRESSURE {
        let stalls = || rows.iter().filter_map(|row| Some((row, stalls(row.group)?)));
        let help =
            format!("Total time duration no tasks in the container could make progress due to {what} congestion.");
        let samples = stalls().map(|(row, stalls)| row.sample(stalls.full.total as f64 / 1e6));
        let full = format!("container_pressure_{name}_stalled_seconds_total");
        into.take(Head { name: &full, kind: Kind::Counter, help: &help, labels: &[] }, samples);
        let help = format!("Total time duration tasks in the container have waited due to {what} congestion.");
        let samples = stalls().map(|(row, stalls)| row.sample(stalls.some.total as f64 / 1e6));
        let some = format!("container_pressure_{name}_waiting_seconds_total");
        into.take(Head { name: &some, kind: Kind::Counter, help: &help, labels: &[] }, samples);
    }
}

fn add_network(into: &mut impl Families, rows: &[Row<'_>]) {
    for (name, help, counter) in NETWORK {
        let samples = rows.iter().flat_map(|row| {
            row.interfaces
                .iter()
                .map(move |interface| row.with(&[("interface", &interface.name)], counter(interface) as f64))
        });
        let name = format!("container_network_{name}_total");
        into.take(Head { name: &name, kind: Kind::Counter, help, labels: &["interface"] }, samples);
    }
}

fn add_disks(into: &mut impl Families, rows: &[Row<'_>]) {
    for (name, help, counter) in DISKS {
        let samples = rows
            .iter()
            .flat_map(|row| row.group.io.iter().map(move |io| row.with(&[("device", &io.device)], counter(io) as f64)));
        let name = format!("container_fs_{name}_total");
        into.take(Head { name: &name, kind: Kind::Counter, help, labels: &["device"] }, samples);
    }
}

fn add_machine(page: &mut Page, machine: &Machine) {
    let ids = &machine.ids;
    for (name, help, value) in MACHINE {
        let labels = vec![("boot_id", ids.boot.as_str()), ("machine_id", &ids.machine), ("system_uuid", &ids.system)];
        let sample = value(machine).map(|value| Sample { labels, value: value as f64, at: None });
        page.add(&format!("machine_{name}"), Kind::Gauge, help, sample);
    }
}
