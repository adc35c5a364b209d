//! `limpet pods`: the pods of this node, their source and status.

use std::collections::BTreeSet;

use clap_complete::engine::ArgValueCompleter;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::error::{CliError, EXIT_UNREACHABLE};
use super::output::DocumentFormat;
use super::pod_status::Summary;
use super::screen::{Screen, Tone, printable};
use super::table::{Cell, Table};
use super::{age, completion, target};
use limpet_model::pod::identity::OWNER_ANNOTATION;
use limpet_wire::pods::{PodChange, PodEntry, PodNames, PodsDocument, SourceDocument};
use limpet_wire::socket_client::SocketClient;

/// The formats of `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// More columns
    Wide,
    /// A PodList, or the Pod if one is named
    Json,
    /// The same as YAML
    Yaml,
    /// `pod/NAME`, one per line
    Name,
}

/// Arguments of `limpet pods`.
#[derive(Debug, clap::Args)]
pub struct PodsArgs {
    /// Only these: NAME, NAMESPACE/NAME, or the manifest's name
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completion::pods))]
    pods: Vec<String>,
    /// Only this namespace
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// Always show the namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Output format instead of the table
    #[arg(short, long, value_name = "FORM")]
    output: Option<Output>,
    /// Watch for changes
    #[arg(short, long)]
    watch: bool,
}

pub(super) async fn run(client: &SocketClient, args: PodsArgs, screen: Screen) -> Result<u8, CliError> {
    // Also accept `limpet get pods`, as kubectl does.
    let arguments = args.pods.iter().filter(|argument| !matches!(argument.as_str(), "pods" | "pod" | "po"));
    let filter = PodFilter {
        keys: keys(client, arguments, args.namespace.as_deref()).await?,
        namespace: args.namespace.clone(),
    };
    match (args.watch, args.output) {
        (true, _) => watch(client, &args, &filter, screen).await,
        (false, Some(Output::Json)) => document(client, &filter, DocumentFormat::Json, screen).await,
        (false, Some(Output::Yaml)) => document(client, &filter, DocumentFormat::Yaml, screen).await,
        (false, _) => list(client, &args, &filter, screen).await,
    }
}

/// Selects the pods to show.
struct PodFilter {
    /// Namespace and name; `None`: all.
    keys: Option<BTreeSet<(String, String)>>,
    namespace: Option<String>,
}

impl PodFilter {
    fn has(&self, namespace: &str, name: &str) -> bool {
        self.namespace.as_deref().is_none_or(|filter| filter == namespace)
            && self.keys.as_ref().is_none_or(|keys| keys.contains(&(namespace.to_owned(), name.to_owned())))
    }

    fn has_entry(&self, entry: &PodEntry) -> bool {
        self.has(namespace(entry), name(entry))
    }
}

async fn keys(
    client: &SocketClient,
    arguments: impl Iterator<Item = &String>,
    namespace: Option<&str>,
) -> Result<Option<BTreeSet<(String, String)>>, CliError> {
    let mut arguments = arguments.peekable();
    if arguments.peek().is_none() {
        return Ok(None);
    }
    let pods: Vec<PodNames> = client.get_json("/limpet/v1/names").await?;
    let resolve = |argument: &String| {
        target::resolve(&pods, argument, namespace).map(|pod| (pod.namespace.clone(), pod.name.clone()))
    };
    arguments.map(resolve).collect::<Result<_, _>>().map(Some)
}

async fn list(client: &SocketClient, args: &PodsArgs, filter: &PodFilter, screen: Screen) -> Result<u8, CliError> {
    let document: PodsDocument = client.get_json("/limpet/v1/pods").await?;
    let pods: Vec<&PodEntry> = document.pods.iter().filter(|entry| filter.has_entry(entry)).collect();
    if args.output == Some(Output::Name) {
        screen.print(&pods.iter().map(|entry| format!("pod/{}\n", name(entry))).collect::<String>())?;
        return Ok(0);
    }
    if pods.is_empty() {
        screen.remark(&nothing(&document.sources))?;
    } else {
        let columns = Columns::new(args, &document.pods);
        let now = Timestamp::now();
        let rows: Vec<Vec<Cell>> = pods.iter().map(|entry| columns.row(entry, now)).collect();
        screen.print(&columns.table().render(&screen, &rows))?;
    }
    if filter.keys.is_none() {
        for remark in remarks(&document.sources) {
            screen.remark(&remark)?;
        }
    }
    Ok(0)
}

/// The agent's PodList, or the single Pod requested by name.
async fn document(
    client: &SocketClient,
    filter: &PodFilter,
    format: DocumentFormat,
    screen: Screen,
) -> Result<u8, CliError> {
    let mut list: Value = client.get_json("/pods").await?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut items: Vec<Value> = items
        .into_iter()
        .filter(|pod| filter.has(&text(&pod["metadata"]["namespace"]), &text(&pod["metadata"]["name"])))
        .collect();
    let is_single = filter.keys.as_ref().is_some_and(|keys| keys.len() == 1) && items.len() == 1;
    let document = if is_single {
        items.remove(0)
    } else {
        json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items })
    };
    screen.print(&format.render(&document)?)?;
    Ok(0)
}

