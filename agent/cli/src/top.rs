//! `limpet top`: CPU and memory usage of running pods, in kubectl's columns.
//!
//! The agent provides counters. This command computes the usage between two readings, so the agent takes no samples
//! for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use serde_json::{Value, json};

use super::error::CliError;
use super::output::DocumentFormat;
use super::screen::Screen;
use super::table::{Cell, Table};
use limpet_core::cpu_rate::rate;
use limpet_wire::socket_client::SocketClient;
use limpet_wire::usage::{PodUsageDocument, Reading, UsageDocument};

/// The time between the two readings of a table.
pub(super) const READING_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two tables of a watch.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Clears the terminal and moves the cursor to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Arguments of `limpet top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// A line for each
    #[arg(value_enum, default_value = "pods")]
    what: What,
    /// Only this namespace
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// Always show the namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// The largest first, instead of by name
    #[arg(long, value_name = "COLUMN")]
    sort_by: Option<Column>,
    /// Show it again every two seconds
    #[arg(short, long)]
    watch: bool,
    /// A PodMetricsList, as metrics-server has it; with -w one after the other
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Pods
    #[value(aliases = ["pod", "po"])]
    Pods,
    /// Containers
    #[value(alias = "container")]
    Containers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Column {
    Cpu,
    Memory,
}

pub(super) async fn run(client: &SocketClient, args: TopArgs, screen: Screen) -> Result<u8, CliError> {
    let clear = if args.watch && args.output.is_none() && io::stdout().is_terminal() { CLEAR } else { "" };
    let mut before = read(client).await?;
    let mut pause = READING_INTERVAL;
    loop {
        tokio::time::sleep(pause).await;
        let after = read(client).await?;
        let rows = rows(&before, &after, args.namespace.as_deref());
        let text = match args.output {
            Some(format) => format.render(&metrics(&rows, &after, pause))?,
            None => table(&rows, &args, &screen),
        };
        screen.print(&format!("{clear}{text}"))?;
        if rows.is_empty() && args.output.is_none() {
            screen.remark("Nothing runs.")?;
        }
        if !args.watch {
            return Ok(0);
        }
        (before, pause) = (after, REFRESH_INTERVAL);
    }
}

/// The pods' part of `limpet ui`, as `limpet top` shows it.
pub(super) fn page(before: &UsageDocument, after: &UsageDocument, screen: &Screen) -> String {
    let args =
        TopArgs { what: What::Pods, namespace: None, all_namespaces: false, sort_by: None, watch: true, output: None };
    table(&rows(before, after, None), &args, screen)
}

pub(super) async fn read(client: &SocketClient) -> Result<UsageDocument, CliError> {
    Ok(client.get_json("/limpet/v1/usage").await?)
}

/// The usage of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodRow {
    namespace: String,
    name: String,
    used: Used,
    /// By name.
    containers: Vec<(String, Used)>,
}

/// Usage; `None` where it is unknown, as CPU time is for a container that has just started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Used {
    /// In nanoseconds of CPU time per second.
    cpu: Option<u64>,
    /// In bytes.
    memory: Option<u64>,
}

/// The usage between two readings.
fn rows(before: &UsageDocument, after: &UsageDocument, namespace: Option<&str>) -> Vec<PodRow> {
    let mut earlier: BTreeMap<&str, Reading> = BTreeMap::new();
    for pod in &before.pods {
        earlier.insert(&pod.uid, pod.reading);
        earlier.extend(pod.containers.iter().map(|container| (container.id.as_str(), container.reading)));
    }
    let used = |id: &str, now: &Reading| Used { cpu: cpu(earlier.get(id), now), memory: now.memory_bytes };
    let pods = after.pods.iter().filter(|pod| namespace.is_none_or(|namespace| pod.namespace == namespace));
    let row = |pod: &PodUsageDocument| PodRow {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        used: used(&pod.uid, &pod.reading),
        containers: pod
            .containers
            .iter()
            .map(|container| (container.name.clone(), used(&container.id, &container.reading)))
            .collect(),
    };
    pods.map(row).collect()
}

fn cpu(before: Option<&Reading>, now: &Reading) -> Option<u64> {
    let before = before?;
    let elapsed = Duration::from_nanos(now.uptime_nanoseconds.saturating_sub(before.uptime_nanoseconds));
    rate(before.cpu_nanoseconds?, now.cpu_nanoseconds?, elapsed)
}

fn table(pods: &[PodRow], args: &TopArgs, screen: &Screen) -> String {
    let several = pods.windows(2).any(|two| two[0].namespace != two[1].namespace);
    let with_namespace = args.all_namespaces || (several && args.namespace.is_none());
    let mut lines: Vec<(Vec<&str>, Used)> = match args.what {
        What::Pods => pods.iter().map(|pod| (vec![pod.namespace.as_str(), &pod.name], pod.used)).collect(),
        What::Containers => {
            let containers = pods.iter().flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
            containers.map(|(pod, (name, used))| (vec![pod.namespace.as_str(), &pod.name, name], *used)).collect()
        }
    };
    match args.sort_by {
        None => lines.sort_by(|left, other| left.0.cmp(&other.0)),
        Some(Column::Cpu) => lines.sort_by_key(|(_, used)| Reverse(used.cpu)),
        Some(Column::Memory) => lines.sort_by_key(|(_, used)| Reverse(used.memory)),
    }
    let names: &[&'static str] = match args.what {
        What::Pods => &["NAMESPACE", "NAME"],
        What::Containers => &["NAMESPACE", "POD", "NAME"],
    };
    let first = usize::from(!with_namespace);
    let header = names[first..].iter().copied().chain(["CPU(cores)", "MEMORY(bytes)"]);
    let row = |(names, used): &(Vec<&str>, Used)| {
        let figures = [used.cpu.map(millicores), used.memory.map(mebibytes)];
        let figures = figures.map(|figure| Cell::from(figure.unwrap_or_else(|| "<unknown>".to_owned())));
        names[first..].iter().map(|name| Cell::from(*name)).chain(figures).collect()
    };
    let rows: Vec<Vec<Cell>> = lines.iter().map(row).collect();
    if rows.is_empty() { String::new() } else { Table::new(header.collect()).render(screen, &rows) }
}

/// `250m`, rounded up as kubectl does.
pub(super) fn millicores(nano_cores: u64) -> String {
    format!("{}m", nano_cores.div_ceil(1_000_000))
}

/// `12Mi`, rounded down as kubectl does.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{}Mi", bytes >> 20)
}

/// The pods in metrics-server's format.
fn metrics(pods: &[PodRow], at: &UsageDocument, window: Duration) -> Value {
    let usage = |used: &Used| {
        let mut usage = serde_json::Map::new();
        usage.extend(used.cpu.map(|cpu| ("cpu".to_owned(), json!(format!("{cpu}n")))));
        usage.extend(used.memory.map(|bytes| ("memory".to_owned(), json!(bytes.to_string()))));
        usage
    };
    let container = |(name, used): &(String, Used)| json!({ "name": name, "usage": usage(used) });
    let pod = |pod: &PodRow| {
        json!({
            "metadata": { "name": pod.name, "namespace": pod.namespace },
            "timestamp": at.time,
            "window": format!("{}s", window.as_secs()),
            "containers": pod.containers.iter().map(container).collect::<Vec<_>>(),
        })
    };
    json!({
        "apiVersion": "metrics.k8s.io/v1beta1",
        "kind": "PodMetricsList",
        "metadata": {},
        "items": pods.iter().map(pod).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use limpet_wire::usage::ContainerUsageDocument;

    fn document(uptime: u64, pods: &[(&str, &str, u64, u64)]) -> UsageDocument {
        let reading = |cpu, memory: u64| Reading {
            uptime_nanoseconds: uptime,
            cpu_nanoseconds: Some(cpu),
            memory_bytes: Some(memory << 20),
        };
        let pod = |(namespace, name, cpu, memory): &(&str, &str, u64, u64)| PodUsageDocument {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
            uid: format!("u-{name}"),
            reading: reading(*cpu, memory + 1),
            containers: vec![ContainerUsageDocument {
                name: "main".to_owned(),
                id: format!("c-{name}"),
                reading: reading(cpu / 2, *memory),
            }],
        };
        UsageDocument { time: Time(Timestamp::UNIX_EPOCH), conditions: None, pods: pods.iter().map(pod).collect() }
    }

    fn arguments(line: &[&str]) -> TopArgs {
        use clap::{Args as _, FromArgMatches as _};
        let command = TopArgs::augment_args(clap::Command::new("top").no_binary_name(true));
        TopArgs::from_arg_matches(&command.get_matches_from(line)).unwrap()
    }

    #[test]
    fn the_table_shows_what_was_used_between_the_readings() {
        let before = document(1_000_000_000, &[("default", "web", 0, 5), ("default", "db", 7, 5)]);
        let pods = [("default", "web", 500_000_001, 20), ("default", "db", 7, 300), ("shop", "new", 9, 1)];
        let after = document(2_000_000_000, &pods);
        let screen = Screen { color: false, quiet: false };
        let shown = |line: &[&str]| {
            let args = arguments(line);
            table(&rows(&before, &after, args.namespace.as_deref()), &args, &screen)
        };
        assert_eq!(
            shown(&[]),
            "NAMESPACE   NAME   CPU(cores)   MEMORY(bytes)\n\
             default     db     0m           301Mi\n\
             default     web    501m         21Mi\n\
             shop        new    <unknown>    2Mi\n"
        );
        assert_eq!(
            shown(&["containers", "-n", "default", "--sort-by", "cpu"]),
            "POD   NAME   CPU(cores)   MEMORY(bytes)\n\
             web   main   250m         20Mi\n\
             db    main   0m           300Mi\n"
        );
        let all = shown(&["pod", "-A", "--sort-by=memory"]);
        assert!(all.lines().nth(1).unwrap().contains("db"), "{all}");
        assert_eq!(shown(&["-n", "none"]), "");
    }

    #[test]
    fn the_document_is_metrics_servers() {
        let (before, after) = (document(0, &[]), document(1_000_000_000, &[("default", "web", 500, 20)]));
        let first = metrics(&rows(&before, &after, None), &after, READING_INTERVAL);
        let unknown = json!({ "name": "main", "usage": { "memory": "20971520" } });
        assert_eq!(first["items"][0]["containers"], json!([unknown]));
        let later = document(2_000_000_000, &[("default", "web", 2_000_000_500, 20)]);
        let second = metrics(&rows(&after, &later, None), &later, READING_INTERVAL);
        assert_eq!(second["kind"], "PodMetricsList");
        let pod = &second["items"][0];
        assert_eq!(pod["metadata"], json!({ "name": "web", "namespace": "default" }));
        assert_eq!((&pod["window"], &pod["timestamp"]), (&json!("1s"), &json!("1970-01-01T00:00:00Z")));
        assert_eq!(pod["containers"][0]["usage"], json!({ "cpu": "1000000000n", "memory": "20971520" }));
    }
}
