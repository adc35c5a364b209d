//! Whether a pod may use an image that is present: decided by [`limpet_core::image_access`] from the pod's credentials.

use super::ContainerdExecutor;
use limpet_containerd::image::ImageError;
use limpet_core::image_access::{ImageAccess, holder};
use limpet_core::state::PodState;
use limpet_model::image::LocalImage;
use limpet_model::image_name::normalize;
use limpet_model::pull_credential::PullCredential;

impl ContainerdExecutor {
    /// Whether the pod may use `image`, as `reference` names it, without a pull. Neither event nor status of the pod
    /// shows that the image is present, because a pod that may not use it must not learn that.
    pub(super) async fn may_use(&self, pod: &PodState, reference: &str, image: &LocalImage) -> bool {
        let may = self.is_holder(pod, reference, image).await;
        match &may {
            Ok(true) => {}
            Ok(false) => tracing::info!(
                pod = %pod.record.key, image = reference,
                "the image is present, but not known to have been pulled with any of the pod's credentials"
            ),
            Err(error) => tracing::warn!(
                pod = %pod.record.key, image = reference, %error, "checking whether the pod may use the image failed"
            ),
        }
        may.unwrap_or(false)
    }

    async fn is_holder(&self, pod: &PodState, reference: &str, image: &LocalImage) -> Result<bool, ImageError> {
        let records = &self.pull_records;
        records.settle(&self.images).await?;
        let (policy, name) = (&self.settings.pulls.verification, normalize(reference)?);
        let holders = match records.access(policy, reference, &name, &image.digest) {
            ImageAccess::All => return Ok(true),
            ImageAccess::Holders(holders) if holders.is_empty() => return Ok(false),
            ImageAccess::Holders(holders) => holders,
        };
        let mut access = self.pull_access(pod);
        let of_accounts = holders.iter().any(|holder| matches!(holder, PullCredential::ServiceAccount(_)));
        access.account.take_if(|_| !of_accounts);
        let credentials = self.images.pod_credentials(reference, &access).await?;
        let Some(credential) = holder(&holders, &credentials) else { return Ok(false) };
        // A new password of the Secret, or another Secret with the same one, counts from now on.
        if matches!(credential, PullCredential::Secret(_)) && !holders.iter().any(|known| known.matches(credential)) {
            records.learn(reference, &image.digest, credential).await;
        }
        Ok(true)
    }
}
