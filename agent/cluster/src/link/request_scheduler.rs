//! Orders requests to the apiserver: how many of the node run at a time, and which run first. After an outage,
//! requests are sent in order of need, at first few at a time, and more as long as answers are fast. So a server to
//! which all nodes return at once, or which is busy (API Priority and Fairness answers 429), has only a few requests
//! of each node to queue.
//!
//! Heartbeats never wait, because a node whose lease is not renewed loses its pods. Reviews never wait either,
//! because a client of the node's own API is waiting for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limpet_apiserver_client::Resource;
use limpet_core::connectivity;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// The most concurrent requests after a loss of the connection, or a refusal by a busy server.
const MIN_CONCURRENT_REQUESTS: usize = 2;
/// The most concurrent requests at any time. More would only wait in a busy server, or on a slow link.
const MAX_CONCURRENT_REQUESTS: usize = 32;
/// A faster answer raises the limit by one; slower ones raise it only when all running requests have been answered.
const FAST_RESPONSE: Duration = Duration::from_millis(250);
/// A request that has run this long no longer counts: for example a mirror pod whose creation a webhook checks.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// What a request is for, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Heartbeat,
    /// Who a client of the node's API is, and what it may do.
    Review,
    /// Which pods to run and which are deleted.
    Pods,
    Status,
    /// Mirrors, and the removal of deleted pods that have ended.
    Mirror,
    /// Objects that pods need to start, and all else.
    Object,
    Event,
}

const NEED_COUNT: usize = Need::Event as usize + 1;

impl Need {
    /// The need of a request.
    pub(super) fn for_resource(resource: &Resource, is_read: bool) -> Self {
        match resource {
            Resource::Nodes | Resource::Node(_) | Resource::NodeStatus(_) => Self::Heartbeat,
            Resource::Leases(_) | Resource::Lease(..) => Self::Heartbeat,
            Resource::TokenReviews | Resource::SubjectAccessReviews => Self::Review,
            Resource::AllPods | Resource::Pods(_) | Resource::Pod(..) if is_read => Self::Pods,
            Resource::AllPods | Resource::Pods(_) | Resource::Pod(..) => Self::Mirror,
            // The UID of this Service identifies the cluster to which a list of pods belongs.
            Resource::Service(..) => Self::Pods,
            Resource::PodStatus(..) => Self::Status,
            Resource::Events(_) | Resource::Event(..) => Self::Event,
            _ => Self::Object,
        }
    }

    /// Whether requests with this need wait for a permit.
    fn waits(self) -> bool {
        self > Self::Review
    }
}

/// The permits of one node. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestScheduler(Arc<SchedulerState>);

#[derive(Debug, Default)]
struct SchedulerState {
    state: Mutex<State>,
    /// Wakes waiting requests after a change of the limit or the holds, so that they compute their wait again.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    running: usize,
    limit: usize,
    /// Slow answers since the limit was last raised.
    slow: usize,
    /// When the last permit was given.
    given: Option<Instant>,
    /// The number of requests that have waited; orders those of one need.
    count: u64,
    waiting: BTreeMap<(Need, u64), oneshot::Sender<RequestPermit>>,
    /// Until when the server asked for no requests, by need.
    held_until: [Option<Instant>; NEED_COUNT],
    /// When the limit was last lowered: permits given before that say nothing about the server's present state.
    few_since: Option<Instant>,
    /// Counts losses of the connection: requests on a lost connection do not delay those on the next.
    connection: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            running: 0,
            limit: MIN_CONCURRENT_REQUESTS,
            slow: 0,
            given: None,
            count: 0,
            waiting: BTreeMap::new(),
            held_until: [None; NEED_COUNT],
            few_since: None,
            connection: 0,
        }
    }
}

/// A request's permit, held until it is dropped.
#[derive(Debug)]
pub(super) struct RequestPermit {
    scheduler: RequestScheduler,
    begun: Instant,
    connection: u64,
}

impl RequestPermit {
    /// Records that the request was answered and not refused.
    pub(super) fn answered(&self) {
        let mut state = self.scheduler.lock();
        if state.few_since.is_none_or(|since| self.begun >= since) {
            state.answered(self.begun.elapsed());
        }
    }
}

impl State {
    fn answered(&mut self, took: Duration) {
        self.slow += usize::from(took > FAST_RESPONSE);
        if took <= FAST_RESPONSE || self.slow >= self.limit {
            self.allow_one_more();
        }
    }

    fn allow_one_more(&mut self) {
        (self.limit, self.slow) = (MAX_CONCURRENT_REQUESTS.min(self.limit + 1), 0);
    }

    fn begin_with_few(&mut self, now: Instant) {
        (self.limit, self.slow, self.few_since) = (MIN_CONCURRENT_REQUESTS, 0, Some(now));
    }

    /// Until when requests with this need are held.
    fn held_until(&self, need: Need, now: Instant) -> Option<Instant> {
        self.held_until[need as usize].filter(|until| *until > now)
    }

