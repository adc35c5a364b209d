//! What a node remembers of its generations when its agent is killed or its power is cut, and what is checked whenever it is
//! written.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use limpet_core::source::SourceSnapshot;
use limpet_generations::{Archive, Generation, Outcome, Policy, Save, Settings, State, StoredManifest};
use limpet_model::manifest;
use limpet_model::source::SourceKind;
use serde_json::Value;

use super::version::{Signature, behaviour, signature, signature_of};
use crate::agent::NODE;

/// The source that has generations.
pub(super) const SOURCE: SourceKind = SourceKind::File;
/// How often a node may start within a trial: in the boot in which it begins, and in one more.
const BOOTS_OF_A_TRIAL: usize = 2;
/// How often another generation may take effect after a change of the source: its newest version, and the one before again.
const SWITCHES: u32 = 2;

/// The records of one source.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) settings: Settings,
    manifests: BTreeMap<u64, StoredManifest>,
    document: Option<Vec<u8>>,
    /// What the records say.
    state: State,
    /// What the agent knows to be written, so that it is in effect; `None`: it has no generation.
    confirmed: Option<Signature>,
    /// Counts the starts of the node.
    pub(super) boot: u32,
    /// The generation on trial that another one is before, and the boots in which it was in effect.
    trial: Option<(u64, BTreeSet<u32>)>,
    /// A save is under way.
    pub(super) is_writing: bool,
    /// A user has ordered this agent to return to the generation before.
    pub(super) is_ordered: bool,
    /// How many switches there were since the source changed, or a user gave an order, and how many there may be.
    switches: (u32, u32),
    /// How many there were at all.
    pub(super) all_switches: u64,
    /// Pods whose processes may have read a bad ConfigMap that was not undone: nothing restarts them.
    pub(super) misled: BTreeSet<String>,
    /// The images that are kept.
    pub(super) kept: HashSet<String>,
}

impl Disk {
    /// A disk on which nothing is written yet.
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    pub(super) fn policy(&self) -> Policy {
        self.settings.policies.policy(SOURCE)
    }

    pub(super) fn running(&self) -> Option<&Arc<Generation>> {
        self.state.running()
    }

    pub(super) fn generations(&self) -> &[Arc<Generation>] {
        &self.state.generations
    }

    /// What an agent finds that starts now.
    pub(super) fn load(&mut self) -> (State, Archive) {
        (self.is_writing, self.is_ordered) = (false, false);
        self.restored()
    }

    fn restored(&self) -> (State, Archive) {
        let restore = |number: u64| {
            let stored = self.manifests.get(&number)?;
            manifest::restore_last_good(&stored.manifest, &stored.origin, SOURCE, NODE).ok()
        };
        let loaded = self.document.as_ref().and_then(|document| Archive::load(document, restore));
        loaded.unwrap_or_default()
    }

    /// The source has another version, or a user has given an order: there may be switches again. `ordered`: how many the order
    /// itself makes; a version that was being prepared is tried after it.
    pub(super) fn allow_switches(&mut self, ordered: u32) {
        let before = u32::from(self.is_writing) + u32::from(self.state.trial.is_some());
        self.switches = (0, SWITCHES + before + ordered);
    }

    /// Everything of a save is written at once. Returns what is wrong with it.
    pub(super) fn write(&mut self, save: Save) -> Vec<String> {
        for (number, stored) in save.manifests {
            match stored {
                Some(stored) => drop(self.manifests.insert(number, stored)),
                None => drop(self.manifests.remove(&number)),
            }
        }
        let numbers = numbers(&save.document);
        self.document = Some(save.document);
        let new = self.restored().0;
        let old = std::mem::replace(&mut self.state, new);
        let mut wrong = Vec::new();
        let (before, last) = (old.last_number, self.state.last_number);
        if last < before || self.state.running.is_some_and(|running| running > last) {
            wrong.push(format!("the last number is {last} after {before}, and {:?} runs", self.state.running));
        }
        if self.state.generations.iter().map(|generation| generation.number).ne(numbers.iter().copied()) {
            wrong.push(format!("of the generations {numbers:?} some cannot be read again"));
        }
        self.note_misled(&old);
        wrong.extend(self.forgotten(&old));
        wrong.extend(self.wrong_trial(&old));
        wrong.extend(self.wrong_switch(&old));
        if let Some(number) = self.undecided() {
            wrong.push(format!("generation {number} runs, and no good one is before it although there was one"));
        }
        wrong
    }

