//! The resize of a running container, and of its pod's cgroup. No memory limit is set below what is in use.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use limpet_containerd::spec;
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::state::{ContainerSlot, Instance, PodState};
use limpet_host::blocking::{self, DEADLINE};
use limpet_model::container::ContainerId;
use limpet_model::pod::compute_resources::effective_limit;
use limpet_model::pod::qos::MEMORY;
use limpet_model::pod::{PodRecord, PodUid};

use super::{ContainerdExecutor, failure};
use limpet_telemetry::event::EventType;

/// kubelet's event about a resize that failed.
const RESIZE_ERROR: &str = "ResizeError";

impl ContainerdExecutor {
    /// Gives the newest instance the resources of the pod's version, then records that version on the container. If
    /// the agent stops in between, its successor does it again.
    pub(super) async fn resize(&self, pod: &PodState, index: usize) -> Outcome {
        let slot = &pod.containers[index];
        let (Some(instance), Some(container)) = (&slot.instance, pod.container_spec(&slot.name)) else {
            return Outcome::Resized { index, id: ContainerId::new(""), result: Ok(()) };
        };
        let again = slot.resize().is_some_and(|resize| resize.retry.is_some());
        if !again {
            self.report_resize(pod, container, "ResizeStarted", "started");
        }
        let result = self.try_resize(pod, slot, instance, container).await;
        match &result {
            Ok(()) => {
                tracing::info!(pod = %pod.record.key, container = slot.name, "container resized");
                self.report_resize(pod, container, "ResizeCompleted", "completed");
            }
            Err(failure) if failure.transient => {}
            Err(failure) => {
                let message = &failure.message;
                tracing::warn!(pod = %pod.record.key, container = slot.name, message, "container not resized");
                let message = format!("Pod resize error: {message}");
                self.reporter.event(pod, Some(&slot.name), EventType::Warning, RESIZE_ERROR, message);
            }
        }
        Outcome::Resized { index, id: instance.id.clone(), result }
    }

    async fn try_resize(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        instance: &Instance,
        container: &Container,
    ) -> Result<(), Failure> {
        let wanted = effective_limit(pod.record.spec(), container, MEMORY).units();
        let used = self.memory_in_use(&pod.record.uid, Some(&instance.id)).await?;
        if let Some(used) = used.filter(|used| wanted > 0 && *used > wanted.unsigned_abs()) {
            return Err(below_usage(format!("container {:?}", slot.name), wanted, used));
        }
        let (record, container, node) = (Arc::clone(&pod.record), container.clone(), self.node.clone());
        let cpus = self.cpus_of(&pod.record.uid, &slot.name);
        let subject = PathBuf::from("the kernel's limit of swap");
        let resources =
            blocking::run(subject, DEADLINE, move |_| spec::resized(record.spec(), &container, &node, cpus.as_ref()))
                .await;
        let resources = resources.map_err(|error| refused(error.to_string()))?;
        let resized = self.timed("update_container", self.containers.resize_task(&instance.id, &resources)).await;
        if !resized.map_err(|error| failure(RESIZE_ERROR, &error))? {
            return Err(Failure { transient: true, ..refused("the container has ended".to_owned()) });
        }
        let change = |identity: &mut limpet_model::container::ContainerIdentity| {
            identity.fingerprint.clone_from(&slot.fingerprint);
            identity.resized_at = Some(Timestamp::now());
        };
        let written = self.containers.write_resize(&instance.id, &resources, &pod.record.manifest, change).await;
        written.map(|_| ()).map_err(|error| failure(RESIZE_ERROR, &error))
    }

    /// Refuses a memory limit of the pod's cgroup that is below what the pod has in use.
    pub(super) async fn check_pod_memory(&self, record: &PodRecord, wanted: Option<i64>) -> Result<(), Failure> {
        let Some(wanted) = wanted else { return Ok(()) };
        let used = self.memory_in_use(&record.uid, None).await?;
        match used.filter(|used| *used > wanted.unsigned_abs()) {
            Some(used) => Err(below_usage("pod".to_owned(), wanted, used)),
            None => Ok(()),
        }
    }

    async fn memory_in_use(&self, uid: &PodUid, id: Option<&ContainerId>) -> Result<Option<u64>, Failure> {
        let (cgroups, uid, id) = (self.cgroups.clone(), uid.clone(), id.cloned());
        let subject = PathBuf::from(format!("the cgroup of pod {uid}"));
        let read = move |_: &_| cgroups.memory_in_use(&uid, id.as_ref().map(ContainerId::as_str));
        let failed = |error: io::Error| Failure { transient: true, ..refused(error.to_string()) };
        blocking::run(subject, DEADLINE, read).await.map_err(failed)
    }

    /// An event in kubelet's form.
    fn report_resize(&self, pod: &PodState, container: &Container, reason: &'static str, word: &str) {
        let resized = serde_json::json!({ "name": container.name, "resources": container.resources });
        let message = format!("Pod resize {word}: {}", serde_json::json!({ "containers": [resized] }));
        self.reporter.event(pod, Some(&container.name), EventType::Normal, reason, message);
    }
}

fn below_usage(resource: String, wanted: i64, used: u64) -> Failure {
    refused(format!(
        "cannot decrease memory limits: attempting to set {resource} memory limit ({wanted}) below current usage ({used})"
    ))
}

fn refused(message: String) -> Failure {
    Failure { reason: RESIZE_ERROR, message, transient: false }
}
