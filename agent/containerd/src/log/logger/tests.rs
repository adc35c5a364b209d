//! Following and replacing a logger, with shells in place of loggers and of the container.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command as StdCommand};

use super::*;

/// A process that reads nothing and runs until it is killed, with these arguments and this environment.
fn idle(dir: &Path, arguments: &[&str], id: &ContainerId) -> StdCommand {
    // The shell keeps its arguments, which identify it as a logger.
    fs::write(dir.join("logger"), "sleep 1000; :").unwrap();
    let mut command = StdCommand::new("/bin/sh");
    command.current_dir(dir).arg0("limpet").args(arguments).env("CONTAINER_ID", id.as_str());
    command
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Ends a shell and its children, which hold the pipes as well.
fn end_group(mut shell: Child) {
    let group = rustix::process::Pid::from_child(&shell);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    shell.wait().unwrap();
}

/// A container id that no other test uses.
fn new_id(number: u32) -> ContainerId {
    ContainerId::new(format!("{:032x}{number:032x}", std::process::id()))
}

#[tokio::test]
async fn output_waits_for_the_next_logger_and_is_not_lost() {
    let (dir, id) = (tempfile::tempdir().unwrap(), new_id(1));
    let (out_reader, mut stdout) = io::pipe().unwrap();
    let (err_reader, stderr) = io::pipe().unwrap();
    let mut command = idle(dir.path(), &["logger", "7:2:0:/0.log", "replacement"], &id);
    let killed = command.stdin(out_reader).stdout(err_reader).process_group(0).spawn().unwrap();
    drop(command);
    let container = StdCommand::new("sleep").arg("1000").spawn().unwrap();
    let logger = find(container.id(), &id, &LoggerScan::default()).unwrap();
    let (pid, handle, value) = logger.running.unwrap();
    assert_eq!((pid, value.as_os_str()), (killed.id(), OsStr::new("7:2:0:/0.log")));
    assert!(logger.pipes.iter().all(Option::is_some) && handle.is_alive() && !is_over(&logger.pipes));

    end_group(killed);
    handle.ended().await.unwrap();
    stdout.write_all(b"kept\n").unwrap();
    assert!(!is_over(&logger.pipes));

    let (program, log) = (dir.path().join("program"), dir.path().join("log"));
    fs::write(
        &program,
        format!("#!/bin/sh\necho \"$*\" $CONTAINER_ID > {0}\ncat /proc/self/fd/0 >> {0}\n", log.display()),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let invocation = Invocation { value, replaces: true };
    let (_, next) = start(&logger.pipes, invocation, &id, &program).await.unwrap();
    drop((stdout, stderr));
    next.unwrap().ended().await.unwrap();
    assert_eq!(fs::read_to_string(log).unwrap(), format!("logger 7:2:0:/0.log replacement {id}\nkept\n"));
    assert!(is_over(&logger.pipes));
    end(container);
}

#[test]
fn the_logger_of_another_container_is_not_taken() {
    let (dir, id) = (tempfile::tempdir().unwrap(), new_id(2));
    let (reader, _stdout) = io::pipe().unwrap();
    let mut command = idle(dir.path(), &["logger", "7:2:0:/0.log", "replacement"], &new_id(3));
    let other = command.stdin(reader).process_group(0).spawn().unwrap();
    let container = StdCommand::new("sleep").arg("1000").spawn().unwrap();
    let logger = find(container.id(), &id, &LoggerScan::default()).unwrap();
    assert!(logger.running.is_none(), "{logger:?}");
    end_group(other);
    end(container);
}

#[test]
fn only_a_pipe_that_the_shim_writes_to_is_the_containers_output() {
    let (own_reader, writer) = io::pipe().unwrap();
    let (_reader, shims) = io::pipe().unwrap();
    let mut command = StdCommand::new("sleep");
    // This process keeps a writing end of the second pipe only.
    let container = command.arg("1000").stdout(writer).stderr(shims.try_clone().unwrap()).spawn().unwrap();
    drop(command);
    let (shim, container_pid) = (std::process::id(), container.id());
    assert!(!feeds(shim, container_pid, 1), "its reading end is here, as that of a process that captures output");
    assert!(feeds(shim, container_pid, 2));
    assert!(!feeds(shim, container_pid, 99));
    drop(own_reader);
    end(container);
}

#[test]
fn descriptors_are_told_apart_by_their_access() {
    for (info, writable) in [
        ("pos:\t0\nflags:\t02\nmnt_id:\t15\n", true),
        ("pos:\t0\nflags:\t02000001\n", true),
        ("pos:\t0\nflags:\t02004000\n", false),
        ("pos:\t0\n", false),
        ("flags:\tx\n", false),
    ] {
        assert_eq!(is_writable(info), writable, "{info:?}");
    }
}
