//! Commands in a container of a private containerd, without an image: its root file system is a directory with
//! busybox.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::fixtures::TestContainer;

async fn exec(test: &TestContainer, command: &[&str]) -> Result<ExecSession, ExecError> {
    start(&test.client, &test.fifo_dir(), test.request(command)).await
}

/// Reads both streams to their end. Returns their text and the exit code.
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
    let Some(test) = TestContainer::start() else { return };
    let session = exec(&test, &["sh", "-c", "echo out; echo err >&2; pwd; exit 3"]).await.unwrap();
    assert_eq!(finish(session).await, ("out\n/tmp\n".to_owned(), "err\n".to_owned(), 3));

    let session = exec(&test, &["sh", "-c", "kill -9 $$"]).await.unwrap();
    assert_eq!(finish(session).await.2, 137);

    // Much more than a pipe holds, in both directions.
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

    // A reader slower than the process: its output is still available after its exit.
    let mut session = exec(&test, &["sh", "-c", "yes | head -c 60000"]).await.unwrap();
    assert_eq!(session.exit.wait().await.unwrap(), 0);
    assert_eq!(finish_output(session).await, 60_000);
    test.all_cleaned_up().await;
}

async fn finish_output(mut session: ExecSession) -> usize {
    let mut out = Vec::new();
    session.stdout.read_to_end(&mut out).await.unwrap()
}

#[tokio::test]
async fn a_terminal_has_one_stream_and_a_size() {
    let Some(test) = TestContainer::start() else { return };
    let script = "read go; tty; stty size; echo $TERM; echo err >&2";
    let request = ExecRequest { tty: true, stdin: true, ..test.request(&["sh", "-c", script]) };
    let mut session = start(&test.client, &test.fifo_dir(), request).await.unwrap();
    assert!(session.stderr.is_none());
    session.control.resize(123, 45).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"go\r").await.unwrap();
    let (out, _, code) = finish(session).await;
    assert_eq!((out.as_str(), code), ("go\r\n/dev/pts/0\r\n45 123\r\nxterm\r\nerr\r\n", 0));
    test.all_cleaned_up().await;
}

#[tokio::test]
async fn a_failed_command_has_an_error_and_leaves_no_files() {
    let Some(test) = TestContainer::start() else { return };
    for (command, code) in [("nope", 127), ("/bin/nope", 127), ("/tmp", 126)] {
        match exec(&test, &[command]).await {
            Err(ExecError::NotStarted { exit_code, message }) => {
                assert_eq!(exit_code, code, "{message}");
                assert!(message.starts_with("exec: "), "{message}");
            }
            other => panic!("{command}: {other:?}"),
        }
    }
    assert!(matches!(exec(&test, &[]).await, Err(ExecError::NoCommand)));
    let request = ExecRequest { container_id: "other".to_owned(), ..test.request(&["ls"]) };
    let other = start(&test.client, &test.fifo_dir(), request).await;
    assert!(matches!(other, Err(ExecError::NotRunning { .. })), "{other:?}");
    test.all_cleaned_up().await;
    test.ctr(&["task", "delete", "--force", &test.id]);
    let ended = exec(&test, &["ls"]).await;
    assert!(matches!(ended, Err(ExecError::NotRunning { .. })), "{ended:?}");
    test.all_cleaned_up().await;
}

#[tokio::test]
async fn a_dropped_session_kills_its_process() {
    let Some(test) = TestContainer::start() else { return };
    let mut session = exec(&test, &["sh", "-c", &test.endless()]).await.unwrap();
    let mut ready = [0; 6];
    session.stdout.read_exact(&mut ready).await.unwrap();
    drop(session);
    test.all_cleaned_up().await;
}

#[tokio::test]
async fn orphaned_sessions_are_swept() {
    let Some(test) = TestContainer::start() else { return };
    let mut session = exec(&test, &["sh", "-c", &test.endless()]).await.unwrap();
    let mut ready = [0; 6];
    session.stdout.read_exact(&mut ready).await.unwrap();
    sweep(&test.client, &test.fifo_dir()).await;
    // 128 plus SIGKILL from elsewhere: the session itself did not kill it.
    assert_eq!(session.exit.wait().await.unwrap(), 137);
    test.all_cleaned_up().await;
}
