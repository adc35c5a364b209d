//! A pod's sandbox: its cgroup, namespaces, network and volumes; how it is created, updated, and examined after a
//! restart. Its removal is in [`super::removal`].

use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;

use super::{ContainerdExecutor, sandbox_of};
use limpet_containerd::container::runtime::{RUNC_HANDLER, RUNC_SHIM, RuntimeClass};
use limpet_core::outcome::Failure;
use limpet_core::state::{FAILED_MOUNT, PodSandbox, PodState};
use limpet_host::call_watch::calling;
use limpet_host::cgroup::CgroupError;
use limpet_host::network::{AttachRequest, Attachment, DnsSettings};
use limpet_host::sandbox::{CreatedSandbox, DEFAULT_SHM_SIZE, SandboxRequest};
use limpet_host::user_namespace;
use limpet_host::volume::{Resolver, VolumeError, pod_hostname};
use limpet_model::object::{ObjectKind, runtime_class};
use limpet_model::pod::PodRecord;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::sysctl;
use limpet_model::sandbox::{PodAddresses, Sandbox};
use limpet_model::selinux::PodLabelling;
use limpet_telemetry::event::EventType;

const FAILED: &str = "FailedCreatePodSandBox";
/// kubelet's reason if it is unknown whether there is a sandbox.
const FAILED_STATUS: &str = "FailedPodSandBoxStatus";
/// kubelet's reason when the cgroup of a pod cannot be set up.
const FAILED_POD_CGROUP: &str = "FailedCreatePodContainer";

fn sandbox_failure(error: impl std::fmt::Display) -> Failure {
    Failure { reason: FAILED, message: format!("Failed to create pod sandbox: {error}"), transient: false }
}

fn mount_failure(error: VolumeError) -> Failure {
    Failure { reason: FAILED_MOUNT, message: error.to_string(), transient: false }
}

/// The hostname that the pod's processes see: its own, or with `hostNetwork` the host's current one.
fn hostname(record: &PodRecord, cluster_domain: &str) -> Result<String, VolumeError> {
    let hostname = pod_hostname(record, cluster_domain)?;
    if record.host_network() {
        return Ok(rustix::system::uname().nodename().to_string_lossy().into_owned());
    }
    Ok(hostname.kernel)
}

impl ContainerdExecutor {
    /// Prepares cgroup, namespaces and network, then volumes and the files that contain the addresses. Idempotent.
    pub(super) async fn prepare_sandbox(&self, pod: &PodState) -> Result<Arc<PodSandbox>, Failure> {
        self.reporter.metrics.pod_start_begun();
        let prepared = self.timed("run_podsandbox", self.make_sandbox(pod)).await;
        if let Err(failure) = &prepared {
            self.reporter.metrics.pod_start_failed();
            tracing::warn!(pod = %pod.record.key, reason = failure.reason, message = failure.message, "creating the pod's sandbox failed");
            self.reporter.event(pod, None, EventType::Warning, failure.reason, failure.message.clone());
        }
        prepared.map(Arc::new)
    }

    async fn make_sandbox(&self, pod: &PodState) -> Result<PodSandbox, Failure> {
        let record = &*pod.record;
        let class = self.runtime_class(pod).map_err(sandbox_failure)?;
        self.can_have_users(record.spec(), class).map_err(sandbox_failure)?;
        let hostname = hostname(record, &self.settings.volumes.cluster.domain).map_err(sandbox_failure)?;
        let sysctls = sysctl::sysctls(record.spec());
        let labelling = self.labelling(record).map_err(sandbox_failure)?;
        let request = self.sandbox_request(record, &hostname, &sysctls, labelling.as_ref());
        let limits = self.limits_with_cpus(&record.uid, record.cgroup_limits);
        let (cgroup, sandbox) =
            tokio::join!(self.on_cgroup("create", self.cgroups.update_pod(record, &limits)), async {
                match self.sandboxes.find(&request).await? {
                    Some(sandbox) => Ok(CreatedSandbox { sandbox, init: None }),
                    None => self.sandboxes.create(&request).await,
                }
            });
        let cgroup_failure = |error: CgroupError| Failure { transient: error.is_transient(), ..sandbox_failure(error) };
        cgroup.map_err(cgroup_failure)?;
        let CreatedSandbox { sandbox, init } = sandbox.map_err(sandbox_failure)?;
        if let Some(init) = init {
            self.cgroups.place_init(record, init.pid).await.map_err(cgroup_failure)?;
            init.release().await.map_err(sandbox_failure)?;
        }
        let addresses = self.attach(record, &sandbox).await?;
        let objects = Arc::clone(&pod.objects);
        calling("setting up its volumes");
        self.set_up_csi(record, &objects).await.map_err(mount_failure)?;
        let warnings = self.volumes.prepare(record, &objects, &addresses, &sandbox.hostname).await;
        let warnings = warnings.map_err(mount_failure)?;
        for warning in warnings {
            self.reporter.events.emit(
                Some((record.key.clone(), record.uid.clone())),
                None,
                EventType::Warning,
                warning.reason,
                warning.message,
            );
        }
        Ok(PodSandbox { sandbox, addresses })
    }

