//! Which edits of a container's resources are carried out while it runs, without a restart.
//!
//! These are the rules of the API's `resize` subresource: requests and limits of cpu and memory may change and be
//! added, none may be removed, and the same holds for the pod's own. A container that gets its limits from its pod
//! follows the pod's. If `resizePolicy` requires a restart, or anything else differs, the container is replaced. That
//! depends only on the manifests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::PodRecord;
use crate::pod::authored::Authored;
use crate::pod::compute_resources::effective_limit;
use crate::pod::qos::{CPU, MEMORY, amount};

/// Whether the container called `name` can change from `old` to `new` while it runs.
pub fn resizes_in_place(old: &PodRecord, new: &PodRecord, name: &str) -> bool {
    let (Some(before), Some(after)) = (old.container(name), new.container(name)) else { return false };
    changes_resources_alone(old, new, name) && may_resize((old.spec(), before), (new.spec(), after))
}

/// Whether a running pod can get its own resources of `new`: none is removed, and only cpu and memory change.
pub fn pod_resizes_in_place(old: &PodSpec, new: &PodSpec) -> bool {
    let empty = ResourceRequirements::default();
    keeps_all(old.resources.as_ref().unwrap_or(&empty), new.resources.as_ref().unwrap_or(&empty))
}

/// Whether the container called `name` has the same image in both, but other resources.
pub fn changes_resources_alone(old: &PodRecord, new: &PodRecord, name: &str) -> bool {
    let (before, after) = (Authored::parse(&old.manifest), Authored::parse(&new.manifest));
    let (Some(before), Some(after)) = (before.container(name), after.container(name)) else { return false };
    before.same_image(after) && !before.same_resources(after)
}

fn may_resize((old_pod, old): (&PodSpec, &Container), (new_pod, new): (&PodSpec, &Container)) -> bool {
    let empty = ResourceRequirements::default();
    let (before, after) = (old.resources.as_ref().unwrap_or(&empty), new.resources.as_ref().unwrap_or(&empty));
    // kubelet compares the requests, and the limits including those that follow from the pod's.
    let changed = |name: &str| {
        amount(before.requests.as_ref(), name) != amount(after.requests.as_ref(), name)
            || effective_limit(old_pod, old, name) != effective_limit(new_pod, new, name)
    };
    let restarts = |name: &str| {
        let mut policies = new.resize_policy.iter().flatten();
        policies.any(|policy| policy.resource_name == name && policy.restart_policy == "RestartContainer")
    };
    before.claims == after.claims
        && keeps_all(before, after)
        && ![CPU, MEMORY].iter().any(|name| changed(name) && restarts(name))
}

fn keeps_all(before: &ResourceRequirements, after: &ResourceRequirements) -> bool {
    let lists = [(&before.limits, &after.limits), (&before.requests, &after.requests)];
    lists.iter().all(|(before, after)| keeps(before.as_ref(), after.as_ref()))
}

