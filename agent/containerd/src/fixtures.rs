//! A running container of a private containerd for tests, without an image: its root file system is a directory with
//! busybox.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use limpet_host::path_watch::PathWatch;
use limpet_tests::node::{NodeOptions, TestNode};
use limpet_tests::{need, tools};

use crate::client::Client;
use crate::exec::{ExecRequest, fifo, new_id};

/// A node without an agent, with one running container.
pub struct TestContainer {
    node: TestNode,
    /// The connection to its containerd.
    pub client: Client,
    /// Unique on the machine, because runc does not distinguish containerds.
    pub id: String,
}

impl TestContainer {
    /// Returns `None`, and prints why, if a requirement is missing.
    ///
    /// # Panics
    ///
    /// The container does not start, or a required file is missing.
    pub fn start() -> Option<Self> {
        let node = need::node(&NodeOptions { agent: false, images: false, ..NodeOptions::default() })?;
        let test = Self { client: Client::new(&node.containerd.socket()), node, id: new_id() };
        test.make_rootfs();
        let (cgroup, rootfs) = (format!("/{}/test", test.node.cgroup()), test.rootfs());
        let with = ["--env", "PATH=/bin", "--cwd", "/tmp", "--cgroup", &cgroup];
        let rootfs = ["--rootfs", rootfs.to_str().unwrap(), &test.id, "/bin/sleep", "1000"];
        test.ctr(&[&["run", "-d", "--null-io"], &with[..], &rootfs].concat());
        Some(test)
    }

    /// The directory of its commands' FIFOs.
    pub fn fifo_dir(&self) -> PathBuf {
        self.node.dir().join("exec")
    }

    /// The container's root directory.
    pub fn rootfs(&self) -> PathBuf {
        self.node.dir().join("rootfs")
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
    ///
    /// The program fails.
    pub fn ctr(&self, arguments: &[&str]) {
        self.node.containerd.ctr(arguments).unwrap();
    }

    /// A request to run `command`, without a terminal and without input.
    pub fn request(&self, command: &[&str]) -> ExecRequest {
        ExecRequest {
            container_id: self.id.clone(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            tty: false,
            stdin: false,
        }
    }

    /// A script that prints `ready` and keeps running; [`Self::all_cleaned_up`] recognizes its process.
    pub fn endless(&self) -> String {
        format!("export LIMPET_EXEC_TEST={}; echo ready; exec sleep 1000", self.id)
    }

    /// Waits until every session has cleaned up.
    ///
    /// # Panics
    ///
    /// A process of a session still runs.
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
