//! Runs of a pod's containers in CRI's terms: each container's newest run, and the one before while it is known.

use std::collections::HashMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Volume};
use serde_json::json;

use super::identity::{nanoseconds, pod_labels, sandbox_id};
use limpet_containerd::record::LABEL_CONTAINER_NAME;
use limpet_core::status::observed::ObservedPod;
use limpet_model::pod::PodRecord;
use limpet_node_api::runtime as cri;

/// The annotations with which kubelet describes a container.
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// One run of a container.
#[derive(Debug, Clone)]
pub(super) struct Run<'a> {
    /// The container's id in containerd.
    pub(super) id: &'a str,
    pub(super) pod: &'a ObservedPod,
    status: &'a ContainerStatus,
    attempt: u32,
    pid: Option<u32>,
    log: PathBuf,
    /// How the run ended, if that is known.
    ended: Option<&'a ContainerStateTerminated>,
}

impl<'a> Run<'a> {
    /// The runs of a pod's containers, in the order of its status.
    pub(super) fn all(pod: &'a ObservedPod) -> Vec<Self> {
        let status = &pod.status;
        let all = status.init_container_statuses.iter().chain(&status.container_statuses);
        let all = all.chain(&status.ephemeral_container_statuses).flatten();
        all.flat_map(|status| Self::of_container(pod, status)).collect()
    }

