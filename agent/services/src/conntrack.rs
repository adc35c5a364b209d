//! Ends what the kernel remembers of UDP "connections" that lead to endpoints which have gone.
//!
//! Rules decide about the first packet of a connection alone. A client that keeps sending UDP from one port would reach an address
//! that no pod has any more, for as long as it sends.

use std::io;
use std::net::IpAddr;

use crate::netlink::{Attributes, NLM_F_ACK, NLM_F_DUMP, Socket, attribute, attributes, message, netfilter_header};
use crate::rules::Targets;

// The numbers are those of linux/netfilter/nfnetlink_conntrack.h.
const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
const UDP: u8 = 17;
/// `AF_INET` and `AF_INET6`: connections are listed by family.
const FAMILIES: [u8; 2] = [2, 10];

/// Forgets the connections to those targets that lead elsewhere. Returns how many.
///
/// # Errors
/// The kernel does not list them.
pub(crate) fn forget_others(targets: &Targets) -> io::Result<usize> {
    let socket = Socket::netfilter()?;
    let mut stale = Vec::new();
    for family in FAMILIES {
        let mut request = Vec::new();
        let header = netfilter_header(family, 0);
        message(&mut request, (GET, NLM_F_DUMP, 1), &header, &Attributes::default());
        socket.read(&request, |body| {
            let Some(bytes) = body.get(4..) else { return };
            if connection(bytes).is_some_and(|connection| leads_elsewhere(&connection, targets)) {
                stale.push((family, identity(bytes)));
            }
        })?;
    }
    let mut count = 0;
    for (family, identity) in stale {
        let mut request = Vec::new();
        message(&mut request, (DELETE, NLM_F_ACK, 1), &netfilter_header(family, 0), &identity);
        // One that has ended by itself meanwhile is no error.
        count += usize::from(socket.perform(&request).is_ok());
    }
    Ok(count)
}

/// A UDP connection: where its client has sent to, and who answers.
#[derive(Debug, PartialEq, Eq)]
struct Connection {
    to: (IpAddr, u16),
    answered_by: (IpAddr, u16),
}

fn leads_elsewhere(connection: &Connection, targets: &Targets) -> bool {
    let Connection { to: (address, port), answered_by } = connection;
    if let Some(ends) = targets.get(&(Some(*address), *port)) {
        return !ends.contains(answered_by);
    }
    // What was sent to another machine's port of that number was not passed on.
    let of_node = targets.get(&(None, *port)).filter(|_| connection.to != *answered_by);
    of_node.is_some_and(|ends| !ends.contains(answered_by))
}

fn connection(bytes: &[u8]) -> Option<Connection> {
    let original = attribute(bytes, TUPLE_ORIGINAL)?;
    let reply = attribute(bytes, TUPLE_REPLY)?;
    let protocol = attribute(original, TUPLE_PROTOCOL)?;
    if attribute(protocol, PROTOCOL_NUMBER)? != [UDP] {
        return None;
    }
    let port = |tuple, kind| {
        let port = attribute(attribute(tuple, TUPLE_PROTOCOL)?, kind)?;
        Some(u16::from_be_bytes(port.try_into().ok()?))
    };
    let (_, to) = addresses(original)?;
    let (by, _) = addresses(reply)?;
    Some(Connection { to: (to, port(original, DESTINATION_PORT)?), answered_by: (by, port(reply, SOURCE_PORT)?) })
}

/// Source and destination of a tuple.
fn addresses(tuple: &[u8]) -> Option<(IpAddr, IpAddr)> {
    // The source is an odd attribute, the destination the even one that follows; IPv4 comes first.
    let parse = |value: &[u8]| match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
    };
    let (mut source, mut destination) = (None, None);
    for (kind, value) in attributes(attribute(tuple, TUPLE_IP)?) {
        match kind {
            1 | 3 => source = parse(value),
            2 | 4 => destination = parse(value),
            _ => {}
        }
    }
    Some((source?, destination?))
}

/// What identifies a connection in a request to forget it.
fn identity(bytes: &[u8]) -> Attributes {
    let mut identity = Attributes::default();
    for (kind, value) in attributes(bytes) {
        match kind {
            TUPLE_ORIGINAL => {
                identity.nested(kind, |tuple| {
                    tuple.raw(value);
                });
            }
            ID | ZONE => {
                identity.bytes(kind, value);
            }
            _ => {}
        }
    }
    identity
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn end(address: &str, port: u16) -> (IpAddr, u16) {
        (address.parse().unwrap(), port)
    }

    #[test]
    fn a_connection_is_read_from_the_kernels_message() {
        let mut written = Attributes::default();
        let mut tuple = |kind, source: [u8; 4], destination: [u8; 4], ports: (u16, u16)| {
            written.nested(kind, |tuple| {
                tuple.nested(TUPLE_IP, |ip| {
                    ip.bytes(1, &source).bytes(2, &destination);
                });
                tuple.nested(TUPLE_PROTOCOL, |protocol| {
                    protocol.bytes(PROTOCOL_NUMBER, &[UDP]).bytes(SOURCE_PORT, &ports.0.to_be_bytes());
                    protocol.bytes(DESTINATION_PORT, &ports.1.to_be_bytes());
                });
            });
        };
        tuple(TUPLE_ORIGINAL, [10, 1, 0, 2], [10, 43, 0, 9], (40_000, 53));
        tuple(TUPLE_REPLY, [10, 1, 0, 3], [10, 1, 0, 2], (5353, 40_000));
        written.number(ID, 7);
        let bytes = written.into_bytes();
        let read = connection(&bytes).unwrap();
        assert_eq!(read, Connection { to: end("10.43.0.9", 53), answered_by: end("10.1.0.3", 5353) });
        let identity = identity(&bytes).into_bytes();
        assert!(attribute(&identity, ID).is_some() && attribute(&identity, TUPLE_ORIGINAL).is_some());
        assert!(attribute(&identity, TUPLE_REPLY).is_none());
    }

    #[test]
    fn what_leads_to_an_endpoint_or_to_no_service_stays() {
        let ends: BTreeSet<_> = [end("10.1.0.3", 5353)].into();
        let service: IpAddr = "10.43.0.9".parse().unwrap();
        let targets: Targets = [((Some(service), 53), ends.clone()), ((None, 30_053), ends)].into();
        let elsewhere = |to: (&str, u16), by: (&str, u16)| {
            leads_elsewhere(&Connection { to: end(to.0, to.1), answered_by: end(by.0, by.1) }, &targets)
        };
        assert!(!elsewhere(("10.43.0.9", 53), ("10.1.0.3", 5353)));
        assert!(elsewhere(("10.43.0.9", 53), ("10.1.0.4", 5353)), "an endpoint that has gone");
        assert!(elsewhere(("10.43.0.9", 53), ("10.43.0.9", 53)), "sent before there was an endpoint");
        assert!(elsewhere(("192.0.2.1", 30_053), ("10.1.0.4", 5353)));
        assert!(!elsewhere(("198.51.100.1", 30_053), ("198.51.100.1", 30_053)), "another machine's port");
        assert!(!elsewhere(("192.0.2.1", 53), ("192.0.2.1", 53)));
    }
}
