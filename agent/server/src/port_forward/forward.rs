//! One forwarded connection: bytes between a pair of streams and a port of the pod.

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

/// A client that sends no more may still wait for an answer. A pod that answers nothing for so long is not waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Forwards between `pair` and what `connected` connects to, until the pod closes the connection or the client resets it.
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
                // A connection that has ended needs no message.
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

/// Copies both ways; returns when the pod sends no more.
async fn copy(pod: TcpStream, client: Input, to_client: &Output) {
    let (from_pod, to_pod) = pod.into_split();
    let answers = AtomicU64::new(0);
    let asked = async {
        tcp::receive(client, to_pod).await;
        silent(&answers).await;
    };
    tokio::select! {
        // Its only error: the connection to the client has ended.
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
