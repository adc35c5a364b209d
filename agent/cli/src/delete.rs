//! `limpet delete`: deletes applied pods and waits until they have terminated; deletes workloads, ConfigMaps and Secrets. Same
//! conventions and output as kubectl.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap_complete::engine::ArgValueCompleter;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::WARNING;

use super::apply::{NamedDocument, Validation, print_error, read};
use super::error::{CliError, EXIT_FAULTS};
use super::screen::{Screen, printable};
use super::{completion, target};
use limpet_core::source::resource::Resource;
use limpet_model::pod::PodKey;
use limpet_wire::pods::{DEFAULT_NAMESPACE, PodChange, PodNames};
use limpet_wire::socket_client::{ClientError, SocketClient};

/// Arguments of `limpet delete`.
#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    /// NAME, NAMESPACE/NAME, or the manifest's name; for other kinds: configmap NAME, secret/NAME
    #[arg(value_name = "POD", required_unless_present = "files", conflicts_with = "files", add = ArgValueCompleter::new(completion::pods))]
    names: Vec<String>,
    /// Delete what these manifests define; directories, or - for standard input, as well
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// The namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Grace period in seconds, instead of the pods' own; -1 keeps their own
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    grace_period: i64,
    /// Shorten the grace period to at most a second
    #[arg(long, conflicts_with = "grace_period")]
    now: bool,
    /// Whether to wait until the pods have terminated
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// Ignore names that do not exist
    #[arg(long)]
    ignore_not_found: bool,
}

/// A pod or object to delete.
struct DeleteTarget {
    resource: Resource,
    /// The pod's name on the node, or the object's name.
    key: PodKey,
    /// The name as requested.
    requested: String,
}

pub(super) async fn run(client: &SocketClient, args: DeleteArgs, screen: Screen) -> Result<u8, CliError> {
    let (mut doomed, mut failed) = select_targets(client, &args, screen).await?;
    // Objects last: terminating pods still read theirs.
    doomed.sort_by_key(|doomed| (!doomed.resource.has_pods(), doomed.resource));
    let grace = if args.now { 1 } else { args.grace_period };
    let mut terminating = BTreeSet::new();
    for DeleteTarget { resource, key, requested } in doomed {
        let mut path = resource.path(key.namespace(), key.name());
        if resource == Resource::Pod && grace >= 0 {
            path.push_str(&format!("?gracePeriodSeconds={grace}"));
        }
        match client.delete(&path).await {
            Ok(answer) => {
                screen.print(&format!("{} \"{}\" deleted\n", resource.singular(), printable(&requested)))?;
                warn(&answer, screen);
                if resource == Resource::Pod {
                    terminating.insert(key);
                }
            }
            Err(ClientError::Refused { status: 404, .. }) if args.ignore_not_found => {}
            Err(ClientError::Refused { message, .. }) => {
                failed = true;
                print_error(&message);
            }
            Err(error) => return Err(error.into()),
        }
    }
    if args.wait && !terminating.is_empty() {
        wait_terminated(client, terminating).await?;
    }
    Ok(if failed { EXIT_FAULTS } else { 0 })
}

/// Prints the warnings of a response, as kubectl prints an apiserver's.
fn warn(answer: &Response<Incoming>, screen: Screen) {
    let warnings = answer.headers().get_all(WARNING).iter().filter_map(|value| value.to_str().ok());
    for text in warnings.filter_map(|warning| warning.split('"').nth(1)).filter(|_| !screen.quiet) {
        eprintln!("warning: {}", printable(text));
    }
}

