//! The executable's command line: the commands that concern the agent itself, and the subcommands of clients
//! (`limpet_cli`).

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::CompleteEnv;
use limpet_bundle::command::BundleArgs;
use limpet_cli::error::CliError;
use limpet_cli::screen::Screen;
use limpet_cli::support_bundle::{self, NodeReport, SupportBundleArgs};
use limpet_cli::{ClientCommand, DEFAULT_SOCKET};
use limpet_upgrade::command::UpgradeArgs;
use limpet_wire::socket_client::SocketClient;

mod doctor;
#[cfg(test)]
mod documented_commands;
mod guard;
pub mod logging;
mod run;

use crate::config::{KubeletFlags, RunFlags, configz, path};
use limpet_host::memory;
use limpet_node::name_service;

/// A node agent for Kubernetes Pods on constrained edge hardware.
#[derive(Debug, Parser)]
#[command(name = "limpet", version, arg_required_else_help = true, subcommand_required = true)]
#[command(args_override_self = true)] // as kubectl and kubelet: of a repeated flag the last one counts
#[command(after_help = "Exit codes: 0 done, 1 found faults, 2 usage, 3 limpet cannot be reached, 4 not allowed.")]
pub struct Cli {
    /// The agent's socket: with run the one it serves, otherwise the one to connect to [default: /run/limpet/limpet.sock]
    #[arg(long, global = true, env = "LIMPET_SOCKET", value_name = "PATH", value_parser = path())]
    socket: Option<PathBuf>,
    /// Never use colour (also: NO_COLOR)
    #[arg(long, global = true)]
    no_color: bool,
    /// Results and errors only, no remarks
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent
    Run(RunFlags),
    #[command(flatten)]
    Client(ClientCommand),
    /// Check whether this machine can run pods
    #[command(display_order = 100)]
    Doctor(doctor::DoctorArgs),
    /// Write an archive that explains this node's state to those who support it
    #[command(display_order = 101)]
    SupportBundle(SupportArgs),
    /// Run another version of limpet; it is undone by itself if the node is not as before. No pod is touched
    #[command(display_order = 105)]
    Upgrade(UpgradeArgs),
    /// Make, check and apply signed bundles of manifests and images
    #[command(display_order = 106)]
    Bundle(BundleArgs),
    /// Show or remove the manifest guard
    #[command(display_order = 104)]
    Guard(guard::GuardArgs),
}

/// Arguments of `limpet support-bundle`. They include those of `limpet run`, because it checks what the agent would
/// use.
#[derive(Debug, clap::Args)]
struct SupportArgs {
    #[command(flatten)]
    bundle: SupportBundleArgs,
    #[command(flatten)]
    flags: RunFlags,
}

/// Parses the process's arguments on a separate thread. Parsing takes 210 KiB of stack, which is freed with that
/// thread; an agent would otherwise keep it for years.
fn parse() -> Cli {
    std::thread::scope(|scope| {
        let parsed = std::thread::Builder::new().spawn_scoped(scope, parse_here).map(|thread| thread.join());
        // If no other thread can be started, this one parses them.
        parsed.ok().and_then(Result::ok).unwrap_or_else(parse_here)
    })
}

fn parse_here() -> Cli {
    let (arguments, kubelet) = KubeletFlags::take(std::env::args_os());
    let mut cli = Cli::parse_from(arguments);
    if let Command::Run(flags) = &mut cli.command {
        flags.kubelet = kubelet;
    }
    cli
}

/// Parses the process's arguments, runs the subcommand, and returns the exit code.
pub fn main() -> ExitCode {
    CompleteEnv::with_factory(Cli::command).complete();
    name_service::use_built_in();
    memory::limit_free_memory();
    let cli = parse();
    let screen = Screen::new(cli.no_color, cli.quiet);
    let socket = cli.socket.filter(|path| !path.as_os_str().is_empty());
    let client = SocketClient::new(socket.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET)));
    let result = match cli.command {
        Command::Run(flags) => return run::run(&RunFlags { socket, ..flags }),
        Command::Guard(args) => guard::run(&args, screen),
        Command::Upgrade(args) => block_on(limpet_upgrade::command::run(&client, args, screen)),
        Command::Bundle(args) => block_on(limpet_bundle::command::run(&client, args, screen)),
        Command::Doctor(args) => block_on(doctor::run(args, socket, screen)),
        Command::SupportBundle(SupportArgs { bundle, flags }) => {
            block_on(support_bundle::run(&client, bundle, node_report(&flags, socket), screen))
        }
        Command::Client(command) => block_on(limpet_cli::run(command, &client, screen)),
    };
    ExitCode::from(result.unwrap_or_else(|error| report(&error)))
}

/// What is known about the node without an agent, for the support bundle.
async fn node_report(flags: &RunFlags, socket: Option<PathBuf>) -> NodeReport {
    let (config, doctor) = doctor::report(flags, socket).await;
    NodeReport { doctor, configuration: configz::document(&config) }
}

/// Prints the error and returns its exit code.
fn report(error: &CliError) -> u8 {
    if !error.is_quiet() {
        // If stderr cannot be written, nothing more can be done.
        let _ =
            writeln!(std::io::stderr().lock(), "error: {}", limpet_cli::screen::printable_lines(&error.to_string()));
    }
    error.exit_code()
}

/// Runs one subcommand on this thread. Blocking calls that have not returned at its end are abandoned.
fn block_on(command: impl Future<Output = Result<u8, CliError>>) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::System { what: "start the runtime".to_owned(), source })?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_names_the_default_socket() {
        assert!(Cli::command().render_help().to_string().contains(&format!("[default: {DEFAULT_SOCKET}]")));
        assert_eq!(crate::config::Config::default().socket(), Path::new(DEFAULT_SOCKET));
    }
}
