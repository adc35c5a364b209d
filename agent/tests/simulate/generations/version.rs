//! The versions of a source: some pods work and some do not, as their images say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use limpet_core::state::{ContainerSlot, PodState};
use limpet_generations::{Content, Policy};
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_worker::fake::world::Script;
use serde_json::{Value, json};

/// The names of pods. A pod's ConfigMap has its name.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The images, more often those that work. `refused`: the user's check refuses a generation with it; `config`: the pod is as
/// its ConfigMap says.
const IMAGES: [&str; 18] = [
    "good", "good", "good", "good", "good", "good", "good", "good", "good", "config", "config", "config", "crash",
    "crash", "never", "fail", "missing", "refused",
];
/// The values in ConfigMaps, which decide how pods with the image `config` behave.
const SETTINGS: [&str; 5] = ["good", "good", "good", "never", "crash"];
/// Tags are few, so that a version comes back now and then.
const TAGS: u32 = 4;

/// What distinguishes versions: the image of each pod, and what each ConfigMap says that a generation covers.
pub(super) type Signature = BTreeMap<String, String>;

/// One pod of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    image: &'static str,
    tag: u32,
    setting: &'static str,
}

impl Item {
    fn draw(rng: &mut fastrand::Rng) -> Self {
        let (image, setting) = (rng.choice(IMAGES).unwrap(), rng.choice(SETTINGS).unwrap());
        Self { image, tag: rng.u32(0..TAGS), setting }
    }

    fn name(&self) -> String {
        format!("{}:{}", self.image, self.tag)
    }

    fn pod(&self, name: &str) -> Value {
        let mut container = json!({ "name": "main", "image": self.name(), "imagePullPolicy": "IfNotPresent" });
        if self.image == "config" {
            container["envFrom"] = json!([{ "configMapRef": { "name": name } }]);
        }
        if matches!(self.image, "config" | "never") {
            let command = json!({ "command": ["probe"] });
            container["readinessProbe"] = json!({ "exec": command, "periodSeconds": 5, "failureThreshold": 1 });
        }
        let policy = if self.image == "fail" { "Never" } else { "Always" };
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "restartPolicy": policy, "terminationGracePeriodSeconds": 2, "containers": [container] },
        })
    }
}

/// Everything that the source has at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version(BTreeMap<&'static str, Item>);

impl Version {
    /// One of which everything works.
    pub(super) fn good(rng: &mut fastrand::Rng) -> Self {
        let image = |rng: &mut fastrand::Rng| if rng.bool() { "good" } else { "config" };
        let count = rng.usize(1..4);
        let items = NAMES.into_iter().take(count);
        Self(items.map(|name| (name, Item { image: image(rng), tag: 0, setting: "good" })).collect())
    }

    /// Changes a pod or its ConfigMap, adds a pod or removes one.
    pub(super) fn edit(&mut self, rng: &mut fastrand::Rng) {
        let name = rng.choice(NAMES).unwrap();
        let count = self.0.len();
        match self.0.get_mut(name) {
            Some(item) if item.image == "config" && rng.bool() => item.setting = rng.choice(SETTINGS).unwrap(),
            Some(_) if count > 1 && rng.u32(0..6) == 0 => drop(self.0.remove(name)),
            _ => drop(self.0.insert(name, Item::draw(rng))),
        }
    }

    pub(super) fn text(&self) -> Vec<u8> {
        let pods = self.0.iter().map(|(name, item)| item.pod(name));
        let configs = self.0.iter().filter(|(_, item)| item.image == "config").map(|(name, item)| {
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "is": item.setting } })
        });
        let documents: Vec<String> = pods.chain(configs).map(|document| document.to_string()).collect();
        documents.join("\n---\n").into_bytes()
    }

    pub(super) fn signature(&self, policy: Policy) -> Signature {
        let pods = self.0.iter().map(|(name, item)| ((*name).to_owned(), item.name()));
        let configured = self.0.iter().filter(|(_, item)| item.image == "config" && policy == Policy::All);
        pods.chain(configured.map(|(name, item)| (config_key(name), item.setting.to_owned()))).collect()
    }

    /// Whether no registry has an image that it needs and `base` does not have.
    pub(super) fn lacks_image(&self, base: &Signature) -> bool {
        let differs = |name: &str, item: &Item| base.get(name) != Some(&item.name());
        self.0.iter().any(|(name, item)| item.image == "missing" && differs(name, item))
    }
}

fn config_key(name: &str) -> String {
    format!("{name}/config")
}

/// The signature of what a generation consists of.
pub(super) fn signature_of(content: &Content) -> Signature {
    signature(content.pods.iter(), content.objects.iter())
}

/// The signature of pods and objects.
pub(super) fn signature<'a>(
    pods: impl Iterator<Item = (&'a PodKey, &'a Arc<PodRecord>)>,
    objects: impl Iterator<Item = (&'a ObjectKey, &'a Arc<ObjectRecord>)>,
) -> Signature {
    let image = |record: &PodRecord| record.spec().containers[0].image.clone().unwrap_or_default();
    let pods = pods.map(|(key, record)| (pod_name(key).to_owned(), image(record)));
    let objects = objects.map(|(key, object)| (config_key(&key.name), setting(object).to_owned()));
    pods.chain(objects).collect()
}

/// The name of a pod in its manifest.
pub(super) fn pod_name(key: &PodKey) -> &str {
    key.name().trim_end_matches(crate::agent::NODE).trim_end_matches('-')
}

fn setting(object: &ObjectRecord) -> &str {
    object.data.get("is").and_then(|value| value.bytes.expose_text()).unwrap_or_default()
}

/// What the image of a signature's entry says: the part before its tag.
pub(super) fn behaviour(image: &str) -> &str {
    image.split(':').next().unwrap_or_default()
}

/// Whether a pod of that signature works whenever it is started.
pub(super) fn works(signature: &Signature, name: &str) -> bool {
    match signature.get(name).map(|image| behaviour(image)) {
        Some("good" | "refused") => true,
        Some("config") => signature.get(&config_key(name)).is_some_and(|setting| setting == "good"),
        _ => false,
    }
}

/// The behaviour of a container, as its image or its pod's ConfigMap says.
pub(super) fn script_of(pod: &PodState, slot: &ContainerSlot) -> Script {
    let image = pod.container_spec(&slot.name).and_then(|container| container.image.as_deref()).unwrap_or_default();
    let config = pod.objects.get(ObjectKind::ConfigMap, pod_name(&pod.record.key));
    let word = match behaviour(image) {
        "config" => config.map_or("never", |config| setting(config)),
        word => word,
    };
    let exits = matches!(word, "crash" | "fail").then_some((Duration::from_secs(3), 1));
    Script {
        can_be_pulled: word != "missing",
        is_ready: word != "never",
        exits,
        reads_objects: behaviour(image) == "config",
    }
}
