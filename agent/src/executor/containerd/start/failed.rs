//! A start that failed: whether the attempt counts, and what the next one has to do.

use limpet_containerd::error::RuntimeError;
use limpet_core::outcome::Failure;
use limpet_core::state::{CONFIG_ERROR, RetryState};

use crate::executor::containerd::failure;

/// kubelet's exit code for a container whose process could not be started.
pub(super) const START_ERROR_CODE: i32 = 128;
/// kubelet's reason for it.
pub(in crate::executor::containerd) const START_ERROR: &str = "StartError";

/// How far a start got before it failed.
pub(super) enum StartFailure {
    /// Nothing was left behind that counts as an attempt, so it is tried again.
    Before(Failure),
    /// runc could not run it, so the attempt counts, with kubelet's `StartError`.
    Ended(String),
}

pub(super) fn refused(error: RuntimeError) -> StartFailure {
    StartFailure::Before(failure("CreateContainerError", &error))
}

pub(super) fn config_error(message: String) -> StartFailure {
    StartFailure::Before(Failure { reason: CONFIG_ERROR, message, transient: false })
}

/// Evaluates an error of `Tasks.Create` or `Tasks.Start`: only runc's own refusal counts as an attempt.
pub(super) fn run_error(error: RuntimeError) -> StartFailure {
    match &error {
        RuntimeError::Refused { message, .. } if is_shim_failure(message) => {
            StartFailure::Before(Failure { transient: true, ..failure("RunContainerError", &error) })
        }
        RuntimeError::Refused { message, .. } if !is_disk_full(message) => StartFailure::Ended(message.clone()),
        _ => StartFailure::Before(failure("RunContainerError", &error)),
    }
}

/// Whether the shim and not the container failed: it could not be started or reached, and the next attempt gets
/// another one.
fn is_shim_failure(message: &str) -> bool {
    ["failed to start shim", "TTRPC connection", "ttrpc: closed"].iter().any(|words| message.contains(words))
}

/// Whether containerd has refused twice because of the directory of a task that it does not know. A containerd that
/// was killed during `Tasks.Create` may leave it behind, and does not remove it before its next start.
pub(super) fn is_stale_bundle(failure: &Failure, before: Option<&RetryState>) -> bool {
    failure.message.contains("failed to start shim: mkdir")
        && failure.message.contains("file exists")
        && before.is_some_and(|before| before.message == failure.message)
}

fn is_disk_full(message: &str) -> bool {
    message.contains("no space left on device")
}

pub(super) fn is_lost_mount(message: &str) -> bool {
    message.contains("no such file or directory") && message.contains("mount")
}
