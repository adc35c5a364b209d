//! The command line of the agent's clients: one file per subcommand.
//!
//! Subcommands talk to the agent over the local socket (`limpet_wire::socket_client`); `validate` and `diff
//! --offline` work without it. Commands of the agent itself (`run`, `doctor`, `guard`) belong to the executable.
//! Results go to stdout, remarks and errors to stderr. Exit codes: 0 success, 1 faults found, 2 usage, 3 the agent
//! cannot be reached, 4 permission denied ([`error`]); `diff` exits with 1 for a difference.

mod age;
mod apply;
mod attach;
mod cluster;
mod completion;
mod cp;
mod debug;
mod delete;
mod describe;
mod diff;
pub mod error;
mod events;
mod exec;
mod generations;
mod history;
mod images;
mod logs;
pub mod output;
mod pod_status;
mod pods;
mod port_forward;
pub mod program_output;
mod restart;
mod rollout;
mod scale;
pub mod screen;
mod services;
mod sheet;
mod shutdown;
mod sources;
mod status;
pub mod support_bundle;
mod table;
mod target;
mod top;
mod ui;
pub mod validate;
mod version;

use clap::Subcommand;
use limpet_wire::socket_client::SocketClient;

use error::CliError;
use screen::Screen;

/// The default path of the agent's socket.
pub const DEFAULT_SOCKET: &str = "/run/limpet/limpet.sock";

/// The subcommands of clients.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// List the pods of this node
    #[command(visible_aliases = ["ps", "get"], aliases = ["pod", "po"])]
    Pods(pods::PodsArgs),
    /// Show what pods and containers use
    Top(top::TopArgs),
    /// Show pods, events, logs and pressure on a full screen, without changing anything
    Ui(ui::UiArgs),
    /// List the Services of this node, their addresses, and where they lead to
    #[command(visible_aliases = ["svc"], aliases = ["service"])]
    Services(services::ServicesArgs),
    /// Show the details of one pod, workload, claim or Service
    Describe(describe::DescribeArgs),
    /// Print a container's log
    Logs(logs::LogsArgs),
    /// Run a command in a container
    Exec(exec::ExecArgs),
    /// Connect to the output and the input of a running container
    Attach(attach::AttachArgs),
    /// Add a container to a running pod, to look into it
    Debug(debug::DebugArgs),
    /// Restart the containers of a pod, or one of them, within their grace period; the pod keeps its UID and address
    Restart(restart::RestartArgs),
    /// Copy files between a container and this machine
    Cp(cp::CpArgs),
    /// Forward ports of this machine to a pod
    PortForward(port_forward::PortForwardArgs),
    /// List this node's events
    Events(events::EventsArgs),
    /// Show the changes of a pod's manifest and who made them
    History(history::HistoryArgs),
    /// Show the generations of the sources: which one runs, and why others were undone
    Generations(generations::GenerationsArgs),
    /// Return to a good generation of a source
    Rollback(generations::RollbackArgs),
    /// Apply pods, ConfigMaps and Secrets to the agent
    Apply(apply::ApplyArgs),
    /// Show what manifests would change
    Diff(diff::DiffArgs),
    /// Restart the pods of an applied workload one after the other, wait for its rollout, hold it or undo it
    Rollout(rollout::RolloutArgs),
    /// Set the number of pods of an applied Deployment, ReplicaSet or StatefulSet
    Scale(scale::ScaleArgs),
    /// Delete applied pods, ConfigMaps and Secrets
    Delete(delete::DeleteArgs),
    /// Show how the agent, its connection to a cluster and the node's credentials are doing, and what needs attention
    Status(status::StatusArgs),
    /// Accept a restored or replaced cluster: end the pods it does not have
    Cluster(cluster::ClusterArgs),
    /// End the pods in order before the machine is turned off, and wait for that
    Shutdown(shutdown::ShutdownArgs),
    /// Check manifests without an agent
    Validate(validate::ValidateArgs),
    /// Show the sources of pods, and rejected manifests
    #[command(display_order = 102)]
    Sources(sources::SourcesArgs),
    /// List the images of this node, pull, import, pin and remove them
    #[command(visible_alias = "image", display_order = 103)]
    Images(images::ImagesArgs),
    /// Print the versions of this command and of the agent
    #[command(display_order = 106)]
    Version(version::VersionArgs),
    /// Print a shell completion script
    #[command(display_order = 107)]
    Completion(completion::CompletionArgs),
}

/// Runs a subcommand. Returns the exit code.
///
/// # Errors
///
/// Why it failed, to be printed once.
pub async fn run(command: ClientCommand, client: &SocketClient, screen: Screen) -> Result<u8, CliError> {
    match command {
        ClientCommand::Validate(args) => validate::run(&args, screen),
        ClientCommand::Completion(args) => completion::run(&args, screen),
        ClientCommand::Pods(args) => pods::run(client, args, screen).await,
        ClientCommand::Top(args) => top::run(client, args, screen).await,
        ClientCommand::Ui(args) => ui::run(client, args, screen).await,
        ClientCommand::Describe(args) => describe::run(client, args, screen).await,
        ClientCommand::Logs(args) => logs::run(client, args).await,
        ClientCommand::Exec(args) => exec::run(client, args).await,
        ClientCommand::Attach(args) => attach::run(client, args, screen).await,
        ClientCommand::Debug(args) => debug::run(client, args, screen).await,
        ClientCommand::Restart(args) => restart::run(client, args, screen).await,
        ClientCommand::Cp(args) => cp::run(client, args, screen).await,
        ClientCommand::PortForward(args) => port_forward::run(client, args).await,
        ClientCommand::Events(args) => events::run(client, args, screen).await,
        ClientCommand::History(args) => history::run(client, args, screen).await,
        ClientCommand::Generations(args) => generations::run(client, args, screen).await,
        ClientCommand::Services(args) => services::run(client, args, screen).await,
        ClientCommand::Rollback(args) => generations::roll_back(client, args, screen).await,
        ClientCommand::Sources(args) => sources::run(client, args, screen).await,
        ClientCommand::Cluster(args) => cluster::run(client, &args, screen).await,
        ClientCommand::Shutdown(args) => shutdown::run(client, &args, screen).await,
        ClientCommand::Status(args) => status::run(client, args, screen).await,
        ClientCommand::Images(args) => images::run(client, args, screen).await,
        ClientCommand::Apply(args) => apply::run(client, args, screen).await,
        ClientCommand::Diff(args) => diff::run(client, args, screen).await,
        ClientCommand::Rollout(args) => rollout::run(client, args, screen).await,
        ClientCommand::Scale(args) => scale::run(client, args, screen).await,
        ClientCommand::Delete(args) => delete::run(client, args, screen).await,
        ClientCommand::Version(args) => version::run(client, args, screen).await,
    }
}
