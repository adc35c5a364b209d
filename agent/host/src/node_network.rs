//! The node's own network: its addresses and links, and notifications of their changes by the kernel.
//!
//! `choice` decides which addresses are the node's. rtnetlink's multicast groups report changes; a message only
//! triggers a read, and its content is ignored. The socket belongs to the network namespace of the thread that opens
//! it.

mod choice;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use self::choice::{LocalAddress, LocalNetwork, is_global};
use crate::inotify::register;
use limpet_model::node::NodeAddresses;

/// `RTMGRP_*` of linux/rtnetlink.h: links, addresses and routes of both families.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
/// The most messages that are read before other tasks run.
const MAX_MESSAGES: usize = 1_024;

/// Reports changes of links, addresses and routes.
#[derive(Debug)]
pub struct NetworkChanges {
    socket: AsyncFd<OwnedFd>,
}

impl NetworkChanges {
    /// Starts to listen; needs no privilege.
    ///
    /// # Errors
    ///
    /// The kernel refuses the socket.
    pub fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket: register(socket, Interest::READABLE)? })
    }

    /// Resolves when something may have changed since the last call. Cancel safe.
    ///
    /// # Errors
    ///
    /// The socket is broken.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            let mut changed = false;
            for _ in 0..MAX_MESSAGES {
                // Reads one byte of each message, and the kernel drops the rest.
                match recv(ready.get_inner(), &mut [0; 1], RecvFlags::empty()) {
                    // NOBUFS: more messages came than the socket holds, and some were lost.
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

/// The largest hosts file that is read, in bytes.
const MAX_HOSTS: u64 = 1 << 20;
/// The deepest stack of links that is followed.
const MAX_STACKED: usize = 8;

/// The node's addresses: `configured` if there are any, else those that `choice` selects. `named` are the addresses
/// of the node's name. Sends nothing.
pub fn addresses(configured: NodeAddresses, named: &[IpAddr]) -> NodeAddresses {
    match configured.specified() {
        specified if specified.is_empty() => choice::choose(configured, named, &local_network()),
        _ => configured,
    }
}

/// The addresses of the node's name in the hosts file; none if it cannot be read.
pub fn named_in_hosts(hosts: &Path, name: &str) -> Vec<IpAddr> {
    let mut text = Vec::new();
    let read = std::fs::File::open(hosts).and_then(|file| file.take(MAX_HOSTS).read_to_end(&mut text));
    read.map(|_| choice::in_hosts(&String::from_utf8_lossy(&text), name)).unwrap_or_default()
}

/// The kernel's network state. What cannot be read counts as missing.
fn local_network() -> LocalNetwork {
    // Of the calling thread's network namespace.
    let table = |name: &str| std::fs::read_to_string(Path::new("/proc/thread-self/net").join(name)).unwrap_or_default();
    let flags: BTreeMap<IpAddr, u8> =
        choice::flags_v6(&table("if_inet6")).into_iter().map(|(ip, flags)| (ip.into(), flags)).collect();
    let address = |interface: InterfaceAddress| {
        let ip = address_of(&interface).filter(|_| interface.flags.contains(InterfaceFlags::IFF_UP))?;
        Some(LocalAddress {
            interface: interface.interface_name,
            ip,
            flags: flags.get(&ip).copied().unwrap_or_default(),
        })
    };
    let addresses: Vec<LocalAddress> = getifaddrs().into_iter().flatten().filter_map(address).collect();
    let names: BTreeSet<&String> = addresses.iter().map(|address| &address.interface).collect();
    let hardware = names.into_iter().filter(|name| is_on_hardware(name, MAX_STACKED)).cloned().collect();
    let default_interfaces =
        [choice::default_interfaces_v4(&table("route")), choice::default_interfaces_v6(&table("ipv6_route"))];
    // Documentation addresses (RFC 5737, RFC 3849): usually only a default route leads to them.
    let distant = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
    let sources = distant.into_iter().filter_map(source_address).collect();
    LocalNetwork { addresses, default_interfaces, sources, hardware }
}

/// Whether the link has hardware or is stacked on such a link, as bridges, bonds and VLANs are.
fn is_on_hardware(link: &str, levels: usize) -> bool {
    let directory = Path::new("/sys/class/net").join(link);
    if directory.join("device").exists() {
        return true;
    }
    let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    levels > 0 && names.any(|name| name.strip_prefix("lower_").is_some_and(|lower| is_on_hardware(lower, levels - 1)))
}

fn address_of(interface: &InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn source_address(destination: IpAddr) -> Option<IpAddr> {
    let unspecified: IpAddr =
        if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(unspecified, 0)).ok()?;
    socket.connect(SocketAddr::new(destination, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

/// What CNI plugins build on: the hardware's links and the node's addresses. A pod's link to the node is neither, so
/// pods that come and go do not change it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// The hardware links, and whether each is up with a carrier.
    hardware: BTreeMap<String, bool>,
    /// The addresses of all links, without loopback and link-local ones.
    addresses: BTreeSet<IpAddr>,
}

/// The links of this network namespace. Unreadable ones count as none.
pub fn links() -> Links {
    let mut links = Links::default();
    for interface in getifaddrs().into_iter().flatten() {
        let address = address_of(&interface);
        if Path::new("/sys/class/net").join(&interface.interface_name).join("device").exists() {
            let runs = interface.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
            links.hardware.insert(interface.interface_name, runs);
        }
        links.addresses.extend(address.filter(|address| is_global(*address)));
    }
    links
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
        assert_eq!(addresses(NodeAddresses::single(given), &[]), NodeAddresses::single(given));
        assert_eq!(source_address(Ipv4Addr::LOCALHOST.into()), None);
        let any_ipv6 = NodeAddresses::single(Ipv6Addr::UNSPECIFIED.into());
        let mut families: Vec<bool> = addresses(any_ipv6, &[]).iter().map(|address| address.is_ipv4()).collect();
        assert!(families.is_sorted(), "IPv6 first: {families:?}");
        families.reverse();
        let chosen = addresses(NodeAddresses::single(Ipv4Addr::UNSPECIFIED.into()), &[]);
        assert_eq!(chosen.iter().map(|address| address.is_ipv4()).collect::<Vec<_>>(), families);
        assert!(
            addresses(NodeAddresses::NONE, &[])
                .iter()
                .all(|address| !address.is_loopback() && !address.is_unspecified())
        );
    }

    fn ip(args: &[&str]) {
        let status = Command::new("ip").args(args).status().unwrap();
        assert!(status.success(), "ip {args:?}");
    }

    /// Runs `test` on a runtime whose threads are in a separate network namespace with only `lo`.
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
            assert!(addresses(NodeAddresses::NONE, &[]).is_empty() && before == Links::default());
            let message = recv(changes.socket.get_ref(), &mut [0; 1], RecvFlags::empty());
            assert_eq!(message.err(), Some(Errno::AGAIN), "nothing has happened");

            ip(&["link", "add", "pod0", "type", "veth", "peer", "name", "pod1"]);
            ip(&["link", "set", "pod0", "up"]);
            ip(&["link", "set", "pod1", "up"]);
            changes.changed().await.unwrap();
            assert_eq!(links(), before, "a link without hardware and without an address is no link of the node");

            ip(&["addr", "add", "198.51.100.7/24", "dev", "pod0"]);
            changes.changed().await.unwrap();
            assert!(links() != before && addresses(NodeAddresses::NONE, &[]).is_empty(), "no route leads out");
            ip(&["route", "add", "default", "via", "198.51.100.1"]);
            changes.changed().await.unwrap();
            let ours = NodeAddresses::single("198.51.100.7".parse().unwrap());
            assert_eq!(addresses(NodeAddresses::NONE, &[]), ours);
            ip(&["route", "add", "blackhole", "192.0.2.0/24"]);
            assert_eq!(addresses(NodeAddresses::NONE, &[]), ours, "another route leads nowhere");
            ip(&["addr", "add", "198.51.100.8/24", "dev", "pod0"]);
            let named: IpAddr = "198.51.100.8".parse().unwrap();
            assert_eq!(addresses(NodeAddresses::NONE, &[named]), NodeAddresses::single(named));
        });
    }

    #[test]
    fn a_temporary_address_is_not_the_nodes() {
        in_own_network(async || {
            ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
            ip(&["link", "set", "up1", "up"]);
            ip(&["link", "set", "up0", "up"]);
            // The address is deprecated: its preferred lifetime is over, as a temporary address's after a day.
            ip(&["addr", "add", "2001:db8:1::a/64", "dev", "up0", "nodad", "preferred_lft", "0"]);
            ip(&["addr", "add", "2001:db8:1::b/64", "dev", "up0", "nodad"]);
            ip(&["-6", "route", "add", "default", "via", "2001:db8:1::1", "dev", "up0"]);
            let chosen = addresses(NodeAddresses::NONE, &[]);
            assert_eq!(chosen, NodeAddresses::single("2001:db8:1::b".parse().unwrap()));
        });
    }

    #[test]
    fn a_hosts_file_names_the_node() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "127.0.1.1 edge1\n192.168.1.5 edge1 edge1.lan\n").unwrap();
        let named: Vec<IpAddr> = ["127.0.1.1", "192.168.1.5"].map(|ip| ip.parse().unwrap()).into();
        assert_eq!(named_in_hosts(file.path(), "edge1"), named);
        assert!(named_in_hosts(Path::new("/nonexistent"), "edge1").is_empty());
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
