//! The expressions that rules consist of: each reads registers and the packet, and writes registers or ends the rule.
//!
//! Registers of four bytes are used from the first one on. Where a key has several parts, each begins a register.

use super::base;
use super::data::{value, verdict};
use crate::cidr::Cidr;
use crate::netlink::Attributes;

pub(super) const NFPROTO_INET: u8 = 1;
pub(super) const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;

/// `NFT_REG_VERDICT`, and `NFT_REG32_00`, the first register of four bytes.
const VERDICT: u32 = 0;
const FIRST: u32 = 8;
/// Where the results of random numbers and comparisons are, behind the longest key.
const SCRATCH: u32 = FIRST + 12;

const ITEM: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
const CT_STATUS: u32 = 2;
const CT_PORT: u32 = 12;
const CT_ADDRESS_V4: u32 = 20;
const CT_ADDRESS_V6: u32 = 22;
const IPS_DST_NAT: u32 = 1 << 5;
const ADDRESS_TYPE: u32 = 3;
const BY_DESTINATION: u32 = 2;
const RTN_LOCAL: u32 = 2;
const NAT_OF_DESTINATION: u32 = 1;
const REJECT_BY_RESET: u32 = 1;
const REJECT_BY_ICMP: u32 = 2;
const TCP: u8 = 6;
const PORT_UNREACHABLE: u8 = 1;
const ACCEPT: i32 = 1;
const JUMP: i32 = -3;
/// Fixed, so that a client stays with its part when the rules are replaced.
const SEED: u32 = 0x6c69_6d70;

/// An address family: each has its own rules, because their addresses differ in length and place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn of_address(is_ipv4: bool) -> Self {
        if is_ipv4 { Self::V4 } else { Self::V6 }
    }

    pub(super) fn is_ipv4(self) -> bool {
        self == Self::V4
    }

    /// How long an address is.
    pub(super) fn length(self) -> u32 {
        if self.is_ipv4() { 4 } else { 16 }
    }

    fn number(self) -> u8 {
        if self.is_ipv4() { NFPROTO_IPV4 } else { NFPROTO_IPV6 }
    }

    /// Where the source's address is in the packet; the destination's follows it.
    fn source(self) -> u32 {
        if self.is_ipv4() { 12 } else { 8 }
    }
}

/// The expressions of one rule.
#[derive(Debug, Default)]
pub(super) struct Expressions(Attributes);

impl Expressions {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    fn add(&mut self, name: &str, fill: impl FnOnce(&mut Attributes)) -> &mut Self {
        self.0.nested(ITEM, |item| {
            item.text(NAME, name).nested(DATA, fill);
        });
        self
    }

    fn meta(&mut self, key: u32, register: u32) -> &mut Self {
        self.add("meta", |meta| {
            meta.number(1, register).number(2, key);
        })
    }

    fn payload(&mut self, register: u32, header: u32, offset: u32, length: u32) -> &mut Self {
        self.add("payload", |payload| {
            payload.number(1, register).number(2, header).number(3, offset).number(4, length);
        })
    }

    fn compare(&mut self, register: u32, operation: u32, bytes: &[u8]) -> &mut Self {
        self.add("cmp", |compare| {
            compare.number(1, register).number(2, operation);
            value(compare, 3, bytes);
        })
    }

    fn masked(&mut self, register: u32, mask: &[u8]) -> &mut Self {
        let length = u32::try_from(mask.len()).unwrap_or(0);
        self.add("bitwise", |bitwise| {
            bitwise.number(1, register).number(2, register).number(3, length);
            value(bitwise, 4, mask);
            value(bitwise, 5, &vec![0; mask.len()]);
        })
    }

    fn connection(&mut self, key: u32, register: u32, is_original: bool) -> &mut Self {
        self.add("ct", |ct| {
            ct.number(1, register).number(2, key);
            if is_original {
                ct.bytes(3, &[0]);
            }
        })
    }

    /// Continues for packets of that family.
    pub(super) fn is_family(&mut self, family: Family) -> &mut Self {
        self.meta(META_FAMILY, SCRATCH).compare(SCRATCH, EQUAL, &[family.number()])
    }

    pub(super) fn source_address(&mut self, family: Family) -> &mut Self {
        self.payload(FIRST, NETWORK_HEADER, family.source(), family.length())
    }

    pub(super) fn destination_address(&mut self, family: Family) -> &mut Self {
        self.payload(FIRST, NETWORK_HEADER, family.source() + family.length(), family.length())
    }

    /// Both addresses, one after the other.
    pub(super) fn both_addresses(&mut self, family: Family) -> &mut Self {
        self.payload(FIRST, NETWORK_HEADER, family.source(), 2 * family.length())
    }

    /// The protocol and the destination's port, behind so many bytes of the key.
    pub(super) fn protocol_and_port(&mut self, behind: u32) -> &mut Self {
        let register = FIRST + behind / 4;
        self.meta(META_PROTOCOL, register).payload(register + 1, TRANSPORT_HEADER, 2, 2)
    }

    /// The protocol, and the port to which the client has sent its first packet.
    pub(super) fn protocol_and_first_port(&mut self) -> &mut Self {
        self.meta(META_PROTOCOL, FIRST).connection(CT_PORT, FIRST + 1, true)
    }

    /// The address to which the client has sent its first packet.
    pub(super) fn first_destination(&mut self, family: Family) -> &mut Self {
        let key = if family.is_ipv4() { CT_ADDRESS_V4 } else { CT_ADDRESS_V6 };
        self.connection(key, FIRST, true)
    }

