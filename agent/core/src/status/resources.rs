//! The resources of a pod and of its containers, as its status shows them.
//!
//! Pure. They follow from the manifest except for what is still to be resized, so they are added when a status is
//! read and are not stored with it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use limpet_model::pod::PodRecord;
use limpet_model::pod::compute_resources::{CPU_PERIOD, CgroupLimits, cpu_shares, pod_resources};
use limpet_model::pod::qos::{CPU, MEMORY};

use crate::state::PodState;

/// The status with `resources` and `allocatedResources` of the pod and of every container. What is being resized
/// already has its current resources in `resources`. A pod that the node has refused has none.
pub fn with_resources(record: &PodRecord, status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    let statuses = status.init_container_statuses.iter_mut().chain(&mut status.container_statuses);
    statuses.flatten().for_each(|status| add(record, status));
    if status.container_statuses.is_some() {
        let wanted = pod_resources(record.spec());
        status.allocated_resources.clone_from(&wanted.requests);
        status.resources.get_or_insert(wanted);
    }
    status
}

/// The pod's current resources while its cgroup has other limits than desired; `None` if it has the desired ones.
pub(super) fn while_resized(pod: &PodState) -> Option<ResourceRequirements> {
    let set = pod.cgroup.set.filter(|set| *set != pod.record.cgroup_limits)?;
    Some(with_limits(pod_resources(pod.record.spec()), &set))
}

/// The resources with those that follow from the cgroup's limits (kubelet's `convertToAPIPodLevelResourcesStatus`).
fn with_limits(mut resources: ResourceRequirements, set: &CgroupLimits) -> ResourceRequirements {
    let requests = resources.requests.get_or_insert_default();
    let requested = limpet_model::pod::qos::amount(Some(requests), CPU);
    if cpu_shares(requested.milli()) != set.cpu_shares {
        set_amount(requests, CPU, Some(format!("{}m", set.cpu_shares.saturating_mul(1_000).div_ceil(1_024))));
    }
    let limits = resources.limits.get_or_insert_default();
    set_amount(
        limits,
        CPU,
        set.cpu_quota.map(|quota| format!("{}m", quota.unsigned_abs().saturating_mul(1_000) / CPU_PERIOD)),
    );
    set_amount(limits, MEMORY, set.memory.map(|bytes| bytes.to_string()));
    resources
}

fn set_amount(amounts: &mut BTreeMap<String, Quantity>, name: &str, amount: Option<String>) {
    match amount {
        Some(amount) => drop(amounts.insert(name.to_owned(), Quantity(amount))),
        None => drop(amounts.remove(name)),
    }
}

fn add(record: &PodRecord, status: &mut ContainerStatus) {
    let Some(container) = record.container(&status.name) else { return };
    let wanted = container.resources.clone().unwrap_or_default();
    status.allocated_resources = wanted.requests.clone().filter(|requests| !requests.is_empty());
    status.resources.get_or_insert(wanted);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use limpet_model::manifest::restore;
    use limpet_model::source::SourceKind;

    #[test]
    fn a_container_has_what_it_asks_for_unless_it_is_still_to_be_resized() {
        let limits = |cpu: &str| json!({ "limits": { "cpu": cpu } });
        let status = |name: &str, resources: Value| json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "resources": resources });
        let manifest = json!({ "metadata": { "name": "web" }, "spec": {
            "initContainers": [{ "name": "s", "image": "a:1", "restartPolicy": "Always", "resources": limits("1") }],
            "containers": [{ "name": "a", "image": "a:1", "resources": limits("2") }, { "name": "b", "image": "a:1" }],
        }});
        let record = restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap();
        let before: PodStatus = serde_json::from_value(json!({
            "initContainerStatuses": [status("s", Value::Null)],
            "containerStatuses": [status("a", limits("3")), status("b", Value::Null)],
        }))
        .unwrap();
        let shown = serde_json::to_value(with_resources(&record, &before)).unwrap();
        let both = |cpu: &str| json!({ "limits": { "cpu": cpu }, "requests": { "cpu": cpu } });
        let (sidecar, mains) = (&shown["initContainerStatuses"][0], &shown["containerStatuses"]);
        assert_eq!((&sidecar["resources"], &sidecar["allocatedResources"]), (&both("1"), &json!({ "cpu": "1" })));
        assert_eq!((&mains[0]["resources"], &mains[0]["allocatedResources"]), (&limits("3"), &json!({ "cpu": "2" })));
        assert_eq!((&mains[1]["resources"], &mains[1]["allocatedResources"]), (&json!({}), &Value::Null));
        assert_eq!((&shown["resources"], &shown["allocatedResources"]), (&both("3"), &json!({ "cpu": "3" })));
        let refused = with_resources(&record, &PodStatus::default());
        assert_eq!((refused.resources, refused.allocated_resources), (None, None));
    }

    #[test]
    fn a_pod_that_is_still_to_be_resized_has_what_its_cgroup_has() {
        let wanted = json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2", "ephemeral-storage": "1Gi" } });
        let wanted: ResourceRequirements = serde_json::from_value(wanted).unwrap();
        let set = |cpu_shares| CgroupLimits { cpu_shares, cpu_quota: Some(150_000), memory: Some(64 << 20) };
        let shown_with = |cpu_shares| serde_json::to_value(with_limits(wanted.clone(), &set(cpu_shares))).unwrap();
        let limits = json!({ "cpu": "1500m", "memory": "67108864", "ephemeral-storage": "1Gi" });
        assert_eq!(shown_with(1_024), json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": limits }));
        assert_eq!(shown_with(102)["requests"]["cpu"], "100m");
    }
}
