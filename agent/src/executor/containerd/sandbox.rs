//! A pod's sandbox: its cgroup, namespaces, network and volumes; how it is created, updated, removed, and cleared of
//! leftovers.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;

use super::start::START_ERROR;
use super::{ContainerdExecutor, failure, sandbox_of};
use limpet_containerd::container::runtime::{RUNC_HANDLER, RUNC_SHIM, RuntimeClass};
use limpet_core::outcome::Failure;
use limpet_core::state::{ContainerSlot, FAILED_MOUNT, FAILED_UNMOUNT, PodSandbox, PodState};
use limpet_host::call_watch::calling;
use limpet_host::cgroup::CgroupError;
use limpet_host::network::{AttachRequest, Attachment, DnsSettings};
use limpet_host::sandbox::{CreatedSandbox, DEFAULT_SHM_SIZE, SandboxRequest, sysctl};
use limpet_host::volume::{Resolver, VolumeError, pod_hostname};
use limpet_host::{orphan_processes, user_namespace};
use limpet_model::container::ContainerId;
use limpet_model::object::{ObjectKind, runtime_class};
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::sandbox::{PodAddresses, Sandbox};
use limpet_model::selinux::PodLabelling;
use limpet_telemetry::event::EventType;

const FAILED: &str = "FailedCreatePodSandBox";
/// kubelet's reason when it is unknown whether there is a sandbox.
const FAILED_STATUS: &str = "FailedPodSandBoxStatus";
/// kubelet's reason when the cgroup of a pod cannot be set up.
const FAILED_POD_CGROUP: &str = "FailedCreatePodContainer";

fn sandbox_failure(error: impl std::fmt::Display) -> Failure {
    Failure { reason: FAILED, message: format!("Failed to create pod sandbox: {error}"), transient: false }
}

fn mount_failure(error: VolumeError) -> Failure {
    Failure { reason: FAILED_MOUNT, message: error.to_string(), transient: false }
}

/// The hostname that the pod's processes see: its own, or with `hostNetwork` the host's as it is now.
/// In kubelet's words, which the failure of a driver has already.
fn unmount_failure(error: &VolumeError) -> Failure {
    let message = match error {
        VolumeError::TearDown { .. } => error.to_string(),
        _ => format!("UnmountVolume.TearDown failed: {error}"),
    };
    Failure { reason: FAILED_UNMOUNT, message, transient: false }
}

fn hostname(record: &PodRecord, cluster_domain: &str) -> Result<String, VolumeError> {
    let own = pod_hostname(record, cluster_domain)?;
    if record.host_network() {
        return Ok(rustix::system::uname().nodename().to_string_lossy().into_owned());
    }
    Ok(own.kernel)
}

