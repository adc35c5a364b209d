//! `limpet status`: the agent, its sources and pods, the connection to a cluster, the node's credentials and conditions on
//! one screen, and what of it needs attention.

mod attention;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use super::error::{CliError, EXIT_FAULTS};
use super::output::DocumentFormat;
use super::pod_status::Summary;
use super::pods::{name, namespace};
use super::screen::{Screen, Tone, printable};
use super::sheet::Sheet;
use super::{age, generations, sources};
use limpet_wire::generations::SourceGenerationsDocument;
use limpet_wire::pods::{PodEntry, PodsDocument, SourceDocument};
use limpet_wire::socket_client::SocketClient;
use limpet_wire::status::{
    ApiserverDocument, CertificateDocument, LastUpgrade, ReportDocument, StatusDocument, TokensDocument,
};

/// Arguments of `limpet status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Output format
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    #[serde(flatten)]
    status: StatusDocument,
    pods: PodCounts,
    sources: Vec<SourceDocument>,
    /// The generations of the sources that have some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    generations: Vec<SourceGenerationsDocument>,
    /// What needs attention, one sentence each.
    attention: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct PodCounts {
    total: usize,
    running: usize,
    ready: usize,
    failing: Vec<FailingPod>,
}

/// A pod in another state than it should be.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct FailingPod {
    namespace: String,
    name: String,
    /// As `limpet pods` shows it.
    status: String,
}

pub(super) async fn run(client: &SocketClient, args: StatusArgs, screen: Screen) -> Result<u8, CliError> {
    let status: StatusDocument = client.get_json("/limpet/v1/status").await?;
    let sources: Vec<SourceDocument> = client.get_json("/limpet/v1/sources").await?;
    let PodsDocument { pods, .. } = client.get_json("/limpet/v1/pods").await?;
    // An agent of an earlier version has none.
    let generations: Vec<SourceGenerationsDocument> = client.get_json(generations::PATH).await.unwrap_or_default();
    let now = Timestamp::now();
    let report = Report::new(status, sources, &pods, now).with_generations(generations);
    let text = match args.output {
        Some(format) => format.render(&report)?,
        None => render(&report, &screen, now),
    };
    screen.print(&text)?;
    Ok(if report.attention.is_empty() { 0 } else { EXIT_FAULTS })
}

impl Report {
    fn new(status: StatusDocument, sources: Vec<SourceDocument>, pods: &[PodEntry], now: Timestamp) -> Self {
        let pods = PodCounts::new(pods);
        let attention = attention::points(&status, &sources, &pods, now);
        Self { status, pods, sources, generations: Vec::new(), attention }
    }

    fn with_generations(mut self, generations: Vec<SourceGenerationsDocument>) -> Self {
        // What waits for its window is as it should be.
        let held = |source: &str| self.status.held_updates.iter().any(|held| held.source.as_deref() == Some(source));
        let waits =
            |generations: &&SourceGenerationsDocument| generations.waiting.is_some() && held(&generations.source);
        let points =
            generations.iter().filter(|generations| !waits(generations)).filter_map(super::generations::attention);
        let points: Vec<String> = points.collect();
        self.attention.extend(points);
        Self { generations, ..self }
    }
}

impl PodCounts {
    fn new(pods: &[PodEntry]) -> Self {
        let mut counts = Self { total: pods.len(), ..Self::default() };
        for entry in pods {
            let status = entry.pod.status.as_ref();
            let ready = |condition: &k8s_openapi::api::core::v1::PodCondition| {
                condition.type_ == "Ready" && condition.status == "True"
            };
            counts.running += usize::from(status.is_some_and(|status| status.phase.as_deref() == Some("Running")));
            let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
            counts.ready += usize::from(conditions.iter().any(ready));
            let summary = Summary::new(&entry.pod);
            if summary.tone() == Tone::Bad {
                counts.failing.push(FailingPod {
                    namespace: namespace(entry).to_owned(),
                    name: name(entry).to_owned(),
                    status: summary.status,
                });
            }
        }
        counts
    }
}

