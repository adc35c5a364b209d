//! `limpet cp`: copies files and directories between a running container and this machine, as `kubectl cp` does.
//!
//! kubectl has a `tar` in the container do it. This command is root on the node and opens the container's root directory
//! through `/proc/PID/root`, so the image needs neither `tar` nor a shell, and volumes are seen where the container has
//! them. The kernel resolves every path of the container inside that root ([`root`]), and the copy follows no symlink
//! ([`tree`]), so nothing in a container leads out of it.

mod location;
mod root;
mod tree;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use clap_complete::engine::ArgValueCompleter;

use self::location::Location;
use self::root::ContainerRoot;
use self::tree::{CopyError, Owner, Report, Rules, Source, Target};
use super::completion;
use super::error::CliError;
use super::screen::{Screen, printable};
use super::target::{container, find};
use limpet_wire::pods::DescribeDocument;
use limpet_wire::socket_client::SocketClient;

/// How often progress is drawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `limpet cp`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  limpet cp web:/var/lib/app/state.db .\n  limpet cp ./conf web:/etc/app -c main\n  \
limpet cp web:/tmp/core - | gzip > core.gz\n\nA path with a colon is one of this machine if it begins with / or ./"
)]
pub struct CpArgs {
    /// What to copy: POD:PATH, NAMESPACE/POD:PATH, a path of this machine, or - for stdin
    #[arg(value_name = "FROM", add = ArgValueCompleter::new(completion::pods))]
    from: OsString,
    /// Where to: the same, or - for stdout; into a directory if there is one of that name
    #[arg(value_name = "TO", add = ArgValueCompleter::new(completion::pods))]
    to: OsString,
    /// The container; the pod's first one if not given
    #[arg(short, long, add = ArgValueCompleter::new(completion::containers))]
    container: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// Do not keep modes and owners: files belong to the container's user, or to yours
    #[arg(long)]
    no_preserve: bool,
}