    /// The most urgent waiting request, if it may run now.
    fn next(&mut self, now: Instant) -> Option<oneshot::Sender<RequestPermit>> {
        while self.waiting.first_entry().is_some_and(|first| first.get().is_closed()) {
            self.waiting.pop_first();
        }
        let need = self.waiting.first_key_value()?.0.0;
        if self.held_until(need, now).is_some() {
            // The requests after it are less urgent and held as well.
            return None;
        }
        if self.running >= self.limit && self.given.is_some_and(|given| now - given >= STALL_TIMEOUT) {
            self.allow_one_more();
        }
        if self.running >= self.limit {
            return None;
        }
        (self.running, self.given) = (self.running + 1, Some(now));
        self.waiting.pop_first().map(|(_, waiter)| waiter)
    }
}

impl RequestScheduler {
    /// Waits for a request's permit; `None` if it needs none.
    pub(super) async fn acquire(&self, need: Need) -> Option<RequestPermit> {
        if !need.waits() {
            return None;
        }
        let mut given = self.queue(need);
        loop {
            let changed = self.0.changed.notified();
            self.admit();
            let now = Instant::now();
            let until = self.lock().held_until(need, now).unwrap_or(now + STALL_TIMEOUT);
            tokio::select! {
                biased;
                // A request in the list gets its permit before its sender is dropped.
                turn = &mut given => return turn.ok(),
                () = tokio::time::sleep_until(until) => {}
                () = changed => {}
            }
        }
    }

    fn queue(&self, need: Need) -> oneshot::Receiver<RequestPermit> {
        let (give, given) = oneshot::channel();
        let mut state = self.lock();
        state.count += 1;
        let place = (need, state.count);
        state.waiting.insert(place, give);
        given
    }

