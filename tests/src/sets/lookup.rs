//! A client of name servers that asks one question at a time, by UDP.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord, TYPE};

/// The name and the type of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub name: String,
    pub kind: Kind,
}

/// The types of records that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Addresses, and the names that they are of.
    Address,
    /// The hosts and ports of a Service's named port.
    Service,
}

impl From<Kind> for TYPE {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Address => Self::A,
            Kind::Service => Self::SRV,
        }
    }
}

const ID: u16 = 0x4c70;
/// How long an answer may take. A server that gives none is asked again by who waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The answers of the server, sorted, each with its type: `A 10.1.2.3`, `SRV 80 web.shop.svc.cluster.local`.
pub fn ask(server: SocketAddr, question: &Question) -> Result<Vec<String>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(server)?;
    socket.send(&query(question)?).with_context(|| format!("ask {server}"))?;
    let mut answer = [0; 4096];
    let length = socket.recv(&mut answer).with_context(|| format!("no answer of {server} to {}", question.name))?;
    answers(&answer[..length]).with_context(|| question.name.clone())
}

/// The question as a message. A client that asks one at a time needs no more than one id.
fn query(question: &Question) -> Result<Vec<u8>> {
    let mut query = Packet::new_query(ID);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    let (name, kind) = (Name::new(&question.name)?, QTYPE::TYPE(question.kind.into()));
    query.questions.push(simple_dns::Question::new(name, kind, QCLASS::CLASS(CLASS::IN), false));
    Ok(query.build_bytes_vec()?)
}

fn answers(message: &[u8]) -> Result<Vec<String>> {
    let answer = Packet::parse(message)?;
    // "No such name" is an answer without records; any other code is about the server.
    if ![RCODE::NoError, RCODE::NameError].contains(&answer.rcode()) {
        return Ok(vec![format!("code {:?}", answer.rcode())]);
    }
    let line = |record: &ResourceRecord<'_>| match &record.rdata {
        RData::A(a) => Some(format!("A {}", Ipv4Addr::from(a.address))),
        RData::CNAME(alias) => Some(format!("CNAME {}", alias.0)),
        RData::SRV(service) => Some(format!("SRV {} {}", service.port, service.target)),
        _ => None,
    };
    let mut lines: Vec<String> = answer.answers.iter().filter_map(line).collect();
    lines.sort();
    Ok(lines)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use simple_dns::rdata::SRV;

    use super::*;

    #[test]
    fn answers_are_lines_and_no_such_name_has_none() {
        let question = Question { name: "_http._tcp.web.a".to_owned(), kind: Kind::Service };
        let message = query(&question).unwrap();
        assert_eq!(answers(&message).unwrap(), Vec::<String>::new());
        let mut answer = Packet::new_reply(ID);
        let target = Name::new_unchecked("web.a");
        let data = RData::SRV(SRV { priority: 0, weight: 0, port: 80, target });
        answer.answers.push(ResourceRecord::new(Name::new_unchecked(&question.name), CLASS::IN, 5, data));
        assert_eq!(answers(&answer.build_bytes_vec_compressed().unwrap()).unwrap(), ["SRV 80 web.a"]);
        *answer.rcode_mut() = RCODE::Refused;
        assert_eq!(answers(&answer.build_bytes_vec().unwrap()).unwrap(), ["code Refused"]);
    }
}
