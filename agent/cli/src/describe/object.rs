//! A workload, claim or Service in `limpet describe`, with kubectl's layout and words.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJobStatus, JobStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use limpet_model::object::ObjectKind;
use limpet_model::object::workload::PodTemplate;
use limpet_model::object::workload::labels::{REVISION_HASH, TEMPLATE_HASH};
use limpet_model::pod::is_terminal_phase;
use limpet_wire::objects::ObjectDocument;
use limpet_wire::services::ServiceDocument;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{container, volume};
use crate::age;
use crate::pod_status::Summary;
use crate::screen::{Screen, Tone, printable};
use crate::sheet::Sheet;
use crate::table::{Cell, Table};
use crate::{events, sources};

/// The page of an object. `service`: the Service as it is served, if the object is one.
pub(super) fn render(
    (kind, document): (ObjectKind, &ObjectDocument),
    service: Option<&ServiceDocument>,
    screen: &Screen,
    now: Timestamp,
) -> String {
    let mut sheet = Sheet::new(now);
    let spec = &document.object["spec"];
    identity(&mut sheet, document);
    match kind {
        ObjectKind::PersistentVolumeClaim => claim(&mut sheet, document, screen),
        ObjectKind::Service => self::service(&mut sheet, spec, service, screen),
        _ => {
            workload(&mut sheet, kind, document);
            template(&mut sheet, kind, spec);
            claim_templates(&mut sheet, spec);
        }
    }
    for rejected in &document.rejected {
        let text = sources::rejection(rejected);
        sheet.text(&text.lines().map(|line| format!("{}\n", screen.paint(Tone::Bad, line))).collect::<String>());
    }
    match kind {
        ObjectKind::Service => {}
        ObjectKind::PersistentVolumeClaim => pods(&mut sheet, "Used By", document, screen),
        _ => pods(&mut sheet, "Pods", document, screen),
    }
    sheet.section("Events");
    match &document.events[..] {
        [] => sheet.text("  <none>\n"),
        all => indent(&mut sheet, &events::section(all, screen, now)),
    }
    sheet.into_text()
}

fn indent(sheet: &mut Sheet, text: &str) {
    sheet.text(&text.lines().map(|line| format!("  {line}\n")).collect::<String>());
}

/// What a document has at a place, as its type; the default if it is not of it.
fn typed<T: DeserializeOwned + Default>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

fn identity(sheet: &mut Sheet, document: &ObjectDocument) {
    let metadata: ObjectMeta = typed(&document.object["metadata"]);
    sheet.field("Name", metadata.name.as_deref().unwrap_or_default());
    sheet.field("Namespace", metadata.namespace.as_deref().unwrap_or("default"));
    sheet.field("Source", &format!("{} {}", document.source, document.origin));
    if !document.also_in.is_empty() {
        sheet.field("Also In", &format!("{}, where it has no effect", document.also_in.join(", ")));
    }
    sheet.map("Labels", &metadata.labels.unwrap_or_default(), "=");
    sheet.map("Annotations", &metadata.annotations.unwrap_or_default(), ": ");
}

/// The text of a number or string; the default if it is not set.
fn text(value: &Value, default: &str) -> String {
    match value {
        Value::String(text) if !text.is_empty() => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => if *flag { "True" } else { "False" }.to_owned(),
        _ => default.to_owned(),
    }
}

fn optional(sheet: &mut Sheet, label: &str, value: &Value, unit: &str) {
    if !value.is_null() {
        sheet.field(label, &format!("{}{unit}", text(value, "")));
    }
}

