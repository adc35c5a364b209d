//! The OCI runtime as a program: its command lines, and why a call failed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prost::Message as _;
use serde::Deserialize;

use crate::exit;
use crate::messages::Options;

/// The default runtime.
const DEFAULT_BINARY: &str = "runc";
/// The default directory of its state, with one directory per namespace.
const DEFAULT_ROOT: &str = "/run/containerd/runc";
/// The file with the options in the bundle, for the cleanup after a shim that was killed.
const OPTIONS_FILE: &str = "shim-options";
/// The most bytes of a call's log that are read.
const MAX_LOG: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Runtime {
    options: Options,
    namespace: String,
}

impl Runtime {
    pub(crate) fn new(options: Options, namespace: &str) -> Self {
        Self { options, namespace: namespace.to_owned() }
    }

    /// The runtime that is recorded in a bundle.
    pub(crate) fn recorded(bundle: &Path, namespace: &str) -> io::Result<Self> {
        let options = Options::decode(&*fs::read(bundle.join(OPTIONS_FILE))?)?;
        Ok(Self::new(options, namespace))
    }

    /// Records the runtime in a bundle.
    pub(crate) fn record(&self, bundle: &Path) -> io::Result<()> {
        fs::write(bundle.join(OPTIONS_FILE), self.options.encode_to_vec())
    }

    /// The owner for the pipes of its processes.
    pub(crate) fn pipe_owner(&self) -> (u32, u32) {
        (self.options.io_uid, self.options.io_gid)
    }

    /// Where to record the exit of its container in `bundle`.
    pub(crate) fn exit_file(&self, bundle: &Path) -> PathBuf {
        let named = Path::new(&self.options.exit_file);
        if named.is_absolute() { named.to_owned() } else { bundle.join(exit::FILE) }
    }

    pub(crate) fn binary(&self) -> &str {
        if self.options.binary_name.is_empty() { DEFAULT_BINARY } else { &self.options.binary_name }
    }

    /// Whether the PID it reports is the container's first process on the host, so that signals can be sent directly.
    pub(crate) fn runs_processes_of_the_host(&self) -> bool {
        let name = Path::new(self.binary()).file_name().unwrap_or_default();
        ["runc", "crun", "youki"].iter().any(|known| name == OsStr::new(known))
    }

    /// The directory of its state, and of nothing else's.
    fn root(&self) -> PathBuf {
        let root = if self.options.root.is_empty() { DEFAULT_ROOT } else { &self.options.root };
        Path::new(root).join(&self.namespace)
    }

    /// Where the first process of container `id` waits for its start, with runc: it writes a byte to this FIFO before it
    /// executes the program, and `runc start` reads it. Other runtimes also record the start.
    pub(crate) fn start_fifo(&self, id: &str) -> Option<PathBuf> {
        let name = Path::new(self.binary()).file_name()?;
        (name == OsStr::new(DEFAULT_BINARY)).then(|| self.root().join(id).join("exec.fifo"))
    }

    /// A call that logs to `log`, with `/dev/null` as input and without output.
    fn command(&self, log: &Path) -> Command {
        let mut command = Command::new(self.binary());
        command.arg("--root").arg(self.root());
        command.arg("--log").arg(log).args(["--log-format", "json"]);
        if self.options.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        // The socket is containerd's, and messages on it would be taken for containerd's own.
        command.env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub(crate) fn create(&self, call: &Call<'_>, pid_file: &Path, console: Option<&Path>) -> Command {
        let mut command = self.command(call.log);
        command.arg("create").arg("--bundle").arg(call.bundle).arg("--pid-file").arg(pid_file);
        if let Some(socket) = console {
            command.arg("--console-socket").arg(socket);
        }
        if self.options.no_pivot_root {
            command.arg("--no-pivot");
        }
        if self.options.no_new_keyring {
            command.arg("--no-new-keyring");
        }
        command.arg(call.id);
        command
    }

    pub(crate) fn exec(&self, call: &Call<'_>, process: &Path, pid_file: &Path, console: Option<&Path>) -> Command {
        let mut command = self.command(call.log);
        command.arg("exec").arg("--process").arg(process);
        if let Some(socket) = console {
            command.arg("--console-socket").arg(socket);
        }
        command.args(["--detach", "--pid-file"]).arg(pid_file).arg(call.id);
        command
    }

    /// `start`, `delete`, `pause`, `resume`.
    pub(crate) fn plain(&self, call: &Call<'_>, verb: &str) -> Command {
        let mut command = self.command(call.log);
        command.args([verb, call.id]);
        command
    }

    pub(crate) fn delete_by_force(&self, call: &Call<'_>) -> Command {
        let mut command = self.command(call.log);
        command.args(["delete", "--force", call.id]);
        command
    }

    pub(crate) fn kill(&self, call: &Call<'_>, signal: u32, all: bool) -> Command {
        let mut command = self.command(call.log);
        command.arg("kill");
        if all {
            command.arg("--all");
        }
        command.args([call.id, &signal.to_string()]);
        command
    }

    pub(crate) fn update(&self, call: &Call<'_>, resources: &Path) -> Command {
        let mut command = self.command(call.log);
        command.arg("update").arg("--resources").arg(resources).arg(call.id);
        command
    }
}

/// The subject of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) id: &'a str,
    pub(crate) bundle: &'a Path,
    pub(crate) log: &'a Path,
}

