//! Connections over TLS that are cut in the middle of a stream: reset, or with a client that is suddenly gone. What
//! they used is free again, and other streams continue.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::inventory::Inventory;
use limpet_tests::process::Daemon;
use limpet_tests::websocket::WebSocket;
use limpet_tests::{TestNode, forwarded, process, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::api::{Api, Below};
use super::{STREAM_ALLOWANCE, agent, commands, exec, start_server};

/// How many clients may forward ports at once.
const MAX_FORWARDS: usize = 64;
/// How long it may take until a client that is gone is noticed: at the latest 30 s until something is sent to it, 102 s
/// until that was repeated often enough, and 30 s until that is checked.
const LOST_CLIENT_TIMEOUT: Duration = Duration::from_secs(180);

/// Connects to a port of loopback.
fn connect(port: u16) -> Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).context("connect")
}

/// The streams that are cut while they are in use.
struct Streams {
    sockets: Vec<WebSocket>,
    logs: Box<dyn std::any::Any>,
    below: Vec<Below>,
}

impl Streams {
    /// Opens one stream of each kind; `connect` connects to the API.
    fn open(node: &TestNode, api: &Api, connect: impl Fn() -> Result<TcpStream>) -> Result<Self> {
        let (mut sockets, mut below) = (Vec::new(), Vec::new());
        // The first command writes and is not read; the second is silent and has an input; the third waits for input at
        // a terminal.
        for (command, asked) in [
            (&["yes"][..], "output=1"),
            (&["sleep", "100000"], "input=1&output=1"),
            (&["cat"], "input=1&output=1&tty=1"),
        ] {
            let (mut socket, tcp) = api.command(connect()?, &exec(node, command, asked))?;
            socket.receive()?.context("closed")?;
            sockets.push(socket);
            below.push(tcp);
        }
        let attach = format!("/attach/default/{}/main?output=1&error=1", node.full_name("web"));
        let (socket, tcp) = api.command(connect()?, &attach)?;
        sockets.push(socket);
        below.push(tcp);

        let (mut logs, tcp) = api.over(connect()?)?;
        let path = format!("/containerLogs/default/{}/main?follow=true", node.full_name("web"));
        logs.write_all(format!("GET {path} HTTP/1.1\r\nHost: limpet\r\n\r\n").as_bytes())?;
        let mut said = String::new();
        while !said.contains("serves") {
            let mut piece = [0; 1024];
            let count = logs.read(&mut piece)?;
            ensure!(count > 0, "the log has ended: {said}");
            said += &String::from_utf8_lossy(&piece[..count]);
        }
        below.push(tcp);
        Ok(Self { sockets, logs: Box::new(logs), below })
    }

    /// Resets them all.
    fn reset(self) -> Result<()> {
        self.below.into_iter().try_for_each(Below::reset)?;
        drop((self.sockets, self.logs));
        Ok(())
    }
}

/// Opens as many clients that forward ports as are allowed, each with a connection to the pod.
fn forwards(node: &TestNode, api: &Api) -> Result<Vec<(WebSocket, Below)>> {
    let path = format!("/portForward/default/{}?port={}", node.full_name("web"), forwarded::PORT);
    let forward = |_| {
        // Places of clients that were reset are free a moment later.
        let opened = wait::until(wait::SOON, "a place", || api.forward(connect(api.port()).ok()?, &path).ok());
        let (mut socket, below) = opened?;
        // This request is not complete, so the pod's server waits for the rest.
        socket.send(0, b"GET /noise HTTP/1.0\r\n")?;
        Ok((socket, below))
    };
    let all = (0..MAX_FORWARDS).map(forward).collect::<Result<Vec<_>>>()?;
    ensure!(api.forward(connect(api.port())?, &path).is_err(), "more than {MAX_FORWARDS} clients forward ports");
    Ok(all)
}

/// Waits until only `left` commands are left.
fn wait_commands(node: &TestNode, left: usize, limit: Duration) -> Result<()> {
    wait::until_true(limit, "the end of the commands", || commands(node).is_ok_and(|count| count == left))
}

/// What exists and did not exist before. What has gone since belonged to something earlier.
fn left(node: &TestNode, before: &Inventory) -> Result<Vec<String>> {
    let mut differences = before.differences(&Inventory::take(node)?);
    differences.retain(|difference| difference.starts_with("more: "));
    Ok(differences)
}

/// Whether what is sent on the stream of a `cat` comes back.
fn goes_on(stream: &mut WebSocket) -> Result<()> {
    stream.send(0, b"still here\n")?;
    let mut said = Vec::new();
    while said != b"still here\n" {
        let (channel, data) = stream.receive()?.context("another's stream has ended")?;
        ensure!(channel == 1, "channel {channel}: {}", String::from_utf8_lossy(&data));
        said.extend_from_slice(&data);
    }
    Ok(())
}

