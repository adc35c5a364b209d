//! `ExecSync`: runs a command in a container and returns its output.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Status;

use super::super::exec::ExecState;
use limpet_containerd::exec::{self, CappedOutput, ExecError, ExecRequest};
use limpet_node_api::runtime as cri;

/// How much of stdout and of stderr is returned, in bytes; kubelet's limit. The rest is read and dropped.
const MAX_OUTPUT: usize = 8 << 20;

/// Runs the command to its end. If the client disconnects, the command is killed.
///
/// # Errors
///
/// `DEADLINE_EXCEEDED` after the request's timeout, in seconds; zero means none.
pub(super) async fn exec_sync(
    state: &ExecState,
    container_id: String,
    request: cri::ExecSyncRequest,
) -> Result<cri::ExecSyncResponse, Status> {
    let limit = u64::try_from(request.timeout).map_err(|_| Status::invalid_argument("a negative timeout"))?;
    let command = ExecRequest { container_id, command: request.cmd, tty: false, stdin: false };
    let (stdout, stderr) = (CappedOutput::new(MAX_OUTPUT), CappedOutput::new(MAX_OUTPUT));
    let running = async { exec::start(&state.client, &state.fifo_dir, command).await?.finish(&stdout, &stderr).await };
    let ended = match limit {
        0 => running.await,
        seconds => timeout(Duration::from_secs(seconds), running)
            .await
            .map_err(|_| Status::deadline_exceeded(format!("the command was killed after {seconds} s")))?,
    };
    let exit_code = ended.map_err(|error| failed(&error))?;
    Ok(cri::ExecSyncResponse { stdout: stdout.into_bytes(), stderr: stderr.into_bytes(), exit_code })
}

fn failed(error: &ExecError) -> Status {
    match error {
        ExecError::NoCommand => Status::invalid_argument(error.to_string()),
        ExecError::NotRunning { .. } => Status::failed_precondition(error.to_string()),
        _ => Status::unknown(error.to_string()),
    }
}