/// Copies.
///
/// # Errors
///
/// The agent cannot be reached, the container is not running, or a file cannot be read or written. The first error
/// ends the copy; what was copied before it stays.
pub(super) async fn run(client: &SocketClient, args: CpArgs, screen: Screen) -> Result<u8, CliError> {
    let location = |argument| Location::parse(argument).map_err(CliError::Usage);
    let (from, to) = (location(&args.from)?, location(&args.to)?);
    let pod = match (&from, &to) {
        (Location::Container { pod, .. }, Location::Local(_) | Location::Stream)
        | (Location::Local(_) | Location::Stream, Location::Container { pod, .. }) => pod,
        _ => {
            return Err(CliError::Usage(
                "one of FROM and TO must be POD:PATH, the other a path on this machine".to_owned(),
            ));
        }
    };
    let root = open_root(client, pod, &args).await?;
    let mut progress = Progress::new(screen);
    let copied = copy(&root, &from, &to, !args.no_preserve, &mut progress);
    progress.clear();
    match copied {
        Ok(()) => Ok(0),
        // The reader of stdout has closed it.
        Err(CopyError { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Err(source.into()),
        Err(CopyError { what, source }) => Err(CliError::System { what, source }),
    }
}

/// Copies from one end to the other; exactly one of them is in the container. `keeps` preserves modes and owners.
fn copy(
    root: &ContainerRoot,
    from: &Location,
    to: &Location,
    keeps: bool,
    progress: &mut Progress,
) -> Result<(), CopyError> {
    // A copy out of a container has no set-user-ID programs.
    let outwards = Rules { mode: if keeps { 0o777 } else { 0o755 }, owner: Owner::Own, links: false };
    let inwards = Rules { mode: if keeps { 0o7777 } else { 0o755 }, owner: root.owner(keeps), links: true };
    match (from, to) {
        (Location::Container { path, .. }, Location::Local(to)) => {
            let (directory, name) = local_place(to, path)?;
            let to = Target { directory: directory.as_fd(), name: &name };
            tree::copy(&root.source(path)?, to, &outwards, progress)
        }
        (Location::Container { path, .. }, _) => stream_out(&root.source(path)?),
        (Location::Local(from), Location::Container { path, .. }) => {
            let place = root.place(path, Some(&local_name(from)?))?;
            tree::copy(&Source::at(from)?, place.target(), &inwards, progress)
        }
        (_, Location::Container { path, .. }) => {
            // The owner of a stream is the user that runs the container.
            let rules = Rules { owner: root.owner(false), ..inwards };
            tree::stream(&mut io::stdin().lock(), root.place(path, None)?.target(), &rules)
        }
        _ => Ok(()),
    }
}

/// The root directory of the container's process.
async fn open_root(client: &SocketClient, pod: &str, args: &CpArgs) -> Result<ContainerRoot, CliError> {
    let names = find(client, pod, args.namespace.as_deref()).await?;
    let name = container(&names, args.container.as_deref())?;
    let route = format!("/limpet/v1/pods/{}/{}/describe", names.namespace, names.name);
    let document: DescribeDocument = client.get_json(&route).await?;
    let held = document.containers.get(name).and_then(|held| Some((held.pid?, held.id.as_str())));
    let Some((pid, id)) = held else {
        return Err(CliError::Target(format!(
            "container {name} of pod {} does not run; cp needs it running",
            names.name
        )));
    };
    ContainerRoot::open(pid, id).map_err(|CopyError { what, source }| CliError::System { what, source })
}

/// The name of what is copied, also of `.` and `..`.
fn local_name(path: &Path) -> Result<OsString, CopyError> {
    if let Some(name) = path.file_name() {
        return Ok(name.to_owned());
    }
    let real = path.canonicalize().map_err(|source| CopyError::new("open", path.as_os_str(), source))?;
    Ok(real.file_name().unwrap_or(OsStr::new(".")).to_owned())
}

/// Where to copy `from` on this machine: into the directory `to`, or else to that name.
fn local_place(to: &Path, from: &Path) -> Result<(OwnedFd, OsString), CopyError> {
    match (to.is_dir(), to.parent(), to.file_name()) {
        (false, Some(parent), Some(name)) => Ok((tree::directory(parent)?, name.to_owned())),
        _ => Ok((tree::directory(to)?, from.file_name().unwrap_or(OsStr::new(".")).to_owned())),
    }
}

/// Writes one file of the container to stdout.
fn stream_out(from: &Source) -> Result<(), CopyError> {
    let copied = io::copy(&mut from.content()?, &mut io::stdout().lock());
    copied.map(drop).map_err(|source| CopyError::new("copy to stdout:", &from.name, source))
}

/// The display of a running copy: a progress line on a terminal, and remarks about skipped files.
struct Progress {
    screen: Screen,
    drawn: Instant,
    bytes: u64,
    shows: bool,
}

impl Progress {
    fn new(screen: Screen) -> Self {
        Self { screen, drawn: Instant::now(), bytes: 0, shows: !screen.quiet && io::stderr().is_terminal() }
    }

    fn clear(&self) {
        if self.shows {
            // If stderr cannot be written, nothing can be done.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Report for Progress {
    fn bytes(&mut self, name: &OsStr, count: u64) {
        self.bytes += count;
        if self.shows && self.drawn.elapsed() >= REDRAW_INTERVAL {
            self.drawn = Instant::now();
            let name: String = printable(&name.to_string_lossy()).chars().take(50).collect();
            // As above.
            let _ = write!(io::stderr(), "\r\x1b[K{:>8} MiB  {name}", self.bytes >> 20);
        }
    }

    fn left_out(&mut self, name: &OsStr, why: &str) {
        self.clear();
        // A failed remark does not affect the copy.
        let _ = self.screen.remark(&format!("warning: {} is left out: {why}", printable(&name.to_string_lossy())));
    }
}
