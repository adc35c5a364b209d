//! The pod's volumes: which version of their files is written, and when drivers publish theirs again.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::Volume;

use super::{PodState, RetryState};
use limpet_model::object::{PodObjects, claim, mounted};
use limpet_model::pod::Fingerprint;
use limpet_model::pod::volume_kind::VolumeKind;

/// The version of pod and objects from which volume files are written.
#[derive(Debug, Clone)]
pub struct VolumesVersion {
    fingerprint: Fingerprint,
    objects: Arc<PodObjects>,
}

impl PartialEq for VolumesVersion {
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.objects, &other.objects) || self.objects == other.objects;
        self.fingerprint == other.fingerprint && same
    }
}

/// The state of the volumes whose files come from objects or from the pod itself.
#[derive(Debug, Clone, Default)]
pub struct VolumesState {
    /// The version they have now, if this agent wrote it.
    pub written: Option<VolumesVersion>,
    /// The version being written.
    pub writing: Option<VolumesVersion>,
    /// Why they could not be updated.
    pub retry: Option<RetryState>,
    /// When drivers with `requiresRepublish` are called again.
    pub republish_at: Option<Instant>,
}

impl PodState {
    /// The version from which its volumes should be written; `None` while an object in them is not known.
    pub fn volumes_version(&self) -> Option<VolumesVersion> {
        let known = !self.objects.has_unknown() || self.objects.first_unknown(mounted(&self.record)).is_none();
        known.then(|| VolumesVersion { fingerprint: self.record.fingerprint, objects: Arc::clone(&self.objects) })
    }

    /// When its volumes must be updated, unless they are being written: at once if they are outdated at `now`, or
    /// when drivers publish theirs again; `None` if never in their present state.
    pub fn volumes_due(&self, now: Instant) -> Option<Instant> {
        if self.volumes.writing.is_some() {
            return None;
        }
        let outdated = self.volumes_are_outdated().then_some(now);
        outdated.or(self.volumes.republish_at.filter(|_| self.volumes_version().is_some()))
    }

    /// Whether what is written of its volumes is what it should be.
    pub fn volumes_are_current(&self) -> bool {
        self.volumes.writing.is_none() && !self.volumes_are_outdated()
    }

    fn volumes_are_outdated(&self) -> bool {
        let written = |volume: &Volume| VolumeKind::find(volume).is_some_and(VolumeKind::is_written);
        let wanted = self.volumes_version();
        wanted.is_some()
            && wanted != self.volumes.written
            && (self.record.spec().volumes.iter().flatten().any(written)
                || claim::local_names(&self.record).next().is_some()
                || claim::is_republished(&self.record, &self.objects))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{READY, now, ready};
    use crate::outcome::{self, Failure, Outcome};
    use crate::plan::{Action, Step, plan};
    use crate::state::{FAILED_MOUNT, Now, REPUBLISH_INTERVAL};
    use limpet_model::object::csi::CsiVolume;
    use limpet_model::pod::PodRecord;
    use limpet_model::source::SourceKind;

    /// A running pod with a volume of a driver with or without `requiresRepublish`.
    fn pod(republish: bool) -> PodState {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "u-1"}, "spec": {
            "containers": [{"name": "main", "image": "app:1"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        }});
        let record: PodRecord =
            limpet_model::manifest::restore(pod.to_string().as_bytes(), "apiserver", SourceKind::Api, "node").unwrap();
        let mut pod = ready(PodState::new(Arc::new(record), Timestamp::UNIX_EPOCH));
        pod.objects = objects(&pod, republish, "one");
        pod.containers[0].retry =
            Some(RetryState::after(None, "", String::new(), now().mono + Duration::from_secs(999)));
        pod
    }

    fn objects(pod: &PodState, republish: bool, attribute: &str) -> Arc<PodObjects> {
        let driver = json!({"metadata": {"name": "d"}, "spec": {"requiresRepublish": republish}});
        let spec = json!({"csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"a": attribute}}});
        let spec = serde_json::from_value(spec).unwrap();
        let driver = serde_json::from_value(driver).unwrap();
        let volume = CsiVolume::persistent("pv", &spec, Some(&driver)).unwrap().unwrap();
        Arc::new(PodObjects::collect(&pod.record, |key| {
            claim::csi_record(key.clone(), "apiserver", &volume, Vec::new()).ok().map(Arc::new)
        }))
    }

    fn update(pod: &mut PodState, result: Result<(), Failure>, now: Now) {
        outcome::begin(pod, &Action::UpdateVolumes);
        assert_eq!(pod.volumes_due(now.mono), None);
        outcome::apply(pod, Outcome::VolumesUpdated(result), now);
    }

    #[test]
    fn a_driver_that_wants_to_publishes_again_each_minute_and_when_its_tokens_change() {
        let (mut pod, now) = (pod(true), now());
        let later = |by: Duration| Now { mono: now.mono + by, ..now };
        // As after an adoption: this agent has published nothing.
        assert_eq!(pod.volumes_due(now.mono), Some(now.mono));
        update(&mut pod, Ok(()), now);
        assert_eq!(plan(&pod, READY, now.mono), Step::Wait(Some(now.mono + REPUBLISH_INTERVAL)));
        assert_eq!(plan(&pod, READY, later(REPUBLISH_INTERVAL).mono), Step::Do(vec![Action::UpdateVolumes]));
        // A failure leaves the pod as it is, and is retried.
        let failure = Failure { reason: FAILED_MOUNT, message: String::new(), transient: false };
        update(&mut pod, Err(failure), later(REPUBLISH_INTERVAL));
        let again = REPUBLISH_INTERVAL + Duration::from_secs(10);
        assert_eq!(plan(&pod, READY, later(REPUBLISH_INTERVAL).mono), Step::Wait(Some(now.mono + again)));
        pod.take_driver_change();
        assert_eq!(plan(&pod, READY, later(REPUBLISH_INTERVAL).mono), Step::Do(vec![Action::UpdateVolumes]));
        update(&mut pod, Ok(()), later(again));
        pod.take_objects(objects(&pod, true, "two"));
        assert_eq!(pod.volumes_due(later(again).mono), Some(later(again).mono));
    }

    #[test]
    fn a_driver_that_does_not_want_to_publishes_once() {
        let (mut pod, now) = (pod(false), now());
        assert_eq!(pod.volumes_due(now.mono), None);
        outcome::begin(&mut pod, &Action::PrepareSandbox);
        outcome::apply(&mut pod, Outcome::SandboxPrepared(Ok(crate::fixtures::sandbox(&[]))), now);
        assert_eq!(pod.volumes_due(now.mono + 2 * REPUBLISH_INTERVAL), None);
        pod.take_objects(objects(&pod, false, "two"));
        assert_eq!(pod.volumes_due(now.mono), None);
    }
}
