//! [`Ruleset`] as a transaction of nftables: the table `inet limpet`, which replaces the one before as a whole.
//!
//! As `nft list ruleset` shows it:
//!
//! ```text
//! table inet limpet {
//!     map services4 { type ipv4_addr . inet_proto . inet_service : verdict }        # and services6
//!     map node-ports4 { type inet_proto . inet_service : verdict }                  # and node-ports6
//!     set looped4 { type ipv4_addr . ipv4_addr }                                    # and looped6
//!     set masqueraded { type inet_proto . inet_service }
//!     map to-0 { type integer : ipv4_addr . inet_service }
//!     chain to-0 { dnat ip to numgen random mod 2 map @to-0 }
//!     chain services {
//!         ip daddr . meta l4proto . th dport vmap @services4
//!         ip daddr 10.43.0.10 accept
//!         fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @node-ports4
//!     }
//!     chain prerouting { type nat hook prerouting priority dstnat; jump services }  # and output
//!     chain postrouting {
//!         type nat hook postrouting priority srcnat
//!         ip saddr . ip daddr @looped4 masquerade
//!         ct status dnat ct original ip daddr != 10.43.0.0/16 meta l4proto . ct original proto-dst @masqueraded masquerade
//!     }
//!     chain forward { type filter hook forward priority filter; ip daddr 10.43.0.0/16 reject }   # and filter-output; with a reset for TCP
//! }
//! ```

mod batch;
mod data;
mod expression;

use std::net::IpAddr;

use limpet_model::object::local_service::Protocol;

use crate::cidr::Cidr;
use crate::membership::Endpoint;
use crate::rules::{Choice, Forward, Ruleset};
use batch::{Batch, Hook, SetType};
use expression::{Expressions, Family};

/// The name of the table.
pub(crate) const TABLE: &str = "limpet";

/// What `nft` calls the types of keys, of which several follow each other by six bits each.
const ADDRESS_V4: u32 = 7;
const ADDRESS_V6: u32 = 8;
const PROTOCOL: u32 = 12;
const PORT: u32 = 13;
const INTEGER: u32 = 4;

/// How traffic between pods of one bridge is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BridgeTraffic {
    /// The kernel passes it by these rules, too.
    Filtered,
    /// It does not, so that answers would not find the way back: the client's address is replaced.
    Unfiltered,
}

/// The messages that replace the table by one with these rules.
pub(crate) fn replacement(rules: &Ruleset, bridges: BridgeTraffic) -> Vec<u8> {
    let mut batch = Batch::begin();
    batch.remove_table();
    batch.table();
    sets(&mut batch, rules);
    chains(&mut batch, rules);
    for (index, forward) in rules.forwards.iter().enumerate() {
        batch.rule(&chain_name(index), passed_on(index, forward));
    }
    passing(&mut batch, rules);
    masquerading(&mut batch, rules, bridges);
    refusing(&mut batch, rules);
    elements(&mut batch, rules);
    batch.finish()
}

/// The messages that remove the table, if there is one.
pub(crate) fn removal() -> Vec<u8> {
    let mut batch = Batch::begin();
    batch.remove_table();
    batch.finish()
}

/// The request that finds a table of IPv4 or of several families.
pub(crate) fn table_request(is_ipv4: bool, name: &str) -> Vec<u8> {
    batch::table_request(if is_ipv4 { expression::NFPROTO_IPV4 } else { expression::NFPROTO_INET }, name)
}

/// The request that finds a chain of a table of IPv4.
pub(crate) fn chain_request(table: &str, name: &str) -> Vec<u8> {
    batch::chain_request(expression::NFPROTO_IPV4, table, name)
}

fn chain_name(index: usize) -> String {
    format!("to-{index}")
}

fn per_family(name: &str, family: Family) -> String {
    let number = if family.is_ipv4() { '4' } else { '6' };
    format!("{name}{number}")
}

fn address_type(family: Family) -> u32 {
    if family.is_ipv4() { ADDRESS_V4 } else { ADDRESS_V6 }
}

fn sets(batch: &mut Batch, rules: &Ruleset) {
    for family in Family::ALL {
        let (address, length) = (address_type(family), family.length());
        let service = SetType { id: address << 12 | PROTOCOL << 6 | PORT, length: length + 8 };
        batch.verdict_map(&per_family("services", family), service);
        let port = SetType { id: PROTOCOL << 6 | PORT, length: 8 };
        batch.verdict_map(&per_family("node-ports", family), port);
        batch.set(&per_family("looped", family), SetType { id: address << 6 | address, length: 2 * length });
    }
    batch.set("masqueraded", SetType { id: PROTOCOL << 6 | PORT, length: 8 });
    for (index, forward) in rules.forwards.iter().enumerate() {
        let family = Family::of_address(forward.is_ipv4);
        if forward.choice.places().len() > 1 {
            let end = SetType { id: address_type(family) << 6 | PORT, length: family.length() + 4 };
            batch.map(&chain_name(index), SetType { id: INTEGER, length: 4 }, end);
        }
    }
}

fn chains(batch: &mut Batch, rules: &Ruleset) {
    for index in 0..rules.forwards.len() {
        batch.chain(&chain_name(index));
    }
    batch.chain("services");
    batch.base_chain("prerouting", "nat", Hook::Prerouting, -100);
    batch.base_chain("output", "nat", Hook::Output, -100);
    batch.base_chain("postrouting", "nat", Hook::Postrouting, 100);
    batch.base_chain("forward", "filter", Hook::Forward, 0);
    batch.base_chain("filter-output", "filter", Hook::Output, 0);
}

