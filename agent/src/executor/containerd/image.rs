//! The images for a container's start, its own and those of its volumes, according to their pull policies.

use std::collections::HashSet;
use std::sync::Arc;

use super::ContainerdExecutor;
use limpet_containerd::image::{ImageError, ImagePlatform, PullAccess, PullAccount, PullSecrets};
use limpet_core::outcome::Failure;
use limpet_core::state::{ContainerSlot, ImageState, PodState, UPDATE_HELD};
use limpet_model::image::LocalImage;
use limpet_model::object::ObjectKind;
use limpet_model::pod::images::image_volumes;
use limpet_model::service_account::AccountOfPod;
use limpet_telemetry::event::EventType;
use limpet_updates::{Phase, Subject};

impl ContainerdExecutor {
    pub(super) async fn ensure_image(&self, pod: &PodState, slot: &ContainerSlot) -> Result<Arc<LocalImage>, Failure> {
        let Some(container) = pod.container_spec(&slot.name) else {
            return Err(Failure {
                reason: "InvalidImageName",
                message: "no such container".to_owned(),
                transient: false,
            });
        };
        // Images in the archives directory need no registry, so they are imported before any registry is contacted.
        self.images.archives_ready().await;
        let (reference, policy) = (container.image.as_deref(), container.image_pull_policy.as_deref());
        let platform = self.image_platform(pod);
        let image = self.image_by_policy(pod, slot, reference.unwrap_or_default(), policy, platform).await?;
        for (_, source) in image_volumes(pod.record.spec(), container) {
            let (reference, policy) = (source.reference.as_deref(), source.pull_policy.as_deref());
            let reference = reference.unwrap_or_default();
            self.image_by_policy(pod, slot, reference, policy, ImagePlatform::Node).await?;
        }
        Ok(image)
    }

    /// An image that the container needs, either the one that is present or a pulled one, according to its pull
    /// policy.
    async fn image_by_policy(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        reference: &str,
        policy: Option<&str>,
        platform: ImagePlatform,
    ) -> Result<Arc<LocalImage>, Failure> {
        let failed = |error: &ImageError| self.image_failure(pod, slot, reference, error);
        let local = self.images.find(reference, platform).await.map_err(|error| failed(&error))?;
        let (mut is_usable, mut refusal) = (false, None);
        if let Some(image) = local.as_ref().filter(|_| policy != Some("Always"))
            && self.may_use(pod, reference, image).await
        {
            refusal = self.judge_image(pod, reference, image).await.err();
            is_usable = refusal.is_none();
        }
        match (policy, local) {
            (_, Some(image)) if is_usable => {
                self.reporter.report_image_present(pod, slot, reference);
                Ok(image)
            }
            (Some("Never"), _) => {
                if let Some(error) = &refusal {
                    return Err(failed(error));
                }
                let message = format!("Container image \"{reference}\" is not present with pull policy of Never");
                self.reporter.event(pod, Some(&slot.name), EventType::Warning, "ErrImageNeverPull", message.clone());
                Err(Failure { reason: "ErrImageNeverPull", message, transient: false })
            }
            (_, local) => match self.pull_update(pod, slot, reference, platform).await? {
                Ok(image) => Ok(image),
                Err(error) => {
                    // A refused image stays refused, unless its registry has another one.
                    let error = if error.is_refused() { error } else { refusal.unwrap_or(error) };
                    match local.filter(|_| self.settings.pulls.local_when_unreachable && error.is_unreachable()) {
                        Some(image) if self.may_use(pod, reference, &image).await => {
                            self.judge_image(pod, reference, &image).await.map_err(|error| failed(&error))?;
                            self.report_local_image(pod, slot, reference, &error);
                            Ok(image)
                        }
                        _ => Err(failed(&error)),
                    }
                }
            },
        }
    }

    /// Pulls an image. That of a container that runs is an update, which may have to wait; what has to start does not.
    async fn pull_update(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        reference: &str,
        platform: ImagePlatform,
    ) -> Result<Result<Arc<LocalImage>, ImageError>, Failure> {
        // A restart that a user has asked for is none.
        let is_asked = slot.instance.as_ref().is_some_and(|instance| instance.restart_asked);
        if slot.is_running() && slot.is_outdated() && !is_asked {
            let what = format!("image {reference} of pod {}", pod.record.key);
            let subject = Subject { what, source: Some(pod.record.source), is_first: false };
            if let Err(hold) = self.updates.check(Phase::Download, &subject).await {
                let message = format!("Image \"{reference}\" is not pulled yet: {hold}");
                let is_known = matches!(&slot.image, ImageState::Failed(retry) if retry.reason == UPDATE_HELD);
                if !is_known {
                    self.reporter.event(pod, Some(&slot.name), EventType::Normal, UPDATE_HELD, message.clone());
                }
                return Err(Failure { reason: UPDATE_HELD, message, transient: false });
            }
        }
        Ok(self.pull_image(pod, slot, reference, platform).await)
    }

