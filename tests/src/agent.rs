//! The agent as a process: its configuration file, its life and its command line.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use crate::process::{self, Daemon, tail};
use crate::{tools, wait};

/// Names the executable under test; without it the harness has cargo build one.
pub const PROGRAM_VARIABLE: &str = "LIMPET_TEST_BINARY";
/// Names the static executable under test; without it the harness has it built.
pub const STATIC_PROGRAM_VARIABLE: &str = "LIMPET_TEST_STATIC_BINARY";
/// Chooses the shim of the nodes whose configuration does not: `limpet` or `runc-v2`; without it, the agent's default.
pub const SHIM_VARIABLE: &str = "LIMPET_TEST_SHIM";
/// Names the executable of limpet's shim; without it, it is the one beside the agent, or cargo builds it.
pub const SHIM_PROGRAM_VARIABLE: &str = "LIMPET_TEST_SHIM_BINARY";
/// Names the OCI runtime of the nodes whose configuration does not; without it, they have the default.
pub const RUNTIME_VARIABLE: &str = "LIMPET_TEST_OCI_RUNTIME";
/// Names the cgroup driver of the nodes: `cgroupfs` or `systemd`.
const CGROUP_DRIVER_VARIABLE: &str = "LIMPET_TEST_CGROUP_DRIVER";

/// The executable under test.
pub fn program() -> Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    if let Some(path) = std::env::var_os(PROGRAM_VARIABLE) {
        return Ok(path.into());
    }
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*built {
        Some(path) => Ok(path.clone()),
        None => Ok(built.insert(build(&[])?).clone()),
    }
}

/// The static executable, linked as nodes get it: what `cargo xtask dist --for-tests` builds.
pub fn static_program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(STATIC_PROGRAM_VARIABLE) {
        return Ok(path.into());
    }
    let mut command = cargo();
    command.args(["xtask", "dist", "--for-tests"]).stderr(Stdio::inherit());
    let output = command.output().context("run cargo")?;
    ensure!(output.status.success(), "cargo xtask dist: {}", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().next_back().map(PathBuf::from).context("cargo xtask dist names no executable")
}

/// The program of hollow nodes: the one beside the agent, else built with further arguments such as `--release`.
pub fn hollow_nodes_program(args: &[&str]) -> Result<PathBuf> {
    let beside = std::env::var_os(PROGRAM_VARIABLE).map(|path| PathBuf::from(path).with_file_name(HOLLOW_NODES));
    match beside.filter(|path| args.is_empty() && path.exists()) {
        Some(path) => Ok(path),
        None => {
            built_by(cargo().args(["build", "--package", HOLLOW_NODES, "--bin", HOLLOW_NODES]).args(args), HOLLOW_NODES)
        }
    }
}

/// The program of limpet's shim, and its package.
pub const SHIM: (&str, &str) = ("containerd-shim-limpet-v1", "limpet-shim");

/// limpet's shim under test.
pub fn shim_program() -> Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    if let Some(path) = std::env::var_os(SHIM_PROGRAM_VARIABLE) {
        return Ok(path.into());
    }
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*built {
        Some(path) => Ok(path.clone()),
        None => Ok(built.insert(build_shim(&[])?).clone()),
    }
}

/// Has cargo build limpet's shim with further arguments such as `--release`, and returns its path.
pub fn build_shim(args: &[&str]) -> Result<PathBuf> {
    let (name, package) = SHIM;
    built_by(cargo().args(["build", "--package", package, "--bin", name]).args(args), name)
}

/// The line of a LimpetConfiguration that chooses limpet's shim under test.
pub fn limpets_shim() -> Result<String> {
    Ok(format!("shim: {}", shim_program()?.display()))
}

/// Whether nodes use limpet's shim, which needs no loggers, unless their configuration says otherwise.
pub fn has_limpets_shim() -> bool {
    std::env::var(SHIM_VARIABLE).map_or(true, |shim| shim == "limpet")
}

/// The shim that the environment chooses; `None` if it chooses none.
fn chosen_shim() -> Result<Option<String>> {
    match std::env::var(SHIM_VARIABLE).as_deref() {
        Ok("limpet") => limpets_shim().map(Some),
        Ok(other) => Ok(Some(format!("shim: {other}"))),
        Err(_) => Ok(None),
    }
}

/// Has cargo build the executable, and limpet's shim beside it, with further arguments such as `--release`. Returns
/// its path.
pub fn build(args: &[&str]) -> Result<PathBuf> {
    let (shim, package) = SHIM;
    let both = ["build", "--package", "limpet", "--bin", "limpet", "--package", package, "--bin", shim];
    built_by(cargo().args(both).args(args), "limpet")
}

