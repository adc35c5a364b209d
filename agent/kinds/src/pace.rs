//! What a controller knows about its workload besides what it remembers: since when pods have ended, and since when
//! an update has made no progress. A restarted agent begins anew with it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// The pause before the first pod that ended is replaced; it doubles with each further one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(300);

/// Times that are not remembered over a restart.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    /// When a pod was first seen to have ended, by name.
    ended: BTreeMap<String, Timestamp>,
    /// How many pods were replaced since one was last available.
    replaced: u32,
    /// How far the update was when it last progressed: the numbers of pods of the new template, of available ones
    /// among them, and of all others.
    progress: (usize, usize, usize),
    progressed_at: Option<Timestamp>,
    /// Whether the update has missed its deadline, and that was reported.
    is_overdue: bool,
    /// What was last reported.
    said: Option<String>,
}

impl Pace {
    /// When the pod of that name, which has ended, is replaced. A node refuses pods for lasting reasons, and without
    /// a scheduler the next pod would be refused as well, hence the pause.
    pub(crate) fn replace_at(&mut self, name: &str, now: Timestamp) -> Timestamp {
        let since = *self.ended.entry(name.to_owned()).or_insert(now);
        let pause = FIRST_PAUSE * (1 << self.replaced.min(5));
        // A clock that was set back does not delay it further.
        since.min(now).checked_add(pause.min(LONGEST_PAUSE)).unwrap_or(Timestamp::MAX)
    }

    /// Records that a pod that had ended was replaced.
    pub(crate) fn replaced(&mut self, name: &str) {
        self.ended.remove(name);
        self.replaced = self.replaced.saturating_add(1);
    }

    /// Records which pods exist, and whether one is available.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool, is_available: bool) {
        self.ended.retain(|name, _| is_wanted(name));
        if is_available {
            self.replaced = 0;
        }
    }

    /// Whether the text differs from what was last reported; records it.
    pub(crate) fn is_news(&mut self, text: &str) -> bool {
        let is_news = self.said.as_deref() != Some(text);
        self.said = Some(text.to_owned());
        is_news
    }

    /// Records how far an update is. Returns when it is overdue, if it is not complete, and whether it has just
    /// become so.
    pub(crate) fn progress(
        &mut self,
        progress: (usize, usize, usize),
        is_complete: bool,
        deadline: Option<u32>,
        now: Timestamp,
    ) -> (Option<Timestamp>, bool) {
        if self.progressed_at.is_none() || self.progress != progress || is_complete {
            (self.progress, self.progressed_at, self.is_overdue) = (progress, Some(now), false);
        }
        let Some(deadline) = deadline.filter(|_| !is_complete && !self.is_overdue) else { return (None, false) };
        let since = self.progressed_at.unwrap_or(now).min(now);
        let at = since.checked_add(SignedDuration::from_secs(i64::from(deadline))).unwrap_or(Timestamp::MAX);
        self.is_overdue = at <= now;
        ((!self.is_overdue).then_some(at), self.is_overdue)
    }
}
