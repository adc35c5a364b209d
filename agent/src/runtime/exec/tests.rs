//! Commands in a container of a containerd of the test's own, without any image: a directory with busybox in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use limpet_host::path_watch::PathWatch;

/// A private containerd with one running container.
pub(crate) struct TestContainer {
    directory: tempfile::TempDir,
    containerd: Child,
    pub(crate) client: Client,
    /// Unique on the machine: runc knows nothing of several containerds.
    pub(crate) id: String,
}

impl TestContainer {
    /// `None`, and a word why, where something it needs is missing.
    pub(crate) async fn start() -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        let missing = ["containerd", "ctr", "runc", "busybox"].into_iter().find(|name| find(name).is_none());
        if let Some(missing) = missing.or((!root).then_some("root's rights")) {
            eprintln!("skipped: running a container needs {missing}");
            return None;
        }
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
        let mut appears = PathWatch::file(&socket).unwrap();
        let containerd =
            Command::new("containerd").arg("--config").arg(base.join("config.toml")).stderr(log).spawn().unwrap();
        let test = Self { client: Client::new(&socket), containerd, directory, id: new_id() };
        while !socket.exists() {
            appears.changed().await.unwrap();
            appears.arm().unwrap();
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

    pub(crate) fn fifo_dir(&self) -> PathBuf {
        self.directory.path().join("exec")
    }

    /// What the container sees as `/`.
    pub(crate) fn rootfs(&self) -> PathBuf {
        self.directory.path().join("rootfs")
    }

    fn make_rootfs(&self) {
        let bin = self.rootfs().join("bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["dev", "proc", "sys", "tmp", "etc"] {
            fs::create_dir(self.rootfs().join(name)).unwrap();
        }
        fs::copy(find("busybox").unwrap(), bin.join("busybox")).unwrap();
        for name in ["cat", "echo", "false", "head", "kill", "ls", "pwd", "sh", "sleep", "stty", "tty", "wc", "yes"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
    }

    fn ctr(&self, arguments: &[&str]) {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.client.socket()).args(["--namespace", "k8s.io"]).args(arguments);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn request(&self, command: &[&str]) -> ExecRequest {
        ExecRequest {
            container_id: self.id.clone(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            tty: false,
            stdin: false,
        }
    }

    /// A script that says `ready` and goes on; [`Self::all_cleared`] knows its process.
    pub(crate) fn endless(&self) -> String {
        format!("export LIMPET_EXEC_TEST={}; echo ready; exec sleep 1000", self.id)
    }

    async fn exec(&self, command: &[&str]) -> Result<ExecSession, ExecError> {
        start(&self.client, &self.fifo_dir(), self.request(command)).await
    }

    /// Waits until every session has cleared up behind itself.
    pub(crate) async fn all_cleared(&self) {
        let mut watch = PathWatch::directory(&self.fifo_dir()).unwrap();
        while !fifo::left_over(&self.fifo_dir()).is_empty() {
            watch.changed().await.unwrap();
            watch.arm().unwrap();
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

fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// Reads both streams to their end; output and exit code.
async fn finish(mut session: ExecSession) -> (String, String, i32) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let stderr = async {
        if let Some(stderr) = &mut session.stderr {
            stderr.read_to_end(&mut err).await.unwrap();
        }
    };
    let (read, ()) = tokio::join!(session.stdout.read_to_end(&mut out), stderr);
    read.unwrap();
    let code = session.exit.wait().await.unwrap();
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), code)
}

#[tokio::test]
async fn output_input_and_exit_codes() {
    let Some(test) = TestContainer::start().await else { return };
    let session = test.exec(&["sh", "-c", "echo out; echo err >&2; pwd; exit 3"]).await.unwrap();
    assert_eq!(finish(session).await, ("out\n/tmp\n".to_owned(), "err\n".to_owned(), 3));

    let session = test.exec(&["sh", "-c", "kill -9 $$"]).await.unwrap();
    assert_eq!(finish(session).await.2, 137);

    // Much more than a pipe holds, both ways.
    let request = ExecRequest { stdin: true, ..test.request(&["cat"]) };
    let mut session = start(&test.client, &test.fifo_dir(), request).await.unwrap();
    let (mut stdin, control) = (session.stdin.take().unwrap(), session.control.clone());
    let feed = async move {
        stdin.write_all(&b"0123456789abcde\n".repeat(1 << 18)).await.unwrap();
        drop(stdin);
        control.close_stdin().await.unwrap();
    };
    let (finished, ()) = tokio::join!(finish(session), feed);
    assert_eq!((finished.0.len(), finished.2), (4 << 20, 0));

    // A reader slower than the process: what it wrote is still there after its end.
    let mut session = test.exec(&["sh", "-c", "yes | head -c 60000"]).await.unwrap();
    assert_eq!(session.exit.wait().await.unwrap(), 0);
    assert_eq!(finish_output(session).await, 60_000);
    test.all_cleared().await;
}

async fn finish_output(mut session: ExecSession) -> usize {
    let mut out = Vec::new();
    session.stdout.read_to_end(&mut out).await.unwrap()
}

#[tokio::test]
async fn a_terminal_has_one_stream_and_a_size() {
    let Some(test) = TestContainer::start().await else { return };
    let script = "read go; tty; stty size; echo $TERM; echo err >&2";
    let request = ExecRequest { tty: true, stdin: true, ..test.request(&["sh", "-c", script]) };
    let mut session = start(&test.client, &test.fifo_dir(), request).await.unwrap();
    assert!(session.stderr.is_none());
    session.control.resize(123, 45).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"go\r").await.unwrap();
    let (out, _, code) = finish(session).await;
    assert_eq!((out.as_str(), code), ("go\r\n/dev/pts/0\r\n45 123\r\nxterm\r\nerr\r\n", 0));
    test.all_cleared().await;
}

#[tokio::test]
async fn what_cannot_run_says_why_and_leaves_nothing() {
    let Some(test) = TestContainer::start().await else { return };
    for (command, code) in [("nope", 127), ("/bin/nope", 127), ("/tmp", 126)] {
        match test.exec(&[command]).await {
            Err(ExecError::NotStarted { exit_code, message }) => {
                assert_eq!(exit_code, code, "{message}");
                assert!(message.starts_with("exec: "), "{message}");
            }
            other => panic!("{command}: {other:?}"),
        }
    }
    assert!(matches!(test.exec(&[]).await, Err(ExecError::NoCommand)));
    let request = ExecRequest { container_id: "other".to_owned(), ..test.request(&["ls"]) };
    let other = start(&test.client, &test.fifo_dir(), request).await;
    assert!(matches!(other, Err(ExecError::NotRunning { .. })), "{other:?}");
    test.all_cleared().await;
    test.ctr(&["task", "delete", "--force", &test.id]);
    let ended = test.exec(&["ls"]).await;
    assert!(matches!(ended, Err(ExecError::NotRunning { .. })), "{ended:?}");
    test.all_cleared().await;
}

#[tokio::test]
async fn a_dropped_session_ends_its_process() {
    let Some(test) = TestContainer::start().await else { return };
    let mut session = test.exec(&["sh", "-c", &test.endless()]).await.unwrap();
    let mut ready = [0; 6];
    session.stdout.read_exact(&mut ready).await.unwrap();
    drop(session);
    test.all_cleared().await;
}

#[tokio::test]
async fn sessions_of_a_dead_agent_are_swept() {
    let Some(test) = TestContainer::start().await else { return };
    let mut session = test.exec(&["sh", "-c", &test.endless()]).await.unwrap();
    let mut ready = [0; 6];
    session.stdout.read_exact(&mut ready).await.unwrap();
    sweep(&test.client, &test.fifo_dir()).await;
    // 128 and SIGKILL: it was not this session that ended it.
    assert_eq!(session.exit.wait().await.unwrap(), 137);
    test.all_cleared().await;
}
