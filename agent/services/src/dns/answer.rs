//! Which answer a query gets. Pure.

use std::net::IpAddr;

use simple_dns::rdata::{A, AAAA, CNAME, OPT, PTR, RData, SOA, SRV};
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE};

use super::{MAX_DATAGRAM, MAX_MESSAGE, PLAIN_DATAGRAM};
use crate::zone::{Lookup, Records, Zone};

/// How long clients may keep an answer, as in CoreDNS.
const TTL: u32 = 5;
/// The bytes before the questions of a message, and which of them are the questions' number (RFC 1035, 4.1.1).
const HEADER_LENGTH: usize = 12;
const QUESTION_COUNT: std::ops::Range<usize> = 4..6;
/// The longest label of a name, in bytes.
const MAX_LABEL: usize = 63;
/// How often a name may be an alias of another one.
const MAX_ALIASES: usize = 8;

/// What is to be done about a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Nothing: it is no query.
    None,
    Answer(Vec<u8>),
    /// The node's name servers know the answer.
    PassOn,
    /// It is an alias of a name that others know: the query for that, whose answer [`with_alias`] completes.
    Alias(Vec<u8>),
}

/// A query by UDP or by TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// The reply to a message. `names` is what exists.
pub(super) fn reply(names: &Zone, message: &[u8], transport: Transport) -> Reply {
    let Some(unknown) = UnknownType::read(message) else { return reply_to_known(names, message, transport) };
    match reply_to_known(names, &unknown.query, transport) {
        Reply::Answer(answer) => Reply::Answer(unknown.restored(answer)),
        // The answer about the alias could not be read.
        Reply::Alias(_) => unanswered(message).map_or(Reply::None, Reply::Answer),
        other => other,
    }
}

fn reply_to_known(names: &Zone, message: &[u8], transport: Transport) -> Reply {
    let Ok(query) = Packet::parse(message) else { return malformed(message) };
    if query.has_flags(PacketFlag::RESPONSE) {
        return Reply::None;
    }
    let (OPCODE::StandardQuery, [question]) = (query.opcode(), &query.questions[..]) else {
        return Reply::Answer(failure(&query, RCODE::NotImplemented));
    };
    let name = question.qname.to_string().to_lowercase();
    let records = match names.lookup(&name) {
        Lookup::Outside => return Reply::PassOn,
        Lookup::Found(records) => records,
        Lookup::Missing => return Reply::Answer(negative(names, &query, RCODE::NameError)),
    };
    if !matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY) {
        return Reply::Answer(failure(&query, RCODE::Refused));
    }
    let mut chain = vec![(name, records)];
    while let Some(alias) = chain.last().and_then(|(_, records)| records.alias.clone()) {
        if chain.len() > MAX_ALIASES {
            return Reply::Answer(failure(&query, RCODE::ServerFailure));
        }
        match names.lookup(&alias) {
            Lookup::Found(records) => chain.push((alias, records)),
            Lookup::Missing => chain.push((alias, Records::default())),
            Lookup::Outside => return alias_query(&query, &alias),
        }
    }
    let answers = chain.iter().flat_map(|(name, records)| answers(name, records, question.qtype, query.id()));
    let answers: Vec<ResourceRecord<'_>> = answers.collect();
    if answers.is_empty() {
        return Reply::Answer(negative(names, &query, RCODE::NoError));
    }
    let mut answer = answer_to(&query, RCODE::NoError);
    answer.answers = answers;
    Reply::Answer(bytes(answer, limit(&query, transport)))
}

/// The answer to a query whose names others do not tell.
pub(super) fn unanswered(message: &[u8]) -> Option<Vec<u8>> {
    answer_as_known(message, |query| Some(failure(query, RCODE::ServerFailure)))
}

