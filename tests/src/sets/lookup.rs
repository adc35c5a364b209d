//! A client of name servers that asks one question at a time, by UDP.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

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
    Address = 1,
    /// Hosts and ports.
    Service = 33,
}

/// How long an answer may take. A server that gives none is asked again by who waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The answers of the server, sorted, each with its type: `A 10.1.2.3`, `SRV 80 web.shop.svc.cluster.local`.
pub fn ask(server: SocketAddr, question: &Question) -> Result<Vec<String>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(server)?;
    socket.send(&query(question)).with_context(|| format!("ask {server}"))?;
    let mut answer = [0; 4096];
    let length = socket.recv(&mut answer).with_context(|| format!("no answer of {server} to {}", question.name))?;
    answers(&answer[..length]).with_context(|| question.name.clone())
}

fn query(question: &Question) -> Vec<u8> {
    let mut query = vec![0x4c, 0x70, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in question.name.split('.').filter(|label| !label.is_empty()) {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, question.kind as u8, 0, 1]);
    query
}

fn answers(message: &[u8]) -> Result<Vec<String>> {
    ensure!(message.len() >= 12, "an answer of {} bytes", message.len());
    let (code, count) = (message[3] & 15, number(message, 6)?);
    // "No such name" is an answer without records; any other code says something of the server.
    if code != 0 && code != 3 {
        return Ok(vec![format!("code {code}")]);
    }
    let (_, question) = name_at(message, 12)?;
    let (mut at, mut lines) = (question + 4, Vec::new());
    for _ in 0..count {
        let (_, data) = name_at(message, at)?;
        let (kind, length) = (number(message, data)?, usize::from(number(message, data + 8)?));
        let (begin, bytes) = (data + 10, message.get(data + 10..data + 10 + length).context("a record that is cut")?);
        match (kind, bytes) {
            (1, [a, b, c, d]) => lines.push(format!("A {a}.{b}.{c}.{d}")),
            (5, _) => lines.push(format!("CNAME {}", name_at(message, begin)?.0)),
            (33, _) => lines.push(format!("SRV {} {}", number(message, begin + 4)?, name_at(message, begin + 6)?.0)),
            _ => {}
        }
        at = begin + length;
    }
    lines.sort();
    Ok(lines)
}

fn number(message: &[u8], at: usize) -> Result<u16> {
    let bytes = message.get(at..at + 2).context("a message that is cut")?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The name at that place, and where what follows it begins.
fn name_at(message: &[u8], mut at: usize) -> Result<(String, usize)> {
    let (mut labels, mut end) = (Vec::new(), None);
    // As many labels and jumps as a name can have.
    for _ in 0..128 {
        let length = usize::from(*message.get(at).context("a name that is cut")?);
        if length & 0xc0 == 0xc0 {
            end.get_or_insert(at + 2);
            at = usize::from(number(message, at)? & 0x3fff);
        } else if length == 0 {
            return Ok((labels.join("."), end.unwrap_or(at + 1)));
        } else {
            let label = message.get(at + 1..at + 1 + length).context("a label that is cut")?;
            labels.push(String::from_utf8_lossy(label).into_owned());
            at += 1 + length;
        }
    }
    anyhow::bail!("a name without an end")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_with_their_pointers() {
        let mut message = query(&Question { name: "_http._tcp.web.a".to_owned(), kind: Kind::Service });
        (message[3], message[7]) = (0, 1);
        // A record of the name at 12: port 80 at the name that begins at 23, `web.a`.
        message.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 5, 0, 8, 0, 0, 0, 0, 0, 80, 0xc0, 23]);
        assert_eq!(answers(&message).unwrap(), ["SRV 80 web.a"]);
    }

    #[test]
    fn a_message_that_points_to_itself_is_no_answer() {
        let mut message = vec![0; 12];
        (message[7], message[5]) = (1, 1);
        message.extend([0xc0, 12]);
        assert!(answers(&message).is_err());
    }
}
