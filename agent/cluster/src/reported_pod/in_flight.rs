//! Requests in flight: one per pod, and a bounded number in total. Meanwhile updates from the apiserver are read, and
//! a slow request, such as a mirror pod that a webhook checks, delays only its own pod.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;

use limpet_model::pod::PodKey;

/// The most requests at a time: each holds its status or its pod. The link decides their order.
const MAX_IN_FLIGHT: usize = 16;

/// The requests, each with its result.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    requests: FuturesUnordered<BoxFuture<'static, (PodKey, T)>>,
    pods: BTreeSet<PodKey>,
}

impl<T: 'static> InFlight<T> {
    pub(super) fn new() -> Self {
        Self { requests: FuturesUnordered::new(), pods: BTreeSet::new() }
    }

    pub(super) fn has_room(&self) -> bool {
        self.requests.len() < MAX_IN_FLIGHT
    }

    /// The pods with a request in flight.
    pub(super) fn pods(&self) -> &BTreeSet<PodKey> {
        &self.pods
    }

    /// Begins a request for a pod that has none in flight.
    pub(super) fn begin(&mut self, pod: PodKey, request: impl Future<Output = T> + Send + 'static) {
        self.pods.insert(pod.clone());
        self.requests.push(async move { (pod, request.await) }.boxed());
    }

    /// The next result; pending while no request is in flight. Cancel safe.
    pub(super) async fn ended(&mut self) -> (PodKey, T) {
        match self.requests.next().await {
            Some((pod, result)) => {
                self.pods.remove(&pod);
                (pod, result)
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_hangs_holds_up_no_other() {
        let mut requests = InFlight::new();
        let pod = |name: &str| PodKey::new("lab", name);
        requests.begin(pod("hangs"), std::future::pending());
        requests.begin(pod("web"), async { 7 });
        assert_eq!(requests.ended().await, (pod("web"), 7));
        assert_eq!(requests.pods().iter().collect::<Vec<_>>(), [&pod("hangs")]);
        assert!(requests.ended().now_or_never().is_none());
        for index in 1..MAX_IN_FLIGHT {
            assert!(requests.has_room());
            requests.begin(pod(&index.to_string()), std::future::pending());
        }
        assert!(!requests.has_room());
    }
}
