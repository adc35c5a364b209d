//! The kernel's state of a pod's network namespace: read if the record of an attachment lacks it, and cleared if a
//! DEL has left something.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;

use crate::network_namespace::run_in;
use crate::rtnetlink;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub ip: IpAddr,
    /// The prefix length of its network.
    pub prefix: u32,
}

/// The addresses of `interface` in the namespace pinned at `netns`, without link-local ones. `None` if the interface
/// or the namespace does not exist.
pub(super) async fn addresses(netns: &Path, interface: &'static str) -> io::Result<Option<Vec<InterfaceAddress>>> {
    match run_in(netns.to_owned(), move || read(interface)).await {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(interface: &str) -> io::Result<Option<Vec<InterfaceAddress>>> {
    // A link without addresses is also listed.
    let mut listed = getifaddrs()?.filter(|listed| listed.interface_name == interface).peekable();
    if listed.peek().is_none() {
        return Ok(None);
    }
    let address = |listed: nix::ifaddrs::InterfaceAddress| {
        let ip = listed.address.as_ref().and_then(ip)?;
        let prefix = match listed.netmask.as_ref().and_then(self::ip)? {
            IpAddr::V4(mask) => mask.to_bits().count_ones(),
            IpAddr::V6(mask) => mask.to_bits().count_ones(),
        };
        Some(InterfaceAddress { ip, prefix })
    };
    Ok(Some(listed.filter_map(address).filter(|address| !is_link_local(address.ip)).collect()))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Removes every link except loopback from the namespace pinned at `netns`, and returns their names. A link that the
/// kernel does not remove (hardware that was moved there) does not prevent the others' removal; the first error is
/// returned.
pub(super) async fn remove_links(netns: &Path) -> io::Result<BTreeSet<String>> {
    run_in(netns.to_owned(), || {
        let links = getifaddrs()?.filter(|link| !link.flags.contains(InterfaceFlags::IFF_LOOPBACK));
        let names: BTreeSet<String> = links.map(|link| link.interface_name).collect();
        let mut outcome = Ok(());
        for name in &names {
            // It may have disappeared with the other end of its pair.
            let Ok(index) = if_nametoindex(name.as_str()) else { continue };
            outcome = outcome.and(rtnetlink::remove(index));
        }
        outcome.map(|()| names)
    })
    .await?
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::mpsc;

    use limpet_tests::need;
    use rustix::thread::UnshareFlags;

    use super::*;

    pub(in crate::network) fn ip(args: &[&str]) {
        assert!(Command::new("ip").args(args).status().unwrap().success(), "ip {args:?}");
    }

    /// The pin of a network namespace in which `set_up` was run; it exists until the sender is dropped. `None`
    /// without root.
    #[allow(unsafe_code)]
    pub(in crate::network) fn namespace(set_up: impl FnOnce() + Send + 'static) -> Option<(PathBuf, mpsc::Sender<()>)> {
        need::root("a network namespace")?;
        let (started, pin) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            // SAFETY: the function is unsafe because of `UnshareFlags::FILES`; the file descriptor table stays shared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            set_up();
            let thread = rustix::thread::gettid().as_raw_nonzero();
            // Other processes can enter it by this path as well.
            let pin = format!("/proc/{}/task/{thread}/ns/net", std::process::id());
            started.send(PathBuf::from(pin)).unwrap();
            let _: Result<(), _> = ended.recv();
        });
        Some((pin.recv().unwrap(), end))
    }

    #[tokio::test]
    async fn addresses_are_read_and_links_are_removed_in_the_pods_namespace() {
        let set_up = || {
            ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "peer0"]);
            ip(&["addr", "add", "10.1.2.3/24", "dev", "eth0"]);
            ip(&["addr", "add", "fd00::5/64", "dev", "eth0", "nodad"]);
            ip(&["link", "add", "net1", "type", "veth", "peer", "name", "peer1"]);
            ip(&["link", "set", "eth0", "up"]);
            ip(&["link", "set", "peer0", "up"]);
        };
        let Some((pin, _alive)) = namespace(set_up) else { return };
        let address = |ip: &str, prefix| InterfaceAddress { ip: ip.parse().unwrap(), prefix };
        let configured = addresses(&pin, "eth0").await.unwrap();
        assert_eq!(configured, Some(vec![address("10.1.2.3", 24), address("fd00::5", 64)]));
        assert_eq!(addresses(&pin, "net1").await.unwrap(), Some(vec![]), "a link without an address");
        assert_eq!(addresses(&pin, "eth9").await.unwrap(), None);

        let removed = remove_links(&pin).await.unwrap();
        assert!(removed.contains("eth0") && removed.contains("net1") && !removed.contains("lo"), "{removed:?}");
        assert_eq!(addresses(&pin, "eth0").await.unwrap(), None);
        assert_eq!(addresses(&pin, "net1").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_namespace_that_is_gone_has_nothing_and_one_that_cannot_be_entered_is_an_error() {
        assert_eq!(addresses(Path::new("/nonexistent/net"), "eth0").await.unwrap(), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(addresses(file.path(), "eth0").await.is_err());
    }
}
