//! What the node refuses at every try, whatever else runs on it: kubelet's checks that come before those of resources, in its
//! order (`pkg/kubelet/sysctl`, `pkg/kubelet/lifecycle/predicate.go`).

use limpet_model::pod::PodRecord;
use limpet_model::pod::device::pod_devices;
use limpet_model::pod::sysctl;

use super::NodeOffer;
use crate::admission::{OTHER_OS, OTHER_OS_LABEL, Refusal, SYSCTL_FORBIDDEN, UNEXPECTED};

/// The label of a node's, and of a pod's, operating system.
const OS_LABEL: &str = "kubernetes.io/os";
const LINUX: &str = "linux";

impl NodeOffer {
    /// Whether the pod may run here at all.
    pub(super) fn permits(&self, record: &PodRecord) -> Result<(), Refusal> {
        let spec = record.spec();
        sysctl::check_sysctls(spec, &self.allowed_unsafe_sysctls)
            .map_err(|error| refusal(SYSCTL_FORBIDDEN, error.to_string()))?;
        self.check_exclusive_count(record)?;
        let label = record.pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
        if label.is_some_and(|label| label != LINUX) {
            let message = format!("Failed to admit pod as the `{OS_LABEL}` label doesn't match node label");
            return Err(refusal(OTHER_OS_LABEL, message));
        }
        match spec.os.as_ref().is_some_and(|os| os.name != LINUX) {
            true => Err(refusal(OTHER_OS, "Failed to admit pod as the OS field doesn't match node OS".to_owned())),
            false => Ok(()),
        }
    }

    /// A configured exclusive device exists once.
    fn check_exclusive_count(&self, record: &PodRecord) -> Result<(), Refusal> {
        let mut wanted = pod_devices(record.spec()).into_iter();
        let Some((name, count)) = wanted.find(|(name, count)| *count > 1 && self.exclusive.contains(*name)) else {
            return Ok(());
        };
        let message = format!(
            "Allocate failed due to requested number of devices unavailable for {name}. Requested: {count}, Available: 1, \
             which is unexpected"
        );
        Err(refusal(UNEXPECTED, message))
    }
}

fn refusal(reason: &str, message: String) -> Refusal {
    Refusal { reason: reason.to_owned(), message }
}