impl ContainerdExecutor {
    /// cgroup, namespaces, network, then volumes and the files that name the addresses. Idempotent.
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
        let hostname = hostname(record, &self.config.cluster_domain).map_err(sandbox_failure)?;
        let sysctls = sysctl::sysctls(record.spec());
        let labelling = self.labelling(record).map_err(sandbox_failure)?;
        let request = self.sandbox_request(record, &hostname, &sysctls, labelling.as_ref());
        let (cgroup, sandbox) = tokio::join!(self.on_cgroup("create", self.cgroups.ensure_pod(record)), async {
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

    /// Rewrites volumes, and has drivers publish theirs again; containers that have them mounted see the change and
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
        let updated = match self.check_pod_memory(&pod.record, limits.memory).await {
            Ok(()) => {
                let failed = |error: CgroupError| (error.to_string(), !error.is_refusal());
                self.on_cgroup("update", self.cgroups.update_pod(&pod.record, limits)).await.map_err(failed)
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
        let table = &self.config.runtime_classes;
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

    /// Whether a pod with `hostUsers: false` can run here, as kubelet checks it.
    fn can_have_users(&self, spec: &PodSpec, class: Option<&RuntimeClass>) -> Result<(), String> {
        if spec.host_users != Some(false) {
            return Ok(());
        }
        let lacking = match class.filter(|class| class.runtime != RUNC_SHIM) {
            Some(class) => Some(format!("its runtime class has {}; it needs {RUNC_SHIM}", class.runtime)),
            None => user_namespace::missing_support(&self.config.snapshotter),
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

    /// What the pod's labels of SELinux are made of; `None`: nothing is labelled.
    fn labelling(&self, record: &PodRecord) -> Result<Option<PodLabelling>, String> {
        let labelling = self.contexts.as_ref().map(|contexts| PodLabelling::of(contexts, record.spec())).transpose();
        labelling.map_err(|why| format!("failed to init selinux options: {why}"))
    }

    /// The sandbox of a pod that was found running; `None`: it is gone, or is not whole. An error: that is unknown.
    pub(super) async fn existing_sandbox(&self, record: &Arc<PodRecord>) -> Result<Option<Arc<PodSandbox>>, Failure> {
        self.volumes.refresh_resolv_conf(record).await;
        let examined = self.examine_sandbox(record).await;
        examined.map(|found| found.map(Arc::new)).map_err(|error| {
            let message = format!("Unable to get pod sandbox status: {error}");
            tracing::warn!(pod = %record.key, uid = %record.uid, message, "the pod's containers are left as they are; its sandbox is examined again");
            Failure { reason: FAILED_STATUS, message, transient: false }
        })
    }

    async fn examine_sandbox(&self, record: &PodRecord) -> Result<Option<PodSandbox>, String> {
        let hostname = hostname(record, &self.config.cluster_domain).map_err(|error| error.to_string())?;
        let labelling = self.labelling(record)?;
        let request = self.sandbox_request(record, &hostname, &[], labelling.as_ref());
        let found = self.sandboxes.find(&request).await.map_err(|error| error.to_string())?;
        let Some(sandbox) = found else { return Ok(None) };
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

    /// Replaces a record that is missing or damaged. Without one the pod runs as well.
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

    /// The pod's sandbox, when containers cannot be started in it any more: its pins were unmounted.
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

    /// The pod has run to its end: address, namespaces, cgroup, the volumes of drivers and disks of targets go back;
    /// records, logs and other volumes stay.
    pub(super) async fn release_sandbox(&self, pod: &PodState) -> Result<(), Failure> {
        self.release(&pod.record.uid).await?;
        // Another pod or node may need them; neither waits for the other.
        let (drivers, given_back) = tokio::join!(self.tear_down_csi(pod), self.give_back(pod));
        drivers.and(given_back)
    }

    async fn give_back(&self, pod: &PodState) -> Result<(), Failure> {
        let given_back = self.volumes.give_back(&pod.record.uid).await;
        given_back.map_err(|error| self.report_unmount(pod, &error))
    }

    fn report_unmount(&self, pod: &PodState, error: &VolumeError) -> Failure {
        let failure = unmount_failure(error);
        let message = pod.objects.redact(failure.message);
        tracing::warn!(pod = %pod.record.key, message, "giving back a volume failed; retried later");
        self.reporter.event(pod, None, EventType::Warning, FAILED_UNMOUNT, message.clone());
        Failure { message, ..failure }
    }

    async fn release(&self, uid: &PodUid) -> Result<(), Failure> {
        let stays = |what: &str, error: &dyn std::fmt::Display| Failure {
            reason: "FailedKillPod",
            message: format!("{what}: {error}"),
            transient: false,
        };
        calling("CNI DEL");
        self.network.detach(uid, &self.sandboxes.network(uid)).await.map_err(|error| stays("network", &error))?;
        self.sandboxes.remove(uid).await.map_err(|error| stays("namespaces", &error))?;
        // A process that was killed a moment ago may still be in it: that passes.
        let removed = self.on_cgroup("destroy", self.cgroups.remove_pod(uid)).await;
        removed.map_err(|error| Failure { transient: error.is_transient(), ..stays("cgroup", &error) })
    }

    /// What a failed start of a container has left goes, a process of it included.
    pub(super) async fn remove_failed_start(&self, pod: &PodState, slot: &ContainerSlot) -> Result<(), Failure> {
        let Some(id) = &slot.possible_orphan else { return Ok(()) };
        let removed = self.timed("remove_container", self.containers.remove_failed_attempt(id)).await;
        removed.map_err(|error| failure("FailedKillPod", &error))?;
        self.clear_cgroup(pod, id).await;
        let (record, name, id) = (Arc::clone(&pod.record), slot.name.clone(), id.clone());
        self.on_logs(&pod.record.uid, move |logs| logs.remove_link(&record, &name, id.as_str())).await;
        Ok(())
    }

    /// Everything of the pod goes: containers, sandbox, volumes, logs.
    pub(super) async fn tear_down(&self, pod: &PodState) -> Result<(), Failure> {
        let began = tokio::time::Instant::now();
        let mut links = Vec::new();
        for slot in &pod.containers {
            for instance in slot.instance.iter().chain(&slot.previous).chain(&slot.stale) {
                let removed = self.timed("remove_container", self.containers.remove(&instance.id)).await;
                removed.map_err(|error| failure("FailedKillPod", &error))?;
                if instance.exit().is_some_and(|exit| exit.reason == START_ERROR) {
                    self.clear_cgroup(pod, &instance.id).await;
                }
                links.push((slot.name.clone(), instance.id.clone()));
            }
            self.remove_failed_start(pod, slot).await?;
        }
        if pod.outlived_connection {
            orphan_processes::end_shims(ContainerId::pod_digits(&pod.record.uid), self.client.socket()).await;
        }
        self.release(&pod.record.uid).await?;
        // Before any mount of the pod is detached: a driver unmounts its own.
        let unmounted = self.volumes.unmount(&pod.record.uid).await;
        unmounted.map_err(|error| self.report_unmount(pod, &error))?;
        self.remove_image_volumes(&pod.record.uid).await?;
        self.tear_down_csi(pod).await?;
        // The pod's directory goes last: with it gone, nothing says that the logs are limpet's.
        let record = Arc::clone(&pod.record);
        self.on_logs(&pod.record.uid, move |logs| {
            links.iter().for_each(|(name, id)| logs.remove_link(&record, name, id.as_str()));
            logs.remove_pod_logs(&record);
        })
        .await;
        calling("removing its volumes");
        self.volumes.remove(&pod.record.uid).await.map_err(|error| Failure {
            reason: "FailedKillPod",
            message: error.to_string(),
            transient: false,
        })?;
        tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, took = ?began.elapsed(), "pod removed");
        Ok(())
    }

    /// Every pod that has something on disk or in the kernel. Logs alone are none: they may be of another agent's pods;
    /// those of limpet's go before the pod's directory.
    pub(super) async fn traces(&self) -> HashSet<PodUid> {
        let mut found: HashSet<PodUid> = HashSet::new();
        found.extend(self.network.attached().await);
        found.extend(self.sandboxes.list().await.unwrap_or_default());
        found.extend(self.volumes.list().await);
        found.extend(self.cgroups.pods().await.unwrap_or_default());
        found
    }

    /// Clears what a pod that no longer exists left: a crash, a power cut or a manifest that went meanwhile. What cannot
    /// be removed keeps nothing else. Returns whether that is all of it.
    pub(super) async fn clear(&self, uid: &PodUid) -> bool {
        tracing::info!(%uid, "removing leftovers of a pod that no longer exists");
        let removed = |result: Result<(), String>| {
            if let Err(error) = &result {
                tracing::warn!(%uid, error, "removing leftovers failed; retried later");
            }
            result.is_ok()
        };
        orphan_processes::end_shims(ContainerId::pod_digits(uid), self.client.socket()).await;
        calling("CNI DEL");
        let detached = self.network.detach(uid, &self.sandboxes.network(uid)).await;
        let mut all = removed(detached.map_err(|error| format!("network: {error}")));
        all &= removed(self.sandboxes.remove(uid).await.map_err(|error| format!("namespaces: {error}")));
        all &= removed(self.cgroups.remove_pod(uid).await.map_err(|error| format!("cgroup: {error}")));
        let mut is_empty = removed(self.volumes.unmount(uid).await.map_err(|error| unmount_failure(&error).message));
        is_empty &= removed(self.remove_image_volumes(uid).await.map_err(|failure| failure.message));
        is_empty &= removed(self.unmount_orphan(uid).await.map_err(|failure| failure.message));
        let pod = uid.clone();
        let logs = self.try_on_logs(uid, move |logs| logs.remove_logs_of(&pod)).await;
        is_empty &= removed(logs.and_then(|removed| removed).map_err(|error| format!("logs: {error}")));
        // The directory names what is still mounted, and says that the logs are limpet's: it goes after both.
        if is_empty {
            is_empty = removed(self.volumes.remove(uid).await.map_err(|error| error.to_string()));
        }
        all && is_empty
    }
}
