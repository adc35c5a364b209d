//! The pull of a pod's image, and how its progress is reported: in the pod's note at once, and in events when it
//! takes long.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::ContainerdExecutor;
use crate::pull_records::AnnouncedPull;
use limpet_containerd::image::{ImageError, ImagePlatform, PullAccess, PullStep, PulledNow};
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::error_chain::error_chain;
use limpet_model::go_duration;
use limpet_model::image::LocalImage;
use limpet_model::image_name::normalize;
use limpet_telemetry::event::EventType;

/// How long a pull takes before an event shows its progress.
const FIRST_REPORT: Duration = Duration::from_secs(30);
/// The shortest time between two such events. An apiserver accepts one more of a pod every 5 minutes, and those that
/// follow should reach it.
const REPORT_PACE: Duration = Duration::from_secs(300);

impl ContainerdExecutor {
    /// Pulls an image when it is its turn, with kubelet's events.
    pub(super) async fn pull_image(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        reference: &str,
        platform: ImagePlatform,
    ) -> Result<Arc<LocalImage>, ImageError> {
        let access = PullAccess { platform, ..self.pull_access(pod) };
        let announced = self.announce_pull(&access, reference).await?;
        let message = format!("Pulling image \"{reference}\"");
        self.reporter.event(pod, Some(&slot.name), EventType::Normal, "Pulling", message);
        let asked = Instant::now();
        // The semaphore is never closed; without a permit the pull continues nevertheless.
        let _permit = self.pulls.acquire().await.ok();
        self.await_pull_rate().await;
        let began = Instant::now();
        let pulled = self.timed("pull_image", self.pull_in_sight(pod, slot, reference, access)).await;
        let PulledNow { image, with } = match pulled {
            Ok(pulled) => pulled,
            Err(error) => {
                // If containerd did not answer, the image may be present, so its intent stays.
                if let Some(announced) = announced.filter(|_| !error.is_runtime_unavailable()) {
                    self.pull_records.failed(announced).await;
                }
                return Err(error);
            }
        };
        self.pull_records.succeeded(announced, reference, &image.digest, with).await;
        let (took, waited) = (began.elapsed(), asked.elapsed());
        self.reporter.metrics.image_pulled(image.size, waited);
        tracing::info!(pod = %pod.record.key, container = slot.name, image = reference, bytes = image.size, took = ?took, "image pulled");
        let message = pulled_message(reference, took, waited, image.size);
        self.reporter.event(pod, Some(&slot.name), EventType::Normal, "Pulled", message);
        Ok(image)
    }

    /// Waits until another pull may begin. kubelet fails the pull instead; here the pod starts without a back-off.
    async fn await_pull_rate(&self) {
        let Some(pace) = &self.pull_pace else { return };
        let begin = pace.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now().into_std());
        tokio::time::sleep_until(begin.into()).await;
    }

    /// Records that the image is being pulled with credentials, before anything of it can be present. A pull without
    /// any is not recorded: its image is for all pods, even after a crash, so that a node that then boots without a
    /// network starts it.
    async fn announce_pull(&self, access: &PullAccess, reference: &str) -> Result<Option<AnnouncedPull>, ImageError> {
        if !self.images.may_use_credentials(reference, access)? {
            return Ok(None);
        }
        let announced = self.pull_records.announce(&normalize(reference)?).await;
        let failed = |error| ImageError::Unrecorded { image: reference.to_owned(), cause: error_chain(&error) };
        announced.map(Some).map_err(failed)
    }

    /// Pulls, and shows the progress.
    async fn pull_in_sight(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        reference: &str,
        access: PullAccess,
    ) -> Result<PulledNow, ImageError> {
        let mut pull = self.images.start_pull(reference, access)?;
        let mut reports = ProgressReports::new(Instant::now());
        loop {
            match pull.next().await {
                PullStep::Ended(result) => return result,
                PullStep::Progress(progress) => {
                    self.reporter.publish_note(&pod.record, format!("pulling {reference}: {progress}"));
                    if reports.is_due(Instant::now()) {
                        let subject_pod = (pod.record.key.clone(), pod.record.uid.clone());
                        let subject = format!("Pulling image \"{reference}\": ");
                        let events = &self.reporter.events;
                        let field_path = slot.role.field_path(&slot.name);
                        events.emit_progress(&subject_pod, field_path, "Pulling", &subject, &progress.to_string());
                    }
                }
            }
        }
    }
}

/// kubelet's message for a pull that took `took`, or `waited` including the time before its turn.
fn pulled_message(reference: &str, took: Duration, waited: Duration, size: u64) -> String {
    let (took, waited) = (go_duration::show(took), go_duration::show(waited));
    format!(
        "Successfully pulled image \"{reference}\" in {took} ({waited} including waiting). Image size: {size} bytes."
    )
}

/// Decides when the progress of one pull is worth an event.
#[derive(Debug)]
struct ProgressReports {
    next: Instant,
}

impl ProgressReports {
    fn new(began: Instant) -> Self {
        Self { next: began + FIRST_REPORT }
    }

    /// Whether an event is due at `now`, in which case the next one is due later.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + REPORT_PACE;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_an_event_only_of_a_pull_that_takes_long() {
        let began = Instant::now();
        let mut reports = ProgressReports::new(began);
        let due: Vec<u64> = (0..1_000).filter(|second| reports.is_due(began + Duration::from_secs(*second))).collect();
        assert_eq!(due, [30, 330, 630, 930]);
        // Progress that comes late is reported when it comes.
        assert!(reports.is_due(began + Duration::from_secs(2_000)));
        assert!(!reports.is_due(began + Duration::from_secs(2_299)));
    }

    #[test]
    fn a_pull_is_reported_in_kubelets_words() {
        let message = pulled_message("web:1", Duration::from_millis(1_200), Duration::from_micros(1_500_900), 42);
        let wanted = "Successfully pulled image \"web:1\" in 1.2s (1.5s including waiting). Image size: 42 bytes.";
        assert_eq!(message, wanted);
    }
}
