//! Which function of the executor performs which action of the plan.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use limpet_core::outcome::Outcome;
use limpet_core::plan::Action;
use limpet_core::state::PodState;

use super::ContainerdExecutor;

impl ContainerdExecutor {
    /// Performs `action`, planned from `pod`. Each action is a separate future, because a single one for all would
    /// have the size of the largest, and many probes run at the same time.
    pub(super) fn perform_action(self: Arc<Self>, pod: PodState, action: Action) -> BoxFuture<'static, Outcome> {
        match action {
            Action::ExamineSandbox => {
                async move { Outcome::SandboxExamined(self.existing_sandbox(&pod.record).await) }.boxed()
            }
            Action::PrepareSandbox => async move {
                match self.provide(&pod.record).await {
                    Ok(()) => Outcome::SandboxPrepared(self.prepare_sandbox(&pod).await),
                    Err(lack) => Outcome::HostLacks(lack),
                }
            }
            .boxed(),
            Action::MeasureStorage => async move { self.measure_storage(&pod).await }.boxed(),
            Action::UpdateVolumes => async move { Outcome::VolumesUpdated(self.update_volumes(&pod).await) }.boxed(),
            Action::UpdateCgroup(limits) => {
                async move { Outcome::CgroupUpdated(self.update_cgroup(&pod, &limits).await) }.boxed()
            }
            Action::ReleaseSandbox => async move { Outcome::SandboxReleased(self.release_sandbox(&pod).await) }.boxed(),
            Action::TearDown => async move {
                let torn_down = self.tear_down(&pod).await;
                self.images.released();
                Outcome::TornDown(torn_down)
            }
            .boxed(),
            Action::EnsureImage(index) => async move {
                let slot = &pod.containers[index];
                let result = self.ensure_image(&pod, slot).await;
                let (fingerprint, attempt) = (slot.fingerprint.clone(), slot.next_attempt());
                Outcome::ImageEnsured { index, fingerprint, attempt, result }
            }
            .boxed(),
            Action::Resize(index) => async move { self.resize(&pod, index).await }.boxed(),
            Action::Start(index) => async move {
                match self.lost_sandbox(&pod).await {
                    Some(sandbox) => Outcome::SandboxLost { index, sandbox },
                    None => self.start(&pod, index).await,
                }
            }
            .boxed(),
            Action::PostStart(index) => async move { self.post_start(&pod, index).await }.boxed(),
            Action::Stop(index, stopping, cause) => {
                async move { self.stop(&pod, index, stopping, cause).await }.boxed()
            }
            Action::Probe(index, kind, _) => async move { self.probe(&pod, index, kind).await }.boxed(),
            Action::RecordProbes(index, record) => async move { self.record_probes(&pod, index, record).await }.boxed(),
            Action::Reap(index) => {
                async move { self.reap(&pod, index, pod.containers[index].instance.as_ref()).await }.boxed()
            }
            Action::ReapPrevious(index) => {
                async move { self.reap(&pod, index, pod.containers[index].previous.as_ref()).await }.boxed()
            }
            Action::Forget(index) => async move { self.forget(&pod, index).await }.boxed(),
            Action::Discard(index) => async move {
                let removed = self.remove_failed_start(&pod, &pod.containers[index]).await;
                Outcome::OrphanRemoved { index, result: removed }
            }
            .boxed(),
        }
    }
}
