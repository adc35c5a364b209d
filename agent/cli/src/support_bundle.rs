//! `limpet support-bundle`: creates an archive that explains this node's state to people without access to the node.
//!
//! [`agent`] queries the agent, [`machine`] reads the kernel's files, [`logs`] reads the ends of logs. Each document
//! passes [`redaction`], which keeps only those fields of a pod that cannot be secret, and removes credentials from
//! text. The bundle never opens manifests, Secrets, kubeconfigs, TLS keys, `certs.d` or the volumes of pods.
//! [`archive`] bounds it. Without the agent it contains only what is readable on the machine, and `CONTENTS` lists
//! what is missing.

mod agent;
mod archive;
mod logs;
mod machine;
mod redaction;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

use self::archive::Archive;
use super::error::CliError;
use super::screen::Screen;
use limpet_wire::socket_client::{ClientError, SocketClient};

/// The default part of each container's log, from its end, in KiB.
const LOG_KIB: u64 = 64;

/// Arguments of `limpet support-bundle`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The archive holds no Secret, no value of the environment, no annotation, no argument of a command \
and no credential of the node. Logs and events hold what programs print: what looks like a credential is taken out, the \
rest is for you to check; --no-logs leaves out what containers print."
)]
pub struct SupportBundleArgs {
    /// The archive, which may not exist; a directory to make it in; or - for stdout
    /// [default: limpet-support-HOST-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leave out what containers print: their logs, termination messages, and what probes and hooks report
    #[arg(long)]
    no_logs: bool,
    /// The end of each container's log to take, in KiB
    #[arg(long, value_name = "KIB", default_value_t = LOG_KIB, conflicts_with = "no_logs",
        value_parser = clap::value_parser!(u64).range(1..=4096))]
    log_kib: u64,
}

/// What is known about the node without an agent.
#[derive(Debug)]
pub struct NodeReport {
    /// What `limpet doctor` prints.
    pub doctor: String,
    /// The configuration that the agent would use at its next start, as `/configz` shows it.
    pub configuration: Value,
}

/// Writes the archive and prints its path. `node` is awaited once the archive can be written.
///
/// # Errors
///
/// The archive cannot be written, or the user may not talk to the agent. A stopped agent is no error.
pub async fn run(
    client: &SocketClient,
    args: SupportBundleArgs,
    node: impl Future<Output = NodeReport>,
    screen: Screen,
) -> Result<u8, CliError> {
    // A user who may not use the socket may not read the files either.
    let agent = match client.connect().await {
        Err(error @ ClientError::Forbidden { .. }) => return Err(error.into()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Ok(()),
    };
    let name = format!("limpet-support-{}-{}", host(), Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
    let (out, path) = open(args.output.as_deref(), &name)?;
    let written = write(out, &name, client, &args, node, agent.as_ref()).await;
    let lacks = match (written, &path) {
        (Ok(lacks), _) => lacks,
        (Err(source), Some(path)) => {
            // An incomplete archive is useless. The error to report is that it cannot be written.
            let _ = std::fs::remove_file(path);
            return Err(CliError::System { what: format!("write {}", path.display()), source });
        }
        (Err(source), None) => return Err(source.into()),
    };
    if let Err(message) = agent {
        screen.remark(&format!("{message}\nthe archive contains only what is readable without the agent"))?;
    }
    if lacks > 0 {
        screen.remark(&format!("{lacks} parts are missing; CONTENTS in the archive lists them with the reasons"))?;
    }
    if !args.no_logs {
        screen.remark("the archive contains the ends of the containers' logs: review them before sharing it")?;
    }
    if let Some(path) = path {
        screen.print(&format!("{}\n", path.display()))?;
    }
    Ok(0)
}

/// Opens the archive; the path is `None` for stdout. The file is private to its owner from its creation.
fn open(output: Option<&Path>, name: &str) -> Result<(Box<dyn Write>, Option<PathBuf>), CliError> {
    let file = format!("{name}.tar.gz");
    let path = match output {
        Some(path) if path == Path::new("-") => {
            if io::stdout().is_terminal() {
                return Err(CliError::Usage(
                    "the archive is not for a terminal: redirect stdout, or use -o FILE".into(),
                ));
            }
            return Ok((Box::new(io::stdout().lock()), None));
        }
        Some(directory) if directory.is_dir() => directory.join(file),
        Some(path) => path.to_owned(),
        None => PathBuf::from(file),
    };
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file: File = opened.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CliError::Usage(format!("{} exists: name another file", path.display())),
        _ => CliError::System { what: format!("make {}", path.display()), source },
    })?;
    Ok((Box::new(io::BufWriter::new(file)), Some(path)))
}

/// Writes all parts; returns how many are missing.
async fn write(
    out: Box<dyn Write>,
    name: &str,
    client: &SocketClient,
    args: &SupportBundleArgs,
    node: impl Future<Output = NodeReport>,
    reached: Result<&(), &String>,
) -> io::Result<usize> {
    let mut archive = Archive::new(out, name, Timestamp::now().as_second().unsigned_abs());
    let node = node.await;
    archive.text("doctor.txt", &node.doctor)?;
    let configuration = match reached {
        Ok(()) => agent::add(&mut archive, client, !args.no_logs).await?,
        Err(message) => {
            archive.lacks("the agent's state: pods, events, history, sources, images, metrics", message);
            None
        }
    };
    // Without the agent: the configuration at its next start.
    let configuration = configuration.unwrap_or(node.configuration);
    archive.json("configz.json", &configuration)?;
    let places = machine::Places::from_configuration(&configuration);
    machine::add(&mut archive, &places).await?;
    logs::add_agents(&mut archive).await?;
    logs::add_kernels(&mut archive).await?;
    match args.no_logs {
        true => archive.lacks("the logs of containers", "--no-logs"),
        false => logs::add_containers(&mut archive, &places.pod_logs, args.log_kib << 10).await?,
    }
    archive.finish()
}

/// The host's name in a form that is safe in a file name.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' }).collect()
}
