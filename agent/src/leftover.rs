//! Processes that an agent which was killed has left at work: found by their environment, and ended.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Kills every process in whose environment the variable `name` is `value`. Reads all of `/proc`: for what a crash has
/// left only.
pub async fn end(name: &'static str, value: &str) {
    let value = value.to_owned();
    // A panic in it leaves the process where it is, as before.
    let _ = tokio::task::spawn_blocking(move || end_others(name, &value)).await;
}

/// The same for who may block, and is not meant itself.
pub fn end_others(name: &str, value: &str) {
    let (wanted, own) = (format!("{name}={value}"), rustix::process::getpid());
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|pid| *pid != own) else { continue };
        // The process is held before its environment is read, so that no other one gets its number in between.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes()) {
            tracing::info!(pid = pid.as_raw_nonzero(), wanted, "a process that was left behind is ended");
            // It may have ended by itself.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn what_carries_the_value_is_ended_and_nothing_else() {
        let own = format!("leftover-{}", std::process::id());
        let sleeper = |value: &str| Command::new("sleep").arg("1000").env("LIMPET_LEFTOVER", value).spawn().unwrap();
        let (mut wanted, mut other) = (sleeper(&own), sleeper(&format!("{own}0")));
        end("LIMPET_LEFTOVER", &own).await;
        assert!(!wanted.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
