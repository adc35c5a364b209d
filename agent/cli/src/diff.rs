//! `limpet diff`: what manifests would change in the running pods, as a dry run. kubectl's exit codes.

mod page;

use limpet_model::manifest;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use std::time::Instant;

use super::apply::print_error;
use super::error::{CliError, EXIT_FAULTS, EXIT_USAGE};
use super::output::DocumentFormat;
use super::screen::Screen;
use super::validate;
use limpet_core::forecast::{as_if_running, forecast, only};
use limpet_core::source::Snapshots;
use limpet_core::source::proposal::{Proposal, Proposed, propose};
use limpet_model::pod::encoding;
use limpet_model::source::SourceKind;
use limpet_wire::diff::{DiffDocument, DiffFile, DiffRequest};
use limpet_wire::socket_client::SocketClient;

const PATH: &str = "/limpet/v1/diff";

/// Arguments of `limpet diff`.
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("compared").args(["files", "generation"])),
    after_help = "Exit codes: 0 nothing would change, 1 something would, 2 a manifest is rejected or cannot be read, \
3 limpet cannot be reached, 4 not allowed."
)]
pub struct DiffArgs {
    /// Manifests, directories of manifests, or - for standard input; without it, the manifests that the sources hold
    /// now
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// Compare what is in effect with this generation: what `limpet rollback` to it would change
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
    /// Treat these as the whole manifest directory: pods that are not among them would be removed
    #[arg(long, requires = "files")]
    prune: bool,
    /// The source they would belong to; by default the source of their pods, or the manifest directory. With
    /// --generation the source whose generation it is; by default the only one that has some
    #[arg(long, value_name = "SOURCE", value_parser = ["file", "push", "bundle", "http"], requires = "compared")]
    source: Option<String>,
    /// Compare with these manifests as if they ran, without an agent
    #[arg(long, value_name = "FILE", num_args = 1.., value_delimiter = ',', requires = "files", conflicts_with_all = ["source", "prune"])]
    offline: Vec<PathBuf>,
    /// The node name, with --offline
    #[arg(long, default_value = "node", value_name = "NAME", requires = "offline")]
    node_name: String,
    /// Output format
    #[arg(short, long)]
    output: Option<DocumentFormat>,
}

pub(super) async fn run(client: &SocketClient, args: DiffArgs, screen: Screen) -> Result<u8, CliError> {
    let asked = ask(client, &args).await;
    let (document, files, unread) = match asked {
        // A difference has exit code 1, so errors must have another one.
        Err(error) if error.exit_code() == EXIT_FAULTS => {
            print_error(&error.to_string());
            return Ok(EXIT_USAGE);
        }
        asked => asked?,
    };
    for remark in document.remarks.iter().filter(|_| args.output.is_none()) {
        screen.remark(&format!("warning: {remark}"))?;
    }
    let text = match args.output {
        Some(format) => format.render(&document)?,
        None => {
            let rejected = page::rejections(&document, &files, screen);
            eprint!("{rejected}");
            page::render(&document, screen)
        }
    };
    screen.print(&text)?;
    Ok(match (unread || !document.rejected.is_empty(), document.differs()) {
        (true, _) => EXIT_USAGE,
        (false, true) => EXIT_FAULTS,
        (false, false) => 0,
    })
}

/// The changes, the manifests they result from, and whether one of them cannot be read.
async fn ask(client: &SocketClient, args: &DiffArgs) -> Result<(DiffDocument, Vec<DiffFile>, bool), CliError> {
    if let Some(number) = args.generation {
        let source = args.source.iter().map(|source| format!("&source={source}")).collect::<String>();
        return Ok((client.get_json(&format!("{PATH}?generation={number}{source}")).await?, Vec::new(), false));
    }
    if args.files.is_empty() {
        return Ok((client.get_json(PATH).await?, Vec::new(), false));
    }
    let (files, unread) = read(&args.files);
    if !args.offline.is_empty() {
        let (old, unread_too) = read(&args.offline);
        return Ok((offline(&old, &files, &args.node_name), files, unread || unread_too));
    }
    let directory = match &args.files[..] {
        [directory] if directory.is_dir() => std::path::absolute(directory).ok(),
        _ => None,
    };
    let request = DiffRequest { source: args.source.clone(), whole: args.prune, directory, files };
    let document = client.post_json(PATH, &request).await?;
    Ok((document, request.files, unread))
}

/// The manifests, and whether one cannot be read, which is printed.
fn read(paths: &[PathBuf]) -> (Vec<DiffFile>, bool) {
    let (mut files, mut unread) = (Vec::new(), false);
    for path in paths.iter().flat_map(|path| validate::files(path)) {
        let text = validate::read(&path).and_then(|bytes| {
            let text = encoding::utf8(&bytes).into_owned();
            String::from_utf8(text).map_err(|_| std::io::Error::other("not UTF-8 text"))
        });
        match text {
            Ok(text) => files.push(DiffFile { name: name(&path), text }),
            Err(error) => {
                unread = true;
                print_error(&format!("{}: {error}", path.display()));
            }
        }
    }
    (files, unread)
}

/// The file name in a manifest directory.
fn name(path: &Path) -> String {
    match path.file_name() {
        Some(name) if path != Path::new("-") => name.to_string_lossy().into_owned(),
        _ => "standard input".to_owned(),
    }
}

/// Compares two sets of manifests; the first one is assumed to be running.
fn offline(old: &[DiffFile], new: &[DiffFile], node_name: &str) -> DiffDocument {
    let Proposed { snapshots: before, .. } = propose(&Snapshots::default(), proposals(old, node_name), true);
    let before = only(SourceKind::File, Arc::clone(&before[SourceKind::File.index()]));
    let Proposed { snapshots: after, rejected } = propose(&before, proposals(new, node_name), true);
    let outcome = forecast(&as_if_running(&before), &before, &after, false, Instant::now());
    DiffDocument::new(&outcome, &rejected, &Default::default())
}

fn proposals(files: &[DiffFile], node_name: &str) -> Vec<Proposal> {
    let proposal = |file: &DiffFile| Proposal {
        source: SourceKind::File,
        name: Arc::from(file.name.as_str()),
        manifest: manifest::read(file.text.as_bytes(), &file.name, SourceKind::File, node_name),
    };
    files.iter().map(proposal).collect()
}

#[cfg(test)]
mod tests;
