//! The command line: one file per subcommand.
//!
//! Subcommands that need the agent talk to it over the local socket ([`client`]); `validate`, `doctor` and
//! `diff --offline` work without it.
//! Results go to stdout, remarks and errors to stderr. Exit codes: 0 success, 1 faults found, 2 usage, 3 the agent
//! cannot be reached, 4 permission denied ([`error`]); `diff` exits with 1 for a difference.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::CompleteEnv;

mod age;
mod apply;
mod attach;
mod cluster;
pub mod completion;
mod cp;
mod debug;
mod delete;
mod describe;
mod diff;
pub mod doctor;
pub mod error;
mod events;
pub mod exec;
mod guard;
mod history;
mod hollow_node;
mod images;
pub mod logs;
mod output;
mod pod_status;
mod pods;
mod port_forward;
pub mod run;
mod screen;
mod sheet;
mod sources;
mod status;
mod support_bundle;
mod table;
pub mod target;
mod top;
mod ui;
pub mod validate;
mod version;

use error::CliError;
use limpet_wire::socket_client::SocketClient;
use screen::Screen;

use crate::config::{KubeletFlags, RunFlags};
use crate::lifecycle::memory;
use crate::node::name_service;

/// The default path of the agent's socket.
pub const DEFAULT_SOCKET: &str = "/run/limpet/limpet.sock";

/// A node agent for Kubernetes Pods on constrained edge hardware.
#[derive(Debug, Parser)]
#[command(name = "limpet", version, arg_required_else_help = true, subcommand_required = true)]
#[command(after_help = "Exit codes: 0 done, 1 found faults, 2 usage, 3 limpet cannot be reached, 4 not allowed.")]
pub struct Cli {
    /// The agent's socket: with run the one it serves, otherwise the one to connect to [default: /run/limpet/limpet.sock]
    #[arg(long, global = true, env = "LIMPET_SOCKET", value_name = "PATH")]
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
    /// List the pods of this node
    #[command(visible_aliases = ["ps", "get"], aliases = ["pod", "po"])]
    Pods(pods::PodsArgs),
    /// Show what pods and containers use
    Top(top::TopArgs),
    /// Show pods, events, logs and pressure on a full screen, without changing anything
    Ui(ui::UiArgs),
    /// Show the details of one pod
    Describe(describe::DescribeArgs),
    /// Print a container's log
    Logs(logs::LogsArgs),
    /// Run a command in a container
    Exec(exec::ExecArgs),
    /// Connect to the output and the input of a running container
    Attach(attach::AttachArgs),
    /// Add a container to a running pod, to look into it
    Debug(debug::DebugArgs),
    /// Copy files between a container and this machine
    Cp(cp::CpArgs),
    /// Forward ports of this machine to a pod
    PortForward(port_forward::PortForwardArgs),
    /// List this node's events
    Events(events::EventsArgs),
    /// Show the changes of a pod's manifest and who made them
    History(history::HistoryArgs),
    /// Apply pods, ConfigMaps and Secrets to the agent
    Apply(apply::ApplyArgs),
    /// Show what manifests would change
    Diff(diff::DiffArgs),
    /// Delete applied pods, ConfigMaps and Secrets
    Delete(delete::DeleteArgs),
    /// Show how the agent, its connection to a cluster and the node's credentials are doing, and what needs attention
    Status(status::StatusArgs),
    /// Accept a restored or replaced cluster: end the pods it does not have
    Cluster(cluster::ClusterArgs),
    /// Check manifests without an agent
    Validate(validate::ValidateArgs),
    /// Check whether this machine can run pods
    Doctor(doctor::DoctorArgs),
    /// Write an archive that explains this node's state to those who support it
    SupportBundle(support_bundle::SupportBundleArgs),
    /// Show the sources of pods, and rejected manifests
    Sources(sources::SourcesArgs),
    /// List the images of this node, pull, import, pin and remove them
    #[command(visible_alias = "image")]
    Images(images::ImagesArgs),
    /// Show or remove the manifest guard
    Guard(guard::GuardArgs),
    /// Simulate many nodes in one process
    #[command(hide = true)]
    HollowNode(hollow_node::HollowNodeArgs),
    /// Print the versions of this command and of the agent
    Version(version::VersionArgs),
    /// Print a shell completion script
    Completion(completion::CompletionArgs),
}

/// Parses the process's arguments on a thread of its own. It takes 210 KiB of stack, which end with that thread; an
/// agent would keep them for years.
fn parse() -> Cli {
    std::thread::scope(|scope| {
        let parsed = std::thread::Builder::new().spawn_scoped(scope, parse_here).map(|thread| thread.join());
        // Without another thread, on a machine that has no room for one, it is done here.
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

/// Parses the process's arguments, runs the subcommand, returns the exit code.
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
        Command::HollowNode(args) => hollow_node::run(args),
        Command::Validate(args) => validate::run(&args, screen),
        Command::Guard(args) => guard::run(&args, screen),
        Command::Completion(args) => completion::run(&args, screen),
        Command::Doctor(args) => block_on(doctor::run(args, socket, screen)),
        Command::SupportBundle(args) => block_on(support_bundle::run(&client, args, socket, screen)),
        Command::Pods(args) => block_on(pods::run(&client, args, screen)),
        Command::Top(args) => block_on(top::run(&client, args, screen)),
        Command::Ui(args) => block_on(ui::run(&client, args, screen)),
        Command::Describe(args) => block_on(describe::run(&client, args, screen)),
        Command::Logs(args) => block_on(logs::run(&client, args)),
        Command::Exec(args) => block_on(exec::run(&client, args)),
        Command::Attach(args) => block_on(attach::run(&client, args, screen)),
        Command::Debug(args) => block_on(debug::run(&client, args, screen)),
        Command::Cp(args) => block_on(cp::run(&client, args, screen)),
        Command::PortForward(args) => block_on(port_forward::run(&client, args)),
        Command::Events(args) => block_on(events::run(&client, args, screen)),
        Command::History(args) => block_on(history::run(&client, args, screen)),
        Command::Sources(args) => block_on(sources::run(&client, args, screen)),
        Command::Cluster(args) => block_on(cluster::run(&client, &args, screen)),
        Command::Status(args) => block_on(status::run(&client, args, screen)),
        Command::Images(args) => block_on(images::run(&client, args, screen)),
        Command::Apply(args) => block_on(apply::run(&client, args, screen)),
        Command::Diff(args) => block_on(diff::run(&client, args, screen)),
        Command::Delete(args) => block_on(delete::run(&client, args, screen)),
        Command::Version(args) => block_on(version::run(&client, args, screen)),
    };
    ExitCode::from(result.unwrap_or_else(|error| report(&error)))
}

/// Prints the error and returns its exit code.
fn report(error: &CliError) -> u8 {
    if !error.is_quiet() {
        // If stderr cannot be written, nothing can be done.
        let _ = writeln!(std::io::stderr().lock(), "error: {error}");
    }
    error.exit_code()
}

/// Runs one subcommand on this thread. Blocking calls that are still running are abandoned.
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
