//! The generations of all sources, and their place between the sources and the controllers of workloads.
//!
//! The order of a turn: [`Generations::turn`] decides and returns what is to be written; [`Generations::remembered`] puts it
//! into effect once it is on disk; [`Generations::expand`] returns the snapshots in effect.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use limpet_core::source::Snapshots;
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;

use tokio::sync::oneshot;

use crate::Moment;
use crate::archive::{Archive, Save};
use crate::boot::BootCheck;
use crate::notice::Notice;
use crate::readiness::Facts;
use crate::settings::{Policy, Settings};
use crate::source::{Image, Preparation, SourceGenerations};
use crate::state::State;
use crate::view::SourceGenerationsView;

/// A user's order, on its way to the generations.
#[derive(Debug)]
pub struct RollbackOrder {
    pub order: Order,
    /// Sent with the source and the generation once that is in effect, or why it is not.
    pub done: oneshot::Sender<Result<(SourceKind, u64), OrderError>>,
}

/// A user's order to return to a good generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The source; `None`: the only one that has generations.
    pub source: Option<SourceKind>,
    /// The number of the generation; `None`: the good one before.
    pub number: Option<u64>,
}

/// Why an order is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The source has no generations.
    #[error("{0} has no generations: set generations.{0} to pods or all")]
    Off(SourceKind),
    #[error("several sources have generations: name one of {0}")]
    Several(String),
    /// There is nothing to return to.
    #[error("{0}")]
    Refused(String),
}

/// The generations of the sources whose policy is not off.
#[derive(Debug)]
pub struct Generations {
    settings: Settings,
    sources: Vec<SourceGenerations>,
    /// Saves that orders have led to, for the next turn.
    ordered: Vec<Save>,
    /// `None`: it has ended, or nobody wants to know.
    boot: Option<BootCheck>,
}

