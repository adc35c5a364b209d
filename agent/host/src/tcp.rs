//! Reports whether data sent over a TCP connection arrives, according to the kernel.
//!
//! The kernel gives up a vanished peer with data in flight after a quarter of an hour. `TCP_USER_TIMEOUT` is shorter,
//! but since Linux 5.11 it also ends connections to live peers that do not read.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use nix::{getsockopt_impl, libc};

/// After this many retransmissions, each after twice the pause, the peer counts as gone: from 0.2 s on, this takes
/// 102 s.
const MAX_RETRANSMITS: u8 = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The peer acknowledges, or no data is in flight.
    Acknowledged,
    /// Data was retransmitted at least once, and is not acknowledged yet.
    Repeated,
    /// Data was retransmitted so often that the peer counts as gone.
    Lost,
}

/// The first fields of the kernel's `struct tcp_info`, each a byte.
type Info = [u8; 8];
/// The offset of the number of retransmissions without acknowledgement.
const RETRANSMITS_OFFSET: usize = 2;
/// The offset of the number of unanswered zero-window probes.
const PROBES_OFFSET: usize = 3;

#[derive(Debug, Clone, Copy)]
struct TcpInfo;

getsockopt_impl!(TcpInfo, libc::IPPROTO_TCP, libc::TCP_INFO, Info, GetStruct<Info>);

/// The delivery state of `socket`, a TCP connection.
///
/// # Errors
///
/// It is not a TCP socket.
pub fn delivery(socket: &impl AsFd) -> io::Result<Delivery> {
    Ok(judge(getsockopt(socket, TcpInfo)?))
}

fn judge(info: Info) -> Delivery {
    match info[RETRANSMITS_OFFSET].max(info[PROBES_OFFSET]) {
        0 => Delivery::Acknowledged,
        1..MAX_RETRANSMITS => Delivery::Repeated,
        _ => Delivery::Lost,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_peer_that_acknowledges_is_there_whether_it_reads_or_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        assert_eq!(delivery(&near).unwrap(), Delivery::Acknowledged);
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65_536]).is_ok() {}
        assert_ne!(delivery(&near).unwrap(), Delivery::Lost);
        assert!(delivery(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn what_is_repeated_too_often_is_lost() {
        let judged = |retransmits, probes| judge([1, 0, retransmits, probes, 0, 0, 0, 0]);
        assert_eq!(judged(0, 0), Delivery::Acknowledged);
        assert_eq!((judged(1, 0), judged(0, 8)), (Delivery::Repeated, Delivery::Repeated));
        assert_eq!((judged(9, 0), judged(0, 9)), (Delivery::Lost, Delivery::Lost));
    }
}
