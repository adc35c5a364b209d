//! What the sources would publish with other manifests: their current views with the proposals applied. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::view::{Contents, View};
use super::{Rejection, SourceSnapshot};
use crate::source::push_error::PushError;
use crate::source::{Snapshots, first_claim};
use limpet_model::manifest::Manifest;
use limpet_model::pod::{Fault, Severity};
use limpet_model::source::SourceKind;

/// A manifest proposed to a source.
#[derive(Debug)]
pub struct Proposal {
    pub source: SourceKind,
    /// The file's name, or a stand-in for it.
    pub name: Arc<str>,
    /// Its contents.
    pub manifest: Manifest,
}

/// The sources with the proposals applied, and the rejected proposals.
#[derive(Debug)]
pub struct Proposed {
    /// What each source would publish.
    pub snapshots: Snapshots,
    /// What would be rejected.
    pub rejected: Vec<Rejection>,
}

/// Applies the proposals. `whole`: the proposed files are all files of the file source.
pub fn propose(now: &Snapshots, proposals: Vec<Proposal>, whole: bool) -> Proposed {
    let mut by_source: BTreeMap<SourceKind, Vec<Proposal>> = BTreeMap::new();
    for proposal in proposals {
        by_source.entry(proposal.source).or_default().push(proposal);
    }
    if whole {
        by_source.entry(SourceKind::File).or_default();
    }
    let mut proposed = Proposed { snapshots: now.clone(), rejected: Vec::new() };
    for (source, proposals) in by_source {
        let (snapshot, rejected) = match source {
            SourceKind::Push => pushes(&proposed.snapshots, proposals),
            _ => files(&now[source.index()], proposals, whole),
        };
        proposed.snapshots[source.index()] = snapshot;
        proposed.rejected.extend(rejected);
    }
    proposed
}

/// Applies files. A file with the name of one of the source's files replaces it. Pods and objects of any other file
/// replace those of the same key, whichever file they are in.
fn files(now: &SourceSnapshot, files: Vec<Proposal>, whole: bool) -> (Arc<SourceSnapshot>, Vec<Rejection>) {
    let mut view = View::from_snapshot(now);
    view.finish_update(now.ready, now.health.clone());
    let names: Vec<Arc<str>> = files.iter().map(|file| Arc::clone(&file.name)).collect();
    if whole {
        let gone: Vec<Arc<str>> = view.names().filter(|name| !names.contains(name)).cloned().collect();
        gone.iter().for_each(|name| view.remove(name));
    }
    for Proposal { name, manifest, .. } in files {
        let moved = match whole || view.contains(&name) {
            true => Contents::default(),
            false => view.take_out(&manifest),
        };
        view.accept(&name, manifest, || moved);
    }
    view.finish_update(now.ready, now.health.clone());
    let snapshot = view.snapshot();
    let rejected = names.iter().filter_map(|name| snapshot.rejected.get(name)).map(|rejection| (**rejection).clone());
    let rejected = rejected.collect();
    (snapshot, rejected)
}

/// Applies each pod and each object by itself, as a push does.
fn pushes(now: &Snapshots, pushes: Vec<Proposal>) -> (Arc<SourceSnapshot>, Vec<Rejection>) {
    let mut snapshot = SourceSnapshot { revision: None, ..SourceSnapshot::clone(&now[SourceKind::Push.index()]) };
    let mut rejected = Vec::new();
    for Proposal { name, manifest, .. } in pushes {
        let mut faults = manifest.faults;
        for pod in manifest.pods {
            let known = snapshot.pods.get(&pod.key);
            if let Some(claim) = first_claim(now, &pod.key) {
                let (by, origin) = (claim.source, Arc::clone(&claim.origin));
                faults.push(refusal(&name, &PushError::Claimed { key: pod.key.clone(), by, origin }));
            } else if known.is_some_and(|known| known.is_deleting()) {
                faults.push(refusal(&name, &PushError::BeingDeleted { key: pod.key.clone() }));
            } else if known.is_none_or(|known| known.fingerprint != pod.fingerprint || known.uid != pod.uid) {
                snapshot.pods.insert(pod.key.clone(), pod);
            }
        }
        for object in manifest.objects {
            let known = snapshot.objects.get(&object.key);
            if let Some(fault) = known.and_then(|known| known.forbids(&object)) {
                faults.push(Fault { origin: Arc::clone(&name), ..fault });
            } else if known.is_none_or(|known| **known != *object) {
                snapshot.objects.insert(object.key.clone(), object);
            }
        }
        if faults.iter().any(|fault| fault.severity == Severity::Error) {
            let kept = manifest.refused.into_iter().filter(|key| snapshot.pods.contains_key(key)).collect();
            rejected.push(Rejection { origin: name, faults, kept });
        }
    }
    (Arc::new(snapshot), rejected)
}

fn refusal(name: &Arc<str>, error: &PushError) -> Fault {
    let mut fault = Fault::error("metadata.name", error.to_string());
    fault.origin = Arc::clone(name);
    fault
}
