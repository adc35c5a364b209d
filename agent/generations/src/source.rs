//! The generations of one source: which one is in effect, and what becomes of the next.
//!
//! A change of the source is *prepared* first: its images are got, and nothing is switched. Then it is *on trial*, and
//! judged by its pods. It ends as *good*, or as *refused*: then the good one before it is in effect again. Each of these
//! steps is a [`State`] that is written before it is in effect.

mod restarts;
mod trial;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use limpet_core::source::SourceSnapshot;
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::images::normalized_images;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;

use crate::Moment;
use crate::archive::{Archive, Save};
use crate::content::Content;
use crate::masked::Masked;
use crate::notice::Notice;
use crate::readiness::{Facts, Judge, Readiness, restarts_at};
use crate::settings::{Policy, Settings};
use crate::state::{Generation, Outcome, State, Trial};
use crate::view::{GenerationContent, GenerationView, SourceGenerationsView};
use trial::{PAUSE, Watch};

/// The normalised name of an image.
pub type Image = String;

/// A version of the source whose images are to be got.
#[derive(Debug, Clone)]
pub struct Preparation {
    /// Differs from that of every other preparation of the source.
    pub attempt: u64,
    /// What the version consists of.
    pub content: Content,
    /// The source's objects: the Secrets to pull with are among them.
    pub objects: OrdMap<ObjectKey, Arc<ObjectRecord>>,
    /// The pods whose images are needed: those that are new or changed, and samples of those of workloads.
    pub pods: Vec<Arc<PodRecord>>,
}

/// A preparation and how far it is.
#[derive(Debug)]
struct Preparing {
    preparation: Arc<Preparation>,
    is_done: bool,
    /// Why it could not be done so far.
    failure: Option<Arc<str>>,
}

/// A step that is decided.
#[derive(Debug)]
struct Step {
    state: State,
    notices: Vec<Notice>,
}

/// What the source's newest version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The source wants what is in effect.
    Running,
    /// A generation that is refused.
    Refused(u64),
    /// The good generation that a trial returns to.
    Base(u64),
    /// A version without a generation: it is prepared, and then on trial.
    New,
}

/// The generations of one source.
#[derive(Debug)]
pub(crate) struct SourceGenerations {
    pub(crate) source: SourceKind,
    policy: Policy,
    /// How many good and how many refused generations are kept.
    history_limit: usize,
    node_name: Arc<str>,
    boot: Arc<str>,
    /// What is in effect. It is also on disk.
    state: State,
    /// Decided, and not on disk yet.
    next: Option<Step>,
    archive: Archive,
    raw: Arc<SourceSnapshot>,
    content: Content,
    /// Pods that a user has deleted by name.
    deleted: Vec<PodKey>,
    wanted: Wanted,
    preparing: Option<Preparing>,
    attempts: u64,
    /// A version that is prepared waits until then, since nothing can be judged.
    switch_again: Option<Duration>,
    watch: Watch,
    masked: Masked,
    notices: Vec<Notice>,
    /// Pods whose restart is to be ordered.
    restarts: Vec<PodKey>,
    /// Those whose restart this agent has ordered.
    ordered: BTreeSet<String>,
    /// When this agent looked for pods to restart for the first time.
    restarts_since: Option<Duration>,
}

impl SourceGenerations {
    /// Those of a source, as an earlier agent left them.
    pub(crate) fn new(
        (source, settings): (SourceKind, &Settings),
        (node_name, boot): (&Arc<str>, &Arc<str>),
        (state, archive): (State, Archive),
    ) -> Self {
        Self {
            source,
            policy: settings.policies.policy(source),
            history_limit: settings.history_limit,
            node_name: Arc::clone(node_name),
            boot: Arc::clone(boot),
            state,
            next: None,
            archive,
            raw: Arc::default(),
            content: Content::default(),
            deleted: Vec::new(),
            wanted: Wanted::Running,
            preparing: None,
            attempts: 0,
            switch_again: None,
            watch: Watch::default(),
            masked: Masked::default(),
            notices: Vec::new(),
            restarts: Vec::new(),
            ordered: BTreeSet::new(),
            restarts_since: None,
        }
    }

    /// The agent starts: a trial that an earlier boot has not ended counts as one that failed to start. To be called before
    /// anything is in effect.
    pub(crate) fn begin(&mut self, now: Moment) -> Option<Save> {
        let step = self.begin_boot(now)?;
        Some(self.decided(step))
    }