/// Chooses an endpoint and sends the connection there.
fn passed_on(index: usize, forward: &Forward) -> Expressions {
    let family = Family::of_address(forward.is_ipv4);
    let mut rule = Expressions::default();
    let count = u32::try_from(forward.choice.places().len()).unwrap_or(u32::MAX);
    match &forward.choice {
        Choice::Random(ends) if ends.len() == 1 => {
            rule.constant(&octets(ends[0].address), &port_value(ends[0].port));
        }
        Choice::Random(_) => {
            rule.random(count).map(&chain_name(index));
        }
        Choice::ByClient(_) => {
            rule.source_address(family).hashed(family, count).map(&chain_name(index));
        }
    }
    rule.destination_nat(family);
    rule
}

/// The rules that find the chain of a connection.
fn passing(batch: &mut Batch, rules: &Ruleset) {
    for family in Family::ALL {
        let mut rule = Expressions::default();
        rule.is_family(family).destination_address(family).protocol_and_port(family.length());
        rule.verdict_of(&per_family("services", family));
        batch.rule("services", rule);
    }
    // A Service may have the name server's port on every other address of the node.
    for server in &rules.name_servers {
        let family = Family::of_address(server.is_ipv4());
        let mut rule = Expressions::default();
        rule.is_family(family).destination_address(family).equals(&octets(*server)).accept();
        batch.rule("services", rule);
    }
    for family in Family::ALL {
        let mut rule = Expressions::default();
        rule.is_family(family).is_local_destination().is_not_loopback(family).protocol_and_port(0);
        rule.verdict_of(&per_family("node-ports", family));
        batch.rule("services", rule);
    }
    for chain in ["prerouting", "output"] {
        let mut rule = Expressions::default();
        rule.jump("services");
        batch.rule(chain, rule);
    }
}

/// The rules by which answers come back through the node.
fn masquerading(batch: &mut Batch, rules: &Ruleset, bridges: BridgeTraffic) {
    for family in Family::ALL {
        let mut rule = Expressions::default();
        rule.is_family(family).both_addresses(family).is_in(&per_family("looped", family)).masquerade();
        batch.rule("postrouting", rule);
    }
    for family in Family::ALL {
        let mut rule = Expressions::default();
        rule.is_family(family).was_passed_on();
        // A Service's own port may have the number of another one's port of the node.
        for range in rules.ranges.iter().filter(|range| range.is_ipv4() == family.is_ipv4()) {
            rule.first_destination(family).is_outside(range);
        }
        rule.protocol_and_first_port().is_in("masqueraded").masquerade();
        batch.rule("postrouting", rule);
    }
    for range in rules.ranges.iter().filter(|_| bridges == BridgeTraffic::Unfiltered) {
        let mut rule = Expressions::default();
        rule.is_family(Family::of_address(range.is_ipv4())).was_passed_on();
        rule.first_destination(Family::of_address(range.is_ipv4())).is_within(range).masquerade();
        batch.rule("postrouting", rule);
    }
}

/// The rules by which connections to what is not served end at once.
fn refusing(batch: &mut Batch, rules: &Ruleset) {
    for chain in ["forward", "filter-output"] {
        for server in &rules.name_servers {
            let family = Family::of_address(server.is_ipv4());
            let mut rule = Expressions::default();
            rule.is_family(family).destination_address(family).equals(&octets(*server)).accept();
            batch.rule(chain, rule);
        }
        for range in &rules.ranges {
            let family = Family::of_address(range.is_ipv4());
            let mut rule = Expressions::default();
            rule.is_family(family).destination_address(family).is_within(range).is_tcp().reset();
            batch.rule(chain, rule);
            let mut rule = Expressions::default();
            rule.is_family(family).destination_address(family).is_within(range).refuse();
            batch.rule(chain, rule);
        }
    }
}

fn elements(batch: &mut Batch, rules: &Ruleset) {
    for family in Family::ALL {
        let of_family = || rules.forwards.iter().enumerate().filter(|(_, forward)| forward.is_ipv4 == family.is_ipv4());
        let services = of_family().filter_map(|(index, forward)| {
            let (address, port) = forward.service?;
            Some(([octets(address), port_key(forward.protocol, port)].concat(), chain_name(index)))
        });
        batch.verdicts(&per_family("services", family), services);
        let ports = of_family().flat_map(|(index, forward)| {
            let key = move |port: &u16| (port_key(forward.protocol, *port), chain_name(index));
            forward.node_ports.iter().map(key)
        });
        batch.verdicts(&per_family("node-ports", family), ports);
        let addresses = rules.looped.iter().filter(|address| address.is_ipv4() == family.is_ipv4());
        let looped = addresses.map(|address| ([octets(*address), octets(*address)].concat(), None));
        batch.elements(&per_family("looped", family), looped);
    }
    let masqueraded = rules.masqueraded.iter().map(|(protocol, port)| (port_key(*protocol, *port), None));
    batch.elements("masqueraded", masqueraded);
    for (index, forward) in rules.forwards.iter().enumerate() {
        let places = forward.choice.places();
        if places.len() > 1 {
            let place = |(place, end): (u32, &Endpoint)| (place.to_ne_bytes().to_vec(), Some(end_value(end)));
            batch.elements(&chain_name(index), (0..).zip(places).map(place));
        }
    }
}

/// A port in a register: the rest of the register is zero.
fn port_value(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn port_key(protocol: Protocol, port: u16) -> Vec<u8> {
    let number = match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    };
    [[number, 0, 0, 0], port_value(port)].concat()
}

fn end_value(end: &Endpoint) -> Vec<u8> {
    [octets(end.address), port_value(end.port).to_vec()].concat()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The bytes of the first address of a range.
fn base(range: &Cidr) -> Vec<u8> {
    octets(range.base())
}
