//! The images that pods need: of desired pods, of pods that lose their name to another, and of running pods.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::merge::Desired;
use crate::merge::slot::Slots;
use crate::status::observed::Observed;
use limpet_model::image::StoredImage;
use limpet_model::pod::images::normalized_images;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;

/// The known pods: those that are desired, those that lose their name to another, and those that run.
#[derive(Debug)]
pub struct KnownPods {
    /// The pods of the sources, including their last good versions.
    pub desired: Desired,
    /// What the sources hold.
    pub slots: Arc<Slots>,
    /// What runs.
    pub observed: Observed,
    /// The sources of this node.
    pub sources: Vec<SourceKind>,
    /// What is needed although no pod of it is known at present.
    pub kept: KeptImages,
}

/// The normalised names of images that are not to be removed, for a pod that may return. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct KeptImages(Arc<ArcSwap<HashSet<String>>>);

impl KeptImages {
    /// Replaces all of them.
    pub fn set(&self, images: HashSet<String>) {
        self.0.store(Arc::new(images));
    }
}

impl KnownPods {
    /// The normalized names of the images they need; `None` until every source has reported.
    pub fn images(&self) -> Option<HashSet<String>> {
        let mut images = HashSet::new();
        images.extend(self.kept.0.load().iter().cloned());
        self.every(|record| images.extend(normalized_images(record))).then_some(images)
    }

    /// The pods that need each image, by its normalized name.
    pub fn users(&self) -> BTreeMap<String, BTreeSet<PodKey>> {
        let mut users: BTreeMap<String, BTreeSet<PodKey>> = BTreeMap::new();
        self.every(|record| {
            for image in normalized_images(record) {
                users.entry(image).or_default().insert(record.key.clone());
            }
        });
        users
    }

    /// Calls `visit` for each pod, perhaps more than once. Returns whether every source has reported.
    fn every(&self, mut visit: impl FnMut(&PodRecord)) -> bool {
        let desired = self.desired.load();
        desired.pods.values().for_each(|record| visit(record));
        for snapshot in &self.slots.load() {
            let rivals = snapshot.rivals.values().flat_map(|rivals| rivals.iter());
            snapshot.pods.values().chain(rivals).for_each(|record| visit(record));
        }
        self.observed.load().pods.values().for_each(|pod| visit(&pod.record));
        self.sources.iter().all(|source| desired.is_ready(*source))
    }
}

/// Whether one of `names` is a name of the image, or its digest.
pub fn is_named(image: &StoredImage, names: &HashSet<String>) -> bool {
    let digest = |name: &String| name.rsplit_once('@').is_some_and(|(_, digest)| digest == &*image.digest);
    image.names.iter().any(|name| names.contains(name)) || names.iter().any(digest)
}
