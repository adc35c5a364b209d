//! Running pulls. Callers that request one image with the same access share a pull, and each sees its progress.

use std::sync::{Arc, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::watch;

use super::error::ImageError;
use super::{Images, PullAccess};
use limpet_model::image::LocalImage;
use limpet_model::image_name::{ImageName, normalize};
use limpet_model::pull_credential::PullCredential;
use limpet_model::pull_progress::PullProgress;

/// The result of a successful pull.
#[derive(Debug, Clone)]
pub struct PulledNow {
    pub image: Arc<LocalImage>,
    /// The credential that the registry accepted for it.
    pub with: PullCredential,
}

/// The result of one pull, shared by all callers.
pub(super) type PullResult = Result<PulledNow, ImageError>;
type Job = BoxFuture<'static, PullResult>;

/// A running pull, driven by its callers' futures; it stops when all are dropped.
pub(super) struct Flight {
    job: WeakShared<Job>,
    access: PullAccess,
    progress: watch::Receiver<PullProgress>,
}

impl Flight {
    /// Its job, if it still runs.
    fn running(&self) -> Option<Shared<Job>> {
        self.job.upgrade().filter(|job| job.peek().is_none())
    }
}

/// One caller's share in a pull. The pull continues only while a caller waits in [`Self::next`]. When all are dropped
/// it stops, and a later pull resumes it.
pub struct RunningPull {
    job: Shared<Job>,
    progress: watch::Receiver<PullProgress>,
}

impl std::fmt::Debug for RunningPull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningPull").field("progress", &*self.progress.borrow()).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub enum PullStep {
    /// The progress; sent at most once a second, and for each layer.
    Progress(PullProgress),
    Ended(PullResult),
}

impl RunningPull {
    /// The next step. Cancel safe; must not be called after the end.
    pub async fn next(&mut self) -> PullStep {
        tokio::select! {
            biased;
            Ok(()) = self.progress.changed() => PullStep::Progress(*self.progress.borrow_and_update()),
            ended = &mut self.job => PullStep::Ended(ended),
        }
    }
}

impl Images {
    /// Pulls an image, or its missing parts; concurrent calls for one image share a pull. Dropping the future stops
    /// the pull unless another caller waits for it; a later pull resumes it.
    ///
    /// # Errors
    ///
    /// See [`ImageError`]; [`ImageError::reason`] is kubelet's reason for it.
    pub async fn pull(&self, reference: &str) -> Result<Arc<LocalImage>, ImageError> {
        Ok(self.start_pull(reference, PullAccess::of_node())?.job.await?.image)
    }

    /// The same with a pod's access, whose secrets are tried before the node's credentials. Only callers with the
    /// same access share a pull, because another pod may not be allowed to pull the image.
    ///
    /// # Errors
    ///
    /// `InvalidName`.
    pub fn start_pull(&self, reference: &str, mut access: PullAccess) -> Result<RunningPull, ImageError> {
        let name = ImageName::parse(reference)?;
        access.account.take_if(|_| !self.inner.credential_providers.take_tokens(&name));
        Ok(self.join(name, access))
    }

    pub(super) fn is_pulled(&self, reference: &str) -> bool {
        let Ok(name) = normalize(reference) else { return false };
        let flights = self.inner.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.get(&name).is_some_and(|flights| flights.iter().any(|flight| flight.running().is_some()))
    }

    /// The running pull of this image, or a new one. A pull with another access starts after the running one:
    /// existing content is not downloaded again, only access is checked.
    fn join(&self, name: ImageName, access: PullAccess) -> RunningPull {
        let mut all = self.inner.flights.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, flights| {
            flights.retain(|flight| flight.running().is_some());
            !flights.is_empty()
        });
        let flights = all.entry(name.whole.clone()).or_default();
        let same = flights.iter().find(|flight| flight.access.equals(&access));
        if let Some((job, flight)) = same.and_then(|flight| Some((flight.running()?, flight))) {
            return RunningPull { job, progress: flight.progress.clone() };
        }
        let last = flights.last().and_then(|flight| Some((flight.running()?, flight)));
        let before = last.map(|(job, flight)| RunningPull { job, progress: flight.progress.clone() });
        let (sender, progress) = watch::channel(PullProgress::default());
        let (inner, pull_access) = (Arc::clone(&self.inner), access.clone());
        let job = async move {
            if let Some(mut before) = before {
                // This pull also uses what the earlier one downloads. Its result does not matter.
                while let PullStep::Progress(progress) = before.next().await {
                    sender.send_replace(progress);
                }
            }
            inner.pull(name, &pull_access, sender).await
        };
        let job = job.boxed().shared();
        if let Some(weak) = job.downgrade() {
            flights.push(Flight { job: weak, access, progress: progress.clone() });
        }
        RunningPull { job, progress }
    }
}