    fn of_container(pod: &'a ObservedPod, status: &'a ContainerStatus) -> impl Iterator<Item = Self> + use<'a> {
        let observed = pod.containers.get(&status.name);
        let last = terminated(status.last_state.as_ref());
        let log = |attempt: u32| {
            observed.map(|container| container.log_path.join(format!("{attempt}.log"))).unwrap_or_default()
        };
        let newest = observed.map(|container| Self {
            id: &container.id,
            pod,
            status,
            attempt: container.restart_count,
            pid: container.pid,
            log: log(container.restart_count),
            ended: [terminated(status.state.as_ref()), last]
                .into_iter()
                .flatten()
                .find(|ended| id_of(ended) == Some(&*container.id)),
        });
        let before = last.zip(observed).and_then(|(last, container)| {
            let (id, attempt) =
                (id_of(last).filter(|id| *id != container.id)?, container.restart_count.checked_sub(1)?);
            Some(Self { id, pod, status, attempt, pid: None, log: log(attempt), ended: Some(last) })
        });
        newest.into_iter().chain(before)
    }

    pub(super) fn name(&self) -> &'a str {
        &self.status.name
    }

    pub(super) fn is_running(&self) -> bool {
        self.pid.is_some()
    }

    pub(super) fn state(&self) -> cri::ContainerState {
        match (self.pid, self.ended) {
            (Some(_), _) => cri::ContainerState::ContainerRunning,
            (None, Some(_)) => cri::ContainerState::ContainerExited,
            (None, None) => cri::ContainerState::ContainerUnknown,
        }
    }

    /// The run as an item of a list.
    pub(super) fn item(&self) -> cri::Container {
        cri::Container {
            id: self.id.to_owned(),
            pod_sandbox_id: sandbox_id(self.pod),
            metadata: Some(self.metadata()),
            image: Some(self.image(self.image_id())),
            image_ref: self.image_id().to_owned(),
            state: self.state() as i32,
            created_at: self.started_at(),
            labels: self.labels(),
            annotations: self.annotations(),
            image_id: self.image_id().to_owned(),
        }
    }

    /// The run's full status.
    pub(super) fn status(&self) -> cri::ContainerStatus {
        let ended = self.ended.filter(|_| !self.is_running());
        let text = |text: Option<&String>| text.cloned().unwrap_or_default();
        cri::ContainerStatus {
            id: self.id.to_owned(),
            metadata: Some(self.metadata()),
            state: self.state() as i32,
            created_at: self.started_at(),
            started_at: self.started_at(),
            finished_at: ended.and_then(|ended| ended.finished_at.as_ref()).map_or(0, |time| nanoseconds(time.0)),
            exit_code: ended.map_or(0, |ended| ended.exit_code),
            image: Some(self.image(&self.status.image)),
            image_ref: self.status.image_id.clone(),
            reason: text(ended.and_then(|ended| ended.reason.as_ref())),
            message: text(ended.and_then(|ended| ended.message.as_ref())),
            labels: self.labels(),
            annotations: self.annotations(),
            mounts: self.mounts(),
            log_path: self.log.to_string_lossy().into_owned(),
            image_id: self.image_id().to_owned(),
            ..cri::ContainerStatus::default()
        }
    }

    /// The additional details of a verbose status.
    pub(super) fn info(&self) -> HashMap<String, String> {
        let info = json!({
            "sandboxID": sandbox_id(self.pod),
            "pid": self.pid,
            "ready": self.status.ready,
            "started": self.status.started,
            "namespace": limpet_containerd::client::NAMESPACE,
        });
        HashMap::from([("info".to_owned(), info.to_string())])
    }

    /// The attributes that accompany statistics.
    pub(super) fn attributes(&self) -> cri::ContainerAttributes {
        cri::ContainerAttributes {
            id: self.id.to_owned(),
            metadata: Some(self.metadata()),
            labels: self.labels(),
            annotations: self.annotations(),
        }
    }

    /// kubelet's labels that name a container.
    pub(super) fn labels(&self) -> HashMap<String, String> {
        let container_name = (LABEL_CONTAINER_NAME.to_owned(), self.name().to_owned());
        pod_labels(&self.pod.record).into_iter().chain([container_name]).collect()
    }

    fn annotations(&self) -> HashMap<String, String> {
        let record = &self.pod.record;
        let mut annotations = HashMap::from([
            (RESTART_COUNT.to_owned(), self.attempt.to_string()),
            (GRACE_PERIOD.to_owned(), record.grace_seconds().to_string()),
        ]);
        if let Some(spec) = record.container(self.name()) {
            let texts = [
                (TERMINATION_PATH, &spec.termination_message_path),
                (TERMINATION_POLICY, &spec.termination_message_policy),
            ];
            annotations.extend(texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text.clone()?))));
        }
        annotations
    }

    fn metadata(&self) -> cri::ContainerMetadata {
        cri::ContainerMetadata { name: self.name().to_owned(), attempt: self.attempt }
    }

    fn image(&self, name: &str) -> cri::ImageSpec {
        let asked = self.pod.record.container(self.name()).and_then(|spec| spec.image.clone());
        cri::ImageSpec {
            image: name.to_owned(),
            user_specified_image: asked.unwrap_or_else(|| self.status.image.clone()),
            ..cri::ImageSpec::default()
        }
    }

    /// The digest under which the image service lists its image.
    fn image_id(&self) -> &'a str {
        self.status.image_id.rsplit_once('@').map_or(&self.status.image_id, |(_, digest)| digest)
    }

    /// When its process was started, in nanoseconds; 0 if it never was, or a post-start hook still hides it.
    fn started_at(&self) -> i64 {
        let running = || self.status.state.as_ref()?.running.as_ref()?.started_at.as_ref();
        let started = match self.ended {
            Some(ended) => ended.started_at.as_ref().or(ended.finished_at.as_ref()),
            None => running(),
        };
        started.map_or(0, |time| nanoseconds(time.0))
    }

    fn mounts(&self) -> Vec<cri::Mount> {
        let record = &self.pod.record;
        let mounts = record.container(self.name()).and_then(|spec| spec.volume_mounts.as_ref());
        let mount = |mount: &k8s_openapi::api::core::v1::VolumeMount| cri::Mount {
            container_path: mount.mount_path.clone(),
            host_path: host_path(record, &mount.name).unwrap_or_default(),
            readonly: mount.read_only == Some(true),
            ..cri::Mount::default()
        };
        mounts.into_iter().flatten().map(mount).collect()
    }
}

/// The host's path of a `hostPath` volume. The paths of other volumes are internal.
fn host_path(record: &PodRecord, volume: &str) -> Option<String> {
    let is_named = |candidate: &&Volume| candidate.name == volume;
    Some(record.spec().volumes.iter().flatten().find(is_named)?.host_path.as_ref()?.path.clone())
}

fn terminated(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state?.terminated.as_ref()
}

/// The containerd id of a run that has ended.
fn id_of(ended: &ContainerStateTerminated) -> Option<&str> {
    ended.container_id.as_deref()?.strip_prefix("containerd://")
}
