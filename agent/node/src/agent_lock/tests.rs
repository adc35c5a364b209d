#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::*;

fn places(root: &Path) -> AgentPlaces {
    let run_dir = root.join("run/limpet");
    AgentPlaces {
        root_dir: root.join("lib/limpet"),
        socket: run_dir.join("limpet.sock"),
        run_dir,
        cgroup_root: "/".into(),
    }
}

#[test]
fn a_second_agent_is_rejected_by_name_until_the_first_one_exits() {
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    let first = lock_node(&places).unwrap();
    let error = lock_node(&places).unwrap_err();
    let expected = format!("another limpet runs on this node: pid {} (", std::process::id());
    assert!(error.to_string().starts_with(&expected) && error.to_string().contains("), since 2"), "{error}");
    assert_eq!(error.exit_code(), 5);

    // Another root directory does not help if the run directory is the same.
    let elsewhere = AgentPlaces { root_dir: root.path().join("other"), ..places.clone() };
    let StartError::Locked { path, .. } = lock_node(&elsewhere).unwrap_err() else { panic!("not error by the lock") };
    assert_eq!(path, places.run_dir.join("lock"));
    drop(first);
    lock_node(&places).unwrap();
}

#[test]
fn a_lock_held_only_by_a_dead_agent_s_child_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    drop(lock_node(&places).unwrap());
    let path = places.root_dir.join(LOCK);
    let ended = std::process::Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id()));
    fs::write(&path, format!("{} 2026-01-01T00:00:00Z\n", ended.unwrap())).unwrap();
    let inherited = File::open(&path).unwrap();
    flock(&inherited, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| lock_node(&places));
        // The next agent blocks in flock until the child releases the lock.
        let waits = || fs::read_to_string("/proc/locks").unwrap().lines().any(|line| line.contains("-> FLOCK"));
        while !waits() && !next.is_finished() {
            std::thread::yield_now();
        }
        drop(inherited);
        next.join().unwrap().unwrap();
    });
}

#[test]
fn a_served_socket_is_in_use_and_a_stale_one_is_not() {
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    drop(lock_node(&places).unwrap());
    let listener = UnixListener::bind(&places.socket).unwrap();
    let error = lock_node(&places).unwrap_err();
    let StartError::SocketInUse { holder, .. } = &error else { panic!("{error}") };
    assert!(holder.contains(&format!("pid {}", std::process::id())), "{holder}");
    assert_eq!(error.exit_code(), 5);
    // Shut down, because a child that another test is starting may have inherited the listener.
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
    assert!(places.socket.exists());
    lock_node(&places).unwrap();
}

#[test]
fn a_socket_held_only_by_a_dead_agent_s_child_is_free() {
    /// Makes this test listen at a path, like an agent that exits and leaves a child.
    const LISTEN: &str = "LIMPET_TEST_LISTEN";
    if let Some(path) = std::env::var_os(LISTEN) {
        let listener = UnixListener::bind(path).unwrap();
        let mut child = std::process::Command::new("sleep");
        child.arg("1000").stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
        println!("child {}", child.spawn().unwrap().id());
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    drop(lock_node(&places).unwrap());
    let mut agent = std::process::Command::new(std::env::current_exe().unwrap());
    agent.args(["--exact", "--nocapture", "agent_lock::tests::a_socket_held_only_by_a_dead_agent_s_child_is_free"]);
    let stdout = agent.env(LISTEN, &places.socket).output().unwrap();
    let stdout = String::from_utf8(stdout.stdout).unwrap();
    let child = stdout.split_once("child ").and_then(|(_, rest)| rest.split_whitespace().next()).unwrap();

    let answers = peer::pid(&places.socket);
    let locked = lock_node(&places);
    kill_process(Pid::from_raw(child.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    answers.unwrap();
    locked.unwrap();
}

#[test]
fn a_disk_error_is_reported_with_its_path() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let error = lock_node(&places(&root.path().join("file"))).unwrap_err();
    assert!(error.to_string().contains("cannot make") && error.to_string().contains("file/lib/limpet"), "{error}");
    assert_eq!(error.exit_code(), 1);
}