/// The answer to a query for an alias, given what others have answered about the name that it stands for.
pub(super) fn with_alias(names: &Zone, message: &[u8], others: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let (query, others) = (Packet::parse(message).ok()?, Packet::parse(others).ok()?);
    let [question] = &query.questions[..] else { return None };
    let mut name = question.qname.to_string().to_lowercase();
    let mut chain = Vec::new();
    while let Lookup::Found(Records { alias: Some(alias), .. }) = names.lookup(&name) {
        if chain.len() > MAX_ALIASES {
            return None;
        }
        chain.push((name, alias.clone()));
        name = alias;
    }
    let mut answer = answer_to(&query, others.rcode());
    if others.has_flags(PacketFlag::TRUNCATION) {
        // What is missing there is missing here, and the client asks again by TCP.
        answer.set_flags(PacketFlag::TRUNCATION);
    }
    for (name, alias) in &chain {
        answer.answers.push(record(name, RData::CNAME(CNAME(Name::new(alias).ok()?)))?);
    }
    answer.answers.extend(others.answers.iter().cloned());
    answer.name_servers.clone_from(&others.name_servers);
    Some(bytes(answer, limit(&query, transport)))
}

/// What fits into an answer to that query.
pub(super) fn room(message: &[u8]) -> usize {
    let unknown = UnknownType::read(message);
    let query = unknown.as_ref().map_or(message, |unknown| &unknown.query);
    Packet::parse(query).map_or(PLAIN_DATAGRAM, |query| limit(&query, Transport::Udp))
}

/// The beginning of an answer that does not fit: the client asks again, by TCP.
pub(super) fn truncated(message: &[u8]) -> Option<Vec<u8>> {
    answer_as_known(message, |query| {
        let mut answer = answer_to(query, RCODE::NoError);
        answer.set_flags(PacketFlag::TRUNCATION);
        answer.build_bytes_vec_compressed().ok()
    })
}

/// A query for a type of records that the parser does not know, such as TLSA, and refuses as a whole.
#[derive(Debug, PartialEq, Eq)]
struct UnknownType {
    /// The same query for a known type of which nothing here has a record.
    query: Vec<u8>,
    kind: [u8; 2],
}

impl UnknownType {
    /// `None`: the message is no query, or the parser knows its type.
    fn read(message: &[u8]) -> Option<Self> {
        let at = type_offset(message)?;
        let kind: [u8; 2] = message.get(at..at + 2)?.try_into().ok()?;
        if QTYPE::try_from(u16::from_be_bytes(kind)).is_ok() {
            return None;
        }
        let mut query = message.to_vec();
        query.get_mut(at..at + 2)?.copy_from_slice(&u16::from(TYPE::NULL).to_be_bytes());
        Some(Self { query, kind })
    }

    /// The answer with the type that was asked for.
    fn restored(&self, mut answer: Vec<u8>) -> Vec<u8> {
        if let Some(kind) = type_offset(&answer).and_then(|at| answer.get_mut(at..at + 2)) {
            kind.copy_from_slice(&self.kind);
        }
        answer
    }
}

/// Where the type of a message's only question is: behind the name, which has no pointer.
fn type_offset(message: &[u8]) -> Option<usize> {
    if message.get(QUESTION_COUNT)? != [0, 1] {
        return None;
    }
    let mut at = HEADER_LENGTH;
    loop {
        match usize::from(*message.get(at)?) {
            0 => return Some(at + 1),
            length if length <= MAX_LABEL => at += 1 + length,
            _ => return None,
        }
    }
}

/// An answer to a query, which is made for a known type if the parser does not know the query's.
fn answer_as_known(message: &[u8], answer: impl FnOnce(&Packet<'_>) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    match UnknownType::read(message) {
        Some(unknown) => answer(&Packet::parse(&unknown.query).ok()?).map(|answer| unknown.restored(answer)),
        None => answer(&Packet::parse(message).ok()?),
    }
}

fn limit(query: &Packet<'_>, transport: Transport) -> usize {
    match transport {
        Transport::Tcp => MAX_MESSAGE,
        Transport::Udp => {
            let accepted = query.opt().map_or(PLAIN_DATAGRAM, |opt| usize::from(opt.udp_packet_size));
            accepted.clamp(PLAIN_DATAGRAM, MAX_DATAGRAM)
        }
    }
}