fn render(report: &Report, screen: &Screen, now: Timestamp) -> String {
    let points = || report.attention.iter().map(|point| screen.paint(Tone::Bad, &printable(point)));
    if screen.quiet {
        return points().map(|point| format!("{point}\n")).collect();
    }
    let status = &report.status;
    let mut sheet = Sheet::new(now);
    sheet.field("Agent", &format!("limpet {} on {}", status.version, status.node));
    sheet.time("Started", Some(&status.started));
    sheet.time("Booted", status.booted.as_ref());
    sheet.painted(
        "containerd",
        &match status.containerd {
            true => screen.paint(Tone::Good, "connected"),
            false => screen.paint(Tone::Bad, "not connected"),
        },
    );
    if let Some(last) = status.upgrade.as_ref().and_then(|upgrade| upgrade.last.as_ref()) {
        sheet.painted("Upgrade", &upgrade(last, screen, now));
    }
    sheet.painted("Pods", &pods(&report.pods, screen));
    sheet.section("Sources");
    sheet.indented(|sheet| {
        report.sources.iter().for_each(|health| sheet.painted(&health.source, &source(health, screen, now)))
    });
    if !report.generations.is_empty() {
        sheet.section("Generations");
        sheet.indented(|sheet| {
            for source in &report.generations {
                let (text, tone) = generations::summary(source);
                sheet.painted(&source.source, &screen.paint(tone, &printable(&text)));
            }
        });
    }
    if !status.held_updates.is_empty() {
        sheet.section("Updates");
        for held in &status.held_updates {
            sheet.text(&format!("  {}\n", printable(&sources::held_update(held, now))));
        }
    }
    if let Some(report) = &status.report {
        sheet.painted("Report", &self::report(report, screen, now));
    }
    match &status.apiserver {
        None => sheet.field("Apiserver", "no apiserver configured"),
        Some(apiserver) => connection(&mut sheet, apiserver, screen),
    }
    sheet.section("Credentials");
    sheet.indented(|sheet| {
        for held in &status.certificates {
            sheet.painted(&held.purpose, &certificate(held, screen, now));
        }
        sheet.painted("tokens", &tokens(&status.tokens, screen, now));
    });
    sheet.painted(
        "Conditions",
        &match status.conditions.as_deref() {
            None => "not measured yet".to_owned(),
            Some([]) => screen.paint(Tone::Good, "none"),
            Some(all) => {
                let names: Vec<&str> = all.iter().map(|condition| condition.as_str()).collect();
                screen.paint(Tone::Bad, &names.join(", "))
            }
        },
    );
    if !report.attention.is_empty() {
        sheet.text("\n");
        sheet.section("Needs attention");
        points().for_each(|point| sheet.text(&format!("  {point}\n")));
    }
    sheet.into_text()
}

/// `0.1.0 -> 0.2.0, installed 3d ago`.
fn upgrade(last: &LastUpgrade, screen: &Screen, now: Timestamp) -> String {
    let ago = last.at.as_ref().map_or_else(String::new, |Time(at)| format!(" {} ago", age::since(*at, now)));
    let (words, tone) = match last.outcome.as_str() {
        "trial" => ("on trial", Tone::Warn),
        "undone" => ("undone", Tone::Bad),
        other => (other, Tone::Good),
    };
    let versions = printable(&format!("{} -> {}", last.from, last.to));
    format!("{versions}, {}", screen.paint(tone, &printable(&format!("{words}{ago}"))))
}

