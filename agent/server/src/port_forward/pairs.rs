//! Matches the two streams of each forwarded connection. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use limpet_wire::port_forward::{PORT, REQUEST_ID, STREAM_TYPE};
use limpet_wire::spdy::headers::Headers;

/// How long the first stream of a pair waits for the second, as in kubelet.
const PAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest request id that is accepted, in bytes; clients count from 0.
const MAX_REQUEST_ID: usize = 64;

/// The two streams of a forwarded connection, and the port.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair<T> {
    pub(super) port: u16,
    pub(super) data: T,
    pub(super) error: T,
}

/// Streams that wait for their other half.
#[derive(Debug)]
pub(super) struct Pairs<T>(HashMap<String, Half<T>>);

#[derive(Debug)]
struct Half<T> {
    kind: Kind,
    stream: T,
    until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    Error,
}

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Pairs<T> {
    /// Adds a stream. Returns its pair once that is complete.
    ///
    /// # Errors
    ///
    /// The stream, if its headers are invalid or its pair already has such a stream.
    pub(super) fn add(&mut self, id: u32, headers: &Headers, stream: T, now: Instant) -> Result<Option<Pair<T>>, T> {
        let kind = match headers.get(STREAM_TYPE) {
            Some("data") => Kind::Data,
            Some("error") => Kind::Error,
            _ => return Err(stream),
        };
        let port = headers.get(PORT).and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
        let Some(port) = port else { return Err(stream) };
        // Clients that send no request id open the error stream first and the data stream right after it.
        let number = || match kind {
            Kind::Error => id.to_string(),
            Kind::Data => id.saturating_sub(2).to_string(),
        };
        if headers.get(REQUEST_ID).is_some_and(|request| request.len() > MAX_REQUEST_ID) {
            return Err(stream);
        }
        let pair = headers.get(REQUEST_ID).map_or_else(number, str::to_owned);
        match self.0.remove(&pair) {
            Some(other) if other.kind == kind => {
                self.0.insert(pair, other);
                Err(stream)
            }
            Some(other) => {
                let (data, error) = match kind {
                    Kind::Data => (stream, other.stream),
                    Kind::Error => (other.stream, stream),
                };
                Ok(Some(Pair { port, data, error }))
            }
            None => {
                self.0.insert(pair, Half { kind, stream, until: now + PAIR_TIMEOUT });
                Ok(None)
            }
        }
    }

    /// When the next stream's wait ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.values().map(|half| half.until).min()
    }

    /// Removes and returns the streams whose wait has ended.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<T> {
        self.0.extract_if(|_, half| half.until <= now).map(|(_, half)| half.stream).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(kind: &str, port: &str, request: Option<&str>) -> Headers {
        let all = [(STREAM_TYPE, Some(kind)), (PORT, Some(port)), (REQUEST_ID, request)];
        let given: Vec<_> = all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        Headers::new(&given)
    }

    #[test]
    fn two_streams_of_one_request_are_a_pair_whichever_comes_first() {
        let (mut pairs, now) = (Pairs::default(), Instant::now());
        assert_eq!(pairs.add(1, &headers("error", "80", Some("0")), 1, now), Ok(None));
        assert_eq!(pairs.add(3, &headers("data", "443", Some("1")), 3, now), Ok(None));
        let pair = |port, data, error| Ok(Some(Pair { port, data, error }));
        assert_eq!(pairs.add(5, &headers("data", "80", Some("0")), 5, now), pair(80, 5, 1));
        assert_eq!(pairs.add(7, &headers("error", "443", Some("1")), 7, now), pair(443, 3, 7));
        // Without a request id, streams are matched by their stream ids.
        assert_eq!(pairs.add(9, &headers("error", "80", None), 9, now), Ok(None));
        assert_eq!(pairs.add(11, &headers("data", "80", None), 11, now), pair(80, 11, 9));
        assert_eq!(pairs.deadline(), None);
    }

    #[test]
    fn what_is_no_half_of_a_pair_is_given_back() {
        let (mut pairs, now) = (Pairs::default(), Instant::now());
        for bad in [
            headers("stdin", "80", Some("0")),
            headers("data", "0", Some("0")),
            headers("data", "65536", Some("0")),
            headers("data", "-1", Some("0")),
            headers("data", "", Some("0")),
            headers("data", "80", Some(&"0".repeat(65))),
            Headers::default(),
        ] {
            assert_eq!(pairs.add(1, &bad, 1, now), Err(1), "{bad:?}");
        }
        assert_eq!(pairs.add(1, &headers("data", "80", Some("0")), 1, now), Ok(None));
        assert_eq!(pairs.add(3, &headers("data", "80", Some("0")), 3, now), Err(3));
        assert_eq!((pairs.expired(now), pairs.deadline()), (vec![], Some(now + PAIR_TIMEOUT)));
        assert_eq!((pairs.expired(now + PAIR_TIMEOUT), pairs.deadline()), (vec![1], None));
    }
}