fn malformed(message: &[u8]) -> Reply {
    let Some(&[high, low]) = message.get(0..2) else { return Reply::None };
    // Never in answer to an answer.
    if message.get(2).is_none_or(|flags| flags & 0x80 != 0) {
        return Reply::None;
    }
    let mut answer = Packet::new_reply(u16::from_be_bytes([high, low]));
    *answer.rcode_mut() = RCODE::FormatError;
    answer.build_bytes_vec().map_or(Reply::None, Reply::Answer)
}

fn answer_to<'a>(query: &Packet<'a>, code: RCODE) -> Packet<'a> {
    let mut answer = Packet::new_reply(query.id());
    answer.set_flags(PacketFlag::AUTHORITATIVE_ANSWER | PacketFlag::RECURSION_AVAILABLE);
    if query.has_flags(PacketFlag::RECURSION_DESIRED) {
        answer.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    *answer.rcode_mut() = code;
    answer.questions.clone_from(&query.questions);
    if query.opt().is_some() {
        let size = u16::try_from(MAX_DATAGRAM).unwrap_or(u16::MAX);
        *answer.opt_mut() = Some(OPT { opt_codes: Vec::new(), udp_packet_size: size, version: 0 });
    }
    answer
}

fn failure(query: &Packet<'_>, code: RCODE) -> Vec<u8> {
    let mut answer = answer_to(query, code);
    answer.remove_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    answer.build_bytes_vec_compressed().unwrap_or_default()
}

/// That there is nothing, and for how long.
fn negative(names: &Zone, query: &Packet<'_>, code: RCODE) -> Vec<u8> {
    let mut answer = answer_to(query, code);
    let (server, contact) = (format!("ns.dns.{}", names.domain), format!("hostmaster.{}", names.domain));
    if let (Ok(mname), Ok(rname)) = (Name::new(&server), Name::new(&contact)) {
        let soa = SOA { mname, rname, serial: 1, refresh: 7200, retry: 1800, expire: 86_400, minimum: TTL };
        answer.name_servers.extend(record(&names.domain, RData::SOA(soa)));
        return answer.build_bytes_vec_compressed().unwrap_or_default();
    }
    answer.build_bytes_vec_compressed().unwrap_or_default()
}

fn alias_query(query: &Packet<'_>, alias: &str) -> Reply {
    let ([question], Ok(name)) = (&query.questions[..], Name::new(alias)) else {
        return Reply::Answer(failure(query, RCODE::ServerFailure));
    };
    let mut next = Packet::new_query(query.id());
    next.set_flags(PacketFlag::RECURSION_DESIRED);
    next.questions.push(Question::new(name, question.qtype, question.qclass, false));
    next.build_bytes_vec().map_or(Reply::None, Reply::Alias)
}

fn record<'a>(name: &'a str, data: RData<'a>) -> Option<ResourceRecord<'a>> {
    Some(ResourceRecord::new(Name::new(name).ok()?, CLASS::IN, TTL, data))
}

/// The records of a name for a query of that type. Addresses begin at another one for each query, so that clients spread.
fn answers<'a>(name: &'a str, records: &'a Records, wanted: QTYPE, id: u16) -> Vec<ResourceRecord<'a>> {
    let wants = |kind: TYPE| wanted == QTYPE::TYPE(kind) || wanted == QTYPE::ANY;
    let mut data = Vec::new();
    if let Some(alias) = records.alias.as_deref().and_then(|alias| Name::new(alias).ok()) {
        data.push(RData::CNAME(CNAME(alias)));
    }
    let address = |address: &IpAddr| match address {
        IpAddr::V4(v4) if wants(TYPE::A) => Some(RData::A(A::from(*v4))),
        IpAddr::V6(v6) if wants(TYPE::AAAA) => Some(RData::AAAA(AAAA::from(*v6))),
        _ => None,
    };
    let mut addresses: Vec<RData<'_>> = records.addresses.iter().filter_map(address).collect();
    if !addresses.is_empty() {
        let first = usize::from(id) % addresses.len();
        addresses.rotate_left(first);
    }
    data.extend(addresses);
    if wants(TYPE::SRV) {
        let service = |(port, target): &'a (u16, String)| {
            let target = Name::new(target).ok()?;
            Some(RData::SRV(SRV { priority: 0, weight: 100, port: *port, target }))
        };
        data.extend(records.services.iter().filter_map(service));
    }
    if wants(TYPE::PTR) {
        data.extend(records.names.iter().filter_map(|name| Some(RData::PTR(PTR(Name::new(name).ok()?)))));
    }
    data.into_iter().filter_map(|data| record(name, data)).collect()
}

