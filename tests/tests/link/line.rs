//! The line between a node and its apiserver. The agent runs in its own network namespace, from which only this line
//! leads out.
//!
//!     node: uplink ── line: node | relay | server ── the machine's own: lineN
//!
//! The middle is a namespace, too. Both end with the processes that hold them, and the devices with them.

use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use limpet_tests::claim::Subnet;
use limpet_tests::process::Daemon;
use limpet_tests::{TestNode, process, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::relay::{self, Relay, Way};

/// The seed of the losses.
const SEED: u64 = 64;

/// A line. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Line {
    to_server: Relay,
    to_node: Relay,
    subnet: Subnet,
    node: Daemon,
    middle: Daemon,
}

impl Line {
    /// Lays a line, which the node's agent uses from its next start on.
    pub(crate) fn lay(node: &mut TestNode) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let outer = format!("line{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let (namespace_of_node, middle, subnet) = (namespace(node)?, namespace(node)?, Subnet::claim()?);
        let [own_pid, middle_pid] = [namespace_of_node.pid(), middle.pid()].map(|pid| pid.to_string());
        for (end, name, owner) in [(&outer, "server", None), (&"uplink".to_owned(), "node", Some(&own_pid))] {
            let mut command = Command::new("ip");
            command.args(["link", "add", end, "type", "veth", "peer", "name", name, "netns", &middle_pid]);
            process::checked(&mut command)?;
            if let Some(owner) = owner {
                process::checked(Command::new("ip").args(["link", "set", end, "netns", owner]))?;
            }
            inside(&middle, &["ip", "link", "set", name, "up"])?;
        }
        let address = |last: u8| format!("{}{last}/24", subnet.prefix());
        // The relay handles frames as they are on a wire, so no frame may be so large that a device would cut it up.
        let set: [&[&str]; 3] = [
            &["ip", "link", "set", &outer, "gso_max_segs", "1"],
            &["ip", "address", "add", &address(1), "dev", &outer],
            &["ip", "link", "set", &outer, "up"],
        ];
        set.iter().try_for_each(|line| process::checked(Command::new(line[0]).args(&line[1..])).map(drop))?;
        let set: [&[&str]; 5] = [
            &["ip", "link", "set", "lo", "up"],
            &["ip", "link", "set", "uplink", "gso_max_segs", "1"],
            &["ip", "address", "add", &address(2), "dev", "uplink"],
            &["ip", "link", "set", "uplink", "up"],
            &["ip", "route", "add", "default", "via", &format!("{}1", subnet.prefix())],
        ];
        set.iter().try_for_each(|line| inside(&namespace_of_node, line).map(drop))?;
        let [server, uplink] = sockets(&middle)?.map(Arc::new);
        let to_server = Relay::start(Arc::clone(&uplink), Arc::clone(&server), SEED);
        let to_node = Relay::start(server, uplink, SEED + 1);
        node.agent.move_to_network_of(namespace_of_node.pid());
        Ok(Self { to_server, to_node, subnet, node: namespace_of_node, middle })
    }

    /// The address at which the node finds the machine.
    pub(crate) fn server(&self) -> String {
        format!("{}1", self.subnet.prefix())
    }

    /// The node's address.
    pub(crate) fn node(&self) -> String {
        format!("{}2", self.subnet.prefix())
    }

    /// Sets what happens to frames from now on: to the server, and to the node.
    pub(crate) fn set(&self, to_server: Way, to_node: Way) {
        self.to_server.set(to_server);
        self.to_node.set(to_node);
    }

    /// Has the line swallow everything, which the ends do not notice.
    pub(crate) fn cut(&self) {
        let swallows = Way { swallows: true, ..Way::default() };
        self.set(swallows, swallows);
    }

    /// Has the line pass everything again.
    pub(crate) fn heal(&self) {
        self.set(Way::default(), Way::default());
    }

    /// Limits the line: its rate in bytes per second, the time there and back, and the percentage of losses.
    pub(crate) fn narrow(&self, rate: u64, there_and_back: Duration, loss: u32) {
        let way = Way { swallows: false, delay: there_and_back / 2, loss, rate: Some(rate) };
        self.set(way, way);
    }

    /// Sets whether the node's device has a carrier, which the node's kernel reports.
    pub(crate) fn plug(&self, is_in: bool) -> Result<()> {
        inside(&self.middle, &["ip", "link", "set", "node", if is_in { "up" } else { "down" }]).map(drop)
    }

    /// Runs a command in the node's network.
    pub(crate) fn at_node(&self, command: &[&str]) -> Result<String> {
        inside(&self.node, command)
    }
}

/// Makes a network namespace, which a process holds.
fn namespace(node: &TestNode) -> Result<Daemon> {
    let mut command = Command::new("unshare");
    // By the node's directory in its environment a later run finds the process if this one is killed.
    command.args(["--net", "sleep", "100000"]).env("LIMPET_TEST_NODE", node.dir());
    let holder = Daemon::start(&mut command, &node.dir().join("network.log"))?;
    let here = std::fs::read_link("/proc/self/ns/net")?;
    let theirs = || std::fs::read_link(format!("/proc/{}/ns/net", holder.pid()));
    wait::until_true(wait::SOON, "a network namespace", || theirs().is_ok_and(|theirs| theirs != here))?;
    Ok(holder)
}

fn inside(holder: &Daemon, command: &[&str]) -> Result<String> {
    let target = holder.pid().to_string();
    process::checked(Command::new("nsenter").args(["--target", &target, "--net", "--"]).args(command))
}

/// The packet sockets of both ends in the middle, from a thread that ends there.
fn sockets(middle: &Daemon) -> Result<[OwnedFd; 2]> {
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", middle.pid()))?;
    let within = move || -> Result<[OwnedFd; 2]> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).context("enter a namespace")?;
        Ok([relay::open("server")?, relay::open("node")?])
    };
    std::thread::spawn(within).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
