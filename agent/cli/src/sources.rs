//! `limpet sources`: the sources of pods, their health, and rejected manifests.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::age;
use super::error::CliError;
use super::output::DocumentFormat;
use super::screen::{Screen, Tone, printable};
use super::table::{Cell, Table};
use limpet_wire::pods::{RejectionDocument, SourceDocument};
use limpet_wire::socket_client::SocketClient;
use limpet_wire::status::HeldUpdateDocument;

/// Arguments of `limpet sources`.
#[derive(Debug, clap::Args)]
pub struct SourcesArgs {
    /// Output format
    #[arg(short, long)]
    output: Option<DocumentFormat>,
}

pub(super) async fn run(client: &SocketClient, args: SourcesArgs, screen: Screen) -> Result<u8, CliError> {
    let sources: Vec<SourceDocument> = client.get_json("/limpet/v1/sources").await?;
    let text = match args.output {
        Some(format) => format.render(&sources)?,
        None => render(&sources, &screen, Timestamp::now()),
    };
    screen.print(&text)?;
    Ok(0)
}

fn render(sources: &[SourceDocument], screen: &Screen, now: Timestamp) -> String {
    if sources.is_empty() {
        return "no source is configured: set staticPodPath, or start with --pod-manifest-path\n".to_owned();
    }
    let rows: Vec<Vec<Cell>> = sources.iter().map(|source| row(source, now)).collect();
    let header = vec!["SOURCE", "FROM", "STATE", "LAST GOOD", "PODS", "OBJECTS", "REJECTED"];
    let mut text = Table::new(header).render(screen, &rows);
    let faults: Vec<String> = sources.iter().flat_map(|source| &source.rejected).map(rejection).collect();
    // A single fault is shown in the table.
    if sources.iter().flat_map(|source| &source.rejected).map(|rejected| rejected.faults.len()).sum::<usize>() > 1 {
        text.push('\n');
        text.extend(faults);
    }
    for (source, missing) in
        sources.iter().flat_map(|source| source.missing.iter().map(move |reference| (source, reference)))
    {
        let pods = missing.pods.join(", ");
        text.push_str(&format!("\n{} is not defined in {}; it is used by {pods}\n", missing.object, source.source));
    }
    for held in sources.iter().flat_map(|source| &source.held_updates) {
        text.push_str(&format!("\n{}\n", printable(&held_update(held, now))));
    }
    // A remark may apply to several sources.
    let remarks: BTreeSet<&str> =
        sources.iter().flat_map(|source| &source.remark).flat_map(|all| all.lines()).collect();
    for remark in remarks {
        text.push_str(&format!("\n{}\n", screen.paint(Tone::Bad, &printable(remark))));
    }
    text
}

/// `bundle plant 1.4 waits to be applied: the apply window is closed; it opens in 5h`.
pub(super) fn held_update(held: &HeldUpdateDocument, now: Timestamp) -> String {
    let verb = if held.phase == "apply" { "applied" } else { "downloaded" };
    let opens = held.until.as_ref().filter(|until| until.0 > now);
    let opens = opens.map(|until| format!("; it opens in {}", age::since(now, until.0))).unwrap_or_default();
    format!("{} waits to be {verb}: {}{opens}", held.what, held.reason)
}

pub(super) fn state(source: &SourceDocument, now: Timestamp) -> (String, Tone) {
    match source.health.as_str() {
        "good" if source.detail.is_empty() => ("ready".to_owned(), Tone::Good),
        "good" if source.source == "api" => (format!("online ({})", source.detail), Tone::Good),
        "good" if source.source == "http" => (format!("good ({})", source.detail), Tone::Good),
        "good" if source.source == "bundle" => (format!("has {}", source.detail), Tone::Good),
        "good" => (format!("watching ({})", source.detail), Tone::Good),
        "starting" => ("starting".to_owned(), Tone::Warn),
        "blind" => (source.detail.clone(), Tone::Warn),
        _ => (unavailable(source, now), Tone::Bad),
    }
}

fn row(source: &SourceDocument, now: Timestamp) -> Vec<Cell> {
    let (state, tone) = state(source, now);
    let last_good = source.last_good.as_ref().map_or_else(|| "never".to_owned(), |last| age::since(last.0, now));
    let first = source.rejected.iter().find_map(|rejected| rejected.faults.first());
    let rejected = match first {
        Some(fault) => Cell::toned(format!("{}: {}", source.rejected.len(), fault.text), Tone::Bad),
        None => Cell::from(source.rejected.len().to_string()),
    };
    vec![
        Cell::from(source.source.as_str()),
        Cell::from(source.place.as_str()),
        Cell::toned(state, tone),
        Cell::from(last_good),
        Cell::from(source.pods.to_string()),
        Cell::from(source.objects.to_string()),
        rejected,
    ]
}