/// Has cargo build every test, and returns the path of the executable that is built with them.
pub fn build_with_tests() -> Result<PathBuf> {
    built_by(cargo().args(["test", "--workspace", "--tests", "--no-run"]), "limpet")
}

fn built_by(command: &mut Command, name: &str) -> Result<PathBuf> {
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().context("run cargo")?;
    if !output.status.success() {
        bail!("cargo could not build the agent");
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let programs = artifacts.filter(|message| message["target"]["name"] == name && message["profile"]["test"] == false);
    let executable = programs.filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?))).next_back();
    executable.context("cargo built no executable")
}

/// cargo in the workspace, called as from a shell. The variables with which a calling cargo describes the package
/// that it runs are removed, because build scripts that read them would run again each time, and what depends on them
/// would be compiled again.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_a_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| of_a_package(name) || name == "OUT_DIR") {
        command.env_remove(name);
    }
    command.current_dir(workspace_dir());
    command
}

/// The root of the workspace in which cargo was called. If two checkouts share a target directory, it may differ from
/// the one in which the program was compiled.
pub fn workspace_dir() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    let root = here.ancestors().find(|dir| dir.join("Cargo.lock").is_file()).map(Path::to_owned);
    root.unwrap_or(here)
}

/// The program of hollow nodes, and its package.
const HOLLOW_NODES: &str = "limpet-hollow-nodes";

/// The directories and settings of one agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Contains everything below.
    pub dir: PathBuf,
    /// The node's name. No two nodes share one, because it is part of a pod's identity, and runc's state, which the
    /// whole machine shares, knows containers by ids that are derived from it.
    pub node_name: String,
    /// containerd's socket.
    pub endpoint: PathBuf,
    /// The parent of its cgroups.
    pub cgroup: String,
    /// containerd's `certs.d`.
    pub certs_d: PathBuf,
    /// The directory of the CNI configuration; empty if there is none.
    pub cni_config: PathBuf,
    /// Its `--v`.
    pub verbosity: u8,
    /// Where plugins are searched for, in this order.
    pub cni_plugins: Vec<PathBuf>,
    /// containerd's snapshotter.
    pub snapshotter: &'static str,
    /// Further flags of `limpet run`.
    pub flags: Vec<String>,
    /// Further variables of its environment.
    pub environment: Vec<(&'static str, String)>,
    /// Further lines of the KubeletConfiguration.
    pub kubelet: Vec<String>,
    /// A file with the whole KubeletConfiguration, used instead.
    pub kubelet_configuration: Option<PathBuf>,
    /// Further lines of the LimpetConfiguration.
    pub limpet: Vec<String>,
}

impl Settings {
    /// `--root-dir`.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The directory of plugins.
    pub fn plugins(&self) -> PathBuf {
        self.dir.join("plugins")
    }

    /// The run directory.
    pub fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// The manifest directory.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// `podLogsDir`.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("logs/pods")
    }

    /// The directory of kubelet's log symlinks.
    pub fn container_logs(&self) -> PathBuf {
        self.dir.join("logs/containers")
    }

    /// The resolver configuration that pods get.
    pub fn resolv_conf(&self) -> PathBuf {
        self.dir.join("resolv.conf")
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("config.yaml")
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.run().join("limpet.sock")
    }

    /// Makes the directories and writes the configuration file.
    pub fn write(&self) -> Result<()> {
        for dir in [self.root(), self.run(), self.manifests(), self.pod_logs(), self.container_logs()] {
            fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        }
        if !self.resolv_conf().exists() {
            fs::write(self.resolv_conf(), "nameserver 192.0.2.53\n")?;
        }
        let kubelet = match &self.kubelet_configuration {
            Some(file) => fs::read_to_string(file).with_context(|| format!("{}", file.display()))?,
            None => self.default_kubelet_configuration(),
        };
        let text = format!("{kubelet}\n---\n{}", self.limpet_configuration()?);
        fs::write(self.config(), text).with_context(|| format!("{}", self.config().display()))
    }
}

