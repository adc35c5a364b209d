//! The resources of a pod's containers, as its status shows them.
//!
//! Pure. They follow from the manifest but for a container that is still to be resized, so they are added when a status is
//! read and are not kept with it.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use limpet_model::pod::PodRecord;

/// The status with `resources` and `allocatedResources` of every container. A container that is to be resized has its own in
/// `resources` already: those it has now.
pub fn with_resources(record: &PodRecord, status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    let statuses = status.init_container_statuses.iter_mut().chain(&mut status.container_statuses);
    statuses.flatten().for_each(|one| add(record, one));
    status
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
        let found = serde_json::to_value(with_resources(&record, &before)).unwrap();
        let both = |cpu: &str| json!({ "limits": { "cpu": cpu }, "requests": { "cpu": cpu } });
        let (sidecar, mains) = (&found["initContainerStatuses"][0], &found["containerStatuses"]);
        assert_eq!((&sidecar["resources"], &sidecar["allocatedResources"]), (&both("1"), &json!({ "cpu": "1" })));
        assert_eq!((&mains[0]["resources"], &mains[0]["allocatedResources"]), (&limits("3"), &json!({ "cpu": "2" })));
        assert_eq!((&mains[1]["resources"], &mains[1]["allocatedResources"]), (&json!({}), &Value::Null));
    }
}
