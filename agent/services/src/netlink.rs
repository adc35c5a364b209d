//! Messages of netlink, and the sockets that carry them: as much of it as rules, connections and addresses need.
//!
//! Every call here is answered by the kernel at once, within the sender's system call, so that nothing waits for long.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

// The numbers are those of linux/netlink.h.
pub(crate) const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;
/// The largest message that the kernel sends in answer to a dump.
const ANSWER: usize = 64 << 10;
/// The most that is sent at once: rules for some ten thousand endpoints.
const MAX_REQUEST: usize = 16 << 20;

/// The attributes of a message.
#[derive(Debug, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        // What is put here is bounded: names, addresses, and lists that are cut into pieces.
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(crate) fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }

    /// Appends attributes that were encoded before, such as some of a message that was received.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Appends a message of that kind: `fixed` follows the header of netlink, and attributes follow that.
pub(crate) fn message(
    into: &mut Vec<u8>,
    (kind, flags, sequence): (u16, u16, u32),
    fixed: &[u8],
    attributes: &Attributes,
) {
    let length = u32::try_from(HEADER + fixed.len() + attributes.0.len()).unwrap_or(u32::MAX);
    into.extend(length.to_ne_bytes());
    into.extend(kind.to_ne_bytes());
    into.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    into.extend(sequence.to_ne_bytes());
    into.extend(0u32.to_ne_bytes()); // port: the kernel fills it in
    into.extend(fixed);
    into.extend(&attributes.0);
}

/// `nfgenmsg`: the header of netfilter's messages.
pub(crate) fn netfilter_header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// The attributes in `bytes`, each with its kind and its value. What is cut off ends them.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of that kind.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A message that was received.
struct Received<'a> {
    kind: u16,
    body: &'a [u8],
}

fn received(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        // An error repeats the request, of which the end may not have had room.
        let body = bytes.get(HEADER..length.min(bytes.len()))?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Received { kind, body })
    })
}

/// The bodies of the messages of that kind.
pub(crate) fn bodies(messages: &[u8], kind: u16) -> impl Iterator<Item = &[u8]> {
    received(messages).filter(move |message| message.kind == kind).map(|message| message.body)
}

/// The result that a message carries; `None`: it carries none.
fn result(message: &Received<'_>) -> Option<io::Result<()>> {
    if message.kind != NLMSG_ERROR {
        return None;
    }
    let code = message.body.get(0..4).and_then(|code| code.try_into().ok()).map_or(-libc_eproto(), i32::from_ne_bytes);
    Some(match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    })
}

fn libc_eproto() -> i32 {
    rustix::io::Errno::PROTO.raw_os_error()
}

/// A socket of one of netlink's protocols.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// A socket for rules and connections, in the network of this thread.
    pub(crate) fn netfilter() -> io::Result<Self> {
        Self::open(Some(rustix::net::netlink::NETFILTER))
    }

    /// A socket for addresses and routes.
    pub(crate) fn route() -> io::Result<Self> {
        Self::open(None)
    }

    fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        Ok(Self(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?))
    }

    fn send(&self, request: &[u8]) -> io::Result<()> {
        if request.len() > MAX_REQUEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many rules"));
        }
        // The buffer also has to hold the kernel's own description of the message.
        set_socket_send_buffer_size_force(&self.0, (2 * request.len()).max(ANSWER))?;
        rustix::net::sendto(&self.0, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Sends messages of which the last one asks for an acknowledgement. The first error is returned.
    pub(crate) fn perform(&self, request: &[u8]) -> io::Result<()> {
        self.send(request)?;
        let mut outcome = None;
        let mut answer = vec![0; ANSWER];
        loop {
            let length = match rustix::net::recv(&self.0, &mut answer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error.into()),
            };
            for result in received(answer.get(..length).unwrap_or_default()).filter_map(|message| result(&message)) {
                result?;
                outcome = Some(());
            }
        }
        outcome.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel does not answer"))
    }

    /// Sends a request, and passes the body of each message of the answer to `visit`.
    pub(crate) fn read(&self, request: &[u8], mut visit: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(request)?;
        let mut answer = vec![0; ANSWER];
        loop {
            let length = match rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in received(answer.get(..length).unwrap_or_default()) {
                match (message.kind, result(&message)) {
                    (NLMSG_DONE, _) => return Ok(()),
                    (_, Some(result)) => return result,
                    _ => visit(message.body),
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written_and_a_cut_ends_them() {
        let mut written = Attributes::default();
        written.text(1, "abc").number(2, 7).nested(3, |inner| {
            inner.bytes(1, &[9]);
        });
        let bytes = written.0.clone();
        assert_eq!(attribute(&bytes, 1), Some(&b"abc\0"[..]));
        assert_eq!(attribute(&bytes, 2), Some(&[0, 0, 0, 7][..]));
        assert_eq!(attribute(attribute(&bytes, 3).unwrap(), 1), Some(&[9][..]));
        for end in 0..bytes.len() {
            assert!(attributes(&bytes[..end]).count() <= 3);
        }
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0, "a length of nothing ends it");
    }

    #[test]
    fn an_error_is_the_kernels() {
        let mut bytes = Vec::new();
        let code = (-2i32).to_ne_bytes();
        message(&mut bytes, (NLMSG_ERROR, 0, 1), &code, &Attributes::default());
        let messages: Vec<_> = received(&bytes).filter_map(|message| result(&message)).collect();
        assert_eq!(messages[0].as_ref().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
