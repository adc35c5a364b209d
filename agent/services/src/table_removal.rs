//! Learns from the kernel that the rules of Services may have been removed by another program. `nft flush ruleset`, with
//! which Debian's `/etc/nftables.conf` begins, removes the tables of all programs.

use std::io;
use std::os::fd::OwnedFd;

use limpet_host::inotify::register;
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::netlink::{attribute, bodies};
use crate::nftables::TABLE;

/// `NFNLGRP_NFTABLES` of linux/netfilter/nfnetlink.h: changes of rules.
const GROUP: u32 = 7;
/// `NFT_MSG_DELTABLE` of nf_tables' subsystem.
const TABLE_DELETED: u16 = 10 << 8 | 2;
/// `NFTA_TABLE_NAME`.
const TABLE_NAME: u16 = 1;
/// The length of `nfgenmsg`, which precedes the attributes.
const NETFILTER_HEADER: usize = 4;
/// What is read at once. Of longer messages only the beginning matters.
const PIECE: usize = 16 << 10;

/// Reports removals of the table of Services, those by limpet itself as well.
#[derive(Debug)]
pub(crate) struct TableRemovals {
    socket: AsyncFd<OwnedFd>,
}

impl TableRemovals {
    /// Starts to listen in the network of this thread.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub(crate) fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
        bind(&socket, &SocketAddrNetlink::new(0, 1 << (GROUP - 1)))?;
        Ok(Self { socket: register(socket, Interest::READABLE)? })
    }

    /// Resolves when the table may have been removed since the last call. Cancel safe.
    ///
    /// # Errors
    /// The socket is broken.
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let mut ready = self.socket.readable().await?;
            match recv(ready.get_inner(), &mut piece[..], RecvFlags::empty()) {
                Ok((length, _)) if !names_ours(piece.get(..length).unwrap_or_default()) => {}
                // NOBUFS: more messages came than the socket holds, and some were lost.
                Ok(_) | Err(Errno::NOBUFS) => return Ok(()),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Whether messages say that the table of Services was removed.
fn names_ours(messages: &[u8]) -> bool {
    bodies(messages, TABLE_DELETED).any(|body| {
        let name = body.get(NETFILTER_HEADER..).and_then(|attributes| attribute(attributes, TABLE_NAME));
        name.and_then(|name| name.strip_suffix(b"\0")) == Some(TABLE.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Attributes, message, netfilter_header};

    #[test]
    fn only_the_removal_of_the_own_table_counts() {
        let with = |kind: u16, table: &str| {
            let mut attributes = Attributes::default();
            attributes.text(TABLE_NAME, table).number(2, 0);
            let mut bytes = Vec::new();
            message(&mut bytes, (kind, 0, 1), &netfilter_header(1, 0), &attributes);
            bytes
        };
        assert!(names_ours(&with(TABLE_DELETED, TABLE)));
        assert!(names_ours(&[with(TABLE_DELETED, "filter"), with(TABLE_DELETED, TABLE)].concat()));
        for other in [with(TABLE_DELETED, "filter"), with(TABLE_DELETED, "limpet2"), with(TABLE_DELETED - 2, TABLE)] {
            assert!(!names_ours(&other));
        }
        assert!(!names_ours(&with(TABLE_DELETED, TABLE)[..24]));
    }
}