impl Generations {
    /// Those of the node of that name, as an earlier agent left them, in this boot of the kernel. Also returns what is to be
    /// written, and [`Self::remembered`], before anything is in effect.
    pub fn new(
        settings: Settings,
        (node_name, boot): (&Arc<str>, &Arc<str>),
        loaded: impl IntoIterator<Item = (SourceKind, State, Archive)>,
        now: Moment,
    ) -> (Self, Vec<Save>) {
        let loaded = loaded.into_iter().filter(|(source, ..)| settings.policies.policy(*source) != Policy::Off);
        let mut sources: Vec<SourceGenerations> = loaded
            .map(|(source, state, archive)| {
                SourceGenerations::new((source, &settings), (node_name, boot), (state, archive))
            })
            .collect();
        let saves = sources.iter_mut().filter_map(|source| source.begin(now)).collect();
        (Self { settings, sources, ordered: Vec::new(), boot: None }, saves)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Decides on what has changed, and returns what is to be written before it takes effect. Not to be called again before
    /// [`Self::remembered`] if it returns anything.
    pub fn turn(&mut self, snapshots: &Snapshots, facts: &Facts<'_>, now: Moment) -> Vec<Save> {
        let mut saves = std::mem::take(&mut self.ordered);
        let settings = &self.settings;
        let turns = self.sources.iter_mut();
        saves.extend(turns.filter_map(|source| source.turn(&snapshots[source.source.index()], facts, settings, now)));
        saves
    }

    /// Has the boot be judged.
    pub fn begin_boot_check(&mut self) {
        self.boot = Some(BootCheck::default());
    }

    /// The verdict on this boot, once, if it is to be judged: whether all works, or why not.
    pub fn boot_verdict(&mut self, facts: &Facts<'_>, now: Moment) -> Option<Result<(), String>> {
        let check = self.boot.as_mut()?;
        if facts.is_paused {
            // It is judged again when pods change.
            check.due = None;
            return None;
        }
        let works = self.sources.iter().try_for_each(|source| source.works(facts));
        let is_settled = !self.sources.iter().any(SourceGenerations::is_on_trial);
        let verdict = check.judge(works, is_settled, &self.settings, now);
        if verdict.is_some() {
            self.boot = None;
        }
        verdict
    }

    /// What the last turn returned is on disk, or cannot be written. Returns whether anything came into effect.
    pub fn remembered(&mut self) -> bool {
        let mut has_changed = false;
        for source in &mut self.sources {
            has_changed |= source.remembered();
        }
        has_changed
    }

    /// Replaces each snapshot by the one in effect. It differs while the source has a version that is being prepared or is
    /// refused.
    pub fn expand(&mut self, mut snapshots: Snapshots) -> Snapshots {
        for source in &mut self.sources {
            let at = source.source.index();
            snapshots[at] = source.expand(&snapshots[at]);
        }
        snapshots
    }

    /// The sources whose generation in effect may be replaced by the one before it, which then needs what it had.
    pub fn on_trial(&self) -> impl Iterator<Item = SourceKind> {
        self.sources.iter().filter(|source| source.may_be_undone()).map(|source| source.source)
    }

    /// Follows a user's order, from the next turn on. Returns the source and the generation that will be in effect.
    ///
    /// # Errors
    /// There is nothing to return to.
    pub fn order(&mut self, order: Order, now: Moment) -> Result<(SourceKind, u64), OrderError> {
        let source = match (order.source, &mut self.sources[..]) {
            (None, [only]) => only,
            (None, several) => {
                let names: Vec<&str> = several.iter().map(|source| source.source.as_str()).collect();
                return Err(OrderError::Several(names.join(", ")));
            }
            (Some(kind), all) => match all.iter_mut().find(|source| source.source == kind) {
                Some(source) => source,
                None => return Err(OrderError::Off(kind)),
            },
        };
        let (number, save) = source.roll_back(order.number, now).map_err(OrderError::Refused)?;
        self.ordered.push(save);
        Ok((source.source, number))
    }

    /// What is to be prepared of each source.
    pub fn preparations(&self) -> impl Iterator<Item = (SourceKind, &Arc<Preparation>)> {
        self.sources.iter().filter_map(|source| Some((source.source, source.preparation()?)))
    }

    /// How a preparation goes: done, or not yet for that reason.
    pub fn prepared(&mut self, source: SourceKind, attempt: u64, result: Result<(), String>) {
        self.matching(source).for_each(|source| source.prepared(attempt, result.clone()));
    }

    /// The generations whose check is to be run.
    pub fn checks(&self) -> impl Iterator<Item = (SourceKind, u64)> {
        self.sources.iter().filter_map(|source| Some((source.source, source.check()?)))
    }

    /// The check of a generation was run.
    pub fn checked(&mut self, source: SourceKind, number: u64, result: Result<(), String>, now: Moment) {
        self.matching(source).for_each(|source| source.checked(number, result.clone(), now));
    }

    fn matching(&mut self, source: SourceKind) -> impl Iterator<Item = &mut SourceGenerations> {
        self.sources.iter_mut().filter(move |generations| generations.source == source)
    }

    /// The next moment at which something may change by itself, after the start of the kernel.
    pub fn due(&self) -> Option<Duration> {
        let of_boot = self.boot.and_then(|check| check.due);
        self.sources.iter().filter_map(SourceGenerations::due).chain(of_boot).min()
    }

    /// Whether observed pods matter: a generation is on trial, or the boot is, or pods are to be restarted.
    pub fn awaits_pods(&self) -> bool {
        self.boot.is_some() || self.sources.iter().any(SourceGenerations::awaits_pods)
    }

    /// What has happened since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.sources.iter_mut().flat_map(SourceGenerations::take_notices).collect()
    }

    /// The pods whose containers are to be restarted once what is in effect now has reached them.
    pub fn take_restarts(&mut self) -> Vec<PodKey> {
        self.sources.iter_mut().flat_map(SourceGenerations::take_restarts).collect()
    }

    /// The images that generations need.
    pub fn images(&self) -> HashSet<Image> {
        let mut images = HashSet::new();
        self.sources.iter().for_each(|source| source.images(&mut images));
        images
    }

    /// What people see, in order of precedence.
    pub fn views(&self) -> Vec<SourceGenerationsView> {
        self.sources.iter().map(SourceGenerations::view).collect()
    }
}
