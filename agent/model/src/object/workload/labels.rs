//! Labels and other names that Kubernetes' controllers give their pods.

/// The label of a Deployment's pods with the hash of the template.
pub const TEMPLATE_HASH: &str = "pod-template-hash";
/// The label of a DaemonSet's or StatefulSet's pods with the hash of the template.
pub const REVISION_HASH: &str = "controller-revision-hash";
/// The label and annotation with a pod's completion index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The annotation with the failures of a pod's index before it, where these are limited for each index.
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// The same for failures that the policy ignores.
pub const INDEX_IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// The environment variable with the index.
pub const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// The labels with the name of a pod's Job; the second is that of before Kubernetes 1.27.
pub const NAMES: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
/// The labels with the UID of a pod's Job.
pub const UIDS: [&str; 2] = ["batch.kubernetes.io/controller-uid", "controller-uid"];
/// The label with a pod's name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// The label with a pod's ordinal.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
