//! One change of a manifest as a source accepted it, for logs, events and the stored change history.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::view::Contents;
use super::{SourceSnapshot, delta};
use crate::last_good::LastGood;
use limpet_model::actor::Actor;
use limpet_model::pod::{Fault, Part, PodDiff, PodKey, PodRecord, PodUid, Severity};
use limpet_model::source::SourceKind;

/// How many changed parts of a pod are named.
const MAX_PARTS: usize = 12;
/// Maximum length of one text, in characters.
const MAX_TEXT: usize = 240;

/// What happened to a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// A pod that did not exist before.
    Created,
    /// A new version of the pod.
    Edited,
    /// The pod was removed.
    Removed,
    /// The newer version was rejected.
    Rejected,
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Edited => "edited",
            Self::Removed => "removed",
            Self::Rejected => "rejected",
        })
    }
}

/// One change. It is stored in this JSON form, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestChange {
    /// When the agent accepted it.
    pub at: Time,
    /// `file`, `push`, `http` or `api`.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// What happened.
    pub change: ChangeKind,
    /// The pod, as `namespace/name`; absent for a rejected manifest of which nothing runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The parts that changed, as phrases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub touched: Vec<String>,
    /// Containers it restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<String>,
    /// Containers it resized while they run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resizes: Vec<String>,
    /// Whether the pod was terminated and recreated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recreates: bool,
    /// Why it was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who made it; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
}

impl ManifestChange {
    /// The change from `old` to `new` of one pod; `None` if neither exists.
    pub fn between(
        old: Option<&PodRecord>,
        new: Option<&PodRecord>,
        at: Timestamp,
        actor: Option<Arc<Actor>>,
    ) -> Option<Self> {
        let record = new.or(old)?;
        let mut change = Self::blank(record.source, &record.origin, at, actor);
        change.pod = Some(record.key.to_string());
        change.uid = Some(record.uid.to_string());
        change.change = match (old, new) {
            (None, _) => ChangeKind::Created,
            (_, None) => ChangeKind::Removed,
            (Some(old), Some(new)) => {
                let diff = PodDiff::between(old, new);
                if diff.is_empty() {
                    return None;
                }
                change.recreates = diff.needs_new_pod();
                change.touched = touched(&diff, old, new);
                if !change.recreates {
                    change.restarts = diff.restarts().take(MAX_PARTS).map(short).collect();
                    change.resizes = diff.resizes().take(MAX_PARTS).map(short).collect();
                }
                ChangeKind::Edited
            }
        };
        Some(change)
    }

    fn blank(source: SourceKind, origin: &str, at: Timestamp, actor: Option<Arc<Actor>>) -> Self {
        Self {
            at: Time(at),
            source: source.to_string(),
            origin: short(origin),
            change: ChangeKind::Rejected,
            pod: None,
            uid: None,
            touched: Vec::new(),
            restarts: Vec::new(),
            resizes: Vec::new(),
            recreates: false,
            reason: None,
            actor: actor.map(|actor| Actor::clone(&actor)),
        }
    }

    fn rejected(mut self, record: Option<&PodRecord>, faults: &[Fault]) -> Self {
        let errors = faults.iter().filter(|fault| fault.severity == Severity::Error);
        self.reason = Some(short(&errors.map(ToString::to_string).collect::<Vec<_>>().join("; ")));
        self.pod = record.map(|record| record.key.to_string());
        self.uid = record.map(|record| record.uid.to_string());
        self
    }

    /// The pod it is about.
    pub fn of_pod(&self) -> Option<(PodKey, PodUid)> {
        let (namespace, name) = self.pod.as_deref()?.split_once('/')?;
        Some((PodKey::parse(namespace, name).ok()?, PodUid::parse(self.uid.as_deref()?).ok()?))
    }

    /// Whether it equals `earlier` apart from time and actor.
    pub fn repeats(&self, earlier: &Self) -> bool {
        let Self { at, actor, .. } = earlier.clone();
        Self { at, actor, ..self.clone() } == *earlier
    }

    /// The name of who made it, as text.
    pub fn by(&self) -> String {
        self.actor.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string)
    }

    /// What changed, or why it was rejected.
    pub fn what(&self) -> String {
        match self.change {
            ChangeKind::Edited => self.touched.join(", "),
            ChangeKind::Rejected => format!("rejected: {}", self.reason.as_deref().unwrap_or_default()),
            ChangeKind::Created | ChangeKind::Removed => self.change.to_string(),
        }
    }

    /// Its effect on the running pod: `restarted web`, `resized in place web`; empty if there is none.
    pub fn effect(&self) -> String {
        if self.recreates {
            return "recreated the pod".to_owned();
        }
        let effects = [("restarted", &self.restarts), ("resized in place", &self.resizes)];
        let effects = effects.iter().filter(|(_, names)| !names.is_empty());
        effects.map(|(verb, names)| format!("{verb} {}", names.join(", "))).collect::<Vec<_>>().join("; ")
    }
}

/// The changed parts as text, images with their old and new version.
fn touched(diff: &PodDiff<'_>, old: &PodRecord, new: &PodRecord) -> Vec<String> {
    let mut parts: Vec<String> = diff.parts().iter().take(MAX_PARTS).map(|part| phrase(part, old, new)).collect();
    if diff.parts().len() > MAX_PARTS {
        parts.push(format!("and {} more", diff.parts().len() - MAX_PARTS));
    }
    parts
}

