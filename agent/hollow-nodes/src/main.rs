//! `limpet-hollow-nodes`: many nodes of one cluster in this process, as kubemark's hollow nodes.
//!
//! For tests and measurements of a cluster. Needs no root and no containerd.

mod nodes;

use std::fs::DirBuilder;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use limpet::cli::logging;
use limpet::config::{self, RunFlags};
use limpet_apiserver_client::Credentials;
use limpet_cli::error::CliError;
use limpet_host::memory;
use limpet_model::pod::is_dns_subdomain;
use nodes::{HollowNodes, MAX_HOLLOW_NODES};

/// How many files and connections a node has open: its database, its watches, and what its pods refer to.
const FILES_OF_NODE: u64 = 16;
/// The same with the sockets of its tries to connect, in an outage.
const MOST_FILES_OF_NODE: u64 = 24;

/// Simulates many nodes of a cluster.
#[derive(Debug, clap::Parser)]
#[command(name = "limpet-hollow-nodes", version)]
struct Arguments {
    /// Kubeconfig of the cluster; its user has to be allowed to impersonate nodes
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_HOLLOW_NODES)))]
    count: u32,
    /// The nodes are PREFIX-0, PREFIX-1 and so on
    #[arg(long, value_name = "PREFIX", default_value = "hollow-node")]
    name_prefix: String,
    /// Labels the nodes register with: key=value[,key=value...]; may be repeated
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    node_labels: Vec<String>,
    /// Taints the nodes register with: key[=value]:effect[,key[=value]:effect...]
    #[arg(long, value_name = "TAINTS")]
    register_with_taints: Option<String>,
    /// How many pods a node may have
    #[arg(long, value_name = "N", default_value_t = 110, value_parser = clap::value_parser!(u32).range(1..))]
    max_pods: u32,
    /// How long a node's lease is valid; it is renewed at a quarter of this
    #[arg(long, value_name = "SECONDS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(4..))]
    node_lease_duration_seconds: u64,
    /// Verbosity of the log, 0 to 10
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=10))]
    verbosity: u8,
}

fn main() -> ExitCode {
    memory::limit_free_memory();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr cannot be written, nothing can be done.
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs the nodes until SIGTERM or SIGINT. Blocks.
fn run(args: Arguments) -> Result<(), CliError> {
    let last = format!("{}-{}", args.name_prefix, args.count - 1);
    if !is_dns_subdomain(&last) {
        let message =
            format!("--name-prefix: {last:?} is not a valid Node name; use lower case letters, digits, - and .");
        return Err(CliError::Usage(message));
    }
    let flags = RunFlags {
        kubeconfig: Some(args.kubeconfig.clone()),
        node_labels: args.node_labels,
        register_with_taints: args.register_with_taints,
        verbosity: Some(args.verbosity),
        ..RunFlags::default()
    };
    let (mut config, _) = config::load(&flags).map_err(|error| CliError::Usage(error.to_string()))?;
    config.node.max_pods = args.max_pods;
    config.cluster.lease_duration = Duration::from_secs(args.node_lease_duration_seconds);
    // A hollow node serves no logs: its Node names no port.
    config.server.enabled = false;
    let dir = std::env::temp_dir().join(format!("limpet-hollow-{}", std::process::id()));
    (config.root_dir, config.run_dir) = (dir.clone(), dir.clone());
    logging::init(config.verbosity);
    let credentials = Credentials::read(&args.kubeconfig, None).map_err(|error| CliError::Usage(error.to_string()))?;
    if credentials.runs_program() {
        let message = "--kubeconfig: users[].user.exec would run once for each node and delay the others; \
                       use a certificate or a token instead";
        return Err(CliError::Usage(message.to_owned()));
    }
    allow_files(args.count)?;
    // They hold Secrets.
    let made = DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(|source| system(&format!("make {}", dir.display()), source))?;
    let facts = config.node_facts(String::new());
    let Arguments { count, name_prefix: prefix, .. } = args;
    let done = block_on(HollowNodes { config, credentials, facts, count, prefix, dir: dir.clone() });
    remove(&dir);
    done
}

/// Raises the limit of open files to what so many nodes may have open, or as far as the system lets it if they can run
/// with that.
fn allow_files(count: u32) -> Result<(), CliError> {
    let (needed, wanted) = (u64::from(count) * FILES_OF_NODE, u64::from(count) * MOST_FILES_OF_NODE);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum.map(|most| most.max(wanted)) };
    let Err(error) = setrlimit(Resource::Nofile, raised) else { return Ok(()) };
    if limit.maximum.is_some_and(|most| most < needed) {
        return Err(system(&format!("open {needed} files (ulimit -n)"), error.into()));
    }
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, most).map_err(|error| system("open more files (ulimit -n)", error.into()))
}

/// One thread, as an agent has one.
fn block_on(nodes: HollowNodes) -> Result<(), CliError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().thread_stack_size(memory::THREAD_STACK).build();
    let runtime = runtime.map_err(|source| system("start the runtime", source))?;
    let result = runtime.block_on(nodes::run(nodes));
    runtime.shutdown_background();
    result.map_err(|error| system("run the nodes", std::io::Error::other(error)))
}

fn remove(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), %error, "removing the databases failed");
    }
}

fn system(what: &str, source: std::io::Error) -> CliError {
    CliError::System { what: what.to_owned(), source }
}
