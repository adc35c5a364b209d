//! `limpet attach`: connects the user's terminal with a running container's own process.

use std::io::IsTerminal as _;

use clap_complete::engine::ArgValueCompleter;
use k8s_openapi::api::core::v1::Container;

use super::completion;
use super::error::CliError;
use super::exec::{query, stream};
use super::screen::Screen;
use super::target::{container, find};
use limpet_model::pod::{PodKey, ephemeral};
use limpet_wire::command::PROTOCOL_V5;
use limpet_wire::pods::PodDocument;
use limpet_wire::socket_client::SocketClient;

/// `limpet attach`.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// The pod: its name, with or without the node name, or namespace/name
    #[arg(add = ArgValueCompleter::new(completion::pods))]
    pod: String,
    /// Attach standard input; the container has to have stdin
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Make standard input a terminal: every key goes to the container
    #[arg(short, long)]
    tty: bool,
    /// The container; the pod's first one if not given
    #[arg(short, long, add = ArgValueCompleter::new(completion::containers))]
    container: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Attaches until the container's process exits or standard input ends.
///
/// # Errors
/// When the agent cannot be reached, or the container does not run or has no stdin.
pub(super) async fn run(client: &SocketClient, args: AttachArgs, screen: Screen) -> Result<u8, CliError> {
    let pod = find(client, &args.pod, args.namespace.as_deref()).await?;
    let name = container(&pod, args.container.as_deref())?;
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
    let PodDocument(manifest) = client.get_json(&path).await?;
    let ephemeral = ephemeral::containers(&manifest);
    let spec = manifest.spec.unwrap_or_default();
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten()).chain(&ephemeral);
    let Some(spec) = all.find(|container| container.name == name) else {
        return Err(CliError::Target(format!("no container {name} in pod {}", pod.name)));
    };
    let is_terminal = std::io::stdin().is_terminal();
    let tty = takes_terminal(&args, spec, is_terminal).map_err(CliError::Target)?;
    if args.tty && !tty {
        screen.remark("-t has no effect: it needs -i, a terminal on standard input, and a container with tty: true")?;
    }
    connect(client, (&pod.key()?, name), args.stdin, tty, screen).await
}

/// Connects this terminal with a running container until its process exits or standard input ends.
///
/// # Errors
/// When the agent cannot be reached, or the container does not run.
pub(super) async fn connect(
    client: &SocketClient,
    (pod, container): (&PodKey, &str),
    stdin: bool,
    tty: bool,
    screen: Screen,
) -> Result<u8, CliError> {
    let path = format!("/attach/{}/{}/{container}?{}", pod.namespace(), pod.name(), query(&[], stdin, tty));
    let connection = client.upgrade(&path, PROTOCOL_V5).await?;
    if tty {
        screen.remark("If you don't see a command prompt, try pressing enter.")?;
    }
    let code = stream::run(connection, stdin, tty).await?;
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Whether the user's terminal becomes that of the container.
fn takes_terminal(args: &AttachArgs, container: &Container, is_terminal: bool) -> Result<bool, String> {
    if args.stdin && container.stdin != Some(true) {
        let name = &container.name;
        return Err(format!("container {name} has no stdin; set stdin: true in its manifest, or omit -i"));
    }
    Ok(args.tty && args.stdin && container.tty == Some(true) && is_terminal)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AttachArgs,
    }

    #[test]
    fn a_terminal_needs_one_on_both_sides() {
        let takes = |line: &[&str], stdin: bool, is_terminal: bool| {
            let args = Line::try_parse_from(["attach", "web"].iter().chain(line)).map_err(|error| error.to_string());
            let container = Container { stdin: Some(stdin), tty: Some(true), ..Container::default() };
            takes_terminal(&args.unwrap().args, &container, is_terminal)
        };
        assert_eq!(takes(&["-it"], true, true), Ok(true));
        assert_eq!(takes(&["-it"], true, false), Ok(false));
        assert_eq!(takes(&["-i"], true, true), Ok(false));
        assert_eq!(takes(&["-t"], true, true), Ok(false));
        assert_eq!(takes(&[], false, true), Ok(false));
        assert!(takes(&["-it"], false, true).is_err_and(|message| message.contains("has no stdin")));
    }
}
