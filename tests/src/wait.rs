//! Waiting for what can be observed, with an end and a reason: never a fixed sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a test waits for what should happen soon. Generous: it is reached on failure only.
pub const SOON: Duration = Duration::from_secs(60);

/// Multiplies every wait on a machine that is slow because it is emulated.
const PATIENCE_VARIABLE: &str = "LIMPET_TEST_PATIENCE";

/// How often the observation is made.
const STEP: Duration = Duration::from_millis(20);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C and SIGTERM end every wait with an error, so that what was made is taken down again.
/// A second one ends the process at once.
pub fn end_on_signal() {
    let install = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("\ninterrupted: cleaning up (once more to leave everything as it is)");
    });
    // Only a second call in one process fails, and then the handler stands already.
    install.ok();
}

/// Whether the run was interrupted.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Waits until `observe` sees something and returns it.
///
/// # Errors
/// After `limit`, naming `what`; or when the run is interrupted.
pub fn until<T>(limit: Duration, what: &str, mut observe: impl FnMut() -> Option<T>) -> Result<T> {
    let (start, limit) = (Instant::now(), limit * patience());
    loop {
        if let Some(seen) = observe() {
            return Ok(seen);
        }
        if interrupted() {
            bail!("interrupted while waiting for {what}");
        }
        if start.elapsed() > limit {
            bail!("waited {limit:?} in vain for {what}");
        }
        std::thread::sleep(STEP);
    }
}

/// Waits until `fact` holds.
pub fn until_true(limit: Duration, what: &str, mut fact: impl FnMut() -> bool) -> Result<()> {
    until(limit, what, || fact().then_some(()))
}

fn patience() -> u32 {
    let set = std::env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok());
    set.unwrap_or(1)
}
