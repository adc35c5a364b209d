//! What must hold of a node with generations once it has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use limpet_core::status::observed::ObservedPod;
use limpet_generations::{Content, Outcome, Policy};
use limpet_model::image_name::normalize;
use limpet_model::pod::PodKey;

use super::Node;
use super::disk::Disk;
use super::version::{Version, behaviour, pod_name, signature_of, works};

impl Node {
    /// The number of the generation that runs.
    pub(super) fn running(&self) -> Option<u64> {
        self.disk().running().map(|running| running.number)
    }

    pub(super) fn violate(&self, what: String) {
        let mut world = self.world();
        world.note(|| format!("VIOLATION {what}"));
        world.violations.push(what);
    }

    pub(super) fn check(&self) {
        let Some(newest) = self.versions.last() else { return };
        let disk = self.disk();
        let mut wrong = undecided(&disk, newest);
        wrong.extend(missing_images(&disk));
        let running = disk.running().map(|running| running.content.clone()).unwrap_or_default();
        let (policy, misled) = (disk.policy(), disk.misled.clone());
        drop(disk);
        wrong.extend(self.idle_pods(&running, policy, &misled));
        wrong.into_iter().for_each(|what| self.violate(what));
    }

    /// How what runs differs from the generation that is in effect, as far as that works; `misled`: pods that may have read what
    /// nothing has undone.
    fn idle_pods(&self, content: &Content, policy: Policy, misled: &BTreeSet<String>) -> Vec<String> {
        let agent = self.agent.as_ref().unwrap();
        let (desired, observed) = (agent.desired.load(), agent.observed.load());
        let (world, signature) = (self.world(), signature_of(content));
        let mut wrong = Vec::new();
        if !desired.pods.keys().eq(content.pods.keys()) {
            let keys: Vec<&PodKey> = desired.pods.keys().collect();
            wrong.push(format!("{keys:?} are desired, {signature:?} is in effect"));
        }
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        world.what_runs().into_iter().for_each(|(uid, ..)| *running.entry(uid).or_default() += 1);
        for (key, record) in &desired.pods {
            let name = pod_name(key);
            let image = signature.get(name).map(|image| behaviour(image)).unwrap_or_default();
            // With the policy of pods a process may have what its ConfigMap said when it was started.
            let is_configured = image != "config" || policy == Policy::All && !misled.contains(name);
            let is_known = works(&signature, name) && is_configured;
            let count = running.get(record.uid.as_str()).copied().unwrap_or_default();
            let is_ready = observed.pods.get(key).is_some_and(|pod| is_ready(pod));
            if is_known && !(count == 1 && is_ready) {
                wrong.push(format!("{key} of {signature:?} runs {count} times, and is ready: {is_ready}"));
            }
        }
        let wanted: BTreeSet<String> = desired.pods.values().map(|record| record.uid.to_string()).collect();
        wrong.extend(world.pods().difference(&wanted).map(|uid| format!("orphan: something of {uid} is left")));
        wrong
    }
}

/// Whether the newest version runs or is refused, and what runs is good.
fn undecided(disk: &Disk, newest: &Version) -> Vec<String> {
    let Some(running) = disk.running() else { return vec!["no generation runs".to_owned()] };
    let (wanted, number) = (newest.signature(disk.policy()), running.number);
    let in_effect = signature_of(&running.content);
    let has_good = disk.generations().iter().any(|generation| generation.outcome == Outcome::Good);
    let mut wrong = Vec::new();
    if has_good && running.outcome != Outcome::Good {
        wrong.push(format!("generation {number} is {:?} at rest", running.outcome));
    }
    if in_effect != wanted && disk.refused(&wanted).is_none() && !newest.lacks_image(&in_effect) {
        wrong.push(format!("generation {number} runs, and {wanted:?} is neither tried nor refused"));
    }
    wrong
}

/// The images of good generations that may be removed from the node.
fn missing_images(disk: &Disk) -> Vec<String> {
    let good = disk.generations().iter().filter(|generation| generation.outcome == Outcome::Good);
    let images = good.flat_map(|generation| {
        let signature = signature_of(&generation.content);
        signature.into_iter().filter(|(key, _)| !key.contains('/')).map(|(_, image)| (generation.number, image))
    });
    let lost = images.filter(|(_, image)| !normalize(image).is_ok_and(|name| disk.kept.contains(&name)));
    lost.map(|(number, image)| format!("image {image} of generation {number} may be removed")).collect()
}

fn is_ready(pod: &ObservedPod) -> bool {
    pod.status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
