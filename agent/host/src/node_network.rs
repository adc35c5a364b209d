//! The node's own network: its addresses and links, and notice of their changes from the kernel.
//!
//! Changes are reported by rtnetlink's multicast groups; a message only triggers a read, and its content is ignored. The socket
//! belongs to the network namespace of the thread that opens it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::inotify::register;
use limpet_model::node::NodeAddresses;

/// `RTMGRP_*` of linux/rtnetlink.h: links, addresses and routes of both families.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
/// Messages read before other tasks have their turn.
const MAX_MESSAGES: usize = 1_024;

/// Notice of changes of links, addresses and routes.
#[derive(Debug)]
pub struct NetworkChanges {
    socket: AsyncFd<OwnedFd>,
}

impl NetworkChanges {
    /// Begins to listen; needs no privilege.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket: register(socket, Interest::READABLE)? })
    }

    /// Resolves when something may have changed since the last time. Cancel safe.
    ///
    /// # Errors
    /// The socket is broken.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            let mut changed = false;
            for _ in 0..MAX_MESSAGES {
                // One byte of each message: the kernel drops the rest.
                match recv(ready.get_inner(), &mut [0; 1], RecvFlags::empty()) {
                    // NOBUFS: more came than the socket holds, and some are lost.
                    Ok(_) | Err(Errno::NOBUFS) => changed = true,
                    Err(Errno::AGAIN) => {
                        ready.clear_ready();
                        break;
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            if changed {
                return Ok(());
            }
        }
    }
}

/// The node's addresses: `configured` where there are any, or for each family the source address that the kernel would use, the
/// family of an unspecified one first. Nothing is sent.
pub fn addresses(configured: NodeAddresses) -> NodeAddresses {
    if !configured.specified().is_empty() {
        return configured;
    }
    // Documentation addresses (RFC 5737, RFC 3849): only a default route leads to them.
    let mut anywhere =
        [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
    if configured.iter().any(|address| address.is_ipv6()) {
        anywhere.reverse();
    }
    anywhere.into_iter().filter_map(source_address).collect()
}

fn source_address(destination: IpAddr) -> Option<IpAddr> {
    let unspecified: IpAddr =
        if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(unspecified, 0)).ok()?;
    socket.connect(SocketAddr::new(destination, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

/// What CNI plugins build on: the hardware's links and the node's addresses. A pod's link to the node is neither, so pods
/// that come and go do not change it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// The links of hardware, and whether each is up with a carrier.
    hardware: BTreeMap<String, bool>,
    /// The addresses of all links, without loopback and link-local ones.
    addresses: BTreeSet<IpAddr>,
}

/// The links of this network namespace. Unreadable ones count as none.
pub fn links() -> Links {
    let mut links = Links::default();
    for interface in getifaddrs().into_iter().flatten() {
        if Path::new("/sys/class/net").join(&interface.interface_name).join("device").exists() {
            let runs = interface.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
            links.hardware.insert(interface.interface_name, runs);
        }
        let address = interface.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
        links.addresses.extend(address.filter(|address| is_global(*address)));
    }
    links
}

fn is_global(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !address.is_loopback() && !link_local
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use limpet_tests::need;
    use rustix::thread::UnshareFlags;

    use super::*;

    #[test]
    fn a_configured_address_is_the_only_one_and_loopback_is_none() {
        let given: IpAddr = "192.168.1.5".parse().unwrap();
        assert_eq!(addresses(NodeAddresses::one(given)), NodeAddresses::one(given));
        assert_eq!(source_address(Ipv4Addr::LOCALHOST.into()), None);
        let any_ipv6 = NodeAddresses::one(Ipv6Addr::UNSPECIFIED.into());
        let mut families: Vec<bool> = addresses(any_ipv6).iter().map(|address| address.is_ipv4()).collect();
        assert!(families.is_sorted(), "IPv6 first: {families:?}");
        families.reverse();
        let found = addresses(NodeAddresses::one(Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!(found.iter().map(|address| address.is_ipv4()).collect::<Vec<_>>(), families);
        assert!(
            addresses(NodeAddresses::NONE).iter().all(|address| !address.is_loopback() && !address.is_unspecified())
        );
    }

    fn ip(args: &[&str]) {
        let status = Command::new("ip").args(args).status().unwrap();
        assert!(status.success(), "ip {args:?}");
    }

    /// Runs `test` on a runtime whose threads are in a network namespace of their own, which has nothing but `lo`.
    #[allow(unsafe_code)]
    fn in_own_network(test: impl AsyncFnOnce() + Send + 'static) {
        if need::root("a network namespace").is_none() {
            return;
        }
        let run = move || {
            // SAFETY: the function is unsafe because of `UnshareFlags::FILES`; the file descriptor table stays shared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn an_address_that_comes_later_is_noticed_and_a_pods_link_is_not_counted() {
        in_own_network(async || {
            let mut changes = NetworkChanges::listen().unwrap();
            let before = links();
            assert!(addresses(NodeAddresses::NONE).is_empty() && before == Links::default());
            let message = recv(changes.socket.get_ref(), &mut [0; 1], RecvFlags::empty());
            assert_eq!(message.err(), Some(Errno::AGAIN), "nothing has happened");

            ip(&["link", "add", "pod0", "type", "veth", "peer", "name", "pod1"]);
            ip(&["link", "set", "pod0", "up"]);
            ip(&["link", "set", "pod1", "up"]);
            changes.changed().await.unwrap();
            assert_eq!(links(), before, "a link without hardware and without an address is no link of the node");

            ip(&["addr", "add", "198.51.100.7/24", "dev", "pod0"]);
            changes.changed().await.unwrap();
            assert!(links() != before && addresses(NodeAddresses::NONE).is_empty(), "no route leads out");
            ip(&["route", "add", "default", "via", "198.51.100.1"]);
            changes.changed().await.unwrap();
            assert_eq!(addresses(NodeAddresses::NONE), NodeAddresses::one("198.51.100.7".parse().unwrap()));
        });
    }

    #[test]
    fn more_changes_than_the_socket_holds_are_one_notice() {
        in_own_network(async || {
            let mut changes = NetworkChanges::listen().unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(changes.socket.get_ref(), 1).unwrap();
            for number in 0..20 {
                ip(&["link", "add", &format!("d{number}"), "type", "veth"]);
            }
            changes.changed().await.unwrap();
            ip(&["addr", "add", "198.51.100.7/24", "dev", "d0"]);
            changes.changed().await.unwrap();
        });
    }
}
