//! A network of a node's own, in which its Services and addresses do not meet those of the machine.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::{fs, thread};

use anyhow::{Context as _, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::Daemon;
use crate::{TestNode, agent, process, wait};

/// The address of the node in its own network.
pub const NODE: &str = "198.51.100.7";
/// The node's name server, of the file that a test's node has.
const NODES_SERVER: &str = "192.0.2.53";

/// Set in a program that runs in a network of its own.
const ENTERED_VARIABLE: &str = "LIMPET_TEST_OWN_NETWORK";
/// What a network of a program's own has: loopback with the node's address, and a way out that leads nowhere, as a node without
/// a cable has it. Without a way out the kernel passes nothing on.
const OWN: &str = "\
set -e
ip link set lo up
ip address add $NODE/32 dev lo
ip link add out type veth peer name nowhere
ip link set nowhere up
ip link set out up
ip address add 203.0.113.2/24 dev out
ip route add default via 203.0.113.1
echo 1 > /proc/sys/net/ipv4/ip_forward";

/// Runs this program again in a network of its own, and ends with it; returns in the one that was run. Everything that is started
/// from then on is in that network, so that rules and addresses of the machine are not touched. Call it first of all.
pub fn enter() -> Result<()> {
    if std::env::var_os(ENTERED_VARIABLE).is_some() {
        return process::checked(Command::new("sh").args(["-c", OWN]).env("NODE", NODE)).map(drop);
    }
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(ENTERED_VARIABLE, "1");
    let status = command.status().context("unshare")?;
    std::process::exit(status.code().unwrap_or(1))
}

/// A network of the node's own; the agent runs in it.
#[derive(Debug)]
pub struct OwnNetwork(Daemon);

impl OwnNetwork {
    /// The network, in which the agent is started.
    pub fn start(node: &mut TestNode) -> Result<Self> {
        let network = Self::prepare(node)?;
        node.agent.start()?;
        Ok(network)
    }

    /// The network, in which the agent will be.
    pub fn prepare(node: &mut TestNode) -> Result<Self> {
        Self::hold(node, &["--net"])
    }

    /// The network with mounts of its own, in which containerd is, and in which the agent will be.
    pub fn prepare_host(node: &mut TestNode) -> Result<Self> {
        let network = Self::hold(node, &["--net", "--mount"])?;
        node.containerd.stop()?;
        node.containerd.move_to_host_of(network.0.pid());
        node.containerd.start()?;
        let program = agent::program()?;
        let script = node.dir().join("limpet-of-host");
        let enter = format!("exec nsenter --target {} --mount -- {} \"$@\"", network.0.pid(), program.display());
        fs::write(&script, format!("#!/bin/sh\n{enter}\n"))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        node.agent.run_program(script);
        Ok(network)
    }

    fn hold(node: &mut TestNode, namespaces: &[&str]) -> Result<Self> {
        let mut command = Command::new("unshare");
        // The node's directory in its environment lets a later run find it where this one was killed.
        command.args(namespaces).args(["sleep", "100000"]).env("LIMPET_TEST_NODE", node.dir());
        let holder = Daemon::start(&mut command, &node.dir().join("network.log"))?;
        let ours = fs::read_link("/proc/self/ns/net")?;
        let theirs = || fs::read_link(format!("/proc/{}/ns/net", holder.pid()));
        wait::until_true(wait::SOON, "a network namespace", || theirs().is_ok_and(|theirs| theirs != ours))?;
        let network = Self(holder);
        network.run(&["ip", "link", "set", "lo", "up"])?;
        for address in [NODE, NODES_SERVER] {
            network.run(&["ip", "address", "add", &format!("{address}/32"), "dev", "lo"])?;
        }
        node.cni.as_ref().context("no network")?.hairpin()?;
        node.agent.move_to_network_of(network.0.pid());
        Ok(network)
    }

    /// Runs a command in the node's network.
    pub fn run(&self, command: &[&str]) -> Result<String> {
        self.enter(&["--net"], command)
    }

    /// Runs a command in the node's network and among its mounts.
    pub fn run_on_host(&self, command: &[&str]) -> Result<String> {
        self.enter(&["--net", "--mount"], command)
    }

    fn enter(&self, namespaces: &[&str], command: &[&str]) -> Result<String> {
        let target = self.0.pid().to_string();
        process::checked(Command::new("nsenter").args(["--target", &target]).args(namespaces).arg("--").args(command))
    }

    /// Does something on a thread in the node's network.
    pub fn within<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let network = fs::File::open(format!("/proc/{}/ns/net", self.0.pid()))?;
        let moved = || -> Result<T> {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            act()
        };
        thread::scope(|scope| scope.spawn(moved).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Answers all queries at the node's name server with one address, until the test ends.
    pub fn answer_names(&self) -> Result<()> {
        let socket = self.within(|| Ok(UdpSocket::bind((NODES_SERVER, 53))?))?;
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                // The question, as an answer, and behind it the address 192.0.2.7 for its name.
                let mut answer = query[..length.min(query.len())].to_vec();
                let end = 12 + answer[12..].iter().position(|byte| *byte == 0).unwrap_or(0) + 5;
                answer.truncate(end);
                (answer[2], answer[3], answer[7], answer[11]) = (0x81, 0x80, 1, 0);
                answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
                let _ = socket.send_to(&answer, client);
            }
        });
        Ok(())
    }
}
