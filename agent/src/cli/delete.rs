//! `limpet delete`: ends pods that were applied, and waits until they have ended. kubectl's habits and words.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap_complete::engine::ArgValueCompleter;

use super::apply::{complain, path, read};
use super::client::SocketClient;
use super::error::{CliError, EXIT_FAULTS};
use super::screen::{Screen, printable};
use super::{completion, target};
use crate::pod::PodKey;
use crate::server::document::{PodChange, PodNames};

/// Arguments of `limpet delete`.
#[derive(Debug, clap::Args)]
pub(super) struct DeleteArgs {
    /// NAME, NAMESPACE/NAME, or the manifest's name
    #[arg(value_name = "POD", required_unless_present = "files", conflicts_with = "files", add = ArgValueCompleter::new(completion::pods))]
    pods: Vec<String>,
    /// The pods of these manifests; directories, or - for standard input, as well
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// The pods' namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Seconds to end in, instead of the pods' own; -1 leaves them theirs
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    grace_period: i64,
    /// Within a second
    #[arg(long, conflicts_with = "grace_period")]
    now: bool,
    /// Whether to wait until the pods have ended
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// A pod that is not there is no error
    #[arg(long)]
    ignore_not_found: bool,
}

/// A pod to delete.
struct Doomed {
    key: PodKey,
    /// As it was asked for.
    said: String,
}

pub(super) async fn run(client: &SocketClient, args: DeleteArgs, screen: Screen) -> Result<u8, CliError> {
    let (doomed, mut failed) = chosen(client, &args, screen).await?;
    let grace = if args.now { 1 } else { args.grace_period };
    let query = if grace < 0 { String::new() } else { format!("?gracePeriodSeconds={grace}") };
    let mut ending = BTreeSet::new();
    for Doomed { key, said } in doomed {
        match client.delete(&format!("{}{query}", path(key.namespace(), key.name()))).await {
            Ok(_) => {
                screen.print(&format!("pod \"{}\" deleted\n", printable(&said)))?;
                ending.insert(key);
            }
            Err(CliError::Refused { status: 404, .. }) if args.ignore_not_found => {}
            Err(CliError::Refused { message, .. }) => {
                failed = true;
                complain(&message);
            }
            Err(error) => return Err(error),
        }
    }
    if args.wait && !ending.is_empty() {
        ended(client, ending).await?;
    }
    Ok(if failed { EXIT_FAULTS } else { 0 })
}

/// The pods that are meant, and whether some of them are not to be found.
async fn chosen(client: &SocketClient, args: &DeleteArgs, screen: Screen) -> Result<(Vec<Doomed>, bool), CliError> {
    let pods: Vec<PodNames> = client.get_json("/limpet/v1/names").await?;
    let (mut doomed, mut failed) = (Vec::new(), false);
    let mut take = |said: &str, namespace: Option<&str>| match target::resolve(&pods, said, namespace) {
        Ok(pod) => {
            let said = said.rsplit('/').next().unwrap_or(said).to_owned();
            doomed.push(Doomed { key: pod.key(), said });
            Ok(())
        }
        Err(CliError::Target(_)) if args.ignore_not_found => Ok(()),
        Err(CliError::Target(message)) => {
            failed = true;
            complain(&message);
            Ok(())
        }
        Err(error) => Err(error),
    };
    // `delete pod web` is what fingers type that know kubectl.
    let kind = args.pods.len() > 1 && matches!(args.pods[0].as_str(), "pod" | "pods" | "po");
    for said in args.pods.iter().skip(usize::from(kind)) {
        take(said, args.namespace.as_deref())?;
    }
    let (named, unreadable) = read(&args.files, args.namespace.as_deref(), screen)?;
    for pod in named {
        take(&pod.name, Some(&pod.namespace))?;
    }
    Ok((doomed, failed || unreadable))
}

/// Waits until none of `ending` is there any more.
async fn ended(client: &SocketClient, mut ending: BTreeSet<PodKey>) -> Result<(), CliError> {
    let mut lines = client.lines::<PodChange>("/limpet/v1/pods?watch=1").await?;
    let mut there = BTreeSet::new();
    while !ending.is_empty() {
        match lines.next().await? {
            Some(PodChange::Added(entry) | PodChange::Modified(entry)) => drop(there.insert(key(&entry.pod))),
            Some(PodChange::Deleted(entry)) => drop(ending.remove(&key(&entry.pod))),
            // What has not been told by now had ended before.
            Some(PodChange::Synced) => ending.retain(|key| there.contains(key)),
            None => {
                let message = "limpet stopped before the pods had ended; they end when it is back".to_owned();
                return Err(CliError::Connection { socket: client.socket().to_owned(), message });
            }
        }
    }
    Ok(())
}

fn key(pod: &k8s_openapi::api::core::v1::Pod) -> PodKey {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    PodKey::new(text(&pod.metadata.namespace), text(&pod.metadata.name))
}
