//! Decides what happens to an attachment whose DEL fails. Pure.
//!
//! A pod's removal must not be blocked by a configuration that never worked, or by a plugin that no longer exists.

use super::NetworkError;

/// CNI's error code for "try again later".
const TRY_AGAIN: u32 = 11;

/// The consequence of a failed DEL, with the recorded and the current configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// The DEL is repeated, and the pod stays until it succeeds.
    Repeat,
    /// The pod is removed. Its record stays, and the next start of the agent repeats the DEL.
    Postpone,
    /// The pod is removed with its record.
    Forget,
}

/// Decides by the failure, and by whether the ADD was completed: if not, at most a part of it remains, in a namespace
/// that is removed as well.
pub(super) fn after_failure(error: &NetworkError, never_came_up: bool) -> Release {
    match error {
        NetworkError::Plugin { code: Some(TRY_AGAIN), .. } => Release::Repeat,
        _ if never_came_up => Release::Forget,
        NetworkError::PluginMissing { .. } => Release::Postpone,
        _ => Release::Repeat,
    }
}

/// Whether the recorded configuration may have caused the failure, so that the current one is worth a try.
pub(super) fn may_be_of_configuration(error: &NetworkError) -> bool {
    !matches!(error, NetworkError::Plugin { code: Some(TRY_AGAIN), .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: Option<u32>) -> NetworkError {
        NetworkError::Plugin { pod: "n/p".into(), plugin: "bridge".into(), command: "del", code, message: "no".into() }
    }

    #[test]
    fn only_what_may_pass_keeps_a_pod() {
        let missing = NetworkError::PluginMissing { pod: "n/p".into(), plugin: "bridge".into(), dirs: "/opt".into() };
        let unreadable = NetworkError::Invocation {
            pod: "n/p".into(),
            plugin: String::new(),
            command: "del",
            reason: "its record has no configuration".into(),
        };
        let table = [
            (failed(Some(11)), Release::Repeat, Release::Repeat),
            (failed(Some(7)), Release::Repeat, Release::Forget),
            (failed(None), Release::Repeat, Release::Forget),
            (missing, Release::Postpone, Release::Forget),
            (unreadable, Release::Repeat, Release::Forget),
        ];
        for (error, came_up, never) in table {
            assert_eq!((after_failure(&error, false), after_failure(&error, true)), (came_up, never), "{error}");
        }
        assert!(may_be_of_configuration(&failed(Some(7))) && !may_be_of_configuration(&failed(Some(11))));
    }
}
