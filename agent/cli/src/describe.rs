//! `limpet describe`: one pod, the state of each of its containers and the reason; or a workload, claim or Service with its pods.
//! kubectl's layout.

mod container;
mod object;
mod volume;

use clap_complete::engine::ArgValueCompleter;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::error::CliError;
use super::output::DocumentFormat;
use super::pod_status::Summary;
use super::screen::{Screen, Tone};
use super::sheet::Sheet;
use super::{age, completion, events, history, sources, target};
use limpet_core::source::resource::Resource;
use limpet_model::object::ObjectKind;
use limpet_model::pod::ephemeral;
use limpet_wire::pods::{DEFAULT_NAMESPACE, DescribeDocument};
use limpet_wire::services::ServicesDocument;
use limpet_wire::socket_client::SocketClient;

/// Arguments of `limpet describe`.
#[derive(Debug, clap::Args)]
pub struct DescribeArgs {
    /// A pod: NAME, NAMESPACE/NAME, or the manifest's name; or another object: deployment/NAME, sts/NAME, ds/NAME, rs/NAME,
    /// job/NAME, cronjob/NAME, pvc/NAME, svc/NAME
    #[arg(value_name = "POD", required = true, num_args = 1..=2, add = ArgValueCompleter::new(completion::pods))]
    names: Vec<String>,
    /// The namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

pub(super) async fn run(client: &SocketClient, args: DescribeArgs, screen: Screen) -> Result<u8, CliError> {
    let pod = match subject(&args.names)? {
        Subject::Pod(pod) => pod,
        Subject::Object(kind, name) => return object(client, (kind, name), &args, screen).await,
    };
    let names = target::find(client, pod, args.namespace.as_deref()).await?;
    let path = format!("/limpet/v1/pods/{}/{}/describe", names.namespace, names.name);
    let document: DescribeDocument = client.get_json(&path).await?;
    let text = match args.output {
        Some(format) => format.render(&document)?,
        None => render(&document, &screen, Timestamp::now()),
    };
    screen.print(&text)?;
    Ok(0)
}

/// The object that the command line names.
#[derive(Debug, PartialEq, Eq)]
enum Subject<'a> {
    Pod(&'a str),
    Object(ObjectKind, &'a str),
}

/// What the words name. As in kubectl, the kind is a word of its own or stands before a slash.
fn subject(words: &[String]) -> Result<Subject<'_>, CliError> {
    let (kind, name) = match words {
        [word] => match word.split_once('/') {
            // A pod's namespace may have the name of a kind only in this form.
            Some((kind, name)) if Resource::from_name(kind).is_some() => (kind, name),
            _ => return Ok(Subject::Pod(word)),
        },
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => return Err(CliError::Usage("one object at a time".to_owned())),
    };
    match Resource::from_name(&kind.to_lowercase()) {
        Some(Resource::Pod) => Ok(Subject::Pod(name)),
        Some(Resource::Object(ObjectKind::ConfigMap | ObjectKind::Secret)) => {
            Err(CliError::Usage(format!("a {kind} has no page: its values are not shown")))
        }
        Some(Resource::Object(object)) if !name.is_empty() => Ok(Subject::Object(object, name)),
        _ => Err(CliError::Usage(format!(
            "{kind} is no kind that can be described: use pod, deployment, replicaset, statefulset, daemonset, job, cronjob, persistentvolumeclaim or service"
        ))),
    }
}

async fn object(
    client: &SocketClient,
    (kind, name): (ObjectKind, &str),
    args: &DescribeArgs,
    screen: Screen,
) -> Result<u8, CliError> {
    let namespace = args.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let resource = Resource::Object(kind);
    let document = target::object(client, (resource, name), namespace).await?;
    let Some(document) = document else { return Err(target::no_object(resource, name, namespace)) };
    let mut service = None;
    if kind == ObjectKind::Service {
        let all: ServicesDocument = client.get_json("/limpet/v1/services").await?;
        service = all
            .services
            .into_iter()
            .find(|each| each.namespace == namespace && each.name == name && each.source == document.source);
        if let (Some(service), Some(why)) = (&mut service, all.unserved) {
            service.fault.get_or_insert(why);
        }
    }
    let text = match args.output {
        Some(format) => format.render(&document)?,
        None => object::render((kind, &document), service.as_ref(), &screen, Timestamp::now()),
    };
    screen.print(&text)?;
    Ok(0)
}

/// The page of one pod.
pub(super) fn render(document: &DescribeDocument, screen: &Screen, now: Timestamp) -> String {
    let pod = &document.entry.pod;
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let mut sheet = Sheet::new(now);
    identity(&mut sheet, document);
    state(&mut sheet, document, status, screen);
    for rejected in &document.rejected {
        let text = sources::rejection(rejected);
        sheet.text(&text.lines().map(|line| format!("{}\n", screen.paint(Tone::Bad, line))).collect::<String>());
    }
    sheet.list("Duplicates", &document.duplicates);
    let ephemeral = ephemeral::containers(pod);
    for (title, containers, statuses) in [
        ("Init Containers", spec.init_containers.as_deref().unwrap_or_default(), &status.init_container_statuses),
        ("Containers", &spec.containers, &status.container_statuses),
        ("Ephemeral Containers", &ephemeral, &status.ephemeral_container_statuses),
    ] {
        if containers.is_empty() {
            continue;
        }
        sheet.section(title);
        for container in containers {
            let status = statuses.iter().flatten().find(|status| status.name == container.name);
            container::describe(&mut sheet, container, status, document.containers.get(&container.name));
        }
    }
    conditions(&mut sheet, status);
    volume::describe(&mut sheet, spec.volumes.as_deref().unwrap_or_default());
    placement(&mut sheet, spec);
    sheet.section("Events");
    match &document.events[..] {
        [] => sheet.text("  <none>\n"),
        events => {
            let table = events::section(events, screen, now);
            sheet.text(&table.lines().map(|line| format!("  {line}\n")).collect::<String>());
        }
    }
    if !document.history.is_empty() {
        sheet.section("History");
        let table = history::table(&document.history, screen, now);
        sheet.text(&table.lines().map(|line| format!("  {line}\n")).collect::<String>());
    }
    sheet.into_text()
}

fn identity(sheet: &mut Sheet, document: &DescribeDocument) {
    let entry = &document.entry;
    let metadata = &entry.pod.metadata;
    sheet.field("Name", metadata.name.as_deref().unwrap_or_default());
    sheet.field("Namespace", metadata.namespace.as_deref().unwrap_or("default"));
    sheet.field("Source", &format!("{} {}", entry.source, entry.origin));
    sheet.field("UID", metadata.uid.as_deref().unwrap_or_default());
    sheet.field("Fingerprint", &entry.fingerprint);
    let none = std::collections::BTreeMap::new();
    sheet.map("Labels", metadata.labels.as_ref().unwrap_or(&none), "=");
    sheet.map("Annotations", metadata.annotations.as_ref().unwrap_or(&none), ": ");
    let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    sheet.optional("Controlled By", controller.map(|owner| format!("{}/{}", owner.kind, owner.name)).as_deref());
}

fn state(sheet: &mut Sheet, document: &DescribeDocument, status: &PodStatus, screen: &Screen) {
    let pod = &document.entry.pod;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("<none>");
    match &status.host_ip {
        Some(address) => sheet.field("Node", &format!("{node}/{address}")),
        None => sheet.field("Node", node),
    }
    sheet.time("Start Time", status.start_time.as_ref());
    let summary = Summary::new(pod);
    let phase = status.phase.as_deref().unwrap_or("Unknown");
    let shown = screen.paint(summary.tone(), &summary.status);
    if summary.status == phase {
        sheet.painted("Status", &shown);
    } else {
        sheet.painted("Status", &format!("{shown} (phase {phase})"));
    }
    if let Some(since) = &pod.metadata.deletion_timestamp {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
        let lasts = age::since(since.0, sheet.now());
        sheet.field("Ending", &format!("for {lasts}, grace period {grace}s"));
    }
    sheet.optional("Reason", status.reason.as_deref());
    sheet.optional("Message", status.message.as_deref());
    sheet.optional("Note", document.entry.note.as_deref());
    sheet.optional("QoS Class", status.qos_class.as_deref());
    let addresses: Vec<&str> = status.pod_ips.iter().flatten().map(|each| each.ip.as_str()).collect();
    match (&status.pod_ip, addresses.is_empty()) {
        (_, false) => sheet.field("IPs", &addresses.join(", ")),
        (Some(address), true) => sheet.field("IPs", address),
        (None, true) => sheet.field("IPs", "<none>"),
    }
}

fn conditions(sheet: &mut Sheet, status: &PodStatus) {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions.is_empty() {
        return;
    }
    sheet.section("Conditions");
    let width = conditions.iter().map(|condition| condition.type_.len()).max().unwrap_or(0).max(4) + 3;
    sheet.text(&format!("  {:width$}Status   Since   Reason\n", "Type"));
    for condition in conditions {
        let since =
            condition.last_transition_time.as_ref().map_or_else(String::new, |Time(at)| age::since(*at, sheet.now()));
        let why: Vec<&str> =
            [&condition.reason, &condition.message].into_iter().flatten().map(String::as_str).collect();
        let line = format!("  {:width$}{:<9}{since:<8}{}", condition.type_, condition.status, why.join(": "));
        sheet.text(&format!("{}\n", super::screen::printable(line.trim_end())));
    }
}

fn placement(sheet: &mut Sheet, spec: &PodSpec) {
    let host: Vec<&str> = [(spec.host_network, "network"), (spec.host_pid, "pid"), (spec.host_ipc, "ipc")]
        .into_iter()
        .filter_map(|(shared, name)| shared.unwrap_or(false).then_some(name))
        .collect();
    sheet.field("Restart Policy", spec.restart_policy.as_deref().unwrap_or("Always"));
    sheet.field("Grace Period", &format!("{}s", spec.termination_grace_period_seconds.unwrap_or(30)));
    if !host.is_empty() {
        sheet.field("Host Namespaces", &host.join(", "));
    }
    sheet.optional("Priority Class", spec.priority_class_name.as_deref());
}

#[cfg(test)]
mod tests;
