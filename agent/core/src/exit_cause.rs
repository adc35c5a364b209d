//! Finds the cause of a container's exit: an OOM kill by the kernel, or a signal from another process. Pure.

use std::time::{Duration, Instant};

use crate::state::{Instance, Life};
use limpet_model::container::Exit;
use limpet_model::process::{SIGKILL, Sender};

/// An exit this soon after the OOM kill of another process of the container counts as its consequence.
const OOM_CONSEQUENCE_WINDOW: Duration = Duration::from_secs(2);

/// Sets the exit's reason by what killed `instance`, and returns details for its message, if there are any.
/// `counted`: the kernel OOM-killed a process in the container since the last OOM kill that it survived. `None` if
/// the count is gone, because the container's cgroup went with its last process (cgroup v1 with systemd);
/// containerd's report counts then.
pub fn judge(exit: &mut Exit, instance: &Instance, counted: Option<bool>, now: Instant) -> Option<String> {
    if exit.reason != "Error" || exit.code <= 128 {
        return None;
    }
    let unrequested = matches!(&instance.life, Life::Running { stopping: None, .. });
    let sender = instance
        .signalled_by
        .as_ref()
        .filter(|sender| i64::from(exit.code) == 128 + i64::from(sender.signal) && sender.process.is_some());
    let is_recent = |at: &Instant| now.duration_since(*at) <= OOM_CONSEQUENCE_WINDOW;
    let victim = instance.oom_victim.as_ref().filter(|(_, at)| is_recent(at));
    let counted = counted.unwrap_or_else(|| instance.oom_reported.as_ref().is_some_and(is_recent));
    if exit.code == 128 + SIGKILL as i32 && (victim.is_some() || counted) && sender.is_none() {
        exit.reason = "OOMKilled".to_owned();
        let other = victim.filter(|(victim, _)| !is_first(instance, victim.pid));
        return other.map(|(victim, _)| format!("out of memory: the kernel killed {victim}"));
    }
    sender.filter(|_| unrequested).map(signal_message)
}

fn is_first(instance: &Instance, pid: u32) -> bool {
    matches!(&instance.life, Life::Running { pid: first, .. } if *first == pid)
}

fn signal_message(sender: &Sender) -> String {
    let from = sender.process.as_ref().map(|process| format!(" from {process}, user id {}", sender.uid));
    format!("killed by signal {}{}", sender.signal, from.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{exit, instance, pod};
    use limpet_model::process::ProcessName;

    fn running() -> Instance {
        let mut running = instance(&pod("Always", &[], &["a"]).containers[0], 0);
        running.life = Life::Running { pid: 1, process: None, stopping: None };
        running
    }

    fn process(pid: u32) -> ProcessName {
        ProcessName { pid, command: "htop".to_owned() }
    }

    fn cause_of(instance: &Instance, code: i32, counted: bool) -> (String, String) {
        let mut exit = exit(code);
        exit.reason = "Error".to_owned();
        let message = judge(&mut exit, instance, Some(counted), Instant::now());
        (exit.reason, message.unwrap_or_default())
    }

    #[test]
    fn only_exits_caused_by_an_oom_kill_have_the_reason_oom_killed() {
        let expected = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        let mut instance = running();
        assert_eq!(cause_of(&instance, 137, true), expected("OOMKilled", ""));
        assert_eq!(cause_of(&instance, 137, false), expected("Error", ""));
        assert_eq!(cause_of(&instance, 1, true), expected("Error", ""), "it exited by itself");
        instance.oom_victim = Some((process(1), Instant::now()));
        assert_eq!(cause_of(&instance, 137, false), expected("OOMKilled", ""));
        instance.oom_victim = Some((process(7), Instant::now()));
        assert_eq!(
            cause_of(&instance, 137, true),
            expected("OOMKilled", "out of memory: the kernel killed htop (pid 7)")
        );
        instance.signalled_by = Some(Sender { signal: 9, process: Some(process(8)), uid: 1000 });
        assert_eq!(
            cause_of(&instance, 137, true),
            expected("Error", "killed by signal 9 from htop (pid 8), user id 1000")
        );
    }

    #[test]
    fn without_a_count_a_report_of_a_moment_ago_is_the_cause() {
        let now = Instant::now();
        for (seconds_ago, counted, reason) in [
            (Some(1), None, "OOMKilled"),
            (Some(60), None, "Error"),
            (None, None, "Error"),
            (Some(1), Some(false), "Error"),
        ] {
            let reported = seconds_ago.map(|seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap_or(now));
            let instance = Instance { oom_reported: reported, ..running() };
            let mut exit = Exit { reason: "Error".to_owned(), ..exit(137) };
            judge(&mut exit, &instance, counted, now);
            assert_eq!(exit.reason, reason, "{seconds_ago:?} {counted:?}");
        }
    }

    #[test]
    fn the_sender_of_a_signal_is_reported_unless_limpet_requested_the_stop() {
        let mut instance = running();
        instance.signalled_by = Some(Sender { signal: 15, process: Some(process(8)), uid: 0 });
        assert_eq!(cause_of(&instance, 143, false).1, "killed by signal 15 from htop (pid 8), user id 0");
        assert_eq!(cause_of(&instance, 137, false).1, "", "another signal");
        let now = Instant::now();
        let stopping = Some(crate::state::Stopping::begin(Duration::ZERO, false, now));
        instance.life = Life::Running { pid: 1, process: None, stopping };
        assert_eq!(cause_of(&instance, 143, false).1, "");
    }
}
