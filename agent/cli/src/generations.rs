//! `limpet generations` and `limpet rollback`: the generations of the sources, and the return to one of them.

use jiff::Timestamp;

use super::age;
use super::error::{CliError, EXIT_FAULTS};
use super::output::DocumentFormat;
use super::screen::{Screen, Tone, printable};
use super::table::{Cell, Table};
use limpet_wire::generations::{GenerationDocument, RollbackRequest, RolledBack, SourceGenerationsDocument};
use limpet_wire::socket_client::SocketClient;

/// Where the documents are.
pub(super) const PATH: &str = "/limpet/v1/generations";

/// Arguments of `limpet generations`.
#[derive(Debug, clap::Args)]
pub struct GenerationsArgs {
    /// Exit with 1 unless the newest version of each source runs and is good
    #[arg(long)]
    check: bool,
    /// Output format
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

/// Arguments of `limpet rollback`.
#[derive(Debug, clap::Args)]
pub struct RollbackArgs {
    /// The number of a good generation; without it the good one before the present one
    #[arg(value_name = "GENERATION")]
    generation: Option<u64>,
    /// The source: file, push, bundle or http; needed if several have generations
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
}

/// Lists the generations.
///
/// # Errors
/// When the agent cannot be reached.
pub(super) async fn run(client: &SocketClient, args: GenerationsArgs, screen: Screen) -> Result<u8, CliError> {
    let sources: Vec<SourceGenerationsDocument> = client.get_json(PATH).await?;
    let text = match args.output {
        Some(format) => format.render(&sources)?,
        None if sources.is_empty() => {
            screen.remark("No source has generations: set generations.policy in the configuration.")?;
            return Ok(0);
        }
        None => render(&sources, &screen, Timestamp::now()),
    };
    screen.print(&text)?;
    Ok(if args.check && !sources.iter().all(is_settled) { EXIT_FAULTS } else { 0 })
}

/// Returns to a good generation, and waits until it is in effect.
///
/// # Errors
/// When the agent cannot be reached, or there is no such generation.
pub(super) async fn roll_back(client: &SocketClient, args: RollbackArgs, screen: Screen) -> Result<u8, CliError> {
    let request = RollbackRequest { source: args.source, generation: args.generation };
    let RolledBack { source, generation }: RolledBack = client.post_json("/limpet/v1/rollback", &request).await?;
    screen.print(&format!("generation {generation} of {} runs again\n", printable(&source)))?;
    Ok(0)
}

/// Whether the newest version of the source runs and is good. One that has nothing has nothing to wait for.
fn is_settled(source: &SourceGenerationsDocument) -> bool {
    let running = source.generations.iter().find(|generation| Some(generation.number) == source.running);
    source.waiting.is_none()
        && source.refused.is_none()
        && running.is_none_or(|generation| generation.outcome == "good")
}

/// The newest first.
fn render(sources: &[SourceGenerationsDocument], screen: &Screen, now: Timestamp) -> String {
    let of_source = |source: &SourceGenerationsDocument| {
        let rows: Vec<Vec<Cell>> =
            source.generations.iter().rev().map(|generation| row(source, generation, now)).collect();
        rows
    };
    let rows: Vec<Vec<Cell>> = sources.iter().flat_map(of_source).collect();
    let mut text =
        Table::new(vec!["SOURCE", "GENERATION", "STATE", "AGE", "PODS", "OBJECTS", "NOTE"]).render(screen, &rows);
    for source in sources {
        if let Some(why) = &source.waiting {
            text.push_str(&format!("{}: the newest version waits: {}\n", printable(&source.source), printable(why)));
        }
    }
    text
}

fn row(source: &SourceGenerationsDocument, generation: &GenerationDocument, now: Timestamp) -> Vec<Cell> {
    let is_running = source.running == Some(generation.number);
    let (state, tone) = match (generation.outcome.as_str(), is_running) {
        ("good", true) => ("running, good", Tone::Good),
        ("good", false) => ("good", Tone::Plain),
        ("trial", _) => ("running, on trial", Tone::Warn),
        _ => ("refused", Tone::Bad),
    };
    let note = match is_running {
        true => source.unready.clone(),
        false => generation.reason.clone(),
    };
    vec![
        Cell::from(source.source.as_str()),
        Cell::from(generation.number.to_string()),
        Cell::toned(state, tone),
        Cell::from(age::since(generation.made.0, now)),
        Cell::from(generation.pods.to_string()),
        Cell::from(generation.objects.to_string()),
        Cell::from(note.unwrap_or_default()),
    ]
}

/// `generation 7, good` for `limpet status`.
pub(super) fn summary(source: &SourceGenerationsDocument) -> (String, Tone) {
    let Some(number) = source.running else { return ("no generation yet".to_owned(), Tone::Plain) };
    let running = source.generations.iter().find(|generation| generation.number == number);
    match running.map(|generation| generation.outcome.as_str()) {
        Some("good") => (format!("generation {number}, good"), Tone::Good),
        _ => {
            let why = source.unready.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            (format!("generation {number}, on trial{why}"), Tone::Warn)
        }
    }
}

/// What of a source's generations needs attention.
pub(super) fn attention(source: &SourceGenerationsDocument) -> Option<String> {
    let name = &source.source;
    if let Some(why) = &source.waiting {
        return Some(format!("source {name}: the newest version waits: {why}"));
    }
    let refused = source.generations.iter().find(|generation| Some(generation.number) == source.refused)?;
    let why = refused.reason.as_deref().unwrap_or("its reason is not known");
    let running = source.running.map(|number| number.to_string()).unwrap_or_default();
    Some(format!("source {name}: generation {} was undone, generation {running} runs: {why}", refused.number))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn documents() -> Vec<SourceGenerationsDocument> {
        serde_json::from_value(json!([
            {"source": "file", "policy": "all", "running": 6, "refused": 7, "generations": [
                {"number": 6, "outcome": "good", "made": "2026-01-01T00:00:00Z", "pods": 3, "objects": 1},
                {"number": 7, "outcome": "refused", "reason": "pod default/web-edge1 is not ready",
                 "made": "2026-01-03T00:00:00Z", "pods": 3, "objects": 1}]},
            {"source": "http", "policy": "pods", "running": 2, "waiting": "its images are being pulled",
             "unready": "pod default/a-edge1 has not started", "generations": [
                {"number": 2, "outcome": "trial", "made": "2026-01-03T23:00:00Z", "pods": 1, "objects": 0}]},
        ]))
        .unwrap()
    }

    #[test]
    fn the_newest_generation_of_each_source_comes_first_with_its_reason() {
        let screen = Screen { color: false, quiet: false };
        let text = render(&documents(), &screen, "2026-01-04T00:00:00Z".parse().unwrap());
        assert_eq!(
            text,
            "SOURCE   GENERATION   STATE               AGE   PODS   OBJECTS   NOTE\n\
             file     7            refused             24h   3      1         pod default/web-edge1 is not ready\n\
             file     6            running, good       3d    3      1\n\
             http     2            running, on trial   60m   1      0         pod default/a-edge1 has not started\n\
             http: the newest version waits: its images are being pulled\n"
        );
    }

    #[test]
    fn the_status_says_what_runs_and_why_the_newest_does_not() {
        let documents = documents();
        assert_eq!(summary(&documents[0]), ("generation 6, good".to_owned(), Tone::Good));
        assert_eq!(summary(&documents[1]).0, "generation 2, on trial: pod default/a-edge1 has not started");
        let refused = "source file: generation 7 was undone, generation 6 runs: pod default/web-edge1 is not ready";
        assert_eq!(attention(&documents[0]).unwrap(), refused);
        assert_eq!(
            attention(&documents[1]).unwrap(),
            "source http: the newest version waits: its images are being pulled"
        );
        assert!(documents.iter().all(|document| !is_settled(document)));
    }
}
