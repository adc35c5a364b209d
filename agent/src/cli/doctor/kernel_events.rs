//! What the checks of the kernel's events share: how long an event may take, and which BPF programs do not work.

use std::collections::BTreeMap;
use std::time::Duration;

use limpet_bpf::{ProgramState, Purpose};

/// How long an event may take.
pub(super) const EVENT_TIMEOUT: Duration = Duration::from_secs(3);

/// The programs for `purpose` that do not work here, grouped by reason.
pub(super) fn refused(programs: &[ProgramState], purpose: Purpose) -> Option<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for program in programs.iter().filter(|program| program.purpose == purpose) {
        if let Some(failure) = &program.failure {
            reasons.entry(failure).or_default().push(program.hook);
        }
    }
    let each = reasons.iter().map(|(reason, hooks)| format!("{} refused: {reason}", hooks.join(", ")));
    (!reasons.is_empty()).then(|| each.collect::<Vec<_>>().join("; "))
}
