//! `limpet restart`: restarts the containers of a pod, or one of them, where they are.

use clap_complete::engine::ArgValueCompleter;

use super::completion;
use super::error::CliError;
use super::screen::Screen;
use super::target::find;
use limpet_wire::pods::{RestartRequest, RestartedContainers};
use limpet_wire::socket_client::SocketClient;

/// `limpet restart`.
#[derive(Debug, clap::Args)]
pub struct RestartArgs {
    /// The pod: its name, with or without the node name, or namespace/name
    #[arg(add = ArgValueCompleter::new(completion::pods))]
    pod: String,
    /// The container; all containers and sidecars if not given
    #[arg(short, long, add = ArgValueCompleter::new(completion::containers))]
    container: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Requests the restart and prints what is restarted; does not wait for the containers to end.
///
/// # Errors
///
/// The agent cannot be reached, or nothing in the pod can be restarted.
pub(super) async fn run(client: &SocketClient, args: RestartArgs, screen: Screen) -> Result<u8, CliError> {
    let pod = find(client, &args.pod, args.namespace.as_deref()).await?;
    let path = format!("/limpet/v1/pods/{}/{}/restart", pod.namespace, pod.name);
    let request = RestartRequest { container: args.container };
    let restarted: RestartedContainers = client.post_json(&path, &request).await?;
    let line = |container: &String| format!("container {container} of pod {} restarted\n", pod.name);
    screen.print(&restarted.containers.iter().map(line).collect::<String>())?;
    Ok(0)
}
