//! What killed a process: the kernel for want of memory, or somebody. Pure.

use std::time::Duration;

use std::time::Instant;

use crate::state::{Instance, Life};
use limpet_model::container::Exit;
use limpet_model::process::{SIGKILL, Sender};

/// An end this soon after another process of the container was killed is taken for its consequence.
const CONSEQUENCE: Duration = Duration::from_secs(2);

/// Sets the reason of an end by what killed `instance`, and says more of it, for a message, if there is more to say.
/// `counted`: the kernel has killed something in it for want of memory since it last survived that.
pub fn judge(exit: &mut Exit, instance: &Instance, counted: bool, now: Instant) -> Option<String> {
    if exit.reason != "Error" || exit.code <= 128 {
        return None;
    }
    let unasked = matches!(&instance.life, Life::Running { stopping: None, .. });
    let somebody = instance
        .signalled_by
        .as_ref()
        .filter(|sender| i64::from(exit.code) == 128 + i64::from(sender.signal) && sender.process.is_some());
    let victim = instance.oom_victim.as_ref().filter(|(_, at)| now.duration_since(*at) <= CONSEQUENCE);
    if exit.code == 128 + SIGKILL as i32 && (victim.is_some() || counted) && somebody.is_none() {
        exit.reason = "OOMKilled".to_owned();
        let other = victim.filter(|(victim, _)| !is_first(instance, victim.pid));
        return other.map(|(victim, _)| format!("out of memory: the kernel killed {victim}"));
    }
    somebody.filter(|_| unasked).map(told)
}

fn is_first(instance: &Instance, pid: u32) -> bool {
    matches!(&instance.life, Life::Running { pid: first, .. } if *first == pid)
}

fn told(sender: &Sender) -> String {
    let by = sender.process.as_ref().map(|process| format!(" by {process}, user id {}", sender.uid));
    format!("ended with signal {}{}", sender.signal, by.unwrap_or_default())
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

    fn judged(instance: &Instance, code: i32, counted: bool) -> (String, String) {
        let mut exit = exit(code);
        exit.reason = "Error".to_owned();
        let message = judge(&mut exit, instance, counted, Instant::now());
        (exit.reason, message.unwrap_or_default())
    }

    #[test]
    fn out_of_memory_is_the_reason_of_its_own_ends_only() {
        let said = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        let mut one = running();
        assert_eq!(judged(&one, 137, true), said("OOMKilled", ""));
        assert_eq!(judged(&one, 137, false), said("Error", ""));
        assert_eq!(judged(&one, 1, true), said("Error", ""), "it ended by itself");
        one.oom_victim = Some((process(1), Instant::now()));
        assert_eq!(judged(&one, 137, false), said("OOMKilled", ""));
        one.oom_victim = Some((process(7), Instant::now()));
        assert_eq!(judged(&one, 137, true), said("OOMKilled", "out of memory: the kernel killed htop (pid 7)"));
        one.signalled_by = Some(Sender { signal: 9, process: Some(process(8)), uid: 1000 });
        assert_eq!(judged(&one, 137, true), said("Error", "ended with signal 9 by htop (pid 8), user id 1000"));
    }

    #[test]
    fn who_sent_a_signal_is_told_unless_it_was_limpet() {
        let mut one = running();
        one.signalled_by = Some(Sender { signal: 15, process: Some(process(8)), uid: 0 });
        assert_eq!(judged(&one, 143, false).1, "ended with signal 15 by htop (pid 8), user id 0");
        assert_eq!(judged(&one, 137, false).1, "", "another signal");
        let now = Instant::now();
        let stopping = Some(crate::state::Stopping { kill_at: now, killed_at: None });
        one.life = Life::Running { pid: 1, process: None, stopping };
        assert_eq!(judged(&one, 143, false).1, "");
    }
}
