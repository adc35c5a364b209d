//! Counts connections, and detects when a crowd of them has left: the memory they needed is then returned to the
//! kernel, which the allocator does not do by itself.

use std::sync::{Arc, Mutex, PoisonError};

/// This many connections at once are a crowd.
const CROWD: usize = 64;

/// How many connections of a listener are open. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct Crowd(Arc<Mutex<Count>>);

#[derive(Debug, Default)]
struct Count {
    open: usize,
    /// The highest count since the last crowd.
    most: usize,
}

impl Crowd {
    pub(super) fn enter(&self) {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        count.open += 1;
        count.most = count.most.max(count.open);
    }

    /// Counts the end of a connection. Returns whether most of a crowd has now left.
    pub(super) fn leave(&self) -> bool {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        count.open -= 1;
        let gone = count.most >= CROWD && count.open <= count.most / 4;
        if gone {
            count.most = count.open;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that stay, such as those that scrape metrics, do not prevent it.
    #[test]
    fn a_crowd_has_left_once_a_quarter_of_it_is_there_and_once_only() {
        let crowd = Crowd::default();
        let leave = |number: usize| (0..number).filter(|_| crowd.leave()).count();
        (0..CROWD - 1).for_each(|_| crowd.enter());
        assert_eq!(leave(CROWD - 1), 0, "few have come");
        for _ in 0..2 {
            (0..CROWD).for_each(|_| crowd.enter());
            assert_eq!(leave(CROWD / 4 * 3 - 1), 0, "more than a quarter is there");
            assert!(crowd.leave());
            assert_eq!(leave(CROWD / 4), 0);
        }
    }
}