    /// The agent knows that all is written, and has it take effect. Returns what is wrong with that.
    pub(super) fn confirm(&mut self) -> Option<String> {
        self.is_writing = false;
        self.confirmed = self.state.running().map(|running| signature_of(&running.content));
        let trial = self.state.trial.as_ref().filter(|trial| trial.base.is_some());
        let number = self.state.running.filter(|_| trial.is_some());
        let Some(number) = number else {
            self.trial = None;
            return None;
        };
        let (known, boots) = self.trial.get_or_insert_with(|| (number, BTreeSet::new()));
        if *known != number {
            (*known, *boots) = (number, BTreeSet::new());
        }
        boots.insert(self.boot);
        (boots.len() > BOOTS_OF_A_TRIAL)
            .then(|| format!("generation {number} is on trial in the boots {boots:?}, and nothing returns"))
    }

    /// What is wrong with the snapshot that takes effect: it is exactly what is known to be on disk.
    pub(super) fn unwritten(&self, snapshot: &SourceSnapshot) -> Option<String> {
        let confirmed = self.confirmed.as_ref()?;
        let objects = snapshot.objects.iter().filter(|_| self.policy() == Policy::All);
        let in_effect = signature(snapshot.pods.iter(), objects);
        (in_effect != *confirmed).then(|| format!("{in_effect:?} is in effect, and {confirmed:?} is on disk"))
    }

    /// Notes the pods that a bad ConfigMap may have reached without being undone: it was committed, or a user replaced it.
    fn note_misled(&mut self, old: &State) {
        let (before, now) = (old.running(), self.state.running());
        let outcome = before.and_then(|before| self.state.generation(before.number)).map(|it| &it.outcome);
        let is_undone = matches!(outcome, Some(Outcome::Refused(_))) && !self.is_ordered;
        let left = before.filter(|before| self.state.running != Some(before.number) && !is_undone);
        let committed = now.filter(|now| now.outcome == Outcome::Good);
        for generation in left.into_iter().chain(committed) {
            let signature = signature_of(&generation.content);
            let bad = signature.iter().filter(|(key, setting)| key.contains('/') && *setting != "good");
            self.misled.extend(bad.filter_map(|(key, _)| Some(key.split_once('/')?.0.to_owned())));
        }
    }

    /// Good and refused generations that are lost although fewer than the limit are newer.
    fn forgotten(&self, old: &State) -> Vec<String> {
        let mut wrong = Vec::new();
        for before in &old.generations {
            let now = self.state.generation(before.number).map(|generation| &generation.outcome);
            let is_same =
                |outcome: &Outcome| std::mem::discriminant(outcome) == std::mem::discriminant(&before.outcome);
            let is_newer = |other: &&Arc<Generation>| other.number > before.number && is_same(&other.outcome);
            let newer = self.state.generations.iter().filter(is_newer).count();
            let is_kept = match (&before.outcome, now) {
                (Outcome::OnTrial, _) => true,
                // A user has left it for another one.
                (Outcome::Good, Some(Outcome::Refused(_)) | None)
                    if self.is_ordered && old.running == Some(before.number) =>
                {
                    true
                }
                (_, Some(now)) => is_same(now),
                (_, None) => newer >= self.settings.history_limit,
            };
            if !is_kept {
                let (number, was) = (before.number, &before.outcome);
                wrong.push(format!("generation {number} was {was:?} and is {now:?}, {newer} are newer"));
            }
        }
        wrong
    }

