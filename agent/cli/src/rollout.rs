//! `limpet rollout`: restarts the pods of an applied workload one after the other, waits for a rollout, holds it, and
//! returns to an earlier template. kubectl's conventions and output.

mod history;
mod progress;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::error::{CliError, EXIT_FAULTS};
use super::screen::{Screen, printable};
use super::target;
use history::{HistoryArgs, UndoArgs};
use limpet_core::source::resource::Resource;
use limpet_model::object::ObjectKind;
use limpet_model::pod::identity::OWNER_ANNOTATION;
use limpet_wire::pods::{DEFAULT_NAMESPACE, PodChange};
use limpet_wire::socket_client::SocketClient;
use progress::{Progress, Rollout};

/// kubectl's annotation of a template: a new value is a new template.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
/// The kinds that roll out a template.
const ROLLED_OUT: [ObjectKind; 3] = [ObjectKind::Deployment, ObjectKind::DaemonSet, ObjectKind::StatefulSet];

/// Arguments of `limpet rollout`.
#[derive(Debug, clap::Args)]
pub struct RolloutArgs {
    #[command(subcommand)]
    command: RolloutCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RolloutCommand {
    /// Show the templates that a workload has had
    History(HistoryArgs),
    /// Hold the rollout of an applied Deployment: a new template changes no pods until it is resumed
    Pause(WorkloadArgs),
    /// Replace the pods of an applied workload, as a new template does
    Restart(WorkloadArgs),
    /// Let the rollout of a Deployment that is paused go on
    Resume(WorkloadArgs),
    /// Wait until the pods of a workload have its template and are ready
    Status(StatusArgs),
    /// Return to an earlier template of an applied workload
    Undo(UndoArgs),
}

#[derive(Debug, clap::Args)]
struct WorkloadArgs {
    /// A workload: deployment/NAME, daemonset/NAME, statefulset/NAME
    #[arg(value_name = "KIND/NAME")]
    workload: String,
    /// The namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Whether to wait for the end of the rollout
    #[arg(short, long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    watch: bool,
    /// How many seconds to wait at most; 0: without an end
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
}

/// Runs the command on its workload.
///
/// # Errors
///
/// The agent cannot be reached, or refuses.
pub(super) async fn run(client: &SocketClient, args: RolloutArgs, screen: Screen) -> Result<u8, CliError> {
    match args.command {
        RolloutCommand::History(args) => history::history(client, &args, screen).await,
        RolloutCommand::Undo(args) => history::undo(client, &args, screen).await,
        RolloutCommand::Pause(args) => pause(client, &args, true, screen).await,
        RolloutCommand::Resume(args) => pause(client, &args, false, screen).await,
        RolloutCommand::Restart(args) => restart(client, &args, screen).await,
        RolloutCommand::Status(args) => {
            let waiting = status(client, &args, screen);
            if args.timeout == 0 {
                return waiting.await;
            }
            match tokio::time::timeout(Duration::from_secs(args.timeout), waiting).await {
                Ok(result) => result,
                Err(_) => Err(CliError::Target("timed out waiting for the condition".to_owned())),
            }
        }
    }
}

/// Sets whether an applied Deployment is paused, and applies it again.
async fn pause(client: &SocketClient, args: &WorkloadArgs, pauses: bool, screen: Screen) -> Result<u8, CliError> {
    let (resource, name) = workload(&args.workload)?;
    let verb = if pauses { "pausing" } else { "resuming" };
    if resource != Resource::Object(ObjectKind::Deployment) {
        return Err(CliError::Usage(format!("{}/{} {verb} is not supported", resource.plural(), printable(name))));
    }
    let (path, mut manifest) = applied(client, args, &format!("set spec.paused to {pauses}")).await?;
    if (manifest["spec"]["paused"] == true) == pauses {
        let state = if pauses { "already paused" } else { "not paused" };
        return Err(CliError::Target(format!("{} \"{}\" is {state}", resource.singular(), printable(name))));
    }
    manifest["spec"]["paused"] = json!(pauses);
    client.put(&path, manifest.to_string().into_bytes()).await?;
    let state = if pauses { "paused" } else { "resumed" };
    screen.print(&format!("{}/{} {state}\n", resource.singular(), printable(name)))?;
    Ok(0)
}

/// Writes the time into the template of the applied manifest and applies it again.
async fn restart(client: &SocketClient, args: &WorkloadArgs, screen: Screen) -> Result<u8, CliError> {
    let (resource, name) = workload(&args.workload)?;
    let remedy = format!("give spec.template an annotation {RESTARTED_AT} with a new value");
    let (path, mut manifest) = applied(client, args, &remedy).await?;
    if manifest["spec"]["paused"] == true {
        let title = format!("{}/{}", resource.kind().to_lowercase(), printable(name));
        return Err(CliError::Target(format!(
            "can't restart paused deployment (run limpet rollout resume {title} first)"
        )));
    }
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    manifest["spec"]["template"]["metadata"]["annotations"][RESTARTED_AT] = json!(now.to_string());
    client.put(&path, manifest.to_string().into_bytes()).await?;
    screen.print(&format!("{}/{} restarted\n", resource.singular(), printable(name)))?;
    Ok(0)
}

/// Prints how far the rollout is, each time that it is further.
async fn status(client: &SocketClient, args: &StatusArgs, screen: Screen) -> Result<u8, CliError> {
    let (resource, name) = workload(&args.workload.workload)?;
    let namespace = args.workload.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let document = target::object(client, (resource, name), namespace).await?;
    let Some(document) = document else { return Err(target::no_object(resource, name, namespace)) };
    let rollout = Rollout::new(resource, name, &document.object).map_err(CliError::Usage)?;
    let owner = format!("{}/{name}", resource.kind());
    let is_own = |source: &str, pod: &Pod| {
        let annotations = pod.metadata.annotations.as_ref();
        source == document.source
            && pod.metadata.namespace.as_deref() == Some(namespace)
            && annotations.and_then(|annotations| annotations.get(OWNER_ANNOTATION)) == Some(&owner)
    };
    let mut lines = client.lines::<PodChange>("/limpet/v1/pods?watch=1").await?;
    let (mut pods, mut is_complete, mut printed) = (BTreeMap::new(), false, String::new());
    loop {
        let Progress { message, is_done, again } = rollout.progress(pods.values(), Timestamp::now());
        if is_complete && message != printed {
            screen.print(&format!("{message}\n"))?;
            printed = message;
        }
        if is_complete && (is_done || !args.watch) {
            return Ok(0);
        }
        let due = async {
            match again {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let change = tokio::select! {
            change = lines.next() => change?,
            () = due => continue,
        };
        match change {
            Some(PodChange::Added(entry) | PodChange::Modified(entry)) => {
                if is_own(&entry.source, &entry.pod) {
                    pods.insert(entry.pod.metadata.name.clone(), entry.pod);
                }
            }
            Some(PodChange::Deleted(entry)) => drop(pods.remove(&entry.pod.metadata.name)),
            Some(PodChange::Synced) => is_complete = true,
            None => {
                screen.print("limpet has stopped; the rollout goes on when it runs again\n")?;
                return Ok(EXIT_FAULTS);
            }
        }
    }
}

/// The path and the manifest of a workload that was applied. `remedy`: what is to be done in the manifest of one that was not.
async fn applied(client: &SocketClient, args: &WorkloadArgs, remedy: &str) -> Result<(String, Value), CliError> {
    let (resource, name) = workload(&args.workload)?;
    target::applied(client, (resource, name), args.namespace.as_deref(), remedy).await
}

/// The kind and the name of a workload that rolls out its template.
fn workload(argument: &str) -> Result<(Resource, &str), CliError> {
    let Some((kind, name)) = argument.split_once('/').filter(|(_, name)| !name.is_empty()) else {
        return Err(CliError::Usage(format!("{argument} is no KIND/NAME, such as deployment/web")));
    };
    match Resource::from_name(&kind.to_lowercase()) {
        Some(resource @ Resource::Object(object)) if ROLLED_OUT.contains(&object) => Ok((resource, name)),
        Some(resource) => Err(CliError::Usage(format!("a {} has no rollouts", resource.kind()))),
        None => {
            Err(CliError::Usage(format!("{kind} is no kind of workload: use deployment, daemonset or statefulset")))
        }
    }
}
