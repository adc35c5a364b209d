//! Claims on things of which the machine has only one each: ports and subnets. A claim holds until its process ends.
//!
//! A claim is a socket of an abstract name, because the kernel gives a name to only one process of the machine, and
//! frees it when that process is killed. All that limpet's tests use is claimed, so two simultaneous runs never use
//! the same.

use std::fmt::Display;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context as _, Result};

/// An exclusive claim; dropping it releases it.
#[derive(Debug)]
pub struct Claim(#[allow(dead_code, reason = "held, never used")] UnixListener);

impl Claim {
    /// Claims `thing`; `None` if it is claimed already.
    pub(crate) fn take(thing: impl Display) -> Result<Option<Self>> {
        let name = format!("limpet-test/{thing}");
        let address = SocketAddr::from_abstract_name(&name)?;
        match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Some(Self(socket))),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error).with_context(|| format!("claim {name}")),
        }
    }
}

/// Where a process begins to search among `count` things, so that it seldom meets another process.
fn start(count: u32) -> u32 {
    std::process::id().wrapping_mul(2_654_435_761) % count
}

/// Two numbers in the middle of 10.x.y.0/24.
#[derive(Debug)]
pub struct Subnet {
    second: u8,
    third: u8,
    _claim: Claim,
}

impl Subnet {
    /// Claims a /24 of 10.100.0.0 to 10.199.255.0 that no other node of a test has.
    pub fn claim() -> Result<Self> {
        const COUNT: u32 = 100 << 8;
        for number in (0..COUNT).map(|step| (start(COUNT) + step) % COUNT) {
            let [.., second, third] = (number + (100 << 8)).to_be_bytes();
            if let Some(claim) = Claim::take(format!("subnet-{second}.{third}"))? {
                return Ok(Self { second, third, _claim: claim });
            }
        }
        anyhow::bail!("all subnets are claimed")
    }

    /// `10.x.y.0/24`.
    pub fn cidr(&self) -> String {
        format!("{}0/24", self.prefix())
    }

    /// A subnet of IPv6 addresses that no other node has either: `fd6c:696d:x:y::/64`.
    pub fn cidr_v6(&self) -> String {
        format!("fd6c:696d:{:x}:{:x}::/64", self.second, self.third)
    }

    /// The prefix of its addresses: `10.x.y.`.
    pub fn prefix(&self) -> String {
        format!("10.{}.{}.", self.second, self.third)
    }
}

/// A port on loopback.
#[derive(Debug)]
pub struct Port {
    pub number: u16,
    _claim: Claim,
}

impl Port {
    /// Claims a port without a listener that no other test uses. The kernel gives no port of this range to a process
    /// that requests any port, so it stays free until its program, which may start late, listens there.
    pub fn claim() -> Result<Self> {
        const FIRST: u16 = 20_000;
        const COUNT: u32 = 10_000;
        for number in (0..COUNT).map(|step| FIRST + ((start(COUNT) + step) % COUNT) as u16) {
            let Some(claim) = Claim::take(format!("port-{number}"))? else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _claim: claim });
            }
        }
        anyhow::bail!("all ports are taken")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_exclusive_until_it_is_released() {
        let thing = format!("thing-{}", std::process::id());
        let claim = Claim::take(&thing).unwrap().unwrap();
        assert!(Claim::take(&thing).unwrap().is_none());
        drop(claim);
        assert!(Claim::take(&thing).unwrap().is_some());
    }

    #[test]
    fn subnets_and_ports_differ() {
        let (first, other) = (Subnet::claim().unwrap(), Subnet::claim().unwrap());
        assert_ne!(first.cidr(), other.cidr());
        assert!((100..200).contains(&first.second), "{}", first.cidr());
        let (first, other) = (Port::claim().unwrap(), Port::claim().unwrap());
        assert_ne!(first.number, other.number);
        TcpListener::bind((Ipv4Addr::LOCALHOST, first.number)).unwrap();
    }
}