/// A selector as kubectl writes it: `app=web,tier in (a,b)`.
fn selector(value: &Value) -> String {
    let LabelSelector { match_labels, match_expressions } = typed(value);
    let labels = match_labels.into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
    let expressions = match_expressions.into_iter().flatten().map(|each| {
        let values = each.values.unwrap_or_default().join(",");
        match each.operator.as_str() {
            "In" => format!("{} in ({values})", each.key),
            "NotIn" => format!("{} notin ({values})", each.key),
            "DoesNotExist" => format!("!{}", each.key),
            _ => each.key,
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

fn workload(sheet: &mut Sheet, kind: ObjectKind, document: &ObjectDocument) {
    let spec = &document.object["spec"];
    sheet.optional("Selector", Some(&selector(&spec["selector"])));
    match kind {
        ObjectKind::Job => job(sheet, document),
        ObjectKind::CronJob => cron_job(sheet, document),
        _ => replicated(sheet, kind, document),
    }
}

/// How many pods there are, as the lines of kubectl count them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    total: usize,
    updated: usize,
    available: usize,
    waiting: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
}

impl Counts {
    fn new<'a>(label: (&str, &str), min_ready: i64, pods: impl Iterator<Item = &'a Pod>, now: Timestamp) -> Self {
        let mut counts = Self::default();
        for pod in pods {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
            match phase {
                "Succeeded" => counts.succeeded += 1,
                "Failed" => counts.failed += 1,
                "Running" => counts.running += 1,
                _ => counts.waiting += 1,
            }
            if is_terminal_phase(phase) {
                continue;
            }
            counts.total += 1;
            let labels = pod.metadata.labels.as_ref();
            counts.updated +=
                usize::from(labels.and_then(|labels| labels.get(label.0)).is_some_and(|has| has == label.1));
            let is_available = |since: Timestamp| now.as_second() - since.as_second() >= min_ready;
            counts.available += usize::from(ready_since(pod).is_some_and(is_available));
        }
        counts
    }
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |Time(at)| *at))
}

