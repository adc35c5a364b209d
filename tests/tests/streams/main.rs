//! Streams of kubelet's server: many bytes, many at once, clients that read nothing or are cut off, and containers that
//! die in the middle. What the agent holds for them is counted and measured.
//!
//! `LIMPET_TEST_LONG=1` sends 1 GiB each way instead of 16 MiB, has 200 streams at once instead of 20, and waits until
//! clients that are gone without a word are noticed.

mod api;
mod cut;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cut::{clients_that_are_gone_without_a_word_are_noticed, connections_that_are_reset_leave_nothing};
use limpet_tests::footprint::Footprint;
use limpet_tests::forwarded::{self, Forwarded};
use limpet_tests::inventory::Inventory;
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::node::NodeOptions;
use limpet_tests::process::Daemon;
use limpet_tests::terminal::Terminal;
use limpet_tests::websocket::WebSocket;
use limpet_tests::{TestNode, case, process, suite, wait};
use serde_json::{Value, json};

/// A port of the pod that answers with the checksum of what it gets, and one that sends it back.
const CHECKSUM_PORT: u16 = 9000;
const ECHO_PORT: u16 = 9001;
/// What the agent's private memory may grow by while one stream carries whatever it carries, in KiB: the buffers of both
/// ends of the stream, and what the allocator keeps.
const STREAM_ALLOWANCE: u64 = 2 << 10;
/// The most that a stream whose client reads nothing holds, in KiB: pieces of 16 KiB on their way.
const MAX_STUCK_KIB: u64 = 128;

fn main() -> ExitCode {
    let mut cases = vec![
        case!(whatever_a_stream_carries_arrives_and_takes_no_memory).on(|node| node.cni = true),
        case!(many_streams_at_once_carry_their_own_bytes).on(|node| node.cni = true),
        case!(clients_that_are_cut_off_or_read_nothing_leave_nothing).on(|node| node.cni = true),
        case!(a_container_that_dies_ends_its_streams).on(|node| node.cni = true),
        case!(an_idle_stream_ends_and_one_in_use_does_not).on(|node| {
            node.cni = true;
            node.kubelet.push("streamingConnectionIdleTimeout: 2s".to_owned());
        }),
        case!(connections_that_are_reset_leave_nothing).on(|node| (node.cni, node.agent) = (true, false)),
    ];
    if suite::is_long() {
        let networked = |node: &mut NodeOptions| (node.cni, node.agent) = (true, false);
        cases.push(case!(clients_that_are_gone_without_a_word_are_noticed).on(networked));
    }
    suite::run(cases)
}

fn size() -> u64 {
    if suite::is_long() { 1 << 30 } else { 16 << 20 }
}

fn many() -> usize {
    if suite::is_long() { 200 } else { 20 }
}

/// A pod with noise in a file, which it serves, and with the ports above.
fn server(bytes: u64) -> Value {
    let script = format!(
        "head -c {bytes} /dev/urandom > /data/noise; httpd -p 127.0.0.1:{} -h /data; \
         nc -ll -p {CHECKSUM_PORT} -e sha256sum & nc -ll -p {ECHO_PORT} -e cat & \
         trap 'exit 0' TERM; echo serves; while :; do [ -e /data/die ] && exit 9; usleep 50000; done",
        forwarded::PORT
    );
    let mounts = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    pod(
        "web",
        json!({
            "hostNetwork": false,
            "containers": [with(shell("main", &script), mounts)],
            "volumes": [{ "name": "data", "emptyDir": {} }],
        }),
    )
}

fn start_server(node: &TestNode, bytes: u64) -> Result<()> {
    node.apply(&server(bytes))?;
    node.wait_logged("web", "main", "serves")?;
    // The BPF programs need memory when they are loaded, once the first pod runs.
    wait::until_true(wait::SOON, "the BPF programs, or why there are none", || {
        node.agent.log().contains("BPF programs")
    })
}

fn agent(node: &TestNode) -> Result<Footprint> {
    Ok(Footprint::measure(node.agent.pid().context("the agent does not run")?))
}