async fn watch(client: &SocketClient, args: &PodsArgs, filter: &PodFilter, screen: Screen) -> Result<u8, CliError> {
    let mut lines = client.lines::<PodChange>("/limpet/v1/pods?watch=1").await?;
    let mut first: Option<Vec<PodEntry>> = Some(Vec::new());
    let mut columns = Columns::new(args, &[]);
    let mut table = columns.table();
    while let Some(change) = lines.next().await? {
        let shown: Vec<PodEntry> = match (change, &mut first) {
            (PodChange::Synced, first) => {
                let begin = first.take().unwrap_or_default();
                columns = Columns::new(args, &begin);
                table = columns.table();
                begin
            }
            (PodChange::Added(entry), Some(begin)) => {
                begin.push(*entry);
                continue;
            }
            (PodChange::Added(entry) | PodChange::Modified(entry), _) => vec![*entry],
            (PodChange::Deleted(entry), _) => vec![PodEntry { note: Some(ended(&entry)), ..*entry }],
        };
        let shown: Vec<&PodEntry> = shown.iter().filter(|entry| filter.has_entry(entry)).collect();
        let text = match args.output {
            Some(Output::Name) => shown.iter().map(|entry| format!("pod/{}\n", name(entry))).collect(),
            Some(Output::Json) => documents(&shown, DocumentFormat::Json, "")?,
            Some(Output::Yaml) => documents(&shown, DocumentFormat::Yaml, "---\n")?,
            Some(Output::Wide) | None => {
                let now = Timestamp::now();
                table.render(&screen, &shown.iter().map(|entry| columns.row(entry, now)).collect::<Vec<_>>())
            }
        };
        screen.print(&text)?;
    }
    // The stream ends only if the agent stopped.
    screen.remark("limpet stopped; its pods keep running")?;
    Ok(EXIT_UNREACHABLE)
}

fn documents(pods: &[&PodEntry], format: DocumentFormat, before: &str) -> Result<String, CliError> {
    pods.iter().map(|entry| Ok(format!("{before}{}", format.render(&entry.pod)?))).collect()
}

/// The wide table, built pod by pod.
#[derive(Default)]
pub(super) struct Overview(Vec<Vec<Cell>>);

impl Overview {
    const COLUMNS: Columns = Columns { namespace: true, wide: true, home: None };

    /// Adds a pod, as it is at `now`.
    pub(super) fn add(&mut self, entry: &PodEntry, now: Timestamp) {
        self.0.push(Self::COLUMNS.row(entry, now));
    }

    /// The header and all rows.
    pub(super) fn render(&self, screen: &Screen) -> String {
        Self::COLUMNS.table().render(screen, &self.0)
    }
}

/// The table of `limpet pods -w` as a screen that is redrawn after changes: columns only ever grow.
#[derive(Debug)]
pub(super) struct Listing {
    columns: Columns,
    table: Table,
}

impl Listing {
    /// The table of these pods, whose columns later rows have to fit.
    pub(super) fn new<'a>(all: impl Iterator<Item = &'a PodEntry>) -> Self {
        let namespaces: BTreeSet<&str> = all.map(namespace).collect();
        let home = namespaces.first().map(ToString::to_string);
        let columns = Columns { namespace: namespaces.len() > 1, wide: false, home };
        Self { table: columns.table(), columns }
    }

    /// The header and a line for each of the pods, with ages at `now`.
    pub(super) fn page<'a>(
        &mut self,
        pods: impl Iterator<Item = &'a PodEntry>,
        screen: &Screen,
        now: Timestamp,
    ) -> String {
        let rows: Vec<Vec<Cell>> = pods.map(|entry| self.columns.row(entry, now)).collect();
        self.table.page(screen, &rows)
    }
}

#[derive(Debug)]
struct Columns {
    namespace: bool,
    wide: bool,
    /// The common namespace of all pods, while there is no column for it.
    home: Option<String>,
}

impl Columns {
    /// The namespace has a column only if pods differ in it.
    fn new(args: &PodsArgs, all: &[PodEntry]) -> Self {
        let namespaces: BTreeSet<&str> = all.iter().map(namespace).collect();
        let several = args.namespace.is_none() && namespaces.len() > 1;
        Self {
            namespace: args.all_namespaces || several,
            wide: args.output == Some(Output::Wide),
            home: namespaces.first().map(ToString::to_string),
        }
    }

    fn table(&self) -> Table {
        let mut header = Vec::new();
        if self.namespace {
            header.push("NAMESPACE");
        }
        header.extend(["NAME", "READY", "STATUS", "RESTARTS", "AGE", "SOURCE"]);
        if self.wide {
            header.extend(["IP", "NODE", "UID", "IMAGES", "OWNER"]);
        }
        header.push("NOTE");
        Table::new(header)
    }

