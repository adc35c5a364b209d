//! The version of a pod with the resources of an earlier one, which runs while the node has no room for the requested
//! ones.

use std::sync::Arc;

use serde_json::Value;

use crate::pod::PodRecord;
use crate::pod::fingerprint::{canonical, hash};

/// The lists of containers whose resources change in place.
const LISTS: [&str; 2] = ["containers", "initContainers"];

impl PodRecord {
    /// This version with the resources that `before` has, both the pod's and its containers'.
    pub fn with_resources_of(&self, before: &Self) -> Self {
        let mut record = self.clone();
        let spec = record.pod.spec.get_or_insert_default();
        spec.resources.clone_from(&before.spec().resources);
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            let kept = before.container(&container.name);
            kept.into_iter().for_each(|kept| container.resources.clone_from(&kept.resources));
        }
        // Both were parsed as JSON when they were accepted.
        let read = |record: &Self| serde_json::from_slice::<Value>(&record.manifest).unwrap_or_default();
        let mut manifest = read(self);
        keep_resources(&mut manifest, &read(before));
        let text = canonical(&manifest);
        record.fingerprint = hash(&text);
        record.manifest = Arc::from(text);
        record
    }
}

/// Writes the resources of `before` into `manifest`.
fn keep_resources(manifest: &mut Value, before: &Value) {
    let Some(spec) = manifest.get_mut("spec").and_then(Value::as_object_mut) else { return };
    // In the canonical form, null means an absent key.
    spec.insert("resources".to_owned(), before["spec"]["resources"].clone());
    for list in LISTS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let kept = before["spec"][list].as_array().into_iter().flatten();
            let kept = kept.into_iter().find(|kept_container| kept_container["name"] == container["name"]);
            if let (Some(kept), Some(container)) = (kept, container.as_object_mut()) {
                container.insert("resources".to_owned(), kept["resources"].clone());
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifest::restore;
    use crate::source::SourceKind;

    fn record(image: &str, resources: &Value, label: &str) -> PodRecord {
        let container = |name: &str| json!({ "name": name, "image": image, "resources": resources });
        let manifest = json!({
            "metadata": { "name": "web", "labels": { "a": label } },
            "spec": { "initContainers": [container("i")], "containers": [container("m")] },
        });
        restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap()
    }

    #[test]
    fn resources_are_those_of_before_and_all_else_is_new() {
        let cpu = |amount: &str| json!({ "requests": { "cpu": amount } });
        for before in [cpu("1"), json!(null)] {
            let (old, new) = (record("a:1", &before, "x"), record("a:2", &cpu("2"), "y"));
            let kept = new.with_resources_of(&old);
            let expected = record("a:2", &before, "y");
            assert_eq!((kept.fingerprint, &kept.manifest), (expected.fingerprint, &expected.manifest));
            assert_eq!((&kept.pod, &kept.uid), (&expected.pod, &old.uid));
            assert_eq!(old.with_resources_of(&old), old);
        }
    }
}
