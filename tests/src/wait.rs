//! Waits for what can be observed, with a limit and a reason, and never for a fixed time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// How long a test waits for what should happen soon. The limit is generous, because it is only reached on failure.
pub const SOON: Duration = Duration::from_secs(60);

/// Multiplies every wait on a machine that is slow because it is emulated.
pub const PATIENCE_VARIABLE: &str = "LIMPET_TEST_PATIENCE";

/// How often the observation is made.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C and SIGTERM end every wait with an error from here on, so that what was made is removed again. A second
/// signal ends the process at once.
pub fn end_on_signal() {
    let install = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("\ninterrupted: cleaning up (once more to leave everything as it is)");
    });
    // Only a second call in one process fails, and then the handler is already installed.
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
pub fn until<T>(limit: Duration, what: &str, observe: impl FnMut() -> Option<T>) -> Result<T> {
    watch(POLL_INTERVAL, limit, what, interrupted, observe)
}

/// [`until`] with another time between two observations, for those that cost what they observe much of its time.
pub fn until_every<T>(
    interval: Duration,
    limit: Duration,
    what: &str,
    observe: impl FnMut() -> Option<T>,
) -> Result<T> {
    watch(interval, limit, what, interrupted, observe)
}

/// Waits until `fact` holds, even if the run is interrupted. For code that cleans up.
pub fn until_clean(limit: Duration, what: &str, mut fact: impl FnMut() -> bool) -> Result<()> {
    watch(POLL_INTERVAL, limit, what, || false, || fact().then_some(()))
}

fn watch<T>(
    interval: Duration,
    limit: Duration,
    what: &str,
    interrupted: impl Fn() -> bool,
    mut observe: impl FnMut() -> Option<T>,
) -> Result<T> {
    let (start, limit) = (Instant::now(), patient(limit));
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
        std::thread::sleep(interval);
    }
}

/// Waits until `fact` holds.
pub fn until_true(limit: Duration, what: &str, mut fact: impl FnMut() -> bool) -> Result<()> {
    until(limit, what, || fact().then_some(()))
}

/// Waits until `look` finds nothing.
///
/// # Errors
/// At once when `look` fails: a listing that cannot be made is not an empty one. After `limit` with what was found last.
pub fn until_none(limit: Duration, what: &str, mut look: impl FnMut() -> Result<Vec<String>>) -> Result<()> {
    let mut objections = Vec::new();
    let looked = until(limit, what, || match look() {
        Ok(now) => {
            objections = now;
            objections.is_empty().then_some(Ok(()))
        }
        Err(error) => Some(Err(error)),
    });
    looked
        .with_context(|| format!("found last:\n{}", objections.join("\n")))?
        .with_context(|| format!("cannot look for {what}"))
}

/// [`SOON`], adapted to a slow machine, for `timeout` and the like.
pub fn soon() -> Duration {
    patient(SOON)
}

/// `limit`, extended on a slow machine. Every limit of a test passes through here, either in [`until`] or directly.
pub fn patient(limit: Duration) -> Duration {
    let set = std::env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok());
    limit * set.unwrap_or(1)
}

/// Lets `time` pass without waiting for anything, for benches that measure an idle process.
///
/// # Errors
/// The run is interrupted.
pub fn pass(time: Duration) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        ensure!(!interrupted(), "interrupted");
        std::thread::sleep(Duration::from_millis(500).min(time));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_fails_is_not_one_that_finds_nothing() {
        let mut looks = 0;
        let error = until_none(SOON, "nothing", || {
            looks += 1;
            if looks == 1 { Ok(vec!["a snapshot".to_owned()]) } else { bail!("no containerd") }
        });
        assert!(format!("{:#}", error.unwrap_err()).contains("no containerd"));
        assert_eq!(looks, 2);
        until_none(SOON, "nothing", || Ok(Vec::new())).unwrap();
    }

    #[test]
    fn what_was_found_last_is_in_the_error() {
        let error = until_none(Duration::ZERO, "nothing", || Ok(vec!["a snapshot".to_owned()]));
        assert!(format!("{:#}", error.unwrap_err()).contains("a snapshot"));
    }
}
