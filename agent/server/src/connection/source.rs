//! Where network clients come from, and places of which each source gets a share: a single address cannot lock out
//! other clients.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bits of an IPv6 address that identify its network; hosts choose the others freely.
const NETWORK_MASK: u128 = !0 << 64;

/// An IPv4 address, or the network of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Source(IpAddr);

impl Source {
    pub(super) fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK_MASK).into(),
            address => address,
        })
    }
}

/// The number of places that each source holds.
type Counts = Arc<Mutex<HashMap<Source, usize>>>;

/// Places of which each source gets a limited number.
#[derive(Clone)]
pub(super) struct PerSourceLimit {
    free: Arc<Semaphore>,
    counts: Counts,
    share: usize,
}

impl PerSourceLimit {
    /// One source gets at most half of `places`.
    pub(super) fn new(free: Arc<Semaphore>, places: usize) -> Self {
        Self { free, counts: Counts::default(), share: places / 2 }
    }

    /// A place, if one is free and the source is below its limit.
    pub(super) fn enter(&self, source: Option<Source>) -> Option<SlotPermit> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        let Some(source) = source else { return Some(SlotPermit::from(permit)) };
        let mut counts = lock(&self.counts);
        let count = counts.entry(source).or_default();
        if *count >= self.share {
            return None;
        }
        *count += 1;
        Some(SlotPermit { _permit: permit, source: Some((source, Arc::clone(&self.counts))) })
    }
}

/// A held place.
#[derive(Debug)]
pub(super) struct SlotPermit {
    _permit: OwnedSemaphorePermit,
    source: Option<(Source, Counts)>,
}

impl From<OwnedSemaphorePermit> for SlotPermit {
    fn from(permit: OwnedSemaphorePermit) -> Self {
        Self { _permit: permit, source: None }
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        let Some((source, counts)) = self.source.take() else { return };
        let mut counts = lock(&counts);
        if let Some(count) = counts.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&source);
            }
        }
    }
}

fn lock(counts: &Counts) -> MutexGuard<'_, HashMap<Source, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_source() {
        let source = |text: &str| Source::new(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }

    #[test]
    fn a_source_has_half_of_the_places_and_gives_them_back() {
        let shared = PerSourceLimit::new(Arc::new(Semaphore::new(4)), 4);
        let [first, second, third] = [1, 2, 3].map(|last| Some(Source::new(IpAddr::from([10, 0, 0, last]))));
        let held = [first, first, second].map(|source| shared.enter(source).unwrap());
        assert!(shared.enter(first).is_none(), "it has its half");
        let last = shared.enter(third).unwrap();
        assert!(shared.enter(second).is_none(), "all are taken");
        drop((held, last));
        assert!(lock(&shared.counts).is_empty() && shared.enter(first).is_some());
    }
}