    /// Rewrites volumes, and has drivers publish theirs again. Containers that have them mounted see the change and
    /// keep running.
    pub(super) async fn update_volumes(&self, pod: &PodState) -> Result<(), Failure> {
        let objects = Arc::clone(&pod.objects);
        let written = self.volumes.update(&pod.record, &objects).await;
        let published = self.republish_csi(&pod.record, &objects).await;
        match published.and(written) {
            Ok(volumes) if volumes.is_empty() => Ok(()),
            Ok(volumes) => {
                tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, ?volumes, "volumes updated");
                Ok(())
            }
            Err(error) => {
                let failure = mount_failure(error);
                tracing::warn!(pod = %pod.record.key, message = failure.message, "updating the pod's volumes failed");
                self.reporter.event(pod, None, EventType::Warning, failure.reason, failure.message.clone());
                Err(failure)
            }
        }
    }

    /// Sets the limits of the pod's cgroup; containers in it keep running.
    pub(super) async fn update_cgroup(&self, pod: &PodState, limits: &CgroupLimits) -> Result<(), Failure> {
        let limits = self.limits_with_cpus(&pod.record.uid, *limits);
        let updated = match self.check_pod_memory(&pod.record, limits.memory).await {
            Ok(()) => {
                let failed = |error: CgroupError| (error.to_string(), !error.is_refusal());
                self.on_cgroup("update", self.cgroups.update_pod(&pod.record, &limits)).await.map_err(failed)
            }
            Err(failure) => Err((failure.message, failure.transient)),
        };
        updated.map_err(|(error, transient)| {
            let message = format!("unable to set the limits of the pod's cgroup: {error}");
            tracing::warn!(pod = %pod.record.key, message, "updating the pod's cgroup failed");
            self.reporter.event(pod, None, EventType::Warning, FAILED_POD_CGROUP, message.clone());
            Failure { reason: FAILED_POD_CGROUP, message, transient }
        })
    }

    /// What the pod's `runtimeClassName` refers to.
    pub(super) fn runtime_class(&self, pod: &PodState) -> Result<Option<&RuntimeClass>, String> {
        let Some(name) = runtime_class::class_name(&pod.record) else { return Ok(None) };
        let table = &self.settings.runtime.classes;
        let remedy = "set it in runtimeClasses of the LimpetConfiguration and start limpet again";
        let missing = || format!("failed to get RuntimeClass {name:?}: runtimeclass.node.k8s.io {name:?} not found");
        if runtime_class::reference(&pod.record).is_none() {
            return table.get(name).map(Some).ok_or_else(|| format!("{}; {remedy}", missing()));
        }
        let class = pod.objects.get(ObjectKind::RuntimeClass, name).ok_or_else(missing)?;
        match runtime_class::handler(class).unwrap_or_default() {
            RUNC_HANDLER if !table.contains_key(RUNC_HANDLER) => Ok(None),
            handler => table.get(handler).map(Some).ok_or_else(|| {
                format!("failed to get sandbox runtime: no runtime for {handler:?} is configured; {remedy}")
            }),
        }
    }

    /// Whether a pod with `hostUsers: false` can run here, by kubelet's checks.
    fn can_have_users(&self, spec: &PodSpec, class: Option<&RuntimeClass>) -> Result<(), String> {
        if spec.host_users != Some(false) {
            return Ok(());
        }
        let lacking = match class.filter(|class| class.runtime != RUNC_SHIM) {
            Some(class) => Some(format!("its runtime class has {}; it needs {RUNC_SHIM}", class.runtime)),
            None => user_namespace::missing_support(&self.settings.runtime.snapshotter),
        };
        lacking.map_or(Ok(()), |why| Err(format!("can't set `spec.hostUsers: false`: {why}")))
    }

    async fn attach(&self, record: &PodRecord, sandbox: &Sandbox) -> Result<PodAddresses, Failure> {
        let Some(netns) = &sandbox.namespaces.network else {
            return Ok(PodAddresses::default());
        };
        let request = self.attach_request(record, netns).await.map_err(sandbox_failure)?;
        calling("CNI ADD");
        self.network.attach(&request).await.map_err(sandbox_failure)
    }

    async fn attach_request<'a>(
        &self,
        record: &'a PodRecord,
        netns: &'a Path,
    ) -> Result<AttachRequest<'a>, VolumeError> {
        let Resolver { nameservers, searches, options } = self.volumes.resolver(record).await?;
        Ok(AttachRequest {
            dns: Some(DnsSettings { servers: nameservers, searches, options }),
            cgroup_path: Some(self.cgroups.pod_path(record)),
            ..AttachRequest::new(record, netns)
        })
    }

    fn sandbox_request<'a>(
        &'a self,
        record: &'a PodRecord,
        hostname: &'a str,
        sysctls: &'a [(String, String)],
        labelling: Option<&'a PodLabelling>,
    ) -> SandboxRequest<'a> {
        SandboxRequest {
            uid: &record.uid,
            host_network: record.host_network(),
            host_ipc: record.spec().host_ipc.unwrap_or(false),
            share_processes: record.spec().share_process_namespace == Some(true),
            own_users: record.spec().host_users == Some(false),
            hostname,
            sysctls,
            shm_size: DEFAULT_SHM_SIZE,
            labelling,
        }
    }

    /// What the pod's SELinux labels are made from; `None` if nothing is labelled.
    fn labelling(&self, record: &PodRecord) -> Result<Option<PodLabelling>, String> {
        let labelling = self.contexts.as_ref().map(|contexts| PodLabelling::new(contexts, record.spec())).transpose();
        labelling.map_err(|why| format!("failed to init selinux options: {why}"))
    }

    /// The sandbox of a pod that was found running; `None` if it is gone or incomplete, and an error if that is
    /// unknown.
    pub(super) async fn existing_sandbox(&self, record: &Arc<PodRecord>) -> Result<Option<Arc<PodSandbox>>, Failure> {
        self.volumes.refresh_resolv_conf(record).await;
        let examined = self.examine_sandbox(record).await;
        examined.map(|sandbox| sandbox.map(Arc::new)).map_err(|error| {
            let message = format!("Unable to get pod sandbox status: {error}");
            tracing::warn!(pod = %record.key, uid = %record.uid, message, "the pod's containers are left as they are; its sandbox is examined again");
            Failure { reason: FAILED_STATUS, message, transient: false }
        })
    }

    async fn examine_sandbox(&self, record: &PodRecord) -> Result<Option<PodSandbox>, String> {
        let hostname = hostname(record, &self.settings.volumes.cluster.domain).map_err(|error| error.to_string())?;
        let labelling = self.labelling(record)?;
        let request = self.sandbox_request(record, &hostname, &[], labelling.as_ref());
        let examined = self.sandboxes.find(&request).await.map_err(|error| error.to_string())?;
        let Some(sandbox) = examined else { return Ok(None) };
        let Some(netns) = sandbox.namespaces.network.clone() else {
            return Ok(Some(PodSandbox { sandbox, addresses: PodAddresses::default() }));
        };
        let attached = self.network.attachment(&record.uid, &netns).await.map_err(|error| error.to_string())?;
        let Some(Attachment { addresses, is_recorded }) = attached else { return Ok(None) };
        if !is_recorded {
            self.record_attachment(record, &netns).await;
        }
        Ok(Some(PodSandbox { sandbox, addresses }))
    }

    /// Replaces a record that is missing or damaged. The pod runs without one, too.
    async fn record_attachment(&self, record: &PodRecord, netns: &Path) {
        let recorded = match self.attach_request(record, netns).await {
            Ok(request) => self.network.record_again(&request).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match recorded {
            Ok(()) => tracing::warn!(
                pod = %record.key, uid = %record.uid,
                "the record of the pod's network attachment was missing or damaged; it is replaced by what the kernel says"
            ),
            Err(error) => tracing::warn!(
                pod = %record.key, uid = %record.uid, error,
                "the record of the pod's network attachment is missing or damaged, and cannot be replaced"
            ),
        }
    }

    /// The pod's sandbox, if containers can no longer be started in it because its pins were unmounted.
    pub(super) async fn lost_sandbox(&self, pod: &PodState) -> Option<Arc<PodSandbox>> {
        let sandbox = sandbox_of(pod)?;
        match self.sandboxes.is_whole(&pod.record.uid, &sandbox.sandbox).await {
            Ok(false) => {
                tracing::warn!(pod = %pod.record.key, uid = %pod.record.uid, "the pins of the pod's namespaces are missing; its sandbox is recreated");
                let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
                self.reporter.event(pod, None, EventType::Normal, "SandboxChanged", message);
                Some(sandbox)
            }
            Ok(true) => None,
            Err(error) => {
                tracing::warn!(pod = %pod.record.key, %error, "checking the pod's sandbox failed");
                None
            }
        }
    }
}
