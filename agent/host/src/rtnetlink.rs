//! Changes links of the calling thread's network namespace through rtnetlink: brings one up, or removes one.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink};

/// The loopback interface is the first of every namespace, so net/core/dev.c gives it this index.
pub(crate) const LOOPBACK_INDEX: u32 = 1;

// linux/netlink.h, linux/rtnetlink.h, linux/if.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFF_UP: u32 = 1;
const REQUEST_LENGTH: u32 = 32;

/// Sets `IFF_UP` on the link. On loopback the kernel then assigns 127.0.0.1 and ::1, so no CNI plugin is needed for it.
pub(crate) fn bring_up(index: u32) -> io::Result<()> {
    perform(&request(RTM_NEWLINK, index, IFF_UP))
}

/// Removes the link; the other end of a veth pair goes with it.
pub(crate) fn remove(index: u32) -> io::Result<()> {
    perform(&request(RTM_DELLINK, index, 0))
}

/// Sends the request and waits for the kernel's acknowledgement.
fn perform(request: &[u8]) -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::sendto(&socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0u8; 1024];
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    acknowledged(answer.get(..length).unwrap_or_default())
}

/// `nlmsghdr` followed by `ifinfomsg`, in the machine's byte order. `flags` are set, others stay.
fn request(kind: u16, index: u32, flags: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(REQUEST_LENGTH as usize);
    message.extend(REQUEST_LENGTH.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend(1u32.to_ne_bytes()); // sequence
    message.extend(0u32.to_ne_bytes()); // port: the kernel fills it in
    message.extend([0u8; 4]); // family unspecified, padding, device type
    message.extend(index.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(flags.to_ne_bytes()); // the flags to change
    message
}

/// `NLMSG_ERROR` carries a negated errno, 0 for success.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected answer from rtnetlink")),
    }
}