pub(crate) fn connections_that_are_reset_leave_nothing(node: &mut TestNode) -> Result<()> {
    let api = Api::start(node, connect)?;
    start_server(node, 0)?;
    let (mut other, _below) = api.command(connect(api.port())?, &exec(node, &["cat"], "input=1&output=1"))?;
    goes_on(&mut other)?;
    let cut = || {
        let (streams, forwards) = (Streams::open(node, &api, || connect(api.port()))?, forwards(node, &api)?);
        streams.reset()?;
        for (socket, below) in forwards {
            below.reset()?;
            drop(socket);
        }
        wait_commands(node, 1, wait::SOON)
    };
    // The first cut of each kind uses memory that stays.
    cut()?;
    node.wait_bpf_programs()?;
    let (inventory, before) = (Inventory::take(node)?, agent(node)?.private);
    cut()?;
    wait::until_none(wait::SOON, "anything that was not there before", || left(node, &inventory))?;
    let after = agent(node)?.private;
    println!("private memory: {before} KiB before, {after} KiB after {MAX_FORWARDS} ports and 5 streams were reset");
    ensure!(after <= before + STREAM_ALLOWANCE, "private memory grew from {before} to {after} KiB");
    goes_on(&mut other)
}

/// A network namespace with a loopback interface.
struct Network(Daemon);

impl Network {
    fn start(node: &TestNode) -> Result<Self> {
        let mut command = Command::new("unshare");
        // By the node's directory in its environment a later run finds the process if this one is killed.
        command.args(["--net", "sleep", "100000"]).env("LIMPET_TEST_NODE", node.dir());
        let network = Self(Daemon::start(&mut command, &node.dir().join("network.log"))?);
        let here = std::fs::read_link("/proc/self/ns/net")?;
        let theirs = || std::fs::read_link(format!("/proc/{}/ns/net", network.0.pid()));
        wait::until_true(wait::SOON, "a network namespace", || theirs().is_ok_and(|theirs| theirs != here))?;
        network.run(&["ip", "link", "set", "lo", "up"])?;
        Ok(network)
    }

    fn run(&self, command: &[&str]) -> Result<String> {
        let target = self.0.pid().to_string();
        process::checked(Command::new("nsenter").args(["--target", &target, "--net", "--"]).args(command))
    }

    /// Connects within it, from a thread that ends there.
    fn connect(&self, port: u16) -> Result<TcpStream> {
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", self.0.pid()))?;
        let within = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            connect(port)
        };
        std::thread::spawn(within).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Drops all packets to that port or from it.
    fn silence(&self, port: u16) -> Result<()> {
        for side in ["--sport", "--dport"] {
            self.run(&["iptables", "-A", "INPUT", "-p", "tcp", side, &port.to_string(), "-j", "DROP"])?;
        }
        Ok(())
    }
}

pub(crate) fn clients_that_are_gone_without_a_word_are_noticed(node: &mut TestNode) -> Result<()> {
    let network = Network::start(node)?;
    node.agent.move_to_network_of(network.0.pid());
    let api = Api::start(node, |port| network.connect(port))?;
    start_server(node, 0)?;
    let (mut other, _below) = api.command(network.connect(api.port())?, &exec(node, &["cat"], "input=1&output=1"))?;
    // The window of this stream stays closed while the others end.
    let (mut paused, _below) = api.command(network.connect(api.port())?, &exec(node, &["yes"], "output=1"))?;
    goes_on(&mut other)?;
    node.wait_bpf_programs()?;
    let inventory = Inventory::take(node)?;

    let streams = Streams::open(node, &api, || network.connect(api.port()))?;
    let path = format!("/portForward/default/{}?port={}", node.full_name("web"), forwarded::PORT);
    let (mut forward, below) = api.forward(network.connect(api.port())?, &path)?;
    forward.send(0, b"GET /noise HTTP/1.0\r\n")?;
    for below in streams.below.iter().chain([&below]) {
        network.silence(below.port()?)?;
    }
    let start = Instant::now();
    wait_commands(node, 2, LOST_CLIENT_TIMEOUT)?;
    println!("the commands of clients that are gone ended after {} s", start.elapsed().as_secs());
    wait::until_none(LOST_CLIENT_TIMEOUT, "anything that was not there before", || left(node, &inventory))?;
    println!("all that clients had who are gone was free after {} s", start.elapsed().as_secs());
    goes_on(&mut other)?;
    // This is more than the socket, the pipe and the agent buffer.
    let mut read = 0;
    while read < 16 << 20 {
        let (channel, data) = paused.receive()?.context("a client that reads nothing was disconnected")?;
        ensure!(channel == 1, "channel {channel}: {}", String::from_utf8_lossy(&data));
        read += data.len();
    }
    Ok(())
}