    fn row(&self, entry: &PodEntry, now: Timestamp) -> Vec<Cell> {
        let summary = Summary::new(&entry.pod);
        let ready = format!("{}/{}", summary.ready, summary.total);
        let restarts = match summary.last_restart {
            Some(last) if summary.restarts > 0 => format!("{} ({} ago)", summary.restarts, age::since(last, now)),
            _ => summary.restarts.to_string(),
        };
        let mut row = Vec::new();
        // A pod of another namespace that appears during a watch has no column for it.
        let away = self.home.as_deref().is_some_and(|home| home != namespace(entry));
        let name = match (self.namespace, away) {
            (false, true) => format!("{}/{}", namespace(entry), name(entry)),
            _ => name(entry).to_owned(),
        };
        if self.namespace {
            row.push(Cell::from(namespace(entry)));
        }
        row.extend([
            Cell::from(name),
            Cell::from(ready),
            Cell::toned(&summary.status, summary.tone()),
            Cell::from(restarts),
            Cell::from(created(entry).map_or_else(|| "<unknown>".to_owned(), |then| age::since(then, now))),
            Cell::toned(source(entry), Tone::Faint),
        ]);
        if self.wide {
            row.extend(wide(entry));
        }
        row.push(Cell::toned(entry.note.as_deref().unwrap_or_default(), Tone::Warn));
        row
    }
}

/// The note of a deleted pod: how its containers exited.
fn ended(entry: &PodEntry) -> String {
    let statuses = entry.pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let exits = statuses.filter_map(|status| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        Some(format!("{} exited with code {}", status.name, terminated.exit_code))
    });
    ["deleted".to_owned()].into_iter().chain(exits).collect::<Vec<_>>().join("; ")
}

fn wide(entry: &PodEntry) -> [Cell; 5] {
    let none = || "<none>".to_owned();
    let status = entry.pod.status.as_ref();
    let spec = entry.pod.spec.as_ref();
    let uid = entry.pod.metadata.uid.as_deref().unwrap_or_default();
    let images: Vec<&str> =
        spec.iter().flat_map(|spec| &spec.containers).filter_map(|container| container.image.as_deref()).collect();
    [
        Cell::from(status.and_then(|status| status.pod_ip.clone()).unwrap_or_else(none)),
        Cell::from(spec.and_then(|spec| spec.node_name.clone()).unwrap_or_else(none)),
        Cell::from(uid.chars().take(8).collect::<String>()),
        Cell::from(images.join(",")),
        Cell::from(owner(entry).unwrap_or_else(none)),
    ]
}

/// The workload that created the pod: one of the node's own sources, or else its controller in a cluster.
fn owner(entry: &PodEntry) -> Option<String> {
    let metadata = &entry.pod.metadata;
    let of_node = metadata.annotations.as_ref().and_then(|annotations| annotations.get(OWNER_ANNOTATION)).cloned();
    let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    of_node.or_else(|| controller.map(|owner| format!("{}/{}", owner.kind, owner.name)))
}

pub(super) fn namespace(entry: &PodEntry) -> &str {
    entry.pod.metadata.namespace.as_deref().unwrap_or("default")
}

pub(super) fn name(entry: &PodEntry) -> &str {
    entry.pod.metadata.name.as_deref().unwrap_or_default()
}

/// When the pod was created, according to the apiserver, or else started on this node.
fn created(entry: &PodEntry) -> Option<Timestamp> {
    let started = entry.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    entry.pod.metadata.creation_timestamp.as_ref().or(started).map(|time| time.0)
}

/// `file gateway.yaml`, `http fleet.example/pods`.
pub(super) fn source(entry: &PodEntry) -> String {
    let place = entry.origin.trim_start_matches("https://").trim_start_matches("http://");
    format!("{} {place}", entry.source).trim_end().to_owned()
}

/// The message for an empty list.
fn nothing(sources: &[SourceDocument]) -> String {
    match sources.iter().find(|source| source.source == "file") {
        Some(file) => format!("No pods. Manifests are read from {}.", printable(&file.place)),
        None => "No pods, and no manifest directory is configured (staticPodPath); apply some: limpet apply -f FILE"
            .to_owned(),
    }
}

/// Remarks that have no row: rejected manifests without a running pod, and sources that cannot be read.
fn remarks(sources: &[SourceDocument]) -> Vec<String> {
    let mut remarks = Vec::new();
    for source in sources {
        for rejected in source.rejected.iter().filter(|rejected| rejected.kept.is_empty()) {
            let Some(fault) = rejected.faults.first() else { continue };
            let more = match rejected.faults.len() {
                1 => String::new(),
                several => format!(" (and {} more, see: limpet sources)", several - 1),
            };
            let rest = if rejected.accepted.is_empty() { "nothing of it runs" } else { "its other pods run" };
            remarks.push(format!("rejected: {}{more}; {rest}", printable(&fault.text)));
        }
        if source.health == "unavailable" {
            let detail = printable(&source.detail);
            remarks.push(format!("source {} cannot be read: {detail}; its pods keep running", source.source));
        }
    }
    remarks
}

#[cfg(test)]
mod tests;