    /// What is wrong with a trial that begins, or ends well.
    fn wrong_trial(&self, old: &State) -> Vec<String> {
        let mut wrong = Vec::new();
        let Some(running) = self.state.running() else { return wrong };
        let now = signature_of(&running.content);
        let has_begun = running.outcome == Outcome::OnTrial && running.number > old.last_number;
        let is_passed = running.outcome == Outcome::Good && old.running == Some(running.number) && old.trial.is_some();
        let trial = if has_begun { self.state.trial.as_ref() } else { old.trial.as_ref() };
        let base = trial.and_then(|trial| trial.base).and_then(|base| old.generation(base));
        let changed = |base: &Signature, words: &[&str]| {
            let is_bad = |(key, image): &(&String, &String)| {
                base.get(*key) != Some(*image) && !key.contains('/') && words.contains(&behaviour(image))
            };
            now.iter().find(is_bad).map(|(key, image)| format!("{image} of pod {key}"))
        };
        if has_begun && let Some(refused) = refused(old, &now) {
            wrong.push(format!("generation {} is tried again, as {}", refused, running.number));
        }
        let Some(base) = base.map(|base| signature_of(&base.content)) else { return wrong };
        if has_begun && let Some(image) = changed(&base, &["missing"]) {
            wrong.push(format!("generation {} is on trial without {image}", running.number));
        }
        let bad = ["missing", "crash", "never", "fail", "refused"];
        let bad = if self.settings.check.is_some() { &bad[..] } else { &bad[..4] };
        if is_passed && let Some(image) = changed(&base, bad) {
            wrong.push(format!("generation {} is good with {image}", running.number));
        }
        wrong
    }

    /// What is wrong with another generation that takes effect.
    fn wrong_switch(&mut self, old: &State) -> Vec<String> {
        let mut wrong = Vec::new();
        let (Some(running), true) = (self.state.running(), old.running != self.state.running) else { return wrong };
        let number = running.number;
        if number <= old.last_number && running.outcome != Outcome::Good {
            wrong.push(format!("generation {number} is in effect again, and is {:?}", running.outcome));
        }
        self.switches.0 += 1;
        self.all_switches += 1;
        if self.switches.0 > self.switches.1 {
            wrong.push(format!("{} switches without a change of the source, to {number} at last", self.switches.0));
        }
        wrong
    }

    /// A generation that runs although none that is good is behind it, or is it.
    fn undecided(&self) -> Option<u64> {
        let is_good = |number: Option<u64>| {
            number.and_then(|number| self.state.generation(number)).is_some_and(|it| it.outcome == Outcome::Good)
        };
        let has_good = self.state.generations.iter().any(|generation| generation.outcome == Outcome::Good);
        let base = self.state.trial.as_ref().and_then(|trial| trial.base);
        self.state.running.filter(|running| has_good && !is_good(Some(*running)) && !is_good(base))
    }
}

/// The refused generation of that signature.
pub(super) fn refused(state: &State, signature: &Signature) -> Option<u64> {
    let is_refused = |it: &&Arc<Generation>| matches!(it.outcome, Outcome::Refused(_));
    let mut refused = state.generations.iter().filter(is_refused);
    refused.find(|it| signature_of(&it.content) == *signature).map(|it| it.number)
}

impl Disk {
    /// The refused generation of that signature.
    pub(super) fn refused(&self, signature: &Signature) -> Option<u64> {
        refused(&self.state, signature)
    }
}

/// The numbers of the generations that a document names.
fn numbers(document: &[u8]) -> Vec<u64> {
    let document: Value = serde_json::from_slice(document).unwrap();
    let generations = document["generations"].as_array().into_iter().flatten();
    generations.filter_map(|generation| generation["number"].as_u64()).collect()
}
