//! The output of `limpet diff`: the pod, its changed fields, and the effect on it.

use serde_json::Value;

use super::super::screen::{Screen, Tone, printable};
use super::super::validate;
use limpet_model::object::ObjectKind;
use limpet_model::pod::{Fault, Severity};
use limpet_wire::diff::{
    DiffDocument, DiffFile, FieldDocument, ImageDocument, ObjectDiffDocument, ObjectRestartDocument, PodDiffDocument,
    ValueDocument,
};
use limpet_wire::pods::{DEFAULT_NAMESPACE, FaultDocument, RejectionDocument};

/// The most characters shown of one value.
const MAX_VALUE: usize = 60;
/// Spaces between a field and its values.
const COLUMN_GAP: usize = 3;

/// Everything that would change.
pub(super) fn render(document: &DiffDocument, screen: Screen) -> String {
    let pods = document.pods.iter().map(|pod| one_pod(pod, screen));
    pods.chain(document.objects.iter().map(|object| one_object(object, screen))).collect()
}

fn one_pod(pod: &PodDiffDocument, screen: Screen) -> String {
    let rows: Vec<(String, String)> = match pod.change.as_str() {
        "updates" | "recreates" => pod.fields.iter().map(field).collect(),
        _ => Vec::new(),
    };
    let mut page = format!("{}\n{}", title(pod), columns(&rows));
    page.push_str(&format!("  {}\n", effect(pod, screen)));
    for remark in &pod.remarks {
        page.push_str(&format!("  {}\n", screen.paint(Tone::Warn, &printable(remark))));
    }
    page
}

/// `gateway-edge1 (file gateway.yaml)`.
fn title(pod: &PodDiffDocument) -> String {
    let state = match pod.change.as_str() {
        "starts" => ", new",
        "stops" => ", gone",
        _ => "",
    };
    format!("{} ({} {}{state})", full_name(&pod.namespace, &pod.name), pod.source, printable(&pod.origin))
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace == DEFAULT_NAMESPACE { printable(name) } else { printable(&format!("{namespace}/{name}")) }
}

fn field(field: &FieldDocument) -> (String, String) {
    let text = |value: &Option<Value>| value.as_ref().map_or("(none)".to_owned(), shown);
    (printable(&field.path), format!("{} -> {}", text(&field.old), text(&field.new)))
}

/// A value in one short line.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    };
    shortened(&text)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn columns(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(path, _)| path.chars().count()).max().unwrap_or(0) + COLUMN_GAP;
    let line = |(path, values): &(String, String)| {
        let blanks = " ".repeat(width - path.chars().count());
        format!("  {path}{blanks}{values}\n")
    };
    rows.iter().map(line).collect()
}

/// The effect on the pod, in a line.
fn effect(pod: &PodDiffDocument, screen: Screen) -> String {
    let grace = pod.grace_seconds.unwrap_or_default();
    match pod.change.as_str() {
        "starts" => format!("{} the pod{}", screen.paint(Tone::Good, "starts:"), readiness(&pod.images)),
        "updates" => update(pod, screen),
        "recreates" => {
            let why = if pod.why.is_empty() { String::new() } else { format!(" ({})", pod.why.join("; ")) };
            let meanwhile = match missing(&pod.images)[..] {
                [] => String::new(),
                [image] => format!(", then pulls {}", printable(image)),
                ref images => format!(", then pulls {} images", images.len()),
            };
            format!("{} the pod{why}, grace {grace}s{meanwhile}", screen.paint(Tone::Bad, "recreates:"))
        }
        "stops" => format!("{} the pod, grace {grace}s", screen.paint(Tone::Bad, "stops:")),
        _ => screen.paint(Tone::Warn, "does not run"),
    }
}

fn update(pod: &PodDiffDocument, screen: Screen) -> String {
    let kept = match &pod.keeps[..] {
        [] => "the pod's address and volumes".to_owned(),
        [name] => format!("container {name}, the pod's address and volumes"),
        many => format!("containers {}, the pod's address and volumes", many.join(", ")),
    };
    let restarted = |name: &String| {
        let image = pod.images.iter().find(|image| image.container == *name);
        format!("{name}{}", image.map(wait).unwrap_or_default())
    };
    let restarts: Vec<String> = pod.restarts.iter().map(restarted).collect();
    let named = |verb: &str, tone: Tone, names: &[String]| {
        let plural = if names.len() > 1 { "s" } else { "" };
        (!names.is_empty()).then(|| format!("{} container{plural} {}   ", screen.paint(tone, verb), names.join(", ")))
    };
    let restarted = named("restarts:", Tone::Warn, &restarts);
    let resized = named("resizes in place:", Tone::Good, &pod.resizes);
    match (&restarted, &resized) {
        (None, None) => "restarts: nothing".to_owned(),
        _ => format!("{}{}keeps: {kept}", restarted.unwrap_or_default(), resized.unwrap_or_default()),
    }
}

/// What a restarting container waits for; its previous instance keeps running until then.
fn wait(image: &ImageDocument) -> String {
    match (image.pull_policy.as_deref(), image.present) {
        (Some("Never"), Some(false)) => " (image is not here and never pulled: the old one runs on)".to_owned(),
        (Some("Always"), _) => " (asks the registry first; the old one keeps running meanwhile)".to_owned(),
        (_, Some(true)) => " (image present: no wait)".to_owned(),
        (_, Some(false)) => " (pulls its image first; the old one keeps running meanwhile)".to_owned(),
        (_, None) => String::new(),
    }
}

