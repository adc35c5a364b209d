//! The functions of [`Executor`], on containerd and the host.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::plan::Action;
use limpet_core::state::{Instance, Now, PodSandbox, PodState};
use limpet_host::{clock, process};
use limpet_model::container::{ContainerId, Exit, FoundContainer, Task};
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::process::{ProcessHandle, Processes};
use tokio::sync::watch;

use super::ContainerdExecutor;
use limpet_worker::executor::{Executor, ExecutorError, LoggerReport};

impl Executor for ContainerdExecutor {
    fn now(&self) -> Now {
        clock::now()
    }

    fn id_seed(&self) -> u64 {
        // This is the system's randomness, which does not wait for the kernel to have gathered some at boot.
        RandomState::new().build_hasher().finish()
    }

    fn has_static_cpus(&self) -> bool {
        self.cpus.is_some()
    }

    fn perform(self: Arc<Self>, pod: PodState, action: Action) -> BoxFuture<'static, Outcome> {
        self.perform_action(pod, action)
    }

    fn record_exit(
        self: Arc<Self>,
        pod: PodState,
        index: usize,
        instance: Instance,
        exit: Exit,
    ) -> BoxFuture<'static, Exit> {
        async move { self.write_exit(&pod, &pod.containers[index], &instance, exit).await }.boxed()
    }

    fn discard(self: Arc<Self>, index: usize, id: ContainerId) -> BoxFuture<'static, Outcome> {
        async move { self.remove_never_ran(index, id).await }.boxed()
    }

    fn task(self: Arc<Self>, id: ContainerId) -> BoxFuture<'static, Result<Option<Task>, ExecutorError>> {
        async move { self.containers.task(&id).await.map_err(|error| ExecutorError(error.to_string())) }.boxed()
    }

    fn keep_logger(self: Arc<Self>, id: ContainerId, pid: u32, report: LoggerReport) -> BoxFuture<'static, ()> {
        async move { self.containers.keep_logger(&id, pid, &self.executable, &*report).await }.boxed()
    }

    fn oom_kills(&self, record: &PodRecord, id: &ContainerId) -> u64 {
        self.cgroups.oom_kills(record, id.as_str()).unwrap_or(0)
    }

    fn adopt_pod(&self, record: &PodRecord) {
        self.cgroups.adopt_pod(record);
    }

    fn processes(&self) -> &dyn Processes {
        self
    }

    fn list(self: Arc<Self>, first: bool) -> BoxFuture<'static, Result<Vec<FoundContainer>, ExecutorError>> {
        async move { self.list_containers(first).await.map_err(|error| ExecutorError(error.to_string())) }.boxed()
    }

    fn find_sandbox(
        self: Arc<Self>,
        record: Arc<PodRecord>,
    ) -> BoxFuture<'static, Result<Option<Arc<PodSandbox>>, Failure>> {
        async move { self.existing_sandbox(&record).await }.boxed()
    }

    fn pods_with_traces(self: Arc<Self>) -> BoxFuture<'static, HashSet<PodUid>> {
        async move { self.traces().await }.boxed()
    }

    fn remove_orphan(self: Arc<Self>, uid: PodUid) -> BoxFuture<'static, bool> {
        async move { self.clear(&uid).await }.boxed()
    }

    fn volume_drivers(&self) -> watch::Receiver<u64> {
        self.csi.drivers().subscribe()
    }

    fn has_unfinished_pulls(&self) -> bool {
        self.images.has_unfinished()
    }

    fn forget_pulls(self: Arc<Self>, wanted: HashSet<String>) -> BoxFuture<'static, bool> {
        async move { self.forget_unwanted_pulls(&wanted).await }.boxed()
    }
}

impl Processes for ContainerdExecutor {
    fn open(&self, pid: u32) -> Option<Arc<dyn ProcessHandle>> {
        process::open(pid)
    }

    fn in_container(&self, pod: &PodUid, container: &ContainerId) -> Option<u32> {
        self.cgroups.process_of(pod, container.as_str())
    }

    fn is_in_container(&self, pid: u32, container: &ContainerId) -> bool {
        process::is_in_container(pid, container)
    }
}
