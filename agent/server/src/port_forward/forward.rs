//! One forwarded connection: copies bytes between a pair of streams and a port of the pod.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::Target;
use super::pairs::Pair;
use limpet_host::pod_port::PodPortError;
use limpet_wire::spdy::connection::{Input, Output, Stream};
use limpet_wire::spdy::tcp;

/// How long the pod may stay silent after the client has ended its input: the client may still wait for a response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Forwards between `pair` and the connection that `connected` opens, until the pod closes it or the client resets
/// it.
pub(super) async fn forward(
    pair: Pair<Stream>,
    connected: impl Future<Output = Result<TcpStream, PodPortError>>,
    target: Target,
) {
    let Pair { port, data, error } = pair;
    let reset = data.reset.clone();
    let work = async {
        match connected.await {
            Ok(pod) => copy(pod, data.input, &data.output).await,
            Err(cause) => {
                let (pod, uid) = (target.key.name(), &target.uid);
                let message = format!("error forwarding port {port} to pod {pod}, uid {uid}: {cause}");
                tracing::debug!("{message}");
                // If the connection has ended, the message is not needed.
                let _ = error.output.write(Bytes::from(message)).await;
            }
        }
    };
    tokio::select! {
        () = work => data.output.finish().await,
        () = reset.cancelled() => {}
    }
    error.output.finish().await;
}

/// Copies both ways until the pod sends no more.
async fn copy(pod: TcpStream, client: Input, to_client: &Output) {
    let (from_pod, to_pod) = pod.into_split();
    let answers = AtomicU64::new(0);
    let asked = async {
        tcp::receive(client, to_pod).await;
        silent(&answers).await;
    };
    tokio::select! {
        // The only error is that the connection to the client has ended.
        _ = tcp::send(&from_pod, to_client, &answers) => {}
        () = asked => {}
    }
}

/// Resolves when the pod has sent nothing for [`ANSWER_TIMEOUT`].
async fn silent(answers: &AtomicU64) {
    loop {
        let before = answers.load(Ordering::Relaxed);
        sleep(ANSWER_TIMEOUT).await;
        if answers.load(Ordering::Relaxed) == before {
            return;
        }
    }
}