    /// Decides on what has changed, and returns what is to be written before it takes effect.
    pub(crate) fn turn(
        &mut self,
        raw: &Arc<SourceSnapshot>,
        facts: &Facts<'_>,
        settings: &Settings,
        now: Moment,
    ) -> Option<Save> {
        if self.next.is_some() {
            return None;
        }
        self.take_snapshot(raw);
        self.switch_again = None;
        let step = self.follow_source(now).or_else(|| self.settle_restarts(facts, settings, now));
        let step = step.or_else(|| self.judge(facts, settings, now)).or_else(|| self.switch(facts, now))?;
        Some(self.decided(step))
    }

    fn decided(&mut self, mut step: Step) -> Save {
        // Until the source has been read nobody knows which refused version it has.
        if self.raw.ready {
            step.state.trim(self.history_limit, &self.content);
        }
        let save = self.archive.save(self.source, &step.state);
        self.next = Some(step);
        save
    }

    /// What was returned last is on disk, or cannot be written. Returns whether anything came into effect.
    pub(crate) fn remembered(&mut self) -> bool {
        let Some(Step { state, notices }) = self.next.take() else { return false };
        if state.running != self.state.running {
            self.watch = Watch::default();
        }
        self.state = state;
        self.notices.extend(notices);
        self.ordered.retain(|name| self.state.restarts.contains_key(name));
        self.classify();
        true
    }

    /// Notes what the source has now.
    fn take_snapshot(&mut self, raw: &Arc<SourceSnapshot>) {
        if Arc::ptr_eq(&self.raw, raw) {
            return;
        }
        self.raw = Arc::clone(raw);
        self.content = Content::from_snapshot(raw, self.policy);
        self.deleted = raw.pods.values().filter(|pod| pod.is_deleting()).map(|pod| pod.key.clone()).collect();
        self.classify();
    }

    /// Finds out what the source's version is, and begins to prepare a new one.
    fn classify(&mut self) {
        let Some(running) = self.state.running() else { return };
        let base = self.state.trial.as_ref().and_then(|trial| trial.base);
        let base = base.and_then(|base| self.state.generation(base));
        self.wanted = if running.content.same(&self.content) {
            Wanted::Running
        } else if let Some(base) = base.filter(|base| base.content.same(&self.content)) {
            Wanted::Base(base.number)
        } else if let Some(refused) = self.state.refused(&self.content) {
            Wanted::Refused(refused.number)
        } else {
            Wanted::New
        };
        let is_wanted = self.wanted == Wanted::New && self.raw.ready;
        let is_prepared = |preparing: &Preparing| preparing.preparation.content.same(&self.content);
        match is_wanted {
            false => self.preparing = None,
            true if self.preparing.as_ref().is_some_and(is_prepared) => {}
            true => {
                self.attempts += 1;
                let changed = self.content.changed_subjects(&running.content, &self.node_name);
                let pods = self.content.samples(changed, &self.node_name).collect();
                let (attempt, content, objects) = (self.attempts, self.content.clone(), self.raw.objects.clone());
                let preparation = Arc::new(Preparation { attempt, content, objects, pods });
                self.preparing = Some(Preparing { preparation, is_done: false, failure: None });
            }
        }
    }

    /// The steps that the source alone gives a reason for.
    fn follow_source(&self, now: Moment) -> Option<Step> {
        if !self.raw.ready {
            return None;
        }
        if self.state.running.is_none() {
            if self.content.is_empty() {
                return None;
            }
            let mut state = self.state.clone();
            let number = state.add(self.content.clone(), Outcome::OnTrial, now.wall);
            state.running = Some(number);
            state.trial = Some(self.trial(None, now));
            let message = format!("generation {number} of {} runs; there is none before it to return to", self.source);
            return Some(self.step(state, Notice::normal(self.source, "GenerationStarted", message)));
        }
        if let Some(state) = self.without_deleted() {
            return Some(Step { state, notices: Vec::new() });
        }
        let Wanted::Base(base) = self.wanted else { return None };
        let mut state = self.state.clone();
        (state.running, state.trial) = (Some(base), None);
        let message = format!("{} is back at generation {base}, which is good", self.source);
        Some(self.step(state, Notice::normal(self.source, "GenerationCommitted", message)))
    }