/// A log entry of the runtime.
#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    level: String,
    #[serde(default)]
    msg: String,
}

/// The last error in a call's log, which is removed; empty if there is none.
pub(crate) fn last_error(log: &PathBuf) -> String {
    use std::io::Read as _;
    let mut text = Vec::new();
    if let Ok(file) = fs::File::open(log) {
        // An unreadable log counts as empty.
        let _ = file.take(MAX_LOG).read_to_end(&mut text);
    }
    let _ = fs::remove_file(log);
    last_error_in(&text)
}

fn last_error_in(text: &[u8]) -> String {
    let entries = serde_json::Deserializer::from_slice(text).into_iter::<Entry>().map_while(Result::ok);
    entries.filter(|entry| entry.level == "error").last().map(|entry| entry.msg.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn line(command: &Command) -> String {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn command_lines_are_those_of_containerds_shim() {
        let call = Call { id: "c1", bundle: Path::new("/b"), log: Path::new("/b/l") };
        let plain = Runtime::new(Options::default(), "k8s.io");
        let head = "runc --root /run/containerd/runc/k8s.io --log /b/l --log-format json";
        assert_eq!(line(&plain.plain(&call, "start")), format!("{head} start c1"));
        assert_eq!(line(&plain.kill(&call, 9, true)), format!("{head} kill --all c1 9"));
        assert_eq!(line(&plain.update(&call, Path::new("/b/r"))), format!("{head} update --resources /b/r c1"));
        assert_eq!(
            line(&plain.create(&call, Path::new("/b/init.pid"), None)),
            format!("{head} create --bundle /b --pid-file /b/init.pid c1")
        );
        let options = Options {
            no_pivot_root: true,
            no_new_keyring: true,
            systemd_cgroup: true,
            binary_name: "/usr/bin/crun".into(),
            root: "/r".into(),
            ..Options::default()
        };
        let other = Runtime::new(options, "n");
        assert_eq!(plain.start_fifo("c1").unwrap(), Path::new("/run/containerd/runc/k8s.io/c1/exec.fifo"));
        assert_eq!(other.start_fifo("c1"), None);
        let head = "/usr/bin/crun --root /r/n --log /b/l --log-format json --systemd-cgroup";
        assert_eq!(
            line(&other.create(&call, Path::new("/p"), Some(Path::new("/s")))),
            format!("{head} create --bundle /b --pid-file /p --console-socket /s --no-pivot --no-new-keyring c1")
        );
        assert_eq!(
            line(&other.exec(&call, Path::new("/j"), Path::new("/p"), None)),
            format!("{head} exec --process /j --detach --pid-file /p c1")
        );
    }

    #[test]
    fn the_last_error_of_a_log_is_the_reason() {
        let log = br#"{"level":"warning","msg":"w","time":"t"}
{"level":"error","msg":"first","time":"t"}
{"level":"error","msg":" runc create failed: exec: \"x\": not found\n","time":"t"}
not json"#;
        assert_eq!(last_error_in(log), "runc create failed: exec: \"x\": not found");
        assert_eq!(last_error_in(b""), "");
    }

    #[test]
    fn what_is_recorded_in_a_bundle_is_read_back() {
        let bundle = tempfile::tempdir().unwrap();
        assert!(Runtime::recorded(bundle.path(), "n").is_err());
        let runtime = Runtime::new(Options { root: "/r".into(), ..Options::default() }, "n");
        assert_eq!(runtime.exit_file(Path::new("/b")), Path::new("/b/exit.json"));
        let runtime = Runtime::new(Options { exit_file: "/run/e".into(), ..runtime.options }, "n");
        runtime.record(bundle.path()).unwrap();
        let recorded = Runtime::recorded(bundle.path(), "n").unwrap();
        assert_eq!(recorded, runtime);
        assert_eq!(recorded.exit_file(Path::new("/b")), Path::new("/run/e"));
    }
}
