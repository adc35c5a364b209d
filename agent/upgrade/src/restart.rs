//! Restarts the agent: through systemd if it is the process of a unit, which also restores its privileges; else by
//! itself, in its own process, which works with any init system and with none.

use std::path::Path;
use std::time::Duration;

use limpet_cli::error::CliError;
use limpet_host::{peer, program};
use limpet_wire::socket_client::{ClientError, SocketClient};
use tokio::process::Command;

const SYSTEMCTL_TIMEOUT: Duration = Duration::from_secs(30);

/// Restarts the agent to which `client` is connected. Returns once that has begun.
///
/// # Errors
///
/// It cannot be restarted.
pub(crate) async fn restart(client: &SocketClient) -> Result<(), CliError> {
    if let Some(unit) = unit(client.socket()).await {
        let done = systemctl(&["restart", "--no-block", &unit]).await;
        return match done {
            Some(_) => Ok(()),
            None => Err(CliError::Target(format!("systemctl restart {unit} failed"))),
        };
    }
    match client.post_json::<serde_json::Value>("/limpet/v1/agent/restart", &()).await {
        // It may be gone before it has answered.
        Ok(_) | Err(ClientError::Connection { .. } | ClientError::Answer { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The unit whose main process the agent is.
async fn unit(socket: &Path) -> Option<String> {
    if !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    let pid = peer::pid(socket).ok()??;
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let unit = unit_in(&cgroups)?.to_owned();
    let main = systemctl(&["show", "--property", "MainPID", "--value", &unit]).await?;
    (main.trim() == pid.to_string()).then_some(unit)
}

/// The service in the lines of `/proc/<pid>/cgroup`.
fn unit_in(cgroups: &str) -> Option<&str> {
    cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .flat_map(|path| path.split('/'))
        .find(|part| part.ends_with(".service"))
}

/// Its output; `None` if it failed, or does not exist.
async fn systemctl(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("systemctl");
    command.args(arguments);
    let output = program::run(command, b"", SYSTEMCTL_TIMEOUT).await.ok()?;
    output.success.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_in_the_path_of_the_cgroup() {
        for (cgroups, expected) in [
            ("0::/system.slice/limpet.service\n", Some("limpet.service")),
            ("12:pids:/\n1:name=systemd:/system.slice/limpet.service/agent\n", Some("limpet.service")),
            ("0::/user.slice/user-0.slice/session-3.scope\n", None),
            ("", None),
        ] {
            assert_eq!(unit_in(cgroups), expected, "{cgroups}");
        }
    }
}
