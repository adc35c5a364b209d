//! A private containerd, with its own root, state, socket and configuration, beside whatever runs on the machine.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use crate::image::PAUSE;
use crate::process::{self, Daemon, tail};
use crate::tools::{self, ContainerdPrograms};
use crate::{cni, wait};

/// containerd's namespace for everything Kubernetes.
pub const NAMESPACE: &str = "k8s.io";

/// A task as `ctr tasks ls` shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// The container's id.
    pub id: String,
    /// The first process.
    pub pid: u32,
    /// `RUNNING`, `STOPPED`, `CREATED`…
    pub state: String,
}

/// A snapshot as `ctr snapshots ls` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its key: for an active one the id of its container, for a committed one the chain id of its layers.
    pub key: String,
    /// `Active`, `Committed` or `View`.
    pub kind: String,
}

impl Snapshot {
    /// Reads the listing. ctr pads its columns, and a snapshot without a parent leaves that column empty.
    fn list(listing: &str) -> Result<Vec<Self>> {
        let row = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [key, kind] | [key, _, kind] => Ok(Self { key: key.to_owned(), kind: kind.to_owned() }),
            _ => bail!("an unexpected line of ctr snapshots ls: {line:?}"),
        };
        listing.lines().skip(1).map(row).collect()
    }
}

/// The daemon and its directories.
#[derive(Debug)]
pub struct Containerd {
    programs: ContainerdPrograms,
    dir: PathBuf,
    daemon: Option<Daemon>,
    /// The process in whose mount and network namespaces it runs, if these are not the harness's.
    host_of: Option<u32>,
    /// The snapshotter with which images are unpacked.
    pub(crate) snapshotter: &'static str,
}

impl Containerd {
    /// Writes the configuration below `dir`; nothing is started. `cri` enables the CRI plugin beside the agent, with
    /// that directory of network configurations. `choice` is as for [`ContainerdPrograms::chosen`].
    pub fn prepare(dir: &Path, cri: Option<&Path>, choice: Option<&str>) -> Result<Self> {
        let programs = ContainerdPrograms::chosen(choice)?;
        fs::create_dir_all(dir.join("certs.d")).with_context(|| format!("{}", dir.display()))?;
        let at = dir.display();
        let disabled = match (cri, programs.version.0) {
            (Some(_), _) => "",
            (None, 1) => r#""io.containerd.grpc.v1.cri""#,
            (None, _) => {
                r#""io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri""#
            }
        };
        let cni_config = cri.unwrap_or(dir).display();
        let plugins = cni::plugin_dirs().into_iter().next().unwrap_or_default();
        let plugins = plugins.display();
        let config = format!(
            r#"version = 2
root = "{at}/root"
state = "{at}/state"
disabled_plugins = [{disabled}]
[grpc]
  address = "{at}/containerd.sock"
[debug]
  level = "info"
[plugins."io.containerd.internal.v1.opt"]
  path = "{at}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE}"
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = "{cni_config}"
  bin_dir = "{plugins}"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{at}/certs.d"
"#
        );
        fs::write(dir.join("config.toml"), config).context("containerd's config.toml")?;
        Ok(Self { programs, dir: dir.to_owned(), daemon: None, host_of: None, snapshotter: "overlayfs" })
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// The directory of its content and snapshots.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The directory of what it has in memory.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The directory of `hosts.toml` files that both containerd and the agent read.
    pub fn certs_d(&self) -> PathBuf {
        self.dir.join("certs.d")
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        self.programs.version
    }

    /// Makes it run in the mount and network namespaces of the process `pid` from its next start on.
    pub fn move_to_host_of(&mut self, pid: u32) {
        self.host_of = Some(pid);
    }

    /// Starts it and waits until it answers.
    pub fn start(&mut self) -> Result<()> {
        let program = self.programs.dir.join("containerd");
        let mut command = match self.host_of {
            None => Command::new(program),
            Some(pid) => process::entering(pid, &program),
        };
        command.arg("--config").arg(self.dir.join("config.toml")).env("PATH", self.path()?);
        self.daemon = Some(Daemon::start(&mut command, &self.dir.join("containerd.log"))?);
        let answers = wait::until_true(Duration::from_secs(30), "containerd's socket", || {
            UnixStream::connect(self.socket()).is_ok()
        });
        answers.with_context(|| format!("containerd's log ends with:\n{}", tail(&self.log(), 15)))
    }

    /// Its search path, with its own directory first, so that it finds its own shim.
    fn path(&self) -> Result<std::ffi::OsString> {
        let dirs = std::iter::once(self.programs.dir.clone()).chain(tools::search_path());
        std::env::join_paths(dirs).context("search path")
    }

    /// Ends it like a crash; what it runs lives on.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// Ends it like an administrator; what it runs lives on.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        daemon.signal(Signal::TERM);
        daemon.wait(Duration::from_secs(30)).map(drop)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.daemon.as_ref().map(Daemon::log).unwrap_or_default()
    }

    /// Runs `ctr` in the Kubernetes namespace and returns what it printed.
    pub fn ctr(&self, args: &[&str]) -> Result<String> {
        process::checked(&mut self.ctr_command(args))
    }

    /// `ctr` in the Kubernetes namespace.
    pub fn ctr_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.programs.dir.join("ctr"));
        command.arg("--address").arg(self.socket()).args(["--namespace", NAMESPACE]).args(args);
        command
    }

    /// Imports and unpacks an image archive.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let path = archive.to_str().context("the archive's path is not UTF-8")?;
        let with = ["--snapshotter", self.snapshotter, path];
        self.ctr(&[&["images", "import", "--local"], &with[..]].concat())
            .or_else(|_| self.ctr(&[&["images", "import"], &with[..]].concat()))
            .with_context(|| format!("import {path}"))
            .map(drop)
    }

    /// All tasks, ordered by container id.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        let listing = self.ctr(&["tasks", "ls"])?;
        let mut tasks = Vec::new();
        for line in listing.lines().skip(1) {
            let [id, pid, state] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                bail!("an unexpected line of ctr tasks ls: {line}");
            };
            let pid = pid.parse().with_context(|| format!("an unexpected line of ctr tasks ls: {line}"))?;
            tasks.push(Task { id: id.to_owned(), pid, state: state.to_owned() });
        }
        tasks.sort();
        Ok(tasks)
    }

    /// The processes that only hold the namespaces of pods.
    pub fn pauses(&self) -> Result<Vec<u32>> {
        let mut pids: Vec<_> = self.tasks()?.into_iter().map(|task| task.pid).collect();
        pids.retain(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"/bin/sleep\0")));
        Ok(pids)
    }

    /// The ids of all containers, ordered.
    pub fn containers(&self) -> Result<Vec<String>> {
        let mut ids: Vec<_> = self.ctr(&["containers", "ls", "-q"])?.lines().map(str::to_owned).collect();
        ids.sort();
        Ok(ids)
    }

    /// All snapshots.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        Snapshot::list(&self.ctr(&["snapshots", "--snapshotter", self.snapshotter, "ls"])?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_read_from_padded_columns() {
        let listing =
            "KEY    PARENT KIND      \nbase          Committed \nabc123 base   Active    \nview1         View      \n";
        let snapshots = Snapshot::list(listing).unwrap();
        let pairs: Vec<_> = snapshots.iter().map(|all| (all.key.as_str(), all.kind.as_str())).collect();
        assert_eq!(pairs, [("base", "Committed"), ("abc123", "Active"), ("view1", "View")]);
        assert!(Snapshot::list("KEY PARENT KIND\nalone\n").is_err());
    }
}
