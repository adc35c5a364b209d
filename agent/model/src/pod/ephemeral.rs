//! Ephemeral containers, added for debugging to a pod that runs, through its apiserver or by `limpet debug`. No
//! manifest has them, they are never removed or restarted, and they end with their pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use serde_json::{Value, json};

use crate::pod::container_form::as_container;
use crate::pod::{ContainerName, Fault, PodRecord, decode, default, validate};

/// How many `limpet debug` adds to one pod at most.
pub const MAX_EPHEMERAL_CONTAINERS: usize = 64;

/// The ephemeral containers of `pod` in the form of the others.
pub fn containers(pod: &Pod) -> Vec<Container> {
    let list = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    list.map(as_container).collect()
}

/// Reads an ephemeral container, and sets its defaults.
///
/// # Errors
/// A field is unknown or of the wrong type; paths begin at the container.
pub fn read(container: &Value) -> Result<EphemeralContainer, Vec<Fault>> {
    const PLACE: &str = "spec.ephemeralContainers[0]";
    let (pod, faults) = decode::decode(&json!({ "spec": { "containers": [], "ephemeralContainers": [container] } }));
    let faults: Vec<Fault> = faults.finish().into_iter().map(|fault| below(fault, PLACE)).collect();
    let read = pod.and_then(|pod| pod.spec?.ephemeral_containers?.pop()).filter(|_| faults.is_empty());
    let mut read = read.ok_or(faults)?;
    default::ephemeral(&mut read);
    Ok(read)
}

/// An ephemeral container from its own record. Fields of a newer version are ignored. `None` if it is not one.
pub fn restore(recorded: &Value) -> Option<EphemeralContainer> {
    let pod = json!({ "spec": { "containers": [], "ephemeralContainers": [recorded] } });
    let mut read = decode::from_value(&pod).ok()?.spec?.ephemeral_containers?.pop()?;
    ContainerName::parse(&read.name).ok()?;
    default::ephemeral(&mut read);
    Some(read)
}

/// The form in which an ephemeral container is recorded on itself.
pub fn to_record(container: &EphemeralContainer) -> Option<Value> {
    serde_json::from_slice(&serde_json::to_vec(container).ok()?).ok()
}

/// `record` with one more container.
///
/// # Errors
///
/// What the API finds wrong with it, and what limpet does not act on; paths begin at the container.
pub fn add(record: &PodRecord, container: EphemeralContainer) -> Result<PodRecord, Vec<Fault>> {
    let index = record.ephemeral.len();
    if index >= MAX_EPHEMERAL_CONTAINERS {
        let fault = Fault::error("", format!("the pod has {index} ephemeral containers, the maximum"));
        return Err(vec![fault.with_remedy("use one that runs: limpet exec")]);
    }
    let unsupported = unsupported(&container).map(|(field, why)| Fault::error(field, why));
    let added = record.with_ephemeral([container]);
    let place = format!("spec.ephemeralContainers[{index}]");
    let faults = validate::added(&added, index).into_iter().map(|fault| below(fault, &place));
    let faults: Vec<Fault> = faults.chain(unsupported).collect();
    if faults.is_empty() { Ok(added) } else { Err(faults) }
}

/// A field of the container that limpet does not act on, and why. Such a container is not started, and keeps nothing
/// else from running.
pub fn unsupported(container: &EphemeralContainer) -> Option<(&'static str, &'static str)> {
    let mounts = container.volume_mounts.iter().flatten();
    mounts
        .into_iter()
        .any(|mount| mount.bind_mount_options.is_some())
        .then_some(("volumeMounts[].bindMountOptions", "is not supported yet"))
}

/// The fault with its path prefixed by `place`.
fn below(fault: Fault, place: &str) -> Fault {
    let path = fault.path.strip_prefix(place).map(|rest| rest.trim_start_matches('.').to_owned());
    Fault { path: path.unwrap_or_else(|| fault.path.clone()), ..fault }
}

impl PodRecord {
    /// The same version with more ephemeral containers.
    pub fn with_ephemeral(&self, added: impl IntoIterator<Item = EphemeralContainer>) -> Self {
        let mut record = self.clone();
        let list = record.pod.spec.get_or_insert_default().ephemeral_containers.get_or_insert_default();
        list.extend(added);
        record.ephemeral = list.iter().map(as_container).collect();
        record
    }

    /// This version with the ephemeral containers of `before` that it lacks, because none is removed from a pod.
    pub fn keeping_ephemeral(self: Arc<Self>, before: &Self) -> Arc<Self> {
        let of_before = before.spec().ephemeral_containers.iter().flatten();
        let mut missing = of_before.filter(|container| self.container(&container.name).is_none()).peekable();
        match missing.peek() {
            None => Arc::clone(&self),
            Some(_) => Arc::new(self.with_ephemeral(missing.cloned())),
        }
    }

