//! Arms the manifest guard, and reports the attempts that it refuses.

use std::sync::Arc;
use std::time::Duration;

use super::{AppError, SharedParts};
use crate::manifest_guard::{self, ArmError, AttemptReporter};
use limpet_host::blocking;
use limpet_host::cgroup::Cgroups;
use limpet_model::attribution::WatchObserver;
use limpet_telemetry::event::EventType;

/// How long arming the guard may take. It loads BPF programs and tries each rule, which takes seconds on a slow
/// processor.
const GUARD_DEADLINE: Duration = Duration::from_secs(60);

/// Arms the guard before anything is read. If it is required and cannot be armed, nothing starts.
pub(super) async fn arm_guard(
    shared: &SharedParts,
    cgroups: &Cgroups,
    observer: &Arc<dyn WatchObserver>,
) -> Result<(), AppError> {
    let (config, pods) = (Arc::clone(&shared.config), cgroups.pods_directory());
    let arming = blocking::run(config.root_dir.clone(), GUARD_DEADLINE, move |_| manifest_guard::arm(&config, pods));
    match arming.await.unwrap_or_else(|error| Err(ArmError::Failed(error))) {
        Ok(None) => {}
        Ok(Some(armed)) => {
            let reporter = AttemptReporter {
                events: shared.events.clone(),
                metrics: shared.metrics.clone(),
                observer: Arc::clone(observer),
            };
            shared.tasks.spawn(manifest_guard::report_attempts(armed, reporter, shared.stop.clone()));
        }
        Err(refusal) if shared.config.guard.required => return Err(refusal.into()),
        Err(refusal) => {
            tracing::error!("the manifest guard is not active: {refusal}");
            shared.events.emit(None, None, EventType::Warning, "ManifestGuardMissing", refusal.to_string());
        }
    }
    Ok(())
}