/// The path of a command's stream.
fn exec(node: &TestNode, command: &[&str], streams: &str) -> String {
    let words: String = command.iter().map(|word| format!("&command={}", word.replace(' ', "+"))).collect();
    format!("/exec/default/{}/main?{streams}{words}", node.full_name("web"))
}

/// Whether the command of a stream has ended with that code.
fn has_exited(status: &[u8], code: u64) -> bool {
    let status: Value = serde_json::from_slice(status).unwrap_or_default();
    match code {
        0 => status["status"] == "Success",
        code => status["details"]["causes"][0]["message"].as_str() == Some(&*code.to_string()),
    }
}

/// Does `work`, and returns its result and the most private memory that the agent had meanwhile, in KiB.
fn watched<T>(node: &TestNode, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let (pid, over) = (node.agent.pid().context("the agent does not run")?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(Footprint::measure(pid).private);
                std::thread::sleep(Duration::from_millis(50));
            }
            most
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        let most = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((done?, most))
    })
}

/// The path of the pod's noise on this machine.
fn noise(node: &TestNode) -> Result<PathBuf> {
    let web = node.pod("web").context("no pod")?;
    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    Ok(node.agent.settings().root().join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/data/noise"))
}

fn checksum(said: &str) -> String {
    said.split_whitespace().next().unwrap_or_default().to_owned()
}

/// The output of `command` with the file as its input.
fn fed(mut command: Command, file: &Path) -> Result<String> {
    let output = command.stdin(File::open(file)?).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn whatever_a_stream_carries_arrives_and_takes_no_memory(node: &mut TestNode) -> Result<()> {
    start_server(node, size())?;
    let noise = noise(node)?;
    let expected = checksum(&process::checked(Command::new("sha256sum").arg(&noise))?);
    let forward = |port: u16, log: &str| {
        let mut command =
            node.agent.cli_command(&["port-forward", "web", &format!(":{port}"), "--address=127.0.0.1"])?;
        Forwarded::start_to(&mut command, &node.dir().join(log), port)
    };
    let (down, up) = (forward(forwarded::PORT, "down.log")?, forward(CHECKSUM_PORT, "up.log")?);
    // The first stream of each kind uses memory that stays.
    node.exec("web", "main", &["true"])?;

    let before = agent(node)?.private;
    let into_exec = || fed(node.agent.cli_command(&["exec", "-i", "web", "--", "sha256sum"])?, &noise);
    let out_of_exec = || {
        let mut cat = node.agent.cli_command(&["exec", "web", "--", "cat", "/data/noise"])?;
        let mut cat = cat.stdout(Stdio::piped()).spawn()?;
        let sum = Command::new("sha256sum").stdin(cat.stdout.take().context("no output")?).output()?;
        ensure!(cat.wait()?.success(), "cat");
        Ok(String::from_utf8(sum.stdout)?)
    };
    let into_port = || {
        let mut stream = TcpStream::connect(("127.0.0.1", up.port()))?;
        std::io::copy(&mut File::open(&noise)?, &mut stream)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let out_of_port = || {
        let get = format!("curl -sS --fail http://127.0.0.1:{}/noise | sha256sum", down.port());
        process::checked(Command::new("sh").args(["-c", &get]))
    };
    let ways: [(&str, &dyn Fn() -> Result<String>); 4] = [
        ("into exec", &into_exec),
        ("out of exec", &out_of_exec),
        ("into a port", &into_port),
        ("out of a port", &out_of_port),
    ];
    for (way, transfer) in ways {
        let (said, most) = watched(node, transfer).context(way)?;
        println!("{} MiB {way}: private memory {before} KiB before, at most {most} KiB meanwhile", size() >> 20);
        ensure!(checksum(&said) == expected, "{way}: {said} instead of {expected}");
        ensure!(most <= before + STREAM_ALLOWANCE, "{way}: private memory grew from {before} to {most} KiB");
    }
    Ok(())
}

fn many_streams_at_once_carry_their_own_bytes(node: &mut TestNode) -> Result<()> {
    start_server(node, 0)?;
    let (socket, path) = (node.agent.settings().socket(), exec(node, &["cat"], "input=1&output=1"));
    let before = agent(node)?.private;
    let mut streams = (0..many()).map(|_| WebSocket::open(&socket, &path)).collect::<Result<Vec<_>>>()?;
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.send(0, format!("first of {number}\n").as_bytes())?;
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut said = Vec::new();
        while !said.ends_with(b"\n") {
            let (channel, data) = stream.receive()?.context("closed")?;
            ensure!(channel == 1, "{number}: channel {channel}: {}", String::from_utf8_lossy(&data));
            said.extend_from_slice(&data);
        }
        ensure!(said == format!("first of {number}\n").as_bytes(), "{number}: {said:?}");
    }
    let meanwhile = agent(node)?;
    println!(
        "{} commands at once: private memory {before} KiB before, {} KiB meanwhile, {} descriptors",
        many(),
        meanwhile.private,
        meanwhile.descriptors
    );
    for (number, mut stream) in streams.into_iter().enumerate() {
        stream.send(0, format!("last of {number}\n").as_bytes())?;
        stream.send(255, &[0])?;
        let [_, output, _, status] = stream.finish()?;
        ensure!(output == format!("last of {number}\n").as_bytes(), "{number}: {output:?}");
        ensure!(has_exited(&status, 0), "{number}: {}", String::from_utf8_lossy(&status));
    }

    // A client forwards 128 connections at most.
    let forwards = (0..2).map(|number| {
        let port = format!(":{ECHO_PORT}");
        let mut command = node.agent.cli_command(&["port-forward", "web", &port, "--address=127.0.0.1"])?;
        Forwarded::start_to(&mut command, &node.dir().join(format!("echo-{number}.log")), ECHO_PORT)
    });
    let forwards = forwards.collect::<Result<Vec<_>>>()?;
    let exchange = |connection: &mut TcpStream, number: usize| -> Result<()> {
        connection.write_all(&vec![number as u8; 1000])?;
        let mut echo = vec![0; 1000];
        connection.read_exact(&mut echo).with_context(|| format!("connection {number}"))?;
        ensure!(echo.iter().all(|byte| *byte == number as u8), "connection {number}: another's bytes");
        Ok(())
    };
    // They connect one after the other, because the pod's server has a short queue; then all of them are open.
    let connect = |number: usize| {
        let mut connection = TcpStream::connect(("127.0.0.1", forwards[number % 2].port()))?;
        connection.set_read_timeout(Some(wait::SOON))?;
        exchange(&mut connection, number).map(|()| connection)
    };
    let mut connections = (0..many()).map(connect).collect::<Result<Vec<_>>>()?;
    for (number, connection) in connections.iter_mut().enumerate().rev() {
        exchange(connection, number)?;
    }
    Ok(())
}

/// Opens the streams that are cut, each while it is in use.
fn open_streams(node: &TestNode) -> Result<Vec<WebSocket>> {
    let socket = node.agent.settings().socket();
    let mut streams = Vec::new();
    for _ in 0..many() / 4 {
        // The first command writes and is not read; the second reads nothing of its input; the third is silent; the
        // fourth waits for input that does not come.
        for (command, asked) in [
            (&["yes"][..], "output=1"),
            (&["sleep", "100000"], "input=1&output=1"),
            (&["sleep", "100001"], "output=1&error=1"),
            (&["cat"], "input=1&output=1&tty=1"),
        ] {
            let mut stream = WebSocket::open(&socket, &exec(node, command, asked))?;
            if suite::is_long() && command == ["sleep", "100000"] {
                // This is more than a pipe and the agent buffer, so that only a ping shows that the client is gone.
                (0..12).try_for_each(|_| stream.send(0, &vec![0; 32 << 10]))?;
            }
            streams.push(stream);
        }
    }
    Ok(streams)
}

/// The processes of the pod's commands.
fn commands(node: &TestNode) -> Result<usize> {
    let web = node.pod("web").context("no pod")?;
    let main = limpet_tests::cgroup::main_process(node, &web)?;
    let namespace_of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let namespace = namespace_of(&main.to_string()).context("no namespace")?;
    let names = ["yes", "sleep", "cat"];
    let all = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let in_namespace =
        all.filter(|pid| pid.parse::<u32>().is_ok()).filter(|pid| namespace_of(pid).as_ref() == Some(&namespace));
    let is_command = |pid: &String| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        names.contains(&line.split('\0').next().unwrap_or_default())
    };
    Ok(in_namespace.filter(is_command).count())
}

fn clients_that_are_cut_off_or_read_nothing_leave_nothing(node: &mut TestNode) -> Result<()> {
    start_server(node, 64 << 20)?;
    drop(open_streams(node)?);
    wait::until_true(wait::SOON, "the end of the first commands", || commands(node).is_ok_and(|count| count == 0))?;
    let sessions = node.agent.settings().run().join("exec");
    wait::until_true(wait::SOON, "the end of their pipes", || {
        sessions.read_dir().is_ok_and(|mut left| left.next().is_none())
    })?;
    node.wait_bpf_programs()?;
    let before = agent(node)?.private;
    let inventory = Inventory::take(node)?;

    let streams = open_streams(node)?;
    let log = format!("/containerLogs/default/{}/main?follow=true", node.full_name("web"));
    let mut logs = Command::new("curl");
    logs.args(["-sSN", "--unix-socket"]).arg(node.agent.settings().socket()).arg(format!("http://limpet{log}"));
    let mut logs = Daemon::start(&mut logs, &node.dir().join("followed.log"))?;
    wait::until_true(wait::SOON, "a followed log", || logs.log().contains("serves"))?;
    let port = format!(":{}", forwarded::PORT);
    // A stream that is not read delays the others of its connection, so each has its own connection.
    let downloads = (0..many() / 4).map(|number| {
        let mut forward = node.agent.cli_command(&["port-forward", "web", &port, "--address=127.0.0.1"])?;
        let forward = Forwarded::start(&mut forward, &node.dir().join(format!("forward-{number}.log")))?;
        let mut stream = TcpStream::connect(("127.0.0.1", forward.port()))?;
        stream.set_read_timeout(Some(wait::SOON))?;
        stream.write_all(b"GET /noise HTTP/1.0\r\n\r\n")?;
        stream.read_exact(&mut [0; 12])?;
        Ok((forward, stream))
    });
    let downloads = downloads.collect::<Result<Vec<_>>>()?;
    wait::until_true(wait::SOON, "all commands", || commands(node).is_ok_and(|count| count >= many() / 4 * 4))?;
    let meanwhile = agent(node)?.private;
    let count = (streams.len() + downloads.len()) as u64;
    println!("{count} streams that nobody reads: private memory {before} KiB before, {meanwhile} KiB meanwhile");
    ensure!(
        meanwhile <= before + STREAM_ALLOWANCE + count * MAX_STUCK_KIB,
        "private memory: {before} to {meanwhile} KiB"
    );

    // Unread data is dropped with them, so connections are reset.
    drop((streams, downloads));
    logs.kill();
    wait::until_true(wait::SOON, "the end of all commands", || commands(node).is_ok_and(|count| count == 0))?;
    let differences = || Ok(inventory.differences(&Inventory::take(node)?));
    wait::until_none(wait::SOON, "anything that was not there before", differences)?;
    // The allocator keeps pages, but what they held is free again, so as many streams need no more memory.
    let kept = agent(node)?.private;
    let again = open_streams(node)?;
    let second = agent(node)?.private;
    println!("private memory once they are cut off: {kept} KiB, and with as many commands again: {second} KiB");
    let most = meanwhile.max(kept) + STREAM_ALLOWANCE;
    ensure!(second <= most, "private memory: {second} KiB the second time, {meanwhile} KiB the first");
    drop(again);
    wait::until_true(wait::SOON, "the end of the last commands", || commands(node).is_ok_and(|count| count == 0))
}

fn a_container_that_dies_ends_its_streams(node: &mut TestNode) -> Result<()> {
    start_server(node, 0)?;
    let socket = node.agent.settings().socket();
    let mut silent = WebSocket::open(&socket, &exec(node, &["sh", "-c", "echo here; sleep 100000"], "output=1"))?;
    let mut busy = WebSocket::open(&socket, &exec(node, &["yes"], "output=1"))?;
    let attach = format!("/attach/default/{}/main?output=1&error=1", node.full_name("web"));
    let attached = WebSocket::open(&socket, &attach)?;
    let mut logs = node.agent.cli_command(&["logs", "-f", "web"])?;
    let shown = node.dir().join("logs.shown");
    logs.stdin(Stdio::null());
    let mut logs = Terminal::piped(logs, &shown)?;
    logs.wait_for("serves")?;
    let port = format!(":{ECHO_PORT}");
    let mut forward = node.agent.cli_command(&["port-forward", "web", &port, "--address=127.0.0.1"])?;
    let forward = Forwarded::start_to(&mut forward, &node.dir().join("forward.log"), ECHO_PORT)?;
    let mut connection = TcpStream::connect(("127.0.0.1", forward.port()))?;
    connection.set_read_timeout(Some(wait::SOON))?;
    connection.write_all(b"hello")?;
    connection.read_exact(&mut [0; 5])?;
    ensure!(silent.receive()?.is_some() && silent.receive()?.is_some_and(|(_, data)| data == b"here\n"), "not started");
    ensure!(busy.receive()?.is_some(), "not started");

    node.exec("web", "main", &["touch", "/data/die"]).ok();
    let [.., status] = silent.finish()?;
    ensure!(has_exited(&status, 137), "a silent command: {}", String::from_utf8_lossy(&status));
    let [.., status] = busy.finish()?;
    ensure!(has_exited(&status, 137), "a busy command: {}", String::from_utf8_lossy(&status));
    let [.., status] = attached.finish()?;
    ensure!(has_exited(&status, 0), "attached: {}", String::from_utf8_lossy(&status));
    logs.wait_end()?;
    // The connection is closed or reset, because its peer is gone.
    ensure!(matches!(connection.read(&mut [0; 1]), Ok(0) | Err(_)), "the forwarded connection goes on");
    Ok(())
}

fn an_idle_stream_ends_and_one_in_use_does_not(node: &mut TestNode) -> Result<()> {
    start_server(node, 0)?;
    let socket = node.agent.settings().socket();
    let script = "while :; do echo on; usleep 100000; done %26 read line; echo said $line; read line";
    let mut busy = WebSocket::open(&socket, &exec(node, &["sh", "-c", script], "input=1&output=1"))?;
    let idle = WebSocket::open(&socket, &exec(node, &["sleep", "100000"], "input=1&output=1"))?;
    let attach = format!("/attach/default/{}/main?output=1&error=1", node.full_name("web"));
    let attached = WebSocket::open(&socket, &attach)?;
    let mut forward = node.agent.cli_command(&["port-forward", "web", &format!(":{ECHO_PORT}")])?;
    let mut forward = Daemon::start(&mut forward, &node.dir().join("forward.log"))?;

    // There is no status, because the commands have not ended by themselves.
    ensure!(idle.finish()?[3].is_empty() && attached.finish()?[3].is_empty(), "a status");
    ensure!(!forward.wait(wait::SOON)?.success(), "port-forward succeeded");
    ensure!(forward.log().contains("lost connection to pod"), "{}", forward.log());
    wait::until_true(wait::SOON, "the end of the idle command", || commands(node).is_ok_and(|count| count == 0))?;
    busy.send(0, b"more\n")?;
    let mut said = String::new();
    while !said.contains("said more") {
        let (channel, data) = busy.receive()?.context("the stream in use has ended")?;
        ensure!(channel == 1, "channel {channel}: {}", String::from_utf8_lossy(&data));
        said += &String::from_utf8_lossy(&data);
    }
    Ok(())
}