fn phrase(part: &Part<'_>, old: &PodRecord, new: &PodRecord) -> String {
    let Part::Image(container) = part else { return short(&part.to_string()) };
    let image = |record: &PodRecord| {
        let spec = record.spec();
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        all.find(|candidate| candidate.name == *container)
            .and_then(|candidate| candidate.image.clone())
            .unwrap_or_default()
    };
    let (before, after) = (image(old), image(new));
    // If both are tags of one image, only the tags matter.
    let (from, to) = match (before.rsplit_once(':'), after.rsplit_once(':')) {
        (Some((name, from)), Some((other, to))) if name == other => (from, to),
        _ => (&*before, &*after),
    };
    short(&format!("image of {container} {from} -> {to}"))
}

fn short(text: &str) -> String {
    let mut kept: String = text.chars().take(MAX_TEXT).collect();
    if kept.len() < text.len() {
        kept.push('…');
    }
    kept
}

/// Remembers a source's last snapshot to compute its changes; at the start, its last good manifests.
#[derive(Debug)]
pub struct ChangeLog {
    source: SourceKind,
    before: Arc<SourceSnapshot>,
    /// Last good manifests of an earlier run, until the source's first complete read.
    kept: BTreeMap<Arc<str>, LastGood>,
    /// All manifests in `kept`.
    known: HashSet<Arc<[u8]>>,
}

impl ChangeLog {
    /// The log of a source that has published nothing.
    pub fn new(source: SourceKind) -> Self {
        Self { source, before: Arc::default(), kept: BTreeMap::new(), known: HashSet::new() }
    }

    /// Sets what an earlier run accepted, whose reappearance is not a change.
    pub fn expect(&mut self, kept: &BTreeMap<Arc<str>, LastGood>) {
        self.kept.clone_from(kept);
        self.known = kept.values().flat_map(|kept| kept.manifests.iter().cloned()).collect();
    }

    /// The snapshot with its changes since the previous one, as of `at`.
    pub fn enter(
        &mut self,
        snapshot: Arc<SourceSnapshot>,
        at: Timestamp,
        restore: impl Fn(&str, &LastGood) -> Contents,
        who: impl Fn(&str) -> Option<Arc<Actor>>,
    ) -> Arc<SourceSnapshot> {
        let changes = self.changes(&snapshot, at, restore, who);
        if changes.is_empty() {
            return snapshot;
        }
        Arc::new(SourceSnapshot { changes: changes.into(), ..SourceSnapshot::clone(&snapshot) })
    }

    /// The changes up to `after`. `restore` reads the last good manifests of an origin; `who` gives the actor that
    /// changed it.
    fn changes(
        &mut self,
        after: &Arc<SourceSnapshot>,
        at: Timestamp,
        restore: impl Fn(&str, &LastGood) -> Contents,
        who: impl Fn(&str) -> Option<Arc<Actor>>,
    ) -> Vec<Arc<ManifestChange>> {
        let mut changes = Vec::new();
        let delta = delta::between(&self.before, after);
        for key in &delta.pods {
            changes.extend(match (self.before.pods.get(key), after.pods.get(key)) {
                (None, None) => None,
                (None, Some(new)) if self.known.contains(&new.manifest) => None,
                (None, Some(new)) => {
                    let kept = self.kept.get(&new.origin).map(|kept| restore(&new.origin, kept));
                    let old = kept.as_ref().and_then(|contents| contents.pods.get(&new.key));
                    ManifestChange::between(old.map(|old| &**old), Some(new), at, who(&new.origin))
                }
                (Some(old), Some(new)) if Arc::ptr_eq(old, new) => None,
                (Some(old), Some(new)) => ManifestChange::between(Some(old), Some(new), at, who(&new.origin)),
                (Some(old), None) => ManifestChange::between(Some(old), None, at, who(&old.origin)),
            });
        }
        changes.extend(self.rejections(&delta.rejected, after, at, &who));
        if after.ready {
            changes.extend(self.gone(after, at, restore));
        }
        self.before = Arc::clone(after);
        changes.into_iter().map(Arc::new).collect()
    }

    /// The rejections of `origins` that are in effect.
    fn rejections(
        &self,
        origins: &[Arc<str>],
        after: &SourceSnapshot,
        at: Timestamp,
        who: &impl Fn(&str) -> Option<Arc<Actor>>,
    ) -> Vec<ManifestChange> {
        let mut changes = Vec::new();
        for (origin, rejection) in origins.iter().filter_map(|origin| after.rejected.get_key_value(origin)) {
            let change = ManifestChange::blank(self.source, origin, at, who(origin));
            let kept: Vec<_> = rejection.kept.iter().filter_map(|key| after.pods.get(key)).collect();
            if kept.is_empty() {
                changes.push(change.rejected(None, &rejection.faults));
            } else {
                changes.extend(kept.iter().map(|pod| change.clone().rejected(Some(pod), &rejection.faults)));
            }
        }
        changes
    }

    /// The removals of pods that an earlier run accepted and that no longer exist.
    fn gone(
        &mut self,
        after: &SourceSnapshot,
        at: Timestamp,
        restore: impl Fn(&str, &LastGood) -> Contents,
    ) -> Vec<ManifestChange> {
        let mut changes = Vec::new();
        let mut missing = std::mem::take(&mut self.known);
        if !missing.is_empty() {
            after.pods.values().for_each(|pod| _ = missing.remove(&pod.manifest));
        }
        for (name, kept) in std::mem::take(&mut self.kept) {
            // Usually all of them still exist, so nothing has to be decoded.
            if kept.manifests.iter().all(|manifest| !missing.contains(manifest)) {
                continue;
            }
            let lost = restore(&name, &kept).pods.into_values().filter(|pod| !after.pods.contains_key(&pod.key));
            changes.extend(lost.filter_map(|pod| ManifestChange::between(Some(&pod), None, at, None)));
        }
        changes
    }
}

#[cfg(test)]
mod tests;