impl Settings {
    fn default_kubelet_configuration(&self) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: {}\n\
             containerRuntimeEndpoint: unix://{}\ncgroupDriver: {}\ncgroupRoot: {}\npodLogsDir: {}\n\
             resolvConf: {}\n{}",
            self.manifests().display(),
            self.endpoint.display(),
            cgroup_driver(),
            self.cgroup,
            self.pod_logs().display(),
            self.resolv_conf().display(),
            self.kubelet_lines(),
        )
    }

    fn limpet_configuration(&self) -> Result<String> {
        let plugin_dirs = serde_json::to_string(&self.cni_plugins)?;
        let names = |key: &str| self.limpet.iter().flat_map(|keys| keys.lines()).any(|line| line.starts_with(key));
        let shim = if names("shim:") { None } else { chosen_shim()? };
        let runtime = if names("runtimeBinary:") { None } else { std::env::var(RUNTIME_VARIABLE).ok() };
        let runtime = runtime.map(|program| format!("runtimeBinary: {program}"));
        Ok(format!(
            "apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\n\
             rootDirectory: {}\nrunDirectory: {}\ncontainerLogsDirectory: {}\nregistryConfigDirectory: {}\n\
             cniConfigDirectory: {}\ncniBinaryDirectories: {plugin_dirs}\nsnapshotter: {}\npluginDirectory: {}\n\
             cdiSpecDirectories: [{}]\n{}{}{}",
            self.root().display(),
            self.run().display(),
            self.container_logs().display(),
            self.certs_d.display(),
            self.cni_config.display(),
            self.snapshotter,
            self.plugins().display(),
            self.plugins().join("cdi").display(),
            lines(&self.limpet),
            lines(shim.as_slice()),
            lines(runtime.as_slice()),
        ))
    }

    /// The lines that the test requests. Unless it does, neither image garbage collection nor eviction nor a listener
    /// is on, because the machine's disk may be full.
    fn kubelet_lines(&self) -> String {
        let names = |key: &str| self.kubelet.iter().flat_map(|keys| keys.lines()).any(|line| line.starts_with(key));
        let quiet = [
            ("imageGC", "imageGCHighThresholdPercent: 100\n"),
            // Nodes of several tests run at the same time.
            ("port:", "port: 0\n"),
            ("healthzPort", "healthzPort: 0\n"),
            ("evictionHard", "evictionHard: {memory.available: 1Mi}\n"),
        ];
        let quiet = quiet.into_iter().filter(|(key, _)| !names(key)).map(|(_, line)| line);
        lines(&self.kubelet) + &quiet.collect::<String>()
    }
}

/// The cgroup driver of all nodes: `cgroupfs`, or what the environment says.
pub fn cgroup_driver() -> String {
    std::env::var(CGROUP_DRIVER_VARIABLE).unwrap_or_else(|_| "cgroupfs".to_owned())
}

fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The result of one of the agent's commands.
#[derive(Debug)]
pub struct Reply {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Reply {
    fn from_output(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Its output, if it succeeded.
    pub fn success(self) -> Result<String> {
        match self.code {
            Some(0) => Ok(self.stdout),
            code => bail!("exit code {code:?}: {}{}", self.stdout, self.stderr),
        }
    }
}

/// The agent's process.
#[derive(Debug)]
pub struct Agent {
    program: Option<PathBuf>,
    settings: Settings,
    /// The process in whose network namespace it runs, if that is not the harness's.
    network_of: Option<u32>,
    /// A directory that comes first on its `PATH`.
    first_on_path: Option<PathBuf>,
    /// Whether its clock shows what [`Agent::set_clock`] says.
    has_own_clock: bool,
    daemon: Option<Daemon>,
}

impl Agent {
    /// Prepares an agent; nothing is started. Without a `program`, cargo builds one when it is first needed.
    pub fn prepare(program: Option<PathBuf>, settings: Settings) -> Result<Self> {
        settings.write()?;
        Ok(Self { program, settings, network_of: None, first_on_path: None, has_own_clock: false, daemon: None })
    }

    fn program(&self) -> Result<PathBuf> {
        self.program.clone().map_or_else(program, Ok)
    }

    /// Its places and settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings and writes the file again; the next start reads it.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        change(&mut self.settings);
        self.settings.write()
    }

    /// Makes it run in the network namespace of the process `pid` from its next start on.
    pub fn move_to_network_of(&mut self, pid: u32) {
        self.network_of = Some(pid);
    }

    /// Makes it find programs in `directory` first from its next start on.
    pub fn put_on_path(&mut self, directory: &Path) {
        self.first_on_path = Some(directory.to_owned());
    }

    /// Gives it a separate clock from its next start on, or sets that clock while it runs, in libfaketime's syntax:
    /// `+5h`, or `@1970-01-02 00:00:00`. Monotonic time is not changed. Only for a dynamic executable.
    pub fn set_clock(&mut self, time: &str) -> Result<()> {
        self.has_own_clock = true;
        let file = self.clock_file();
        let partial = file.with_extension("partial");
        fs::write(&partial, time).with_context(|| format!("{}", partial.display()))?;
        fs::rename(&partial, &file).with_context(|| format!("{}", file.display()))
    }