    /// Continues for connections whose destination was replaced.
    pub(super) fn was_passed_on(&mut self) -> &mut Self {
        self.connection(CT_STATUS, SCRATCH, false);
        self.masked(SCRATCH, &IPS_DST_NAT.to_ne_bytes()).compare(SCRATCH, NOT_EQUAL, &[0; 4])
    }

    /// Continues for packets to an address of the node.
    pub(super) fn is_local_destination(&mut self) -> &mut Self {
        self.add("fib", |fib| {
            fib.number(1, SCRATCH).number(2, ADDRESS_TYPE).number(3, BY_DESTINATION);
        });
        self.compare(SCRATCH, EQUAL, &RTN_LOCAL.to_ne_bytes())
    }

    /// Continues for packets to other addresses than the node's own loopback: the kernel takes no packet of these to a pod.
    pub(super) fn is_not_loopback(&mut self, family: Family) -> &mut Self {
        self.destination_address(family);
        match family {
            Family::V4 => self.masked(FIRST, &[255, 0, 0, 0]).compare(FIRST, NOT_EQUAL, &[127, 0, 0, 0]),
            Family::V6 => self.compare(FIRST, NOT_EQUAL, &std::net::Ipv6Addr::LOCALHOST.octets()),
        }
    }

    /// Continues if the address that was read is in the range.
    pub(super) fn is_within(&mut self, range: &Cidr) -> &mut Self {
        self.masked(FIRST, &range.mask()).compare(FIRST, EQUAL, &base(range))
    }

    /// Continues if the address that was read is not in the range.
    pub(super) fn is_outside(&mut self, range: &Cidr) -> &mut Self {
        self.masked(FIRST, &range.mask()).compare(FIRST, NOT_EQUAL, &base(range))
    }

    /// Continues if the key is this one.
    pub(super) fn equals(&mut self, key: &[u8]) -> &mut Self {
        self.compare(FIRST, EQUAL, key)
    }

    /// Continues if the key is in the set.
    pub(super) fn is_in(&mut self, set: &str) -> &mut Self {
        self.add("lookup", |lookup| {
            lookup.text(1, set).number(2, FIRST);
        })
    }

    /// Goes where the map says.
    pub(super) fn verdict_of(&mut self, map: &str) -> &mut Self {
        self.add("lookup", |lookup| {
            lookup.text(1, map).number(2, FIRST).number(3, VERDICT);
        })
    }

    /// A random number below `count`.
    pub(super) fn random(&mut self, count: u32) -> &mut Self {
        self.add("numgen", |numgen| {
            numgen.number(1, SCRATCH).number(2, count).number(3, 1);
        })
    }

    /// A number below `count` that derives from the address that was read.
    pub(super) fn hashed(&mut self, family: Family, count: u32) -> &mut Self {
        self.add("hash", |hash| {
            hash.number(1, FIRST).number(2, SCRATCH).number(3, family.length()).number(4, count).number(5, SEED);
        })
    }

    /// The value of the number in the map.
    pub(super) fn map(&mut self, map: &str) -> &mut Self {
        self.add("lookup", |lookup| {
            lookup.text(1, map).number(2, SCRATCH).number(3, FIRST);
        })
    }

    /// This address, and behind it this port.
    pub(super) fn constant(&mut self, address: &[u8], port: &[u8]) -> &mut Self {
        let behind = FIRST + if address.len() == 4 { 1 } else { 4 };
        for (register, bytes) in [(FIRST, address), (behind, port)] {
            self.add("immediate", |immediate| {
                immediate.number(1, register);
                value(immediate, 2, bytes);
            });
        }
        self
    }

    /// Replaces the destination by the address and the port that were found.
    pub(super) fn destination_nat(&mut self, family: Family) -> &mut Self {
        let port = FIRST + family.length() / 4;
        self.add("nat", |nat| {
            nat.number(1, NAT_OF_DESTINATION).number(2, u32::from(family.number())).number(3, FIRST).number(5, port);
        })
    }

    /// Replaces the source by the node's address.
    pub(super) fn masquerade(&mut self) -> &mut Self {
        self.add("masq", |_| {})
    }

    pub(super) fn accept(&mut self) -> &mut Self {
        self.verdict(ACCEPT, None)
    }

    pub(super) fn jump(&mut self, chain: &str) -> &mut Self {
        self.verdict(JUMP, Some(chain))
    }

    fn verdict(&mut self, code: i32, chain: Option<&str>) -> &mut Self {
        self.add("immediate", |immediate| {
            immediate.number(1, VERDICT).nested(2, |data| verdict(data, code, chain));
        })
    }

    /// Continues for packets of TCP.
    pub(super) fn is_tcp(&mut self) -> &mut Self {
        self.meta(META_PROTOCOL, SCRATCH).compare(SCRATCH, EQUAL, &[TCP])
    }

    /// Ends a connection by TCP as if nothing listened. A process of the node would not hear of ICMP while it connects.
    pub(super) fn reset(&mut self) -> &mut Self {
        self.add("reject", |reject| {
            reject.number(1, REJECT_BY_RESET).bytes(2, &[0]);
        })
    }

    /// Ends anything else as if nothing listened.
    pub(super) fn refuse(&mut self) -> &mut Self {
        self.add("reject", |reject| {
            reject.number(1, REJECT_BY_ICMP).bytes(2, &[PORT_UNREACHABLE]);
        })
    }
}
