//! A running container of a private containerd for tests, without an image: its root file system is a directory with
//! busybox.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use limpet_host::path_watch::PathWatch;
use limpet_tests::need::{self, need};
use limpet_tests::tools;

use crate::client::Client;
use crate::exec::{ExecRequest, fifo, new_id};

/// A private containerd with one running container.
pub struct TestContainer {
    directory: tempfile::TempDir,
    containerd: Child,
    /// The connection to it.
    pub client: Client,
    /// Unique on the machine: runc does not distinguish containerds.
    pub id: String,
}

impl TestContainer {
    /// `None`, with a message why, where a requirement is missing.
    ///
    /// # Panics
    /// When the container does not start, or something is missing that has to be there.
    pub async fn start() -> Option<Self> {
        need::root("containers")?;
        for name in ["containerd", "ctr", "runc"] {
            need::program(name)?;
        }
        need(tools::busybox().ok_or("no static busybox here; run: cargo xtask setup"))?;
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path();
        let socket = base.join("containerd.sock");
        let config = format!(
            "version = 2\nroot = '{0}/root'\nstate = '{0}/state'\ndisabled_plugins = ['io.containerd.grpc.v1.cri', \
             'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime']\n[grpc]\naddress = '{1}'\n",
            base.display(),
            socket.display()
        );
        fs::write(base.join("config.toml"), config).unwrap();
        let log = fs::File::create(base.join("log")).unwrap();
        let mut appears = PathWatch::file(&socket).await.unwrap();
        let containerd =
            Command::new("containerd").arg("--config").arg(base.join("config.toml")).stderr(log).spawn().unwrap();
        let test = Self { client: Client::new(&socket), containerd, directory, id: new_id() };
        while !socket.exists() {
            appears.changed().await.unwrap();
        }
        test.make_rootfs();
        let rootfs = test.rootfs();
        let rootfs = rootfs.to_str().unwrap();
        test.ctr(&[
            "run",
            "-d",
            "--null-io",
            "--env",
            "PATH=/bin",
            "--cwd",
            "/tmp",
            "--rootfs",
            rootfs,
            &test.id,
            "/bin/sleep",
            "1000",
        ]);
        Some(test)
    }

    /// The directory of its commands' FIFOs.
    pub fn fifo_dir(&self) -> PathBuf {
        self.directory.path().join("exec")
    }

    /// The container's root directory.
    pub fn rootfs(&self) -> PathBuf {
        self.directory.path().join("rootfs")
    }

    fn make_rootfs(&self) {
        let bin = self.rootfs().join("bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["dev", "proc", "sys", "tmp", "etc"] {
            fs::create_dir(self.rootfs().join(name)).unwrap();
        }
        fs::copy(tools::busybox().unwrap(), bin.join("busybox")).unwrap();
        for name in ["cat", "echo", "false", "head", "kill", "ls", "pwd", "sh", "sleep", "stty", "tty", "wc", "yes"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
    }

    /// Runs `ctr` with this containerd.
    ///
    /// # Panics
    /// When it fails.
    pub fn ctr(&self, arguments: &[&str]) {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.client.socket()).args(["--namespace", "k8s.io"]).args(arguments);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A request to run `command` in it, without a terminal and without input.
    pub fn request(&self, command: &[&str]) -> ExecRequest {
        ExecRequest {
            container_id: self.id.clone(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            tty: false,
            stdin: false,
        }
    }

    /// A script that prints `ready` and runs on; [`Self::all_cleaned_up`] recognises its process.
    pub fn endless(&self) -> String {
        format!("export LIMPET_EXEC_TEST={}; echo ready; exec sleep 1000", self.id)
    }

    /// Waits until every session has cleaned up.
    ///
    /// # Panics
    /// When a process of a session still runs.
    pub async fn all_cleaned_up(&self) {
        let mut watch = PathWatch::directory(&self.fifo_dir()).await.unwrap();
        while !fifo::orphans(&self.fifo_dir()).is_empty() {
            watch.changed().await.unwrap();
        }
        let mark = format!("LIMPET_EXEC_TEST={}", self.id);
        let marked =
            fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("environ")).ok());
        assert_eq!(marked.filter(|environ| String::from_utf8_lossy(environ).contains(&mark)).count(), 0);
    }
}

impl Drop for TestContainer {
    fn drop(&mut self) {
        let quiet = |arguments: &[&str]| {
            let mut command = Command::new("ctr");
            command.arg("--address").arg(self.client.socket()).args(["--namespace", "k8s.io"]).args(arguments);
            let _ = command.stdin(Stdio::null()).output();
        };
        quiet(&["task", "delete", "--force", &self.id]);
        quiet(&["container", "delete", &self.id]);
        let _ = self.containerd.kill();
        let _ = self.containerd.wait();
    }
}
