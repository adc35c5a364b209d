//! `limpet exec`: runs a command in a container, attached to the user's terminal.

pub(super) mod stream;
pub(super) mod terminal;

use std::io::{IsTerminal as _, Write as _};

use clap_complete::engine::ArgValueCompleter;

use super::completion;
use super::error::CliError;
use super::target::{container, find};
use limpet_wire::command::PROTOCOL_V5;
use limpet_wire::socket_client::SocketClient;

/// `limpet exec`.
#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// The pod: its name, with or without the node name, or namespace/name
    #[arg(add = ArgValueCompleter::new(completion::pods))]
    pod: String,
    /// Attach standard input
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Allocate a terminal
    #[arg(short, long)]
    tty: bool,
    /// The container; the pod's first one if not given
    #[arg(short, long, add = ArgValueCompleter::new(completion::containers))]
    container: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command; returns its exit code.
///
/// # Errors
/// When the agent cannot be reached or does not run the command.
pub(crate) async fn run(client: &SocketClient, args: ExecArgs) -> Result<u8, CliError> {
    let pod = find(client, &args.pod, args.namespace.as_deref()).await?;
    let container = container(&pod, args.container.as_deref())?;
    let tty = args.tty && std::io::stdin().is_terminal();
    if args.tty && !tty {
        // As kubectl does: without a terminal, -t is ignored.
        writeln!(std::io::stderr(), "-t has no effect: standard input is not a terminal")?;
    }
    let path = format!("/exec/{}/{}/{container}?{}", pod.namespace, pod.name, query(&args.command, args.stdin, tty));
    let connection = client.upgrade(&path, PROTOCOL_V5).await?;
    let code = stream::run(connection, args.stdin, tty).await?;
    // Exit codes on Linux are a byte.
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

/// The query of a command, or without one of an attachment.
pub(super) fn query(command: &[String], stdin: bool, tty: bool) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(command.iter().map(|word| ("command", word)));
    for (name, set) in [("input", stdin), ("output", true), ("error", !tty), ("tty", tty)] {
        if set {
            query.append_pair(name, "1");
        }
    }
    query.finish()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;
    use limpet_wire::command::Command;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ExecArgs,
    }

    #[test]
    fn the_command_is_what_follows_the_dashes() {
        let line = Line::try_parse_from(["exec", "-it", "-n", "a", "web", "-c", "app", "--", "sh", "-c", "ls -l"]);
        let args = line.map_err(|error| error.to_string()).unwrap().args;
        assert_eq!((args.pod.as_str(), args.stdin, args.tty), ("web", true, true));
        assert_eq!((args.container.as_deref(), args.namespace.as_deref()), (Some("app"), Some("a")));
        assert_eq!(args.command, ["sh", "-c", "ls -l"]);
        assert!(Line::try_parse_from(["exec", "web"]).is_err());
        assert!(Line::try_parse_from(["exec", "web", "ls"]).is_err());
    }

    #[test]
    fn the_server_parses_the_query() {
        let arguments = ["sh", "-c", "echo 'a & b' + %é=?"].map(str::to_owned);
        for (stdin, tty) in [(false, false), (true, false), (true, true)] {
            let query = query(&arguments, stdin, tty);
            let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
            let command = Command::parse(&pairs).unwrap();
            assert_eq!((command.arguments.as_slice(), command.streams.tty), (&arguments[..], tty));
            assert_eq!((command.streams.stdin, command.streams.stdout, command.streams.stderr), (stdin, true, !tty));
        }
    }
}