/// Images that must be pulled before anything starts.
fn missing(images: &[ImageDocument]) -> Vec<&String> {
    let mut missing: Vec<&String> =
        images.iter().filter(|image| image.present == Some(false)).map(|image| &image.image).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn readiness(images: &[ImageDocument]) -> String {
    match missing(images)[..] {
        [] if images.iter().all(|image| image.present == Some(true)) => " (images present: no wait)".to_owned(),
        [] => String::new(),
        ref images => {
            let names: Vec<String> = images.iter().map(|image| printable(image)).collect();
            format!(" (pulls {} first)", names.join(", "))
        }
    }
}

fn one_object(object: &ObjectDiffDocument, screen: Screen) -> String {
    let name = full_name(&object.namespace, &object.name);
    let state = match object.change.as_str() {
        "added" => ", new",
        "removed" => ", gone",
        _ => "",
    };
    let kind = ObjectKind::from_name(&object.kind);
    let (is_workload, is_service) = (kind.is_some_and(ObjectKind::is_workload), kind == Some(ObjectKind::Service));
    let rows: Vec<(String, String)> =
        object.values.iter().map(|change| value(change, is_workload || is_service)).collect();
    let mut page =
        format!("{} {name} ({} {}{state})\n{}", object.kind, object.source, printable(&object.origin), columns(&rows));
    if is_workload {
        page.push_str(&format!("  {}\n", controller_effect(object)));
        return page;
    }
    if is_service {
        page.push_str("  changes: where new connections lead to, and names\n  restarts: nothing\n");
        return page;
    }
    let list = |pods: &[String]| {
        let short = pods.iter().map(|pod| pod.strip_prefix("default/").unwrap_or(pod));
        short.map(printable).collect::<Vec<_>>().join(", ")
    };
    if !object.files_of.is_empty() {
        page.push_str(&format!(
            "  {} files of {} at once\n",
            screen.paint(Tone::Warn, "changes:"),
            list(&object.files_of)
        ));
    }
    if !object.starts_of.is_empty() {
        page.push_str(&format!("  reaches: {} at the next start of a container\n", list(&object.starts_of)));
    }
    if object.files_of.is_empty() && object.starts_of.is_empty() {
        page.push_str("  reaches: no pod\n");
    }
    match object.restarts.is_empty() {
        true => page.push_str("  restarts: nothing\n"),
        false => {
            let containers = |restart: &ObjectRestartDocument| {
                format!("{} ({})", list(std::slice::from_ref(&restart.pod)), list(&restart.containers))
            };
            let restarts: Vec<String> = object.restarts.iter().map(containers).collect();
            page.push_str(&format!("  {} {}\n", screen.paint(Tone::Warn, "restarts:"), restarts.join(", ")));
        }
    }
    page
}

/// What the controller of a workload does about a change of it.
fn controller_effect(object: &ObjectDiffDocument) -> &'static str {
    let is_new_template = object.values.iter().any(|value| value.key.starts_with("spec.template"));
    match object.change.as_str() {
        "added" if object.kind == "CronJob" => "begins: Jobs by its schedule",
        "added" => "starts: its pods",
        "removed" => "ends: its pods",
        _ if is_new_template && object.kind == "ReplicaSet" => "reaches: pods that it makes from then on",
        _ if is_new_template => "rolls out: its pods are replaced by the rules of its strategy",
        _ if object.kind == "CronJob" => "reaches: Jobs that begin from then on",
        _ => "restarts: nothing",
    }
}

/// A changed value of a ConfigMap or Secret, or a changed field of a workload.
fn value(value: &ValueDocument, is_field: bool) -> (String, String) {
    let key = if is_field { printable(&value.key) } else { printable(&format!("data[{}]", value.key)) };
    let text = |text: &Option<String>| match text {
        Some(text) if text.lines().count() > 1 => format!("{} lines", text.lines().count()),
        Some(text) => shown(&Value::from(text.trim_end_matches('\n'))),
        None => "(none)".to_owned(),
    };
    match (&value.old, &value.new) {
        // A Secret's value, or binary.
        (None, None) => (key, value.change.clone()),
        (old, new) => (key, format!("{} -> {}", text(old), text(new))),
    }
}

/// The manifests that would be rejected, in the format of `limpet validate`, with source lines where available.
pub(super) fn rejections(document: &DiffDocument, files: &[DiffFile], screen: Screen) -> String {
    document.rejected.iter().map(|rejected| rejection(rejected, files, screen)).collect()
}

fn rejection(rejected: &RejectionDocument, files: &[DiffFile], screen: Screen) -> String {
    let file = files.iter().find(|file| file.name == rejected.origin);
    let text = file.map(|file| validate::shown(file.text.as_bytes())).filter(|text| !text.is_empty());
    let text = text.as_deref();
    let mut page: String = rejected.faults.iter().map(|fault| one_fault(rejected, fault, text, screen)).collect();
    if !rejected.kept.is_empty() {
        page.push_str(&format!("  {} would keep running unchanged\n", printable(&rejected.kept.join(", "))));
    }
    page
}

fn one_fault(rejected: &RejectionDocument, fault: &FaultDocument, text: Option<&str>, screen: Screen) -> String {
    let severity = if fault.severity == "error" { Severity::Error } else { Severity::Warning };
    let plain = match severity {
        Severity::Error => Fault::error(&fault.path, &fault.message),
        Severity::Warning => Fault::warning(&fault.path, &fault.message),
    };
    let position = fault.line.zip(fault.column).filter(|_| text.is_some());
    let whole = Fault { origin: rejected.origin.as_str().into(), position, ..plain }.with_remedy(&fault.remedy);
    match text {
        Some(text) => validate::render(&whole, text, screen),
        None => {
            let word = match severity {
                Severity::Error => screen.paint(Tone::Bad, "error"),
                Severity::Warning => screen.paint(Tone::Warn, "warning"),
            };
            format!("{word}: {}\n", printable(&fault.text))
        }
    }
}
