//! kubelet's `/run`: runs a command in a container, without input, and responds with its output.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::Mutex;

use super::connection::OpenStreams;
use super::exec::{ContainerPath, ExecState, ExecTarget, OUTPUT_IDLE, paths};
use super::permission::{Permission, Subresource};
use super::routes::Routes;
use limpet_containerd::exec::{ExecError, ExecRequest, ExecSession, start};

/// The most output of a command that is kept, in bytes.
const MAX_OUTPUT: usize = 1 << 20;

/// kubelet's `/run/{namespace}/{pod}/{container}`, and the form with the pod's UID before the container.
pub(super) fn routes(state: ExecState) -> Routes {
    let permission = Permission::Nodes(Subresource::Proxy);
    paths("/run").iter().fold(Routes::default(), |routes, path| routes.post(path, permission, run)).with_state(state)
}

async fn run(
    State(state): State<ExecState>,
    Path(path): Path<ContainerPath>,
    Query(query): Query<Vec<(String, String)>>,
    request: Request,
) -> Response {
    let target = match ExecTarget::try_from(path) {
        Ok(target) => target,
        Err(error) => return error.into_response(),
    };
    let command = command(&query);
    if command.is_empty() {
        return (StatusCode::BAD_REQUEST, "no command: give cmd=PROGRAM, its arguments after spaces\n").into_response();
    }
    let container_id = match (state.lookup)(&target) {
        Ok(container) => container,
        Err(error) => return error.into_response(),
    };
    let open = request.extensions().get::<OpenStreams>().cloned().unwrap_or_default();
    let _place = match open.enter() {
        Ok(place) => place,
        Err(message) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{message}\n")).into_response(),
    };
    let request = ExecRequest { container_id, command, tty: false, stdin: false };
    let ran = async {
        let session = start(&state.client, &state.fifo_dir, request).await?;
        collect(session).await
    };
    let ended = tokio::select! {
        ended = ran => ended,
        () = state.stop.cancelled() => Err(ExecError::Ended),
    };
    answer(ended, &target.container)
}

/// The words of `cmd`, split at spaces as in kubelet; empty without a command.
fn command(query: &[(String, String)]) -> Vec<String> {
    let command = query.iter().find(|(key, _)| key == "cmd").map_or("", |(_, value)| value);
    if command.trim().is_empty() { Vec::new() } else { command.split(' ').map(ToOwned::to_owned).collect() }
}

/// A command's exit code and its output on both streams, as it came.
type Ran = (i32, Vec<u8>);

async fn collect(session: ExecSession) -> Result<Ran, ExecError> {
    let ExecSession { stdin: _, stdout, stderr, control: _control, mut exit } = session;
    let output = Arc::new(Mutex::new(Vec::new()));
    let streams = async {
        let stderr = async {
            if let Some(stderr) = stderr {
                read(stderr, &output).await;
            }
        };
        tokio::join!(read(stdout, &output), stderr);
    };
    let code = {
        let mut streams = std::pin::pin!(streams);
        tokio::select! {
            () = &mut streams => exit.wait().await?,
            code = exit.wait() => {
                let code = code?;
                // Reads what is left in the pipes, without waiting for a child that keeps them open.
                let _ = tokio::time::timeout(OUTPUT_IDLE, streams).await;
                code
            }
        }
    };
    let output = std::mem::take(&mut *output.lock().await);
    Ok((code, output))
}

/// Reads a stream to its end, because a full pipe would block the process. Keeps what there is room for.
async fn read(mut stream: impl AsyncRead + Unpin, output: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let mut output = output.lock().await;
        let room = MAX_OUTPUT.saturating_sub(output.len());
        output.extend_from_slice(&buffer[..count.min(room)]);
    }
}

/// kubelet's response: the output of a command that succeeded, else an error.
fn answer(ended: Result<Ran, ExecError>, container: &str) -> Response {
    match ended {
        Ok((0, output)) => ([(header::CONTENT_TYPE, "application/json")], output).into_response(),
        Ok((code, output)) => {
            let message = format!("command terminated with exit code {code}: {}\n", String::from_utf8_lossy(&output));
            (StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
        }
        Err(error) => {
            let message = format!("cannot run the command in container {container:?}: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_parted_by_spaces() {
        let parse = |cmd: &str| command(&[("cmd".to_owned(), cmd.to_owned())]);
        assert_eq!(parse("ls -l /"), ["ls", "-l", "/"]);
        assert_eq!(parse("true"), ["true"]);
        assert!(parse(" ").is_empty() && parse("").is_empty() && command(&[]).is_empty());
    }

    #[test]
    fn a_command_that_fails_is_an_error_with_its_output() {
        assert_eq!(answer(Ok((0, b"yes".to_vec())), "web").status(), StatusCode::OK);
        assert_eq!(answer(Ok((3, b"no".to_vec())), "web").status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer(Err(ExecError::NoCommand), "web").status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[tokio::test]
    async fn output_beyond_the_limit_is_read_and_dropped() {
        let output = Mutex::new(Vec::new());
        read(tokio::io::repeat(b'x').take(MAX_OUTPUT as u64 + 100_000), &output).await;
        assert_eq!(output.lock().await.len(), MAX_OUTPUT);
    }
}