    /// Records that the server is busy, and may have asked for a pause. Needs more urgent than the refused request's
    /// continue. The random `chance` spreads nodes that were refused together.
    pub(super) fn busy(&self, need: Need, asked: Option<Duration>, chance: u64) {
        if matches!(need, Need::Review | Need::Event) {
            // Reviews depend on the node's clients, and events may have hit a limit of their namespace; other
            // requests do not wait for either.
            return;
        }
        // A long pause may concern only this object.
        let asked = asked.map(|asked| asked.min(connectivity::MAX_RECONNECT_DELAY));
        let now = Instant::now();
        let until = now + connectivity::pause(1, asked, connectivity::MAX_RECONNECT_DELAY, chance);
        let mut state = self.lock();
        state.begin_with_few(now);
        for held in &mut state.held_until[need as usize..] {
            *held = (*held).max(Some(until));
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// The number of the current connection.
    pub(super) fn connection(&self) -> u64 {
        self.lock().connection
    }

    /// Records the loss of that connection. Returns whether it was the current one; otherwise its loss is known
    /// already.
    pub(super) fn lost(&self, connection: u64) -> bool {
        let mut state = self.lock();
        if state.connection != connection {
            return false;
        }
        state.begin_with_few(Instant::now());
        (state.running, state.connection) = (0, connection + 1);
        drop(state);
        self.admit();
        true
    }

    /// Gives free permits to waiting requests.
    fn admit(&self) {
        // Dropped after the lock is released, because a permit whose request no longer waits goes to the next.
        let (mut returned, now) = (Vec::new(), Instant::now());
        let mut state = self.lock();
        while let Some(waiter) = state.next(now) {
            let turn = RequestPermit { scheduler: self.clone(), begun: now, connection: state.connection };
            returned.extend(waiter.send(turn).err());
        }
        drop(state);
        drop(returned);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut state = self.scheduler.lock();
        if state.connection == self.connection {
            state.running -= 1;
        }
        drop(state);
        self.scheduler.admit();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::task::JoinSet;
    use tokio::time;

    use super::*;

    const SLOW: Duration = Duration::from_millis(300);

    /// Requests a permit for each need at once, and answers each after `took`. Returns the order of the permits.
    fn ask(
        scheduler: &RequestScheduler,
        needs: &[Need],
        took: Duration,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Mutex<Vec<Need>>> {
        let order = Arc::new(Mutex::new(Vec::new()));
        for need in needs.iter().copied() {
            let (scheduler, order) = (scheduler.clone(), Arc::clone(&order));
            tasks.spawn(async move {
                let turn = scheduler.acquire(need).await;
                order.lock().unwrap().push(need);
                time::sleep(took).await;
                turn.unwrap().answered();
            });
        }
        order
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_goes_in_order_of_need_two_at_a_time() {
        use Need::{Event, Mirror, Object, Pods, Status};
        let scheduler = RequestScheduler::default();
        scheduler.busy(Pods, Some(Duration::from_secs(3)), 0);
        assert!(scheduler.acquire(Need::Heartbeat).await.is_none());
        let mut tasks = JoinSet::new();
        let order = ask(&scheduler, &[Event, Object, Status, Event, Mirror, Pods], SLOW, &mut tasks);
        time::sleep(Duration::from_millis(2_950)).await;
        assert_eq!(*order.lock().unwrap(), [], "the server has asked for a pause");
        time::sleep(Duration::from_millis(100)).await;
        assert_eq!(order.lock().unwrap().len(), 2);
        tasks.join_all().await;
        let mut order = order.lock().unwrap().split_off(0);
        // Two permits given together may be observed in any order.
        order.chunks_mut(2).for_each(<[Need]>::sort);
        assert_eq!(order, [Pods, Status, Mirror, Object, Event, Event]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_begins_while_requests_wait_ends_for_them() {
        let (scheduler, mut tasks) = (RequestScheduler::default(), JoinSet::new());
        let order = ask(&scheduler, &[Need::Status; 5], Duration::from_millis(100), &mut tasks);
        time::sleep(Duration::from_millis(50)).await;
        scheduler.busy(Need::Status, Some(Duration::from_secs(4)), 0);
        let begun = Instant::now();
        ask(&scheduler, &[Need::Pods], Duration::ZERO, &mut tasks);
        time::sleep(Duration::from_secs(2)).await;
        assert_eq!(order.lock().unwrap().len(), 2);
        tasks.join_all().await;
        assert!(begun.elapsed() < Duration::from_millis(4_500), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_more_urgent_than_what_was_refused_goes_on() {
        let scheduler = RequestScheduler::default();
        scheduler.busy(Need::Object, Some(Duration::from_secs(5)), 0);
        let begun = Instant::now();
        assert!(scheduler.acquire(Need::Status).await.is_some());
        assert_eq!(begun.elapsed(), Duration::ZERO);
        scheduler.busy(Need::Pods, None, 0);
        assert!(scheduler.acquire(Need::Status).await.is_some());
        assert!(begun.elapsed() < Duration::from_secs(1), "each need is held as long as it was asked for");
        assert!(scheduler.acquire(Need::Event).await.is_some());
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_a_lost_connection_hold_up_none_of_the_next() {
        let (scheduler, mut hung, mut tasks) = (RequestScheduler::default(), JoinSet::new(), JoinSet::new());
        ask(&scheduler, &[Need::Pods; MIN_CONCURRENT_REQUESTS], Duration::from_secs(10), &mut hung);
        time::sleep(Duration::from_millis(1)).await;
        assert!(scheduler.lost(0) && !scheduler.lost(0), "each loss counts once");
        assert_eq!(scheduler.connection(), 1);
        let begun = Instant::now();
        ask(&scheduler, &[Need::Pods; MIN_CONCURRENT_REQUESTS], Duration::ZERO, &mut tasks);
        tasks.join_all().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        hung.shutdown().await;
        assert_eq!(scheduler.lock().running, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_sooner_the_answers_the_more_run_at_a_time() {
        let limit_after = async |answers: usize, took: u64| {
            let (scheduler, mut tasks) = (RequestScheduler::default(), JoinSet::new());
            let begun = Instant::now();
            ask(&scheduler, &vec![Need::Status; answers], Duration::from_millis(took), &mut tasks);
            tasks.join_all().await;
            (scheduler.lock().limit, begun.elapsed().as_millis())
        };
        // 2, 4, 8, 16 at a time.
        assert_eq!(limit_after(30, 10).await, (32, 40));
        // 2, 3, 4, 5, 6, 7 and the rest.
        assert_eq!(limit_after(28, 600).await, (8, 4_200));
        let scheduler = RequestScheduler::default();
        (0..100).for_each(|_| scheduler.lock().answered(FAST_RESPONSE));
        assert_eq!(scheduler.lock().limit, MAX_CONCURRENT_REQUESTS);
        scheduler.lost(scheduler.connection());
        assert_eq!(scheduler.lock().limit, MIN_CONCURRENT_REQUESTS);
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_long_holds_up_no_other() {
        let (scheduler, mut hung, mut tasks) = (RequestScheduler::default(), JoinSet::new(), JoinSet::new());
        ask(&scheduler, &[Need::Pods; MIN_CONCURRENT_REQUESTS], Duration::from_secs(10), &mut hung);
        time::sleep(Duration::from_millis(1)).await;
        let begun = Instant::now();
        ask(&scheduler, &[Need::Status; 3], Duration::from_millis(10), &mut tasks);
        tasks.join_all().await;
        assert!(begun.elapsed() < STALL_TIMEOUT * 2, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_turn_of_one_that_does_not_wait_any_more_goes_to_the_next() {
        let scheduler = RequestScheduler::default();
        scheduler.busy(Need::Pods, None, 0);
        let mut given_up = JoinSet::new();
        ask(&scheduler, &[Need::Pods; 5], SLOW, &mut given_up);
        time::sleep(Duration::from_millis(1)).await;
        given_up.shutdown().await;
        let mut tasks = JoinSet::new();
        let order = ask(&scheduler, &[Need::Event; 5], SLOW, &mut tasks);
        tasks.join_all().await;
        assert_eq!(order.lock().unwrap().len(), 5);
        assert_eq!(scheduler.lock().running, 0);
    }
}
