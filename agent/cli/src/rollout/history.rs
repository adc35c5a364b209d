//! `limpet rollout history` and `undo`: the templates that a workload has had, and the return to one of them. The
//! conventions and messages of `kubectl rollout`.

use super::{WorkloadArgs, applied, workload};
use crate::error::CliError;
use crate::output::DocumentFormat;
use crate::screen::{Screen, printable};
use crate::table::{Cell, Table};
use limpet_core::source::resource::Resource;
use limpet_wire::pods::DEFAULT_NAMESPACE;
use limpet_wire::revisions::RevisionDocument;
use limpet_wire::socket_client::SocketClient;

#[derive(Debug, clap::Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Show the template of this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
    /// Output format
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

#[derive(Debug, clap::Args)]
pub(super) struct UndoArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// The revision to return to; 0: the last one before the present one
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    to_revision: u64,
}

/// Prints the revisions of a workload of any source, or the template of one.
pub(super) async fn history(client: &SocketClient, args: &HistoryArgs, screen: Screen) -> Result<u8, CliError> {
    let (resource, name) = workload(&args.workload.workload)?;
    let revisions = revisions(client, &args.workload).await?;
    let title = format!("{}/{}", resource.singular(), printable(name));
    let text = match (args.revision, args.output) {
        (None, Some(format)) => format.render(&revisions)?,
        (None, None) => format!("{title}\n{}", table(&revisions, &screen)),
        (Some(number), format) => {
            let revision = revisions.iter().find(|revision| revision.number == number);
            let revision = revision.ok_or_else(|| missing(number))?;
            match format {
                Some(format) => format.render(revision)?,
                None => format!("{title} with revision #{number}\n{}", page(revision)?),
            }
        }
    };
    screen.print(&text)?;
    Ok(0)
}

/// Applies the manifest again with the template of an earlier revision.
pub(super) async fn undo(client: &SocketClient, args: &UndoArgs, screen: Screen) -> Result<u8, CliError> {
    let (resource, name) = workload(&args.workload.workload)?;
    let shown = format!("limpet rollout history {}/{}", resource.singular(), printable(name));
    let remedy = format!("put back an earlier spec.template, which {shown} --revision NUMBER -o yaml shows");
    let (path, mut manifest) = applied(client, &args.workload, &remedy).await?;
    if manifest["spec"]["paused"] == true {
        return Err(paused(resource, name));
    }
    let revisions = revisions(client, &args.workload).await?;
    let title = format!("{}/{}", resource.singular(), printable(name));
    let revision = target(&revisions, args.to_revision)?;
    if revisions.last().is_some_and(|newest| newest.number == revision.number) {
        let number = revision.number;
        screen.print(&format!("{title} skipped rollback (current template already matches revision {number})\n"))?;
        return Ok(0);
    }
    manifest["spec"]["template"] = revision.template.clone();
    client.put(&path, manifest.to_string().into_bytes()).await?;
    screen.print(&format!("{title} rolled back\n"))?;
    Ok(0)
}

async fn revisions(client: &SocketClient, args: &WorkloadArgs) -> Result<Vec<RevisionDocument>, CliError> {
    let (resource, name) = workload(&args.workload)?;
    let namespace = args.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    Ok(client.get_json(&format!("/limpet/v1/revisions/{}/{namespace}/{name}", resource.plural())).await?)
}

/// The revision of that number; 0: the one before the newest.
fn target(revisions: &[RevisionDocument], number: u64) -> Result<&RevisionDocument, CliError> {
    match number {
        0 => {
            revisions.iter().rev().nth(1).ok_or_else(|| CliError::Target("no last revision to roll back to".to_owned()))
        }
        number => revisions.iter().find(|revision| revision.number == number).ok_or_else(|| missing(number)),
    }
}

fn missing(number: u64) -> CliError {
    CliError::Target(format!("unable to find specified revision {number} in history"))
}

fn paused(resource: Resource, name: &str) -> CliError {
    let (kind, name) = (resource.kind().to_lowercase(), printable(name));
    CliError::Target(format!(
        "cannot rollback a paused deployment; resume it first with 'limpet rollout resume {kind}/{name}' and try again"
    ))
}

fn table(revisions: &[RevisionDocument], screen: &Screen) -> String {
    let row = |revision: &RevisionDocument| {
        vec![Cell::from(revision.number.to_string()), Cell::from(revision.cause.as_deref().unwrap_or("<none>"))]
    };
    Table::new(vec!["REVISION", "CHANGE-CAUSE"]).page(screen, &revisions.iter().map(row).collect::<Vec<_>>())
}

/// The template as YAML, without what is empty.
fn page(revision: &RevisionDocument) -> Result<String, CliError> {
    let mut template = revision.template.clone();
    if let Some(metadata) = template["metadata"].as_object_mut() {
        metadata.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
    }
    if template["metadata"].as_object().is_some_and(serde_json::Map::is_empty) {
        template.as_object_mut().map(|template| template.remove("metadata"));
    }
    let text = DocumentFormat::Yaml.render(&serde_json::json!({ "Pod Template": template }))?;
    Ok(text.lines().map(|line| printable(line) + "\n").collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn revision(number: u64, cause: Option<&str>) -> RevisionDocument {
        let template = json!({
            "metadata": {"labels": {"app": "web"}, "annotations": {}},
            "spec": {"containers": [{"name": "main", "image": format!("web:{number}")}]},
        });
        RevisionDocument { number, cause: cause.map(str::to_owned), template }
    }

    #[test]
    fn the_table_is_kubectl_s() {
        let revisions = [revision(2, None), revision(4, Some("image \u{1b}[31m4"))];
        let text = table(&revisions, &Screen { color: false, quiet: false });
        assert!(text.starts_with("REVISION   CHANGE-CAUSE\n2          <none>\n4          image "), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_template_is_shown_without_what_is_empty() {
        let text = page(&revision(2, None)).unwrap();
        let back: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back["Pod Template"]["metadata"], json!({"labels": {"app": "web"}}));
        assert_eq!(back["Pod Template"]["spec"]["containers"][0]["image"], "web:2");
    }

    #[test]
    fn an_undo_returns_to_the_one_before_or_to_a_certain_one() {
        let revisions = [revision(2, None), revision(3, None), revision(5, None)];
        assert_eq!(target(&revisions, 0).unwrap().number, 3);
        assert_eq!(target(&revisions, 2).unwrap().number, 2);
        let refused = target(&revisions, 4).unwrap_err().to_string();
        assert_eq!(refused, "unable to find specified revision 4 in history");
        assert_eq!(target(&revisions[..1], 0).unwrap_err().to_string(), "no last revision to roll back to");
    }
}
