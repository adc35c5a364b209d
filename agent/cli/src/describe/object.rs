//! A workload, claim or Service in `limpet describe`, with kubectl's layout and words.

mod claim;
mod job;
mod replicated;
mod service;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use limpet_model::object::ObjectKind;
use limpet_model::pod::strict;
use limpet_wire::objects::ObjectDocument;
use limpet_wire::services::ServiceDocument;
use serde::Deserialize;
use serde_json::Value;

use super::{container, volume};
use crate::age;
use crate::pod_status::Summary;
use crate::screen::{Screen, Tone};
use crate::sheet::Sheet;
use crate::table::{Cell, Table};
use crate::{events, sources};

/// The page of an object. `served`: the Service as it is served, if the object is one.
pub(super) fn render(
    (kind, document): (ObjectKind, &ObjectDocument),
    served: Option<&ServiceDocument>,
    screen: &Screen,
    now: Timestamp,
) -> String {
    let mut sheet = Sheet::new(now);
    let spec = &document.object["spec"];
    identity(&mut sheet, document);
    match kind {
        ObjectKind::PersistentVolumeClaim => claim::describe(&mut sheet, document, screen),
        ObjectKind::Service => service::describe(&mut sheet, spec, served, screen),
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
fn typed<T: for<'a> Deserialize<'a> + Default>(value: &Value) -> T {
    strict::read(value).0.unwrap_or_default()
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
        ObjectKind::Job => job::describe(sheet, document),
        ObjectKind::CronJob => job::describe_cron(sheet, document),
        _ => replicated::describe(sheet, kind, document),
    }
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