/// Why a source cannot be read, and when it retries.
fn unavailable(source: &SourceDocument, now: Timestamp) -> String {
    // The column of pods shows what stays in effect.
    let why = source.detail.rsplit_once("; ").map_or(&*source.detail, |(why, _)| why);
    match &source.next_retry {
        Some(at) if at.0 > now => format!("retry in {} ({why})", age::since(now, at.0)),
        Some(_) => format!("retrying ({why})"),
        None => why.to_owned(),
    }
}

/// A rejected manifest with all its faults, and the pods that keep running.
pub(super) fn rejection(rejected: &RejectionDocument) -> String {
    let kept = match (&rejected.kept[..], &rejected.accepted[..]) {
        ([], []) => "nothing of it runs".to_owned(),
        ([], accepted) => format!("its other pods run: {}", accepted.join(", ")),
        (kept, []) => format!("still running: {}", kept.join(", ")),
        (kept, accepted) => {
            format!("still running: {}; its other pods run: {}", kept.join(", "), accepted.join(", "))
        }
    };
    let mut text = format!("{} is rejected; {kept}\n", printable(&rejected.origin));
    for fault in &rejected.faults {
        text.push_str(&format!("  {}: {}\n", fault.severity, printable(&fault.text)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpet_wire::pods::{FaultDocument, MissingObjectDocument};

    #[test]
    fn sources_are_shown_with_rejected_manifests() {
        let fault = |text: &str| FaultDocument {
            severity: "error".to_owned(),
            line: None,
            column: None,
            path: String::new(),
            message: String::new(),
            remedy: String::new(),
            text: text.to_owned(),
        };
        let rejected = |origin: &str, faults: &[&str], kept: &[&str]| RejectionDocument {
            origin: origin.to_owned(),
            faults: faults.iter().map(|text| fault(text)).collect(),
            kept: kept.iter().map(ToString::to_string).collect(),
            accepted: Vec::new(),
        };
        let source = |source: &str, health: &str, detail: &str, rejected| SourceDocument {
            source: source.to_owned(),
            place: "manifests".to_owned(),
            health: health.to_owned(),
            detail: detail.to_owned(),
            last_good: (health == "good")
                .then_some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH)),
            next_retry: None,
            pods: 3,
            objects: 2,
            missing: Vec::new(),
            rejected,
            remark: None,
            held_updates: Vec::new(),
        };
        let screen = Screen { color: false, quiet: false };
        let now = Timestamp::constant(120, 0);
        let stale = rejected("modbus.yaml", &["modbus.yaml:7:3: spec.containers: required"], &["default/modbus-edge1"]);
        let mut http = source("http", "unavailable", "timeout: no connection; 3 pods are kept", vec![]);
        http.next_retry = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::constant(158, 0)));
        http.remark = Some("the database was damaged".to_owned());
        let push = source("push", "good", "", vec![]);
        let sources = [source("file", "good", "inotify", vec![stale.clone()]), push, http];
        assert_eq!(
            render(&sources, &screen, now),
            "SOURCE   FROM        STATE                                   LAST GOOD   PODS   OBJECTS   REJECTED\n\
             file     manifests   watching (inotify)                      2m          3      2         1: modbus.yaml:7:3: spec.containers: required\n\
             push     manifests   ready                                   2m          3      2         0\n\
             http     manifests   retry in 38s (timeout: no connection)   never       3      2         0\n\n\
             the database was damaged\n"
        );
        let mut lacking = source("file", "good", "", vec![]);
        lacking.missing = vec![MissingObjectDocument {
            object: "ConfigMap default/web".to_owned(),
            pods: vec!["default/a-edge1".to_owned(), "default/b-edge1".to_owned()],
        }];
        let text = render(&[lacking], &screen, now);
        let line = "\nConfigMap default/web is not defined in file; it is used by default/a-edge1, default/b-edge1\n";
        assert!(text.ends_with(line), "{text}");
        let mut beside = rejected("web.yaml", &["a"], &[]);
        beside.accepted = vec!["default/web-edge1".to_owned()];
        assert!(rejection(&beside).starts_with("web.yaml is rejected; its other pods run: default/web-edge1\n"));
        beside.kept = vec!["default/db-edge1".to_owned()];
        let first = "web.yaml is rejected; still running: default/db-edge1; its other pods run: default/web-edge1\n";
        assert!(rejection(&beside).starts_with(first));
        let two = rejected("web.yaml", &["a", "b"], &[]);
        let text = render(&[source("file", "good", "", vec![stale, two])], &screen, now);
        assert!(
            text.ends_with(
                "\nmodbus.yaml is rejected; still running: default/modbus-edge1\n  \
                 error: modbus.yaml:7:3: spec.containers: required\n\
                 web.yaml is rejected; nothing of it runs\n  error: a\n  error: b\n"
            ),
            "{text}"
        );
    }
}
