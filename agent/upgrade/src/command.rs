//! `limpet upgrade`: stages a new version beside the current one, restarts the agent, and waits for the result of the
//! trial. Once the journal is written, nothing depends on this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use limpet_cli::error::{CliError, EXIT_FAULTS};
use limpet_cli::screen::{Screen, printable};
use limpet_host::path_watch::PathWatch;
use limpet_host::program;
use limpet_wire::socket_client::{ClientError, SocketClient};
use limpet_wire::status::StatusDocument;
use tokio::process::Command;

use crate::journal::{Baseline, Journal, Step};
use crate::package::{self, Origin};
use crate::plan::{MAX_ATTEMPTS, SETTLE};
use crate::slot::{PROGRAM, SHIM, Slot, SlotLock, link};
use crate::{health, restart};

/// The deadline for an executable to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// The additional time per attempt for init and a slow machine.
const START_DELAY: Duration = Duration::from_secs(90);
/// How long the previous version may take to answer again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(90);

/// Arguments of `limpet upgrade`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The new version runs on trial: if it ends, or the node is not as it was before within the deadline, the \
present version comes back by itself, also after a power cut. Pods run on in any case."
)]
pub struct UpgradeArgs {
    /// The new version: the tarball of a release, or its executable, as a file or a URL; with its signature in `<FILE>.minisig`
    #[arg(value_name = "FILE|URL", required_unless_present = "rollback")]
    package: Option<String>,
    /// The public key of the releases [default: /etc/limpet/limpet.pub]
    #[arg(long, value_name = "FILE", conflicts_with = "rollback")]
    key: Option<PathBuf>,
    /// The directory of the executables, which the agent has to know by LIMPET_SLOT; without it, that of the agent
    #[arg(long, value_name = "DIR")]
    slot: Option<PathBuf>,
    /// How many seconds the new version has until the node is as it was before
    #[arg(long, value_name = "SECONDS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(5..=3600))]
    deadline: u64,
    /// Authorities that vouch for the server of the URL, beside those of the system
    #[arg(long, value_name = "FILE", conflicts_with = "rollback")]
    certificate_authority: Option<PathBuf>,
    /// Check the file and say what would be done, and change nothing
    #[arg(long, conflicts_with = "rollback")]
    check: bool,
    /// Return to the version before the last upgrade
    #[arg(long)]
    rollback: bool,
}

