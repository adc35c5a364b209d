//! `limpet shutdown`: ends the pods of this node in order before the machine is turned off, and waits for that.

use std::collections::BTreeMap;

use limpet_core::node_shutdown::{PodEndState, ShutdownProgress};
use limpet_wire::socket_client::{ClientError, SocketClient};
use limpet_wire::status::ShutdownCancelled;

use super::error::{CliError, EXIT_FAULTS};
use super::screen::{Screen, printable};

/// Arguments of `limpet shutdown`.
#[derive(Debug, clap::Args)]
pub struct ShutdownArgs {
    /// Run the pods again that a shutdown has ended
    #[arg(long)]
    cancel: bool,
}

pub(super) async fn run(client: &SocketClient, args: &ShutdownArgs, screen: Screen) -> Result<u8, CliError> {
    if args.cancel {
        let answer: ShutdownCancelled = client.post_json("/limpet/v1/shutdown/cancel", &()).await?;
        let text = if answer.cancelled { "cancelled: pods run again\n" } else { "the node is not shutting down\n" };
        screen.print(text)?;
        return Ok(0);
    }
    let mut lines = client.post_lines::<ShutdownProgress>("/limpet/v1/shutdown", &()).await?;
    let mut shown = BTreeMap::new();
    let mut last = ShutdownProgress::default();
    while let Some(progress) = lines.next().await? {
        remarks(&mut shown, &progress).iter().try_for_each(|line| screen.remark(line))?;
        last = progress;
    }
    if !last.done && last.shutting_down {
        let message = "limpet stopped before all pods had ended".to_owned();
        return Err(ClientError::Connection { socket: client.socket().to_owned(), message }.into());
    }
    let (text, code) = conclusion(&last);
    screen.print(&text)?;
    Ok(code)
}

/// The pods' states that have changed since the last call.
fn remarks(shown: &mut BTreeMap<String, PodEndState>, progress: &ShutdownProgress) -> Vec<String> {
    let mut lines = Vec::new();
    for ending in &progress.pods {
        if shown.insert(ending.pod.clone(), ending.state) == Some(ending.state) {
            continue;
        }
        let pod = printable(&ending.pod);
        lines.extend(match ending.state {
            PodEndState::Waiting => None,
            PodEndState::Ending => Some(format!("pod/{pod} ends, within {} s", ending.grace_seconds)),
            PodEndState::Ended => Some(format!("pod/{pod} has ended")),
            PodEndState::Overdue => Some(format!("pod/{pod} has not ended in time")),
        });
    }
    lines
}

/// The last line, and the exit code.
fn conclusion(last: &ShutdownProgress) -> (String, u8) {
    if !last.shutting_down {
        return ("the shutdown was cancelled: pods run again\n".to_owned(), EXIT_FAULTS);
    }
    let overdue = last.pods.iter().filter(|ending| ending.state == PodEndState::Overdue).count();
    match (overdue, last.pods.len()) {
        (0, 0) => ("no pod runs; none starts until the agent does, or limpet shutdown --cancel\n".to_owned(), 0),
        (0, all) => {
            (format!("{all} pods have ended; none starts until the agent does, or limpet shutdown --cancel\n"), 0)
        }
        (overdue, all) => (format!("{overdue} of {all} pods have not ended in time\n"), EXIT_FAULTS),
    }
}

#[cfg(test)]
mod tests {
    use limpet_core::node_shutdown::PodEndProgress;

    use super::*;

    fn progress(states: &[(&str, PodEndState)], done: bool) -> ShutdownProgress {
        let pods = states.iter().map(|(pod, state)| PodEndProgress {
            pod: (*pod).to_owned(),
            grace_seconds: 30,
            state: *state,
        });
        ShutdownProgress { shutting_down: true, done, pods: pods.collect() }
    }

    #[test]
    fn each_step_of_a_pod_is_said_once_and_the_exit_code_tells_of_those_left() {
        use PodEndState::{Ended, Ending, Overdue, Waiting};
        let mut shown = BTreeMap::new();
        let mut lines = |states: &[(&str, PodEndState)]| remarks(&mut shown, &progress(states, false));
        assert_eq!(lines(&[("shop/web", Ending), ("shop/net", Waiting)]), ["pod/shop/web ends, within 30 s"]);
        assert_eq!(lines(&[("shop/web", Ending), ("shop/net", Waiting)]), Vec::<String>::new());
        assert_eq!(
            lines(&[("shop/web", Ended), ("shop/net", Overdue)]),
            ["pod/shop/web has ended", "pod/shop/net has not ended in time"]
        );
        assert_eq!(conclusion(&progress(&[("shop/web", Ended)], true)).1, 0);
        assert_eq!(conclusion(&progress(&[], true)).1, 0);
        let left = conclusion(&progress(&[("shop/web", Ended), ("shop/net", Overdue)], true));
        assert_eq!(left, ("1 of 2 pods have not ended in time\n".to_owned(), EXIT_FAULTS));
        assert_eq!(conclusion(&ShutdownProgress::default()).1, EXIT_FAULTS, "cancelled by another one");
    }
}