    /// The state without pods that a user has deleted by name: no generation brings them back.
    fn without_deleted(&self) -> Option<State> {
        let has = |content: &Content| self.deleted.iter().any(|key| content.pods.contains_key(key));
        if self.deleted.is_empty() || !self.state.generations.iter().any(|generation| has(&generation.content)) {
            return None;
        }
        let mut state = self.state.clone();
        for generation in state.generations.iter_mut().filter(|generation| has(&generation.content)) {
            let mut without = Generation::clone(generation);
            self.deleted.iter().for_each(|key| drop(without.content.pods.remove(key)));
            *generation = Arc::new(without);
        }
        Some(state)
    }

    /// Puts a version that is prepared into effect, on trial.
    fn switch(&mut self, facts: &Facts<'_>, now: Moment) -> Option<Step> {
        let prepared = self.preparing.as_ref().filter(|preparing| preparing.is_done)?;
        if facts.is_paused {
            self.switch_again = Some(now.uptime + PAUSE);
            return None;
        }
        let content = prepared.preparation.content.clone();
        let running = self.state.running()?;
        let base = match running.outcome {
            Outcome::Good => Some(running.number),
            _ => self.state.trial.as_ref().and_then(|trial| trial.base),
        };
        let mut state = self.state.clone();
        let mut trial = self.trial(base, now);
        trial.exempt = self.exempt(&content, facts);
        trial.restarts = restarts_at(facts.observed, self.source, &content);
        let number = state.add(content, Outcome::OnTrial, now.wall);
        state.running = Some(number);
        state.trial = Some(trial);
        let undone = base.map_or_else(String::new, |base| format!("; if it is not good, generation {base} returns"));
        let message = format!("generation {number} of {} is on trial{undone}", self.source);
        Some(self.step(state, Notice::normal(self.source, "GenerationStarted", message)))
    }

    fn trial(&self, base: Option<u64>, now: Moment) -> Trial {
        let mut trial = Trial {
            base,
            boot: self.boot.to_string(),
            began_ms: 0,
            boots: 0,
            exempt: BTreeSet::new(),
            restarts: BTreeMap::new(),
        };
        trial.set_began(now.uptime);
        trial
    }

    fn step(&self, state: State, notice: Notice) -> Step {
        Step { state, notices: vec![notice] }
    }

    /// A user returns to a good generation: `number`, or the one before. The version that the source has is not tried again.
    ///
    /// # Errors
    /// There is none, or it is in effect already.
    pub(crate) fn roll_back(&mut self, number: Option<u64>, now: Moment) -> Result<(u64, Save), String> {
        if self.next.is_some() {
            return Err("another change is being written; try again".to_owned());
        }
        let Some(running) = self.state.running() else { return Err(format!("{} has no generation yet", self.source)) };
        let target = match number {
            Some(number) => self.state.generation(number),
            None => self.state.good_before(running.number),
        };
        let target = match (target, number) {
            (Some(target), _) if target.outcome == Outcome::Good => target.number,
            (Some(_), Some(number)) => return Err(format!("generation {number} was not good")),
            (_, Some(number)) => return Err(format!("there is no generation {number} of {}", self.source)),
            (_, None) => return Err(format!("{} has no good generation before {}", self.source, running.number)),
        };
        if target == running.number {
            return Err(format!("generation {target} is in effect already"));
        }
        let mut state = self.state.clone();
        let why = || Outcome::Refused(format!("a user returned to generation {target}"));
        state.decide(running.number, why(), now.wall);
        if self.wanted == Wanted::New && self.raw.ready {
            state.add(self.content.clone(), why(), now.wall);
        }
        (state.running, state.trial) = (Some(target), None);
        let message = format!("a user returned to generation {target} of {}", self.source);
        let step = self.step(state, Notice::normal(self.source, "GenerationRolledBack", message));
        Ok((target, self.decided(step)))
    }

    /// How the preparation of that number goes: done, or not yet for that reason.
    pub(crate) fn prepared(&mut self, attempt: u64, result: Result<(), String>) {
        let Some(preparing) = self.preparing.as_mut().filter(|preparing| preparing.preparation.attempt == attempt)
        else {
            return;
        };
        match result {
            Ok(()) => (preparing.is_done, preparing.failure) = (true, None),
            Err(failure) => {
                let is_new = preparing.failure.as_deref() != Some(&*failure);
                preparing.failure = Some(Arc::from(failure.as_str()));
                if is_new {
                    let message =
                        format!("the newest version of {} waits: {failure}; nothing was changed", self.source);
                    self.notices.push(Notice::warning(self.source, "GenerationWaiting", message));
                }
            }
        }
    }