/// Runs the command. Returns the exit code.
///
/// # Errors
///
/// Nothing was changed.
pub async fn run(client: &SocketClient, args: UpgradeArgs, screen: Screen) -> Result<u8, CliError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ClientError::Forbidden { socket: client.socket().to_owned() }.into());
    }
    let status = match client.get_json::<StatusDocument>("/limpet/v1/status").await {
        Ok(status) => Some(status),
        Err(ClientError::NotRunning { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let slot = slot(args.slot.as_deref(), status.as_ref())?;
    refuse_packaged(&slot).await?;
    let Some(lock) = begin(&slot)? else { return Ok(EXIT_FAULTS) };
    let comment = stage(&args, &slot, &lock).await?;
    let staged = match version(&slot.staged()).await {
        Ok(to) => to,
        Err(error) => return discard(&slot, &lock).and(Err(error)),
    };
    let from = present_version(&slot, status.as_ref()).await;
    let text =
        |comment: &str| if comment.is_empty() { String::new() } else { format!(", signed: {}", printable(comment)) };
    if same_file(&slot.staged(), &slot.present()) || args.check {
        let is_same = same_file(&slot.staged(), &slot.present());
        discard(&slot, &lock)?;
        let what = if is_same { "is installed already" } else { "would be installed" };
        screen.print(&format!("limpet {staged} {what} in {}{}\n", slot.directory().display(), text(&comment)))?;
        return Ok(0);
    }
    let baseline = match &status {
        Some(status) => health::ask(client, status).await?.baseline(),
        None => Baseline::default(),
    };
    let journal = Journal {
        step: Step::Trial { attempts: 0 },
        from,
        to: staged,
        deadline_seconds: args.deadline,
        socket: client.socket().to_owned(),
        baseline,
        reported: false,
    };
    slot.write_journal(&journal).map_err(|error| system("write", &slot.journal_path(), error))?;
    drop(lock);
    if status.is_none() {
        screen.print(&format!("limpet {} is tried when the agent starts\n", journal.to))?;
        return Ok(0);
    }
    screen.remark(&format!("limpet {} is tried in place of {}; pods run on", journal.to, journal.from))?;
    if let Err(error) = restart::restart(client).await {
        if let Err(left) = take_back(&slot, &journal) {
            screen.remark(&format!("{left}; the next start of the agent tries the new version"))?;
        }
        return Err(error);
    }
    conclude(&slot, client, &journal, screen).await
}

fn system(verb: &str, path: &Path, source: std::io::Error) -> CliError {
    CliError::System { what: format!("cannot {verb} {}", path.display()), source }
}

/// The directory of the executables.
fn slot(named: Option<&Path>, status: Option<&StatusDocument>) -> Result<Slot, CliError> {
    let agents = status.and_then(|status| status.upgrade.as_ref()).map(|upgrade| upgrade.directory.clone());
    let here = || std::env::current_exe().map_err(|error| system("find", Path::new("this executable"), error));
    let slot = match (named, agents) {
        (Some(named), Some(directory)) if named != directory => {
            return Err(CliError::Usage(format!(
                "the agent starts what is in {}, not in {}: give it LIMPET_SLOT={} in its environment first",
                directory.display(),
                named.display(),
                named.display()
            )));
        }
        (Some(directory), _) => Slot::new(directory),
        (None, Some(directory)) => Slot::new(&directory),
        (None, None) => Slot::for_executable(&here()?),
    };
    Ok(slot)
}

/// Executables of distribution packages belong to the package manager, which would replace them again.
async fn refuse_packaged(slot: &Slot) -> Result<(), CliError> {
    let present = slot.present();
    for (manager, arguments) in [("dpkg-query", "-S"), ("rpm", "-qf")] {
        let mut command = Command::new(manager);
        command.arg(arguments).arg(&present);
        if program::run(command, b"", VERSION_TIMEOUT).await.is_ok_and(|output| output.success) {
            return Err(CliError::Target(format!(
                "{} belongs to a package: upgrade that, or keep versions in a directory of their own, by LIMPET_SLOT=DIR in the \
                 environment of the agent and --slot DIR",
                present.display()
            )));
        }
    }
    Ok(())
}

/// Locks the slot, if no upgrade is in progress.
fn begin(slot: &Slot) -> Result<Option<SlotLock>, CliError> {
    let lock = slot.lock().map_err(|error| system("open", slot.directory(), error))?;
    let journal = slot.journal().map_err(|error| system("read", &slot.journal_path(), error))?;
    match journal.filter(|journal| !journal.is_over()) {
        None => Ok(Some(lock)),
        Some(journal) => Err(CliError::Target(format!(
            "limpet {} is on trial, in place of {}: wait for its end, see limpet status",
            journal.to, journal.from
        ))),
    }
}

/// Stages the new version beside the current one. Returns the comment that was signed with it.
async fn stage(args: &UpgradeArgs, slot: &Slot, lock: &SlotLock) -> Result<String, CliError> {
    let Some(place) = args.package.as_deref().filter(|_| !args.rollback) else {
        return stage_previous(slot, lock).map(|()| String::new());
    };
    let key = args.key.clone().unwrap_or_else(package::default_key);
    if !key.exists() {
        let message = format!("{} does not exist: name the public key of the releases by --key", key.display());
        return Err(CliError::Usage(message));
    }
    let origin = Origin { place, key: &key, authorities: args.certificate_authority.as_deref() };
    origin.stage(slot, lock).await.map_err(|error| CliError::Target(error.to_string()))
}

/// Stages the version before the last upgrade; in a slot without one, the installed version.
fn stage_previous(slot: &Slot, lock: &SlotLock) -> Result<(), CliError> {
    slot.discard(lock).map_err(|error| system("empty", slot.directory(), error))?;
    let installed = std::env::current_exe().ok().filter(|path| path.parent() != Some(slot.directory()));
    let installed = installed.map(|agent| (agent.with_file_name(SHIM), agent));
    let previous = Some((slot.previous_shim(), slot.previous())).filter(|(_, agent)| agent.exists());
    let Some((shim, from)) = previous.or(installed) else {
        return Err(CliError::Target(format!("{} does not exist: there was no upgrade", slot.previous().display())));
    };
    link(&from, &slot.staged()).map_err(|error| system("write", &slot.staged(), error))?;
    if shim.exists() {
        link(&shim, &slot.staged_shim()).map_err(|error| system("write", &slot.staged_shim(), error))?;
    }
    Ok(())
}

/// Ends a trial that has not begun, because the agent could not be restarted.
fn take_back(slot: &Slot, journal: &Journal) -> Result<(), CliError> {
    let lock = slot.lock().map_err(|error| system("open", slot.directory(), error))?;
    let now = slot.journal().map_err(|error| system("read", &slot.journal_path(), error))?;
    if now.as_ref() != Some(journal) {
        // An agent has started it.
        return Ok(());
    }
    let undone = slot.undo(&lock, journal.clone(), "the agent could not be restarted".to_owned());
    undone.map_err(|error| system("write", &slot.journal_path(), error))
}

fn discard(slot: &Slot, lock: &SlotLock) -> Result<(), CliError> {
    slot.discard(lock).map_err(|error| system("empty", slot.directory(), error))
}

/// The version that an executable prints.
async fn version(path: &Path) -> Result<String, CliError> {
    let mut command = Command::new(path);
    command.arg("--version");
    let failed = |why: String| CliError::Target(format!("the new limpet does not run here: {why}"));
    let output = program::run(command, b"", VERSION_TIMEOUT).await.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [PROGRAM, version] if output.success => Ok(printable(version)),
        _ => Err(failed(format!("it says {:?} to --version", text.chars().take(100).collect::<String>()))),
    }
}

async fn present_version(slot: &Slot, status: Option<&StatusDocument>) -> String {
    match status {
        Some(status) => status.version.clone(),
        None => version(&slot.present()).await.unwrap_or_else(|_| env!("CARGO_PKG_VERSION").to_owned()),
    }
}

fn same_file(first: &Path, second: &Path) -> bool {
    let sizes = (std::fs::metadata(first), std::fs::metadata(second));
    let equal_sizes = matches!(sizes, (Ok(first), Ok(second)) if first.len() == second.len());
    let contents = || (std::fs::read(first), std::fs::read(second));
    equal_sizes && matches!(contents(), (Ok(first), Ok(second)) if first == second)
}

/// Waits for the end of the trial and prints its result.
async fn conclude(slot: &Slot, client: &SocketClient, begun: &Journal, screen: Screen) -> Result<u8, CliError> {
    let attempt = Duration::from_secs(begun.deadline_seconds) + SETTLE + START_DELAY;
    let ended = tokio::time::timeout(attempt * MAX_ATTEMPTS, end(slot)).await;
    let journal = match ended {
        Ok(journal) => journal.map_err(|error| system("read", &slot.journal_path(), error))?,
        Err(_) => {
            let message = format!("limpet {} is still on trial: see limpet status", begun.to);
            return Err(CliError::Target(message));
        }
    };
    match journal.step {
        Step::Undone { reason, .. } => {
            let returned = tokio::time::timeout(RETURN_TIMEOUT, answers(client)).await.is_ok();
            let runs = if returned { "runs again" } else { "does not answer yet" };
            let message = format!("limpet {} was undone, limpet {} {runs}: {reason}", journal.to, journal.from);
            Err(CliError::Target(message))
        }
        _ => {
            let pods = begun.baseline.pods.len();
            screen.print(&format!(
                "limpet {} runs; {pods} pods were taken over; limpet {} comes back by: limpet upgrade --rollback\n",
                journal.to, journal.from
            ))?;
            Ok(0)
        }
    }
}

/// The journal once the upgrade is over.
async fn end(slot: &Slot) -> std::io::Result<Journal> {
    let mut watch = PathWatch::file(&slot.journal_path()).await?;
    loop {
        if let Some(journal) = slot.journal()?.filter(Journal::is_over) {
            return Ok(journal);
        }
        watch.changed().await?;
    }
}

/// Waits until an agent answers. Its socket is recreated, which a client without a directory to watch cannot notice
/// otherwise.
async fn answers(client: &SocketClient) {
    while client.get_json::<StatusDocument>("/limpet/v1/status").await.is_err() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
