//! The keys that files claim, and which of several files defines a pod or an object. Part of [`super`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::super::file_names::is_leftover;
use limpet_model::object::ObjectKey;
use limpet_model::pod::PodKey;

/// A key that two files may claim at the same time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    Pod(PodKey),
    Object(ObjectKey),
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod {key}"),
            Self::Object(key) => write!(f, "{key}"),
        }
    }
}

/// How far a file's claim to a key is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It was made since the last snapshot.
    New,
    /// It was made since the last snapshot, and the file defined the key before the agent started.
    Held,
    /// Another file defined the key in the last snapshot.
    Rejected,
    /// The file defined the key in the last snapshot.
    Effective,
}

/// All claims of the files of one source.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claimants: BTreeMap<Claim, BTreeMap<Arc<str>, Standing>>,
    /// Files that lost a key to another one, or got it back.
    resettled: BTreeSet<Arc<str>>,
}

impl Claims {
    /// Adds the claim of the file `name`.
    pub(super) fn add(&mut self, claim: Claim, name: &Arc<str>) {
        self.claimants.entry(claim).or_default().entry(Arc::clone(name)).or_insert(Standing::New);
    }

    /// Records that the file defined these keys before the agent started.
    pub(super) fn hold(&mut self, name: &str, claims: Vec<Claim>) {
        for claim in claims {
            let standing = self.claimants.get_mut(&claim).and_then(|claimants| claimants.get_mut(name));
            if let Some(standing) = standing.filter(|standing| **standing == Standing::New) {
                *standing = Standing::Held;
            }
        }
    }

    /// Removes a claim of the file. A key without claimants stays until it is settled.
    pub(super) fn remove(&mut self, claim: &Claim, name: &str) {
        if let Some(claimants) = self.claimants.get_mut(claim) {
            claimants.remove(name);
        }
    }

    /// The files that claim the key, by name.
    pub(super) fn claimants(&self, claim: &Claim) -> impl Iterator<Item = &Arc<str>> {
        self.claimants.get(claim).into_iter().flat_map(BTreeMap::keys)
    }

    /// Every key.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Claim> {
        self.claimants.keys()
    }

    /// Whether there are no claims.
    pub(super) fn is_empty(&self) -> bool {
        self.claimants.is_empty()
    }

    /// The file that defines the key. The current one stays as long as it exists; while it vanishes it yields to a
    /// file that appears, which may be itself under another name. Otherwise one that had the key before the agent
    /// started comes first, then the one whose name sorts first by its bytes. Files that an editor has left come
    /// last, because the backup beside a file that is being replaced must not take over. One that took over
    /// nevertheless yields to the file that returns.
    pub(super) fn owner(&self, claim: &Claim, is_vanishing: impl Fn(&str) -> bool) -> Option<&Arc<str>> {
        let claimants = self.claimants.get(claim)?;
        let has_owner = claimants.values().any(|standing| *standing == Standing::Effective);
        let rank = |name: &str, standing: Standing| match (standing, is_vanishing(name)) {
            (Standing::Effective, false) if !is_leftover(name) => 0,
            (Standing::New | Standing::Held, false) if has_owner && !is_leftover(name) => 1,
            (Standing::Effective, _) => 2,
            (Standing::Held, false) if !is_leftover(name) => 3,
            (_, false) => 4,
            (_, true) => 5,
        };
        let order = |name: &Arc<str>, standing: Standing| (rank(name, standing), is_leftover(name), Arc::clone(name));
        claimants.iter().min_by_key(|(name, standing)| order(name, **standing)).map(|(name, _)| name)
    }

    /// Settles that `owner` defines the key, and no other claimant.
    pub(super) fn settle(&mut self, claim: &Claim, owner: Option<&Arc<str>>) {
        let Some(claimants) = self.claimants.get_mut(claim) else { return };
        for (name, standing) in claimants.iter_mut() {
            let now = if Some(name) == owner { Standing::Effective } else { Standing::Rejected };
            let before = std::mem::replace(standing, now);
            if before != now && !matches!(before, Standing::New | Standing::Held) {
                self.resettled.insert(Arc::clone(name));
            }
        }
        if claimants.is_empty() {
            self.claimants.remove(claim);
        }
    }

    /// The files that lost a key to another one, or got it back, since the last call.
    pub(super) fn take_resettled(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.resettled)
    }
}