    fn clock_file(&self) -> PathBuf {
        self.settings.dir.join("clock")
    }

    fn with_clock(&self, command: &mut Command) -> Result<()> {
        if self.has_own_clock {
            let library = tools::faketime().context("no libfaketime here; run: cargo xtask nightly link")?;
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", self.clock_file());
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_CACHE_DURATION", "1");
        }
        Ok(())
    }

    /// Makes it run this executable from its next start on.
    pub fn run_program(&mut self, program: PathBuf) {
        self.program = Some(program);
    }

    /// `limpet run`, not started.
    pub fn command(&self) -> Result<Command> {
        let mut command = match self.network_of {
            None => Command::new(self.program()?),
            Some(pid) => {
                let mut command = Command::new("nsenter");
                command.args(["--target", &pid.to_string(), "--net", "--"]).arg(self.program()?);
                command
            }
        };
        command.envs(self.settings.environment.iter().map(|(name, value)| (name, value)));
        command.args(["run", "--hostname-override", &self.settings.node_name]);
        command.args(["--v", &self.settings.verbosity.to_string(), "--config"]).arg(self.settings.config());
        command.args(&self.settings.flags).env("RUST_BACKTRACE", "1");
        if let Ok(path) = std::env::join_paths(self.first_on_path.iter().cloned().chain(tools::search_path())) {
            command.env("PATH", path);
        }
        self.with_clock(&mut command)?;
        Ok(command)
    }

    /// Starts it; it may not answer yet.
    pub fn spawn(&mut self) -> Result<()> {
        self.daemon = Some(Daemon::start(&mut self.command()?, &self.settings.dir.join("agent.log"))?);
        Ok(())
    }

    /// Starts it and waits until its socket answers.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        let socket = self.settings.socket();
        let daemon = self.daemon.as_mut().context("the agent does not run")?;
        let mut ended = None;
        let started = wait::until_true(Duration::from_secs(30), "the agent's socket", || {
            ended = daemon.ended().ok().flatten();
            ended.is_some() || UnixStream::connect(&socket).is_ok()
        });
        if let Some(status) = ended {
            bail!("the agent ended at once, {status}; its log ends with:\n{}", tail(&daemon.log(), 20));
        }
        started.with_context(|| format!("the agent's log ends with:\n{}", tail(&daemon.log(), 20)))
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// Fails once it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self.daemon.as_mut().map(Daemon::ended).transpose()?.flatten() {
            None => Ok(()),
            Some(status) => bail!("the agent ended, {status}; its log ends with:\n{}", tail(&self.log(), 20)),
        }
    }

    /// Ends it with SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// Ends it with SIGTERM and waits for its end.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.end(Signal::TERM)
    }

    /// Ends it with `signal` and waits for its end.
    pub fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        let mut daemon = self.daemon.take().context("the agent does not run")?;
        daemon.signal(signal);
        daemon.wait(Duration::from_secs(30))
    }

    /// The page of its metrics.
    pub fn metrics(&self) -> Result<String> {
        let mut socket = UnixStream::connect(self.settings.socket())?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: limpet\r\nconnection: close\r\n\r\n")?;
        Ok(std::io::read_to_string(socket)?)
    }

    /// All it has logged, over all its starts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.settings.dir.join("agent.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How many bytes it has logged; see [`Self::log_from`].
    pub fn log_size(&self) -> usize {
        fs::metadata(self.settings.dir.join("agent.log")).map_or(0, |file| file.len() as usize)
    }

    /// What it has logged after the first `size` bytes.
    pub fn log_from(&self, size: usize) -> String {
        let bytes = fs::read(self.settings.dir.join("agent.log")).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(size..).unwrap_or_default()).into_owned()
    }

    /// A command of the agent's, addressed to this one, not started.
    pub fn cli_command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.program()?);
        command.arg("--socket").arg(self.settings.socket()).args(args).env("NO_COLOR", "1");
        self.with_clock(&mut command)?;
        Ok(command)
    }

    /// Runs a command of the agent's: `pods`, `logs`, `exec`…
    pub fn cli(&self, args: &[&str]) -> Result<Reply> {
        process::run(&mut self.cli_command(args)?, b"").map(Reply::from_output)
    }

    /// The same with `input` as stdin.
    pub fn cli_with_input(&self, args: &[&str], input: &[u8]) -> Result<Reply> {
        process::run(&mut self.cli_command(args)?, input).map(Reply::from_output)
    }
}
