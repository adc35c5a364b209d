//! What a start leaves behind: the record on its container, and the instance in its pod's state.

use jiff::Timestamp;

use super::{ContainerdExecutor, Start};
use limpet_core::plan::restart_all;
use limpet_core::state::{Instance, Life};
use limpet_model::container::{ContainerIdentity, ContainerUser};
use limpet_model::object::StartValues;
use limpet_model::pod::ephemeral::to_record as ephemeral_record;

impl Start<'_> {
    /// The values of objects that it reads.
    fn values(&self) -> StartValues {
        StartValues::new(&self.pod.record, self.container, &self.pod.objects)
    }
}

impl ContainerdExecutor {
    /// The identity that is recorded on the container.
    pub(super) fn identity(&self, start: &Start<'_>) -> ContainerIdentity {
        let record = &start.pod.record;
        ContainerIdentity {
            namespace: record.key.namespace().to_owned(),
            pod: record.key.name().to_owned(),
            uid: record.uid.to_string(),
            container: start.slot.name.clone(),
            init: start.slot.role.is_init_container(),
            attempt: start.attempt,
            source: record.source.to_string(),
            origin: record.origin.to_string(),
            fingerprint: start.slot.fingerprint.clone(),
            image: start.image.name.to_string(),
            image_digest: start.image.digest.to_string(),
            log_path: self.log_path(start).to_string_lossy().into_owned(),
            backoff_seconds: start.pause.as_secs(),
            pod_start: Some(start.pod.start_time),
            pod_ips: start.pod.addresses().to_vec(),
            stop_signal: start.stop_signal,
            sandbox: start.sandbox.sandbox.id.clone(),
            pod_restarts: restart_all::pod_restarts(start.pod),
            resized_at: None,
            ephemeral: record.ephemeral_of(&start.slot.name).and_then(ephemeral_record),
            devices: start.given.clone(),
            user: start.user.get().map(|user| ContainerUser::clone(user)),
            start_values: start.values(),
        }
    }

    /// The instance as its pod's worker knows it.
    pub(super) fn instance(&self, start: &Start<'_>, started_at: Option<Timestamp>, life: Life) -> Instance {
        Instance {
            image: start.image.name.to_string(),
            image_digest: start.image.digest.to_string(),
            log_path: self.log_path(start),
            started_at,
            pause: start.pause,
            stop_signal: start.stop_signal,
            user: start.user.get().cloned(),
            start_values: start.values(),
            sandbox: start.sandbox.sandbox.id.clone(),
            pod_restarts: restart_all::pod_restarts(start.pod),
            life,
            ..Instance::new(start.id.clone(), start.attempt, start.slot.fingerprint.clone())
        }
    }
}
