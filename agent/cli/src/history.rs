//! `limpet history`: the changes of a pod's manifest, who made them, and their effect on the pod.

use clap_complete::engine::ArgValueCompleter;
use jiff::Timestamp;

use super::error::CliError;
use super::output::DocumentFormat;
use super::screen::{Screen, Tone};
use super::table::{Cell, Table};
use super::{age, completion, target};
use limpet_core::source::{ChangeKind, ManifestChange};
use limpet_wire::pods::HistoryDocument;
use limpet_wire::socket_client::SocketClient;

/// Arguments of `limpet history`.
#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    /// NAME, NAMESPACE/NAME, or the manifest's name
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completion::pods))]
    pod: String,
    /// The pod's namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

pub(super) async fn run(client: &SocketClient, args: HistoryArgs, screen: Screen) -> Result<u8, CliError> {
    let (namespace, name) = names(client, &args.pod, args.namespace.as_deref()).await?;
    let document: HistoryDocument = client.get_json(&format!("/limpet/v1/pods/{namespace}/{name}/history")).await?;
    let text = match args.output {
        Some(format) => format.render(&document)?,
        None if document.changes.is_empty() => {
            screen.remark(&format!("No changes are recorded for {}.", document.pod))?;
            return Ok(0);
        }
        None => table(&document.changes, &screen, Timestamp::now()),
    };
    screen.print(&text)?;
    Ok(0)
}

/// A removed pod still has a history, so an unknown full name is used as given.
async fn names(client: &SocketClient, pod: &str, namespace: Option<&str>) -> Result<(String, String), CliError> {
    let written = pod.split_once('/').or_else(|| Some((namespace?, pod)));
    match (target::find(client, pod, namespace).await, written) {
        (Ok(pod), _) => Ok((pod.namespace, pod.name)),
        // Characters with a meaning in a path cannot be part of a name.
        (Err(CliError::Target(_)), Some((namespace, name)))
            if !pod.contains(['?', '#', '%', ' ']) && !name.contains('/') =>
        {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        (Err(error), _) => Err(error),
    }
}

/// Newest first.
pub(super) fn table(changes: &[ManifestChange], screen: &Screen, now: Timestamp) -> String {
    let rows: Vec<Vec<Cell>> = changes.iter().rev().map(|change| row(change, now)).collect();
    Table::new(vec!["AGE", "FROM", "CHANGE", "EFFECT", "BY"]).render(screen, &rows)
}

fn row(change: &ManifestChange, now: Timestamp) -> Vec<Cell> {
    let rejected = change.change == ChangeKind::Rejected;
    vec![
        Cell::from(age::since(change.at.0, now)),
        Cell::from(change.origin.as_str()),
        Cell::toned(change.what(), if rejected { Tone::Bad } else { Tone::Plain }),
        Cell::from(change.effect()),
        Cell::from(change.by()),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_change_comes_first_with_its_actor() {
        let changes: Vec<ManifestChange> = serde_json::from_value(json!([
            {"at": "2026-01-01T00:00:00Z", "source": "file", "origin": "gateway.yaml", "change": "created",
             "actor": {"pid": 812, "uid": 0, "user": "root", "command": "cp"}},
            {"at": "2026-01-03T22:00:00Z", "source": "file", "origin": "gateway.yaml", "change": "edited",
             "touched": ["image of proxy 1.4 -> 1.5", "labels"], "restarts": ["proxy"],
             "actor": {"pid": 4711, "uid": 1001, "user": "ansible", "command": "python3"}},
            {"at": "2026-01-03T23:00:00Z", "source": "file", "origin": "gateway.yaml", "change": "edited",
             "touched": ["container web"], "recreates": true},
            {"at": "2026-01-03T23:59:00Z", "source": "file", "origin": "gateway.yaml", "change": "rejected",
             "reason": "spec.containers: required"},
        ]))
        .unwrap();
        let text = table(&changes, &Screen { color: false, quiet: false }, "2026-01-04T00:00:00Z".parse().unwrap());
        assert_eq!(
            text,
            "AGE    FROM           CHANGE                                EFFECT              BY\n\
             60s    gateway.yaml   rejected: spec.containers: required                       unknown\n\
             60m    gateway.yaml   container web                         recreated the pod   unknown\n\
             120m   gateway.yaml   image of proxy 1.4 -> 1.5, labels     restarted proxy     ansible (uid 1001, pid 4711, python3)\n\
             3d     gateway.yaml   created                                                   root (uid 0, pid 812, cp)\n"
        );
    }
}