    /// This version as its source defines it, without what `limpet debug` has added.
    pub fn without_added(self: Arc<Self>) -> Arc<Self> {
        let authored = self.authored_ephemeral();
        if self.ephemeral.iter().all(|container| authored.contains(&container.name)) {
            return self;
        }
        let mut record = (*self).clone();
        let list = record.pod.spec.get_or_insert_default().ephemeral_containers.take();
        let kept: Vec<_> = list.into_iter().flatten().filter(|container| authored.contains(&container.name)).collect();
        record.ephemeral = kept.iter().map(as_container).collect();
        record.pod.spec.get_or_insert_default().ephemeral_containers = (!kept.is_empty()).then_some(kept);
        Arc::new(record)
    }

    /// The names of the ephemeral containers that its source has given it.
    pub fn authored_ephemeral(&self) -> Vec<String> {
        if self.ephemeral.is_empty() {
            return Vec::new();
        }
        let manifest: Value = serde_json::from_slice(&self.manifest).unwrap_or_default();
        let list = manifest["spec"]["ephemeralContainers"].as_array();
        list.into_iter().flatten().filter_map(|container| Some(container["name"].as_str()?.to_owned())).collect()
    }

    /// The definition of its ephemeral container called `name`.
    pub fn ephemeral_of(&self, name: &str) -> Option<&EphemeralContainer> {
        self.spec().ephemeral_containers.iter().flatten().find(|container| container.name == name)
    }

    /// The container whose processes its ephemeral container called `name` can see.
    pub fn target_of(&self, name: &str) -> Option<&str> {
        self.ephemeral_of(name)?.target_container_name.as_deref().filter(|target| !target.is_empty())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::manifest::restore;
    use crate::source::SourceKind;

    fn web() -> PodRecord {
        let spec = json!({ "containers": [{ "name": "main", "image": "app:1" }],
            "volumes": [{ "name": "data", "emptyDir": {} }] });
        let manifest = json!({ "metadata": { "name": "web" }, "spec": spec });
        restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap()
    }

    #[test]
    fn one_is_added_once_it_is_valid() {
        let with = |fields: Value| {
            let mut container = json!({ "name": "debug", "image": "busybox" });
            container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            container
        };
        let cases = [
            (json!({}), ""),
            (json!({ "targetContainerName": "main", "stdin": true, "tty": true }), ""),
            (json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }), ""),
            (json!({ "securityContext": { "privileged": true } }), ""),
            (json!({ "imag": "a" }), "imag: no such field; did you mean image?"),
            (json!({ "tty": "yes" }), "tty: must be a boolean, not string \"yes\""),
            (json!({ "name": "main" }), "name: Duplicate value: \"main\""),
            (json!({ "image": "" }), "image: Required value"),
            (json!({ "targetContainerName": "other" }), "targetContainerName: Not found: \"other\""),
            (
                json!({ "volumeMounts": [{ "name": "none", "mountPath": "/a" }] }),
                "volumeMounts[0].name: Not found: \"none\"; spec.volumes has: data",
            ),
            (
                json!({ "ports": [{ "containerPort": 1 }] }),
                "ports: Forbidden: cannot be set for an Ephemeral Container",
            ),
            (json!({ "lifecycle": {} }), "lifecycle: Forbidden: cannot be set for an Ephemeral Container"),
            (json!({ "stdin": true, "stdinOnce": true }), ""),
        ];
        for (fields, expected) in cases {
            let added = read(&with(fields.clone())).and_then(|container| add(&web(), container));
            let refused = added.map(|record| assert!(record.container("debug").is_some() && record == web()));
            let refused = refused.err().into_iter().flatten().map(|fault| fault.to_string()).collect::<Vec<_>>();
            assert_eq!(refused.join("|"), expected, "{fields}");
        }
    }

    #[test]
    fn a_pod_has_a_bounded_number_of_them() {
        let container = |index: usize| read(&json!({ "name": format!("d{index}"), "image": "a" })).unwrap();
        let full = web().with_ephemeral((0..MAX_EPHEMERAL_CONTAINERS).map(container));
        assert!(add(&full, container(MAX_EPHEMERAL_CONTAINERS)).unwrap_err()[0].to_string().contains("limpet exec"));
    }

    #[test]
    fn what_is_added_stays_over_edits_and_does_not_come_back_in_a_new_pod() {
        let container = read(&json!({ "name": "debug", "image": "busybox" })).unwrap();
        let added = Arc::new(add(&web(), container).unwrap());
        let kept = Arc::new(web()).keeping_ephemeral(&added);
        assert_eq!(kept.pod.spec, added.pod.spec);
        let recorded = to_record(kept.ephemeral_of("debug").unwrap()).unwrap();
        assert_eq!(super::restore(&recorded).as_ref(), kept.ephemeral_of("debug"));
        let edited = Arc::clone(&kept).keeping_ephemeral(&added);
        assert!(Arc::ptr_eq(&kept, &edited), "nothing is missing");
        assert_eq!(kept.without_added().pod, web().pod);
    }
}