    /// Whether `imagePolicy` lets the pod use an image that is present. A refused one counts as missing.
    async fn judge_image(&self, pod: &PodState, reference: &str, image: &LocalImage) -> Result<(), ImageError> {
        if self.settings.images.policy.is_none() {
            return Ok(());
        }
        self.images.admit(reference, &image.digest, &self.pull_access(pod)).await
    }

    /// `imagePullPolicy: Always` requires the newest image: an event reports that this may be an older one.
    fn report_local_image(&self, pod: &PodState, slot: &ContainerSlot, reference: &str, error: &ImageError) {
        let message = format!("Using the image \"{reference}\" present on machine, which may be out of date: {error}");
        tracing::warn!(pod = %pod.record.key, container = slot.name, image = reference, %error, "the local image is used");
        self.reporter.event(pod, Some(&slot.name), EventType::Warning, "RegistryUnavailable", message);
    }

    /// Releases what interrupted pulls of images that no pod needs left in containerd. Returns whether that is all of
    /// it.
    pub(super) async fn forget_unwanted_pulls(&self, wanted: &HashSet<String>) -> bool {
        let forgotten = self.images.forget_unwanted(|image| wanted.contains(image)).await;
        forgotten.unwrap_or_else(|error| {
            tracing::debug!(%error, "removing unfinished pulls failed; retried later");
            false
        })
    }

    /// The credentials that the pod may pull with, besides the node's own.
    pub(super) fn pull_access(&self, pod: &PodState) -> PullAccess {
        PullAccess { secrets: self.pull_secrets(pod), account: self.pull_account(pod), ..PullAccess::default() }
    }

    /// What the pod's runtime class runs.
    fn image_platform(&self, pod: &PodState) -> ImagePlatform {
        match self.runtime_class(pod) {
            Ok(Some(class)) if class.wasm => ImagePlatform::Wasm,
            _ => ImagePlatform::Node,
        }
    }

    /// The pod's service account, which only the apiserver's own pods have.
    fn pull_account(&self, pod: &PodState) -> Option<PullAccount> {
        let issuer = self.service_accounts.as_ref().filter(|_| pod.record.source.traits().has_cluster)?;
        let name = pod.record.spec().service_account_name.clone().filter(|name| !name.is_empty())?;
        let key = &pod.record.key;
        let (namespace, pod_uid) = (key.namespace().to_owned(), pod.record.uid.to_string());
        let pod = AccountOfPod { namespace, pod: key.name().to_owned(), pod_uid, name };
        Some(PullAccount { pod, issuer: Arc::clone(issuer) })
    }

    /// The pod's own registry credentials. A missing one is not an error, because the pull may succeed without it.
    fn pull_secrets(&self, pod: &PodState) -> PullSecrets {
        let secrets = names_of_pull_secrets(pod).filter_map(|name| pod.objects.get(ObjectKind::Secret, name));
        secrets.map(Arc::clone).collect::<Vec<_>>().into()
    }

    /// Reports missing Secrets after a failed pull, like kubelet.
    fn report_missing_pull_secrets(&self, pod: &PodState) {
        let missing = names_of_pull_secrets(pod).filter(|name| pod.objects.get(ObjectKind::Secret, name).is_none());
        let missing = missing.collect::<Vec<_>>();
        if missing.is_empty() {
            return;
        }
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        tracing::warn!(pod = %pod.record.key, message, "pull secrets");
        self.reporter.event(pod, None, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
    }

    /// kubelet's two reasons: the first failure names the error, later ones the back-off.
    fn image_failure(&self, pod: &PodState, slot: &ContainerSlot, image: &str, error: &ImageError) -> Failure {
        let message = format!("Failed to pull image \"{image}\": {error}");
        self.reporter.event(pod, Some(&slot.name), EventType::Warning, "Failed", message.clone());
        tracing::warn!(pod = %pod.record.key, container = slot.name, image, %error, "image is not available");
        if error.is_invalid_name() {
            return Failure { reason: "InvalidImageName", message, transient: false };
        }
        self.report_missing_pull_secrets(pod);
        if slot.pull_retry.is_some() {
            let message = format!("Back-off pulling image \"{image}\": {error}");
            self.reporter.event(
                pod,
                Some(&slot.name),
                EventType::Normal,
                "BackOff",
                format!("Back-off pulling image \"{image}\""),
            );
            return Failure { reason: "ImagePullBackOff", message, transient: error.is_runtime_unavailable() };
        }
        let reason = if error.is_refused() { error.reason() } else { "ErrImagePull" };
        Failure { reason, message, transient: error.is_runtime_unavailable() }
    }
}

/// The Secrets that the pod names for its pulls.
fn names_of_pull_secrets(pod: &PodState) -> impl Iterator<Item = &str> {
    let secrets = pod.record.spec().image_pull_secrets.iter().flatten();
    secrets.map(|secret| secret.name.as_str()).filter(|name| !name.is_empty())
}