/// Whether `after` has every resource of `before`, in the same amounts except for cpu and memory.
fn keeps(before: Option<&BTreeMap<String, Quantity>>, after: Option<&BTreeMap<String, Quantity>>) -> bool {
    let is_resizable = |name: &str| name == CPU || name == MEMORY;
    let has = |list: Option<&BTreeMap<String, Quantity>>, name: &str| list.is_some_and(|list| list.contains_key(name));
    let names = |list| Option::into_iter(list).flat_map(BTreeMap::keys);
    names(before).chain(names(after)).all(|name| match is_resizable(name) {
        true => has(after, name),
        false => has(before, name) && has(after, name) && amount(before, name) == amount(after, name),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::manifest::restore;
    use crate::source::SourceKind;

    /// Containers of every role with the same image, resources and policy.
    fn record(image: &str, resources: &Value, policy: &Value) -> PodRecord {
        let container =
            |name: &str| json!({ "name": name, "image": image, "resources": resources, "resizePolicy": policy });
        let mut inits = [container("i"), container("s")];
        inits[1]["restartPolicy"] = json!("Always");
        let spec = json!({ "initContainers": inits, "containers": [container("m")] });
        let manifest = json!({ "metadata": { "name": "web" }, "spec": spec });
        restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap()
    }

    #[test]
    fn cpu_and_memory_change_in_place_and_nothing_else() {
        let none = json!(null);
        let restarts = |name: &str| json!([{ "resourceName": name, "restartPolicy": "RestartContainer" }]);
        let not = json!([{ "resourceName": "cpu", "restartPolicy": "NotRequired" }]);
        let limits = |cpu: &str, memory: &str| json!({ "limits": { "cpu": cpu, "memory": memory } });
        let requests = |cpu: &str| json!({ "requests": { "cpu": cpu }, "limits": { "cpu": "1", "memory": "1Mi" } });
        let cases = [
            (limits("1", "1Mi"), limits("2", "1Mi"), &none, true),
            (limits("1", "1Mi"), limits("1", "2Mi"), &none, true),
            (limits("2", "2Mi"), limits("1", "1Mi"), &not, true),
            (limits("1", "1Mi"), limits("1000m", "1Mi"), &none, true),
            (limits("1", "1Mi"), limits("2", "1Mi"), &restarts("cpu"), false),
            (limits("1", "1Mi"), limits("2", "1Mi"), &restarts("memory"), true),
            (limits("1", "1Mi"), limits("1", "2Mi"), &restarts("memory"), false),
            (requests("1"), requests("500m"), &none, true),
            // Without a difference there is no edit.
            (limits("1", "1Mi"), limits("1", "1Mi"), &none, false),
            // What had no limit may get one; what had one keeps one.
            (json!({ "limits": { "cpu": "1" } }), limits("1", "1Mi"), &none, true),
            (limits("1", "1Mi"), json!({ "limits": { "cpu": "1" } }), &none, false),
            (requests("1"), json!({ "requests": { "cpu": "1" } }), &none, false),
            (
                json!({ "requests": { "cpu": "1", "memory": "1Mi" } }),
                json!({ "requests": { "cpu": "1" } }),
                &none,
                false,
            ),
            (limits("1", "1Mi"), none.clone(), &none, false),
            // Other resources do not change in place.
            (
                json!({ "limits": { "cpu": "1", "ephemeral-storage": "1Mi" } }),
                json!({ "limits": { "cpu": "1", "ephemeral-storage": "2Mi" } }),
                &none,
                false,
            ),
            (
                json!({ "limits": { "cpu": "1", "ephemeral-storage": "1Mi" } }),
                json!({ "limits": { "cpu": "2", "ephemeral-storage": "1024Ki" } }),
                &none,
                true,
            ),
            (json!({ "limits": { "cpu": "1" } }), json!({ "limits": { "cpu": "1", "a.b/c": "1" } }), &none, false),
        ];
        for (before, after, policy, expected) in cases {
            let (old, new) = (record("a:1", &before, policy), record("a:1", &after, policy));
            for (name, in_place) in [("m", expected), ("s", expected), ("i", expected), ("none", false)] {
                assert_eq!(resizes_in_place(&old, &new, name), in_place, "{name}: {before} -> {after} {policy}");
            }
            assert!(!resizes_in_place(&old, &record("a:2", &after, policy), "m"), "another image");
        }
    }

    #[test]
    fn a_container_without_limits_follows_those_of_its_pod() {
        let record = |cpu: &str, resources: &Value, policy: &Value| {
            let spec = json!({ "resources": { "limits": { "cpu": cpu } }, "containers": [
                { "name": "m", "image": "a:1", "resources": resources, "resizePolicy": policy },
            ]});
            let manifest = json!({ "metadata": { "name": "web" }, "spec": spec });
            restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap()
        };
        let restarts = json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]);
        let memory = json!({ "limits": { "memory": "1Mi" } });
        let both = json!({ "limits": { "memory": "1Mi", "cpu": "1" } });
        let cases = [(&json!({}), &json!(null), true), (&memory, &json!(null), true), (&both, &json!(null), false)];
        for (resources, policy, in_place) in cases.into_iter().chain([(&memory, &restarts, false)]) {
            let (old, new) = (record("1", resources, policy), record("2", resources, policy));
            assert_eq!(resizes_in_place(&old, &new, "m"), in_place, "{resources} {policy}");
        }
    }

    #[test]
    fn a_pod_keeps_its_uid_when_its_own_cpu_and_memory_change() {
        let record = |source, resources: &Value| {
            let uid = (source == SourceKind::Api).then_some("u-1");
            let container = json!({ "name": "m", "image": "a:1", "resources": { "requests": { "cpu": "1" } } });
            let pod = json!({ "metadata": { "name": "web", "uid": uid }, "spec": {
                "resources": resources, "containers": [container] } });
            restore(pod.to_string().as_bytes(), "web.yaml", source, "edge1").unwrap()
        };
        let limits =
            |cpu: &str, memory: &str| json!({ "requests": { "cpu": "1" }, "limits": { "cpu": cpu, "memory": memory } });
        let before = limits("2", "1Gi");
        let cases = [
            (limits("3", "1Gi"), true),
            (limits("3", "512Mi"), true),
            (json!({ "requests": { "cpu": "1", "memory": "1Mi" }, "limits": { "cpu": "2", "memory": "1Gi" } }), true),
            (json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "2" } }), false),
            (json!(null), false),
            // The QoS class differs.
            (json!({ "requests": { "cpu": "2", "memory": "1Gi" }, "limits": { "cpu": "2", "memory": "1Gi" } }), false),
        ];
        for (after, same) in cases {
            for source in [SourceKind::File, SourceKind::Push, SourceKind::Api] {
                let (old, new) = (record(source, &before), record(source, &after));
                assert_eq!(old.uid, new.uid);
                assert_eq!(old.is_same_incarnation(&new), same, "{source}: {after}");
            }
        }
    }
}