/// `https://fleet.example/edge1, sent 4m ago`.
fn report(report: &ReportDocument, screen: &Screen, now: Timestamp) -> String {
    let sent = report.last_sent.as_ref().map(|Time(at)| format!("sent {} ago", age::since(*at, now)));
    let (text, tone) = match (&report.problem, sent) {
        (Some(why), Some(sent)) => (format!("{sent}; the newest one did not arrive: {why}"), Tone::Warn),
        (Some(why), None) => (format!("none has arrived: {why}"), Tone::Warn),
        (None, Some(sent)) => (sent, Tone::Good),
        (None, None) => ("none was sent yet".to_owned(), Tone::Plain),
    };
    format!("{}, {}", printable(&report.url), screen.paint(tone, &printable(&text)))
}

fn pods(counts: &PodCounts, screen: &Screen) -> String {
    let PodCounts { total, running, ready, failing } = counts;
    let failing = match failing.len() {
        0 => String::new(),
        count => format!(", {}", screen.paint(Tone::Bad, &format!("{count} failing"))),
    };
    format!("{total}: {running} running, {ready} ready{failing}")
}

fn source(source: &SourceDocument, screen: &Screen, now: Timestamp) -> String {
    let (state, tone) = sources::state(source, now);
    let rejected = match source.rejected.len() {
        0 => String::new(),
        count => format!(", {}", screen.paint(Tone::Bad, &format!("{count} rejected"))),
    };
    let pods = if source.pods == 1 { "pod" } else { "pods" };
    format!("{}, {} {pods}{rejected}", screen.paint(tone, &printable(&state)), source.pods)
}

fn connection(sheet: &mut Sheet, apiserver: &ApiserverDocument, screen: &Screen) {
    let (state, tone) = state(apiserver, sheet.now());
    sheet.painted("Apiserver", &screen.paint(tone, &printable(&state)));
    sheet.indented(|sheet| {
        sheet.field("server", &apiserver.server);
        match &apiserver.last_sync {
            Some(at) => sheet.time("last sync", Some(at)),
            None => sheet.field("last sync", "not since the agent started"),
        }
        let unsent = &apiserver.unsent;
        let kinds = [(unsent.statuses, "pod statuses"), (unsent.mirrors, "mirror pods"), (unsent.events, "events")];
        let kinds = kinds.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}"));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        sheet.field("unsent", if kinds.is_empty() { "nothing" } else { &kinds });
    });
}

/// `online since 3d`, `offline since 6h: certificate expired: …`.
fn state(apiserver: &ApiserverDocument, now: Timestamp) -> (String, Tone) {
    let since =
        apiserver.since.as_ref().map_or_else(String::new, |Time(at)| format!(" since {}", age::since(*at, now)));
    let why = [&apiserver.cause, &apiserver.message].into_iter().flatten().map(|part| format!(": {part}"));
    let tone = match apiserver.state.as_str() {
        "online" => Tone::Good,
        "connecting" => Tone::Warn,
        _ => Tone::Bad,
    };
    (format!("{}{since}{}", apiserver.state, why.collect::<String>()), tone)
}

fn certificate(held: &CertificateDocument, screen: &Screen, now: Timestamp) -> String {
    let (tone, validity) = (attention::certificate(held, now).map_or(Tone::Good, |_| Tone::Bad), held.not_after.0);
    let text = match now {
        now if now < held.not_before.0 => {
            format!("certificate is valid in {}: check the clock", age::since(now, held.not_before.0))
        }
        now if now > validity => format!("certificate expired {} ago", age::since(validity, now)),
        now => format!("certificate expires in {}", age::since(now, validity)),
    };
    screen.paint(tone, &text)
}

fn tokens(tokens: &TokensDocument, screen: &Screen, now: Timestamp) -> String {
    match &tokens.first_expiry {
        _ if tokens.count == 0 => "none".to_owned(),
        Some(Time(at)) if *at < now => {
            screen.paint(Tone::Bad, &format!("{}, the first expired {} ago", tokens.count, age::since(*at, now)))
        }
        Some(Time(at)) => format!("{}, the first expires in {}", tokens.count, age::since(now, *at)),
        None => tokens.count.to_string(),
    }
}

#[cfg(test)]
mod tests;