fn replicated(sheet: &mut Sheet, kind: ObjectKind, document: &ObjectDocument) {
    let spec = &document.object["spec"];
    let hash = PodTemplate::new(&spec["template"]).hash();
    let set = format!("{}-{hash}", text(&document.object["metadata"]["name"], ""));
    let label = match kind {
        ObjectKind::StatefulSet => (REVISION_HASH, set.as_str()),
        ObjectKind::DaemonSet => (REVISION_HASH, hash.as_str()),
        _ => (TEMPLATE_HASH, hash.as_str()),
    };
    let min_ready = spec["minReadySeconds"].as_i64().unwrap_or(0);
    let counts = Counts::new(label, min_ready, document.pods.iter().map(|entry| &entry.pod), sheet.now());
    let wanted = match kind {
        ObjectKind::DaemonSet => 1,
        _ => spec["replicas"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(1),
    };
    let Counts { total, updated, available, .. } = counts;
    let missing = wanted.saturating_sub(available);
    let replicas = match kind {
        ObjectKind::Deployment => format!(
            "{wanted} desired | {updated} updated | {total} total | {available} available | {missing} unavailable"
        ),
        ObjectKind::ReplicaSet => format!("{total} current / {wanted} desired | {available} available"),
        _ => format!("{wanted} desired | {total} total | {updated} updated | {available} available"),
    };
    sheet.field("Replicas", &replicas);
    statuses(sheet, &counts);
    strategy(sheet, kind, spec);
    optional(sheet, "Min Ready", &spec["minReadySeconds"], "s");
    if kind == ObjectKind::Deployment && spec["paused"] == true {
        sheet.field("Paused", "True: a new template changes no pods until limpet rollout resume");
    }
}

fn statuses(sheet: &mut Sheet, counts: &Counts) {
    let Counts { running, waiting, succeeded, failed, .. } = counts;
    sheet.field(
        "Pods Status",
        &format!("{running} Running / {waiting} Waiting / {succeeded} Succeeded / {failed} Failed"),
    );
}

/// How a new template is rolled out.
fn strategy(sheet: &mut Sheet, kind: ObjectKind, spec: &Value) {
    let (strategy, default) = match kind {
        ObjectKind::Deployment => (&spec["strategy"], "25%"),
        ObjectKind::DaemonSet => (&spec["updateStrategy"], "1"),
        ObjectKind::StatefulSet => (&spec["updateStrategy"], ""),
        _ => return,
    };
    let name = text(&strategy["type"], "RollingUpdate");
    let rolling = &strategy["rollingUpdate"];
    let detail = match (name.as_str(), kind) {
        ("RollingUpdate", ObjectKind::StatefulSet) => format!(", partition {}", text(&rolling["partition"], "0")),
        ("RollingUpdate", _) => {
            let surge = if kind == ObjectKind::DaemonSet { "0" } else { default };
            let (unavailable, surge) = (text(&rolling["maxUnavailable"], default), text(&rolling["maxSurge"], surge));
            format!(", {unavailable} max unavailable, {surge} max surge")
        }
        _ => String::new(),
    };
    sheet.field("Strategy", &format!("{name}{detail}"));
    if kind == ObjectKind::StatefulSet {
        sheet.field("Pod Management", &text(&spec["podManagementPolicy"], "OrderedReady"));
        sheet.optional("Service Name", spec["serviceName"].as_str());
    }
}

fn job(sheet: &mut Sheet, document: &ObjectDocument) {
    let spec = &document.object["spec"];
    let status: JobStatus = typed(&document.object["status"]);
    sheet.field("Parallelism", &text(&spec["parallelism"], "1"));
    sheet
        .field("Completions", &text(&spec["completions"], if spec["parallelism"].is_null() { "1" } else { "<unset>" }));
    sheet.field("Completion Mode", &text(&spec["completionMode"], "NonIndexed"));
    optional(sheet, "Suspend", &spec["suspend"], "");
    sheet.field("Backoff Limit", &text(&spec["backoffLimit"], "6"));
    optional(sheet, "Active Deadline", &spec["activeDeadlineSeconds"], "s");
    optional(sheet, "TTL", &spec["ttlSecondsAfterFinished"], "s after it has finished");
    sheet.time("Start Time", status.start_time.as_ref());
    sheet.time("Completed At", status.completion_time.as_ref());
    if let (Some(Time(start)), Some(Time(end))) = (&status.start_time, &status.completion_time) {
        sheet.field("Duration", &age::since(*start, *end));
    }
    let count = |number: Option<i32>| number.unwrap_or_default();
    let (active, succeeded, failed) = (count(status.active), count(status.succeeded), count(status.failed));
    sheet.field("Pods Statuses", &format!("{active} Active / {succeeded} Succeeded / {failed} Failed"));
    sheet.optional("Completed Indexes", status.completed_indexes.as_deref());
    sheet.optional("Failed Indexes", status.failed_indexes.as_deref());
    for condition in status.conditions.iter().flatten() {
        let why: Vec<&str> =
            [&condition.reason, &condition.message].into_iter().flatten().map(String::as_str).collect();
        sheet.field(&condition.type_, &why.join(": "));
    }
}

fn cron_job(sheet: &mut Sheet, document: &ObjectDocument) {
    let spec = &document.object["spec"];
    let status: CronJobStatus = typed(&document.object["status"]);
    sheet.field("Schedule", &text(&spec["schedule"], ""));
    sheet.field("Time Zone", &text(&spec["timeZone"], "the node's"));
    sheet.field("Concurrency", &text(&spec["concurrencyPolicy"], "Allow"));
    sheet.field("Suspend", &text(&spec["suspend"], "False"));
    sheet.field(
        "Keeps",
        &format!(
            "{} successful and {} failed Jobs",
            text(&spec["successfulJobsHistoryLimit"], "3"),
            text(&spec["failedJobsHistoryLimit"], "1")
        ),
    );
    optional(sheet, "Start Deadline", &spec["startingDeadlineSeconds"], "s");
    match &status.last_schedule_time {
        Some(last) => sheet.time("Last Schedule", Some(last)),
        None => sheet.field("Last Schedule", "<none>"),
    }
    sheet.time("Last Success", status.last_successful_time.as_ref());
    let active: Vec<String> = status.active.into_iter().flatten().filter_map(|job| job.name).collect();
    sheet.field("Active Jobs", if active.is_empty() { "<none>".to_owned() } else { active.join(", ") }.as_str());
}

fn template(sheet: &mut Sheet, kind: ObjectKind, spec: &Value) {
    let template = match kind {
        ObjectKind::CronJob => &spec["jobTemplate"]["spec"]["template"],
        _ => &spec["template"],
    };
    let PodTemplateSpec { metadata, spec } = typed(template);
    let (metadata, spec) = (metadata.unwrap_or_default(), spec.unwrap_or_default());
    sheet.section("Pod Template");
    sheet.indented(|sheet| {
        sheet.map("Labels", &metadata.labels.unwrap_or_default(), "=");
        if let Some(annotations) = metadata.annotations.filter(|annotations| !annotations.is_empty()) {
            sheet.map("Annotations", &annotations, ": ");
        }
        for (title, containers) in
            [("Init Containers", spec.init_containers.unwrap_or_default()), ("Containers", spec.containers)]
        {
            if !containers.is_empty() {
                sheet.field(title, "");
                containers.iter().for_each(|each| container::describe_template(sheet, each));
            }
        }
        volume::list(sheet, spec.volumes.as_deref().unwrap_or_default());
    });
}

fn claim_templates(sheet: &mut Sheet, spec: &Value) {
    let templates = spec["volumeClaimTemplates"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |template: &Value| {
        let size = text(&template["spec"]["resources"]["requests"]["storage"], "no size");
        format!("{}: {size}, {}", text(&template["metadata"]["name"], ""), access_modes(&template["spec"]))
    };
    sheet.list("Volume Claims", templates.iter().map(line));
}

fn access_modes(spec: &Value) -> String {
    let modes = spec["accessModes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    modes.collect::<Vec<_>>().join(", ")
}

fn claim(sheet: &mut Sheet, document: &ObjectDocument, screen: &Screen) {
    let spec = &document.object["spec"];
    sheet.field("StorageClass", &text(&spec["storageClassName"], "local-path"));
    match (document.ending, &document.directory) {
        (true, _) => {
            let why = "Terminating: its files are removed once no pod refers to it";
            sheet.painted("Status", &screen.paint(Tone::Warn, why));
        }
        (false, Some(_)) => sheet.field("Status", "Bound"),
        (false, None) => sheet.painted("Status", &screen.paint(Tone::Warn, "Pending")),
    }
    sheet.optional("Directory", document.directory.as_ref().map(|path| path.display().to_string()).as_deref());
    sheet.field("Capacity", &text(&spec["resources"]["requests"]["storage"], "<unset>"));
    sheet.field("Access Modes", &access_modes(spec));
}

fn service(sheet: &mut Sheet, spec: &Value, served: Option<&ServiceDocument>, screen: &Screen) {
    let labels: Vec<String> = spec["selector"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", text(value, "")))
        .collect();
    sheet.field("Selector", if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") }.as_str());
    let Some(served) = served else {
        sheet.field("Type", &text(&spec["type"], "ClusterIP"));
        return;
    };
    sheet.field("Type", &served.r#type);
    sheet.optional("External Name", served.external_name.as_deref());
    sheet.optional("IPs", Some(&served.cluster_ips.join(", ")));
    for port in &served.ports {
        let name = port.name.as_deref().unwrap_or("<unset>");
        sheet.field("Port", &format!("{name} {}/{}", port.port, port.protocol));
        sheet.indented(|sheet| {
            let of_number =
                |known: &&Value| known["port"] == port.port && text(&known["protocol"], "TCP") == port.protocol;
            let declared = spec["ports"].as_array().into_iter().flatten().find(of_number).unwrap_or(&Value::Null);
            let target = text(&declared["targetPort"], &port.port.to_string());
            sheet.field("Target", &format!("{target}/{}", port.protocol));
            if let Some(number) = port.node_port {
                sheet.field("Node Port", &format!("{number}/{}", port.protocol));
            }
            match port.endpoints.is_empty() {
                true => sheet.painted("Endpoints", &screen.paint(Tone::Warn, "<none>")),
                false => sheet.field("Endpoints", &port.endpoints.join(", ")),
            }
        });
    }
    sheet.field("Session Affinity", &text(&spec["sessionAffinity"], "None"));
    sheet.optional("External Policy", spec["externalTrafficPolicy"].as_str());
    if let Some(fault) = &served.fault {
        sheet.painted("Not Served", &screen.paint(Tone::Bad, &printable(fault)));
    }
    sheet.list("Pods", &served.pods);
}

fn pods(sheet: &mut Sheet, title: &str, document: &ObjectDocument, screen: &Screen) {
    sheet.section(title);
    if document.pods.is_empty() {
        sheet.text("  <none>\n");
        return;
    }
    let now = sheet.now();
    let row = |entry: &limpet_wire::pods::PodEntry| {
        let summary = Summary::new(&entry.pod);
        let started = entry.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        vec![
            Cell::from(entry.pod.metadata.name.as_deref().unwrap_or_default()),
            Cell::from(format!("{}/{}", summary.ready, summary.total)),
            Cell::toned(&summary.status, summary.tone()),
            Cell::from(summary.restarts.to_string()),
            Cell::from(started.map_or_else(|| "<unknown>".to_owned(), |Time(at)| age::since(*at, now))),
            Cell::toned(entry.note.as_deref().unwrap_or_default(), Tone::Warn),
        ]
    };
    let rows: Vec<Vec<Cell>> = document.pods.iter().map(row).collect();
    let table = Table::new(vec!["NAME", "READY", "STATUS", "RESTARTS", "AGE", "NOTE"]).page(screen, &rows);
    indent(sheet, &table);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