    /// What is to be prepared.
    pub(crate) fn preparation(&self) -> Option<&Arc<Preparation>> {
        self.preparing.as_ref().filter(|preparing| !preparing.is_done).map(|preparing| &preparing.preparation)
    }

    /// The snapshot that the merge gets in place of the source's own.
    pub(crate) fn expand(&mut self, raw: &Arc<SourceSnapshot>) -> Arc<SourceSnapshot> {
        let Some(running) = self.state.running() else {
            self.masked.clear();
            return Arc::clone(raw);
        };
        // What the source has published while the last step was being written is not looked at yet.
        if Arc::ptr_eq(raw, &self.raw) && self.wanted == Wanted::Running {
            self.masked.clear();
            return Arc::clone(raw);
        }
        self.masked.snapshot(raw, running.number, &running.content, self.policy)
    }

    /// The images of all generations, and of the one that is prepared.
    pub(crate) fn images(&self, images: &mut HashSet<Image>) {
        let preparing = self.preparing.iter().map(|preparing| &preparing.preparation.content);
        for content in self.state.generations.iter().map(|generation| &generation.content).chain(preparing) {
            for record in content.samples(content.subjects(), &self.node_name) {
                images.extend(normalized_images(&record));
            }
        }
    }

    /// Whether the generation in effect is not known to be good.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.state.trial.is_some()
    }

    /// Whether the generation in effect may be replaced by the one before it.
    pub(crate) fn may_be_undone(&self) -> bool {
        self.state.trial.as_ref().is_some_and(|trial| trial.base.is_some())
    }

    /// Whether observed pods matter.
    pub(crate) fn awaits_pods(&self) -> bool {
        self.is_on_trial() || !self.state.restarts.is_empty()
    }

    /// The generation whose check is to be run.
    pub(crate) fn check(&self) -> Option<u64> {
        self.state.running.filter(|_| self.next.is_none() && self.watch.check_is_due)
    }

    /// Whether all that is in effect works, for a check of the boot; `Err`: what it waits for. A source that cannot be read is
    /// judged by the generation that runs.
    pub(crate) fn works(&self, facts: &Facts<'_>) -> Result<(), String> {
        let Some(running) = self.state.running() else {
            let message = || format!("{} has not been read", self.source);
            return self.raw.ready.then_some(()).ok_or_else(message);
        };
        let (source, content) = (self.source, &running.content);
        match (Judge { source, content, facts, trial: None, max_restarts: u32::MAX, is_boot: true }).all() {
            Readiness::Good => Ok(()),
            Readiness::Waiting(why) | Readiness::Failed(why) => Err(why),
        }
    }

    /// What has happened since the last call.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The pods whose containers are to be restarted: they may have read what was undone.
    pub(crate) fn take_restarts(&mut self) -> Vec<PodKey> {
        std::mem::take(&mut self.restarts)
    }

    /// The next moment at which something may change by itself, after the start of the kernel.
    pub(crate) fn due(&self) -> Option<Duration> {
        let of_trial = self.watch.due.filter(|_| self.state.trial.is_some());
        of_trial.into_iter().chain(self.switch_again).min().filter(|_| self.next.is_none())
    }

    pub(crate) fn view(&self) -> SourceGenerationsView {
        let view = |generation: &Arc<Generation>| GenerationView {
            number: generation.number,
            outcome: generation.outcome.clone(),
            made: generation.made,
            decided: generation.decided,
            pods: generation.content.pods.len(),
            objects: generation.content.objects.len(),
            content: GenerationContent(Arc::clone(generation)),
        };
        let waiting = self.preparing.as_ref().map(|preparing| match &preparing.failure {
            Some(failure) => Arc::clone(failure),
            None => Arc::from("its images are being pulled"),
        });
        SourceGenerationsView {
            source: self.source,
            policy: self.policy,
            running: self.state.running,
            generations: self.state.generations.iter().map(view).collect(),
            waiting,
            unready: self.watch.unready.clone().filter(|_| self.state.trial.is_some()),
            refused: match self.wanted {
                Wanted::Refused(number) => Some(number),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