/// The pods and objects to delete, and whether some do not exist.
async fn select_targets(
    client: &SocketClient,
    args: &DeleteArgs,
    screen: Screen,
) -> Result<(Vec<DeleteTarget>, bool), CliError> {
    let pods: Vec<PodNames> = client.get_json("/limpet/v1/names").await?;
    let (mut doomed, mut failed) = (Vec::new(), false);
    let mut add = |resource: Resource, requested: &str, namespace: Option<&str>| {
        match existing(&pods, resource, requested, namespace) {
            Ok(existing) => doomed.push(existing),
            Err(CliError::Target(_)) if args.ignore_not_found => {}
            Err(CliError::Target(message)) => {
                failed = true;
                print_error(&message);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    };
    for (resource, requested) in kinds(&args.names) {
        add(resource, requested, args.namespace.as_deref())?;
    }
    let (named, unreadable) = read(&args.files, args.namespace.as_deref(), Validation::Warn, screen)?;
    for NamedDocument { resource, namespace, name, .. } in named {
        add(resource, &name, Some(&namespace))?;
    }
    Ok((doomed, failed || unreadable))
}

/// Parses names with kinds, as kubectl does: `delete pod web`, `delete cm settings`, `delete secret/token`.
fn kinds(names: &[String]) -> Vec<(Resource, &str)> {
    let first = names.first().filter(|_| names.len() > 1).and_then(|word| Resource::from_name(word));
    let mut all = Vec::new();
    for name in names.iter().skip(usize::from(first.is_some())) {
        let named_kind = name.split_once('/').and_then(|(word, rest)| Some((Resource::from_name(word)?, rest)));
        all.push(match (first, named_kind) {
            (Some(kind), _) => (kind, name.as_str()),
            (None, Some(named_kind)) => named_kind,
            (None, None) => (Resource::Pod, name.as_str()),
        });
    }
    all
}

/// A pod that exists, or an object whose existence only the agent can check.
fn existing(
    pods: &[PodNames],
    resource: Resource,
    requested: &str,
    namespace: Option<&str>,
) -> Result<DeleteTarget, CliError> {
    let name = requested.rsplit('/').next().unwrap_or(requested).to_owned();
    let key = match resource {
        Resource::Pod => target::resolve(pods, requested, namespace)?.key()?,
        Resource::Object(_) => {
            let key = PodKey::parse(namespace.unwrap_or(DEFAULT_NAMESPACE), &*name);
            key.map_err(|error| CliError::Target(format!("{requested}: the name {error}")))?
        }
    };
    Ok(DeleteTarget { resource, key, requested: name })
}

/// Waits until all of `terminating` are gone.
async fn wait_terminated(client: &SocketClient, mut terminating: BTreeSet<PodKey>) -> Result<(), CliError> {
    let mut lines = client.lines::<PodChange>("/limpet/v1/pods?watch=1").await?;
    let mut there = BTreeSet::new();
    while !terminating.is_empty() {
        match lines.next().await? {
            Some(PodChange::Added(entry) | PodChange::Modified(entry)) => there.extend(key(&entry.pod)),
            Some(PodChange::Deleted(entry)) => terminating.retain(|ending| key(&entry.pod).as_ref() != Some(ending)),
            // Pods not listed before the sync have terminated already.
            Some(PodChange::Synced) => terminating.retain(|key| there.contains(key)),
            None => {
                let message =
                    "limpet stopped before the pods had terminated; they terminate when it runs again".to_owned();
                return Err(ClientError::Connection { socket: client.socket().to_owned(), message }.into());
            }
        }
    }
    Ok(())
}

fn key(pod: &k8s_openapi::api::core::v1::Pod) -> Option<PodKey> {
    PodKey::parse(pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpet_model::object::ObjectKind;

    #[test]
    fn names_may_come_with_their_kind() {
        let (map, secret) = (Resource::Object(ObjectKind::ConfigMap), Resource::Object(ObjectKind::Secret));
        let table = [
            ("web", vec![(Resource::Pod, "web")]),
            ("lab/web pod/db", vec![(Resource::Pod, "lab/web"), (Resource::Pod, "db")]),
            ("cm a b", vec![(map, "a"), (map, "b")]),
            ("secret/token web", vec![(secret, "token"), (Resource::Pod, "web")]),
            ("secret", vec![(Resource::Pod, "secret")]),
        ];
        for (arguments, expected) in table {
            let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            assert_eq!(kinds(&arguments), expected);
        }
    }
}