/// The message, or its beginning if it is longer than that.
fn bytes(mut answer: Packet<'_>, limit: usize) -> Vec<u8> {
    let whole = answer.build_bytes_vec_compressed().unwrap_or_default();
    if whole.len() <= limit {
        return whole;
    }
    answer.answers.clear();
    answer.name_servers.clear();
    answer.set_flags(PacketFlag::TRUNCATION);
    answer.build_bytes_vec_compressed().unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::zone::tests::zone;

    fn query(name: &str, kind: TYPE) -> Vec<u8> {
        let mut query = Packet::new_query(7);
        query.set_flags(PacketFlag::RECURSION_DESIRED);
        query.questions.push(Question::new(Name::new(name).unwrap(), kind.into(), CLASS::IN.into(), false));
        query.build_bytes_vec().unwrap()
    }

    fn answer(name: &str, kind: TYPE) -> (RCODE, Vec<String>, usize) {
        match reply(&zone(), &query(name, kind), Transport::Udp) {
            Reply::Answer(bytes) => {
                let packet = Packet::parse(&bytes).unwrap();
                assert_eq!(packet.id(), 7);
                assert!(packet.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
                let shown = packet.answers.iter().map(|record| shown(&record.rdata)).collect();
                (packet.rcode(), shown, packet.name_servers.len())
            }
            other => panic!("{name}: {other:?}"),
        }
    }

    fn shown(data: &RData<'_>) -> String {
        match data {
            RData::A(a) => std::net::Ipv4Addr::from(a.address).to_string(),
            RData::SRV(srv) => format!("{} {}", srv.port, srv.target),
            RData::PTR(name) => name.0.to_string(),
            RData::CNAME(name) => name.0.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn names_are_answered_by_type_whatever_their_case() {
        let ok = |answers: &[&str]| (RCODE::NoError, answers.iter().map(|text| (*text).to_owned()).collect(), 0);
        assert_eq!(answer("Web.SHOP.svc.cluster.local", TYPE::A), ok(&["10.43.0.9"]));
        assert_eq!(answer("db.shop.svc.cluster.local", TYPE::A), ok(&["10.1.0.3", "10.1.0.2"]), "turned by the id");
        let target = "80 web.shop.svc.cluster.local";
        assert_eq!(answer("_http._tcp.web.shop.svc.cluster.local", TYPE::SRV), ok(&[target]));
        assert_eq!(answer("9.0.43.10.in-addr.arpa", TYPE::PTR), ok(&["web.shop.svc.cluster.local"]));
    }

    #[test]
    fn what_is_not_there_says_for_how_long() {
        assert_eq!(answer("web.shop.svc.cluster.local", TYPE::AAAA), (RCODE::NoError, vec![], 1));
        assert_eq!(answer("x.shop.svc.cluster.local", TYPE::A), (RCODE::NameError, vec![], 1));
    }

    #[test]
    fn other_names_are_passed_on_and_an_alias_is_followed() {
        assert_eq!(reply(&zone(), &query("example.com", TYPE::A), Transport::Udp), Reply::PassOn);
        let asked = query("mail.shop.svc.cluster.local", TYPE::A);
        let Reply::Alias(next) = reply(&zone(), &asked, Transport::Udp) else { panic!("no alias") };
        let next = Packet::parse(&next).unwrap();
        assert_eq!(next.questions[0].qname.to_string(), "mail.example.com");
        let mut others = Packet::new_reply(7);
        let name = Name::new("mail.example.com").unwrap();
        others.answers.push(ResourceRecord::new(name, CLASS::IN, 60, RData::A(A { address: 0xc000_0201 })));
        let whole = with_alias(&zone(), &asked, &others.build_bytes_vec().unwrap(), Transport::Udp).unwrap();
        let answers: Vec<String> =
            Packet::parse(&whole).unwrap().answers.iter().map(|record| shown(&record.rdata)).collect();
        assert_eq!(answers, ["mail.example.com", "192.0.2.1"]);
        let mut cut = Packet::new_reply(7);
        cut.set_flags(PacketFlag::TRUNCATION);
        let part = with_alias(&zone(), &asked, &cut.build_bytes_vec().unwrap(), Transport::Udp).unwrap();
        assert!(Packet::parse(&part).unwrap().has_flags(PacketFlag::TRUNCATION), "asked again by TCP");
    }

    #[test]
    fn a_type_that_the_parser_does_not_know_is_passed_on_or_has_no_record() {
        for kind in [52_u16, 256, 65_500] {
            let of_kind = |name: &str| {
                let mut query = query(name, TYPE::A);
                let at = type_offset(&query).unwrap();
                query[at..at + 2].copy_from_slice(&kind.to_be_bytes());
                query
            };
            assert_eq!(reply(&zone(), &of_kind("example.com"), Transport::Udp), Reply::PassOn);
            for (name, code) in [
                ("web.shop.svc.cluster.local", RCODE::NoError),
                ("x.shop.svc.cluster.local", RCODE::NameError),
                ("mail.shop.svc.cluster.local", RCODE::ServerFailure),
            ] {
                let query = of_kind(name);
                let Reply::Answer(answer) = reply(&zone(), &query, Transport::Udp) else { panic!("{name}") };
                let end = query.len();
                assert_eq!((&answer[..2], &answer[12..end]), (&query[..2], &query[12..]), "the question");
                assert_eq!(RCODE::from(u16::from(answer[3] & 0xf)), code, "{name}");
            }
            let query = of_kind("example.com");
            assert_eq!(unanswered(&query).unwrap()[12..], query[12..]);
            assert_eq!((truncated(&query).unwrap()[2] & 2, room(&query)), (2, PLAIN_DATAGRAM));
        }
    }

    #[test]
    fn what_does_not_fit_is_asked_again() {
        let bytes = truncated(&query("db.shop.svc.cluster.local", TYPE::A)).unwrap();
        assert!(Packet::parse(&bytes).unwrap().has_flags(PacketFlag::TRUNCATION));
        let many = Records { addresses: vec![IpAddr::from([10, 1, 0, 2]); 60], ..Records::default() };
        let asked = query("db.shop.svc.cluster.local", TYPE::A);
        let packet = Packet::parse(&asked).unwrap();
        let mut large = answer_to(&packet, RCODE::NoError);
        large.answers = answers("db.shop.svc.cluster.local", &many, QTYPE::TYPE(TYPE::A), 7);
        let cut = super::bytes(large.clone(), limit(&packet, Transport::Udp));
        assert!(cut.len() <= 512 && Packet::parse(&cut).unwrap().has_flags(PacketFlag::TRUNCATION));
        assert_eq!(Packet::parse(&super::bytes(large, limit(&packet, Transport::Tcp))).unwrap().answers.len(), 60);
    }

    #[test]
    fn what_is_no_query_gets_an_error_or_nothing() {
        assert_eq!(reply(&zone(), &[], Transport::Udp), Reply::None);
        let answer = Packet::new_reply(7).build_bytes_vec().unwrap();
        assert_eq!(reply(&zone(), &answer, Transport::Udp), Reply::None);
        let Reply::Answer(bytes) = reply(&zone(), &[0, 7, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0], Transport::Udp) else {
            panic!("no answer")
        };
        assert_eq!(Packet::parse(&bytes).unwrap().rcode(), RCODE::FormatError);
        let many = query("web.shop.svc.cluster.local", TYPE::A);
        for end in 0..many.len() {
            // Whatever is cut off, a message is parsed without a panic.
            let _ = reply(&zone(), &many[..end], Transport::Udp);
        }
    }
}
