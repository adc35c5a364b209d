//! One client: takes its streams in pairs and forwards each, until the client, the pod or the agent ends.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::forward::forward;
use super::pairs::Pairs;
use super::{PortForwardState, SessionPermit, Target};
use limpet_host::clock::sleep_until_or_forever;
use limpet_wire::spdy::connection::{Handle, Role, Stream, connection};
use limpet_wire::spdy::frame::Status;

/// The deadline for a client to receive the last frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a client over `io`. All its connections end with this call.
pub(super) async fn serve(
    io: impl AsyncRead + AsyncWrite,
    state: PortForwardState,
    target: Target,
    _place: SessionPermit,
) {
    let (mut streams, driver) = connection(io, Role::Server, state.idle);
    let mut driver = std::pin::pin!(driver);
    tokio::select! {
        () = &mut driver => return,
        () = pair_up(&mut streams, &state, &target) => {}
        () = target.ended(&state.observed) => tracing::debug!(pod = %target.key, "port forwarding ended: its pod has ended"),
        () = state.stop.cancelled() => {}
    }
    let close = async { tokio::join!(streams.close(), driver) };
    // Does not wait longer for a client that reads nothing.
    let _ = timeout(CLOSE_TIMEOUT, close).await;
}

/// Forwards each pair of streams in a task of its own. Returns when the connection has ended.
async fn pair_up(streams: &mut Handle, state: &PortForwardState, target: &Target) {
    let mut forwards = JoinSet::new();
    let mut pairs = Pairs::<Stream>::default();
    loop {
        let deadline = pairs.deadline();
        let waited = sleep_until_or_forever(deadline);
        let stream = tokio::select! {
            stream = streams.accept() => stream,
            Some(_) = forwards.join_next() => continue,
            () = waited => {
                for stream in pairs.expired(Instant::now()) {
                    stream.output.reset(Status::Cancel).await;
                }
                continue;
            }
        };
        let Some(stream) = stream else { return };
        let (id, headers) = (stream.id, stream.headers.clone());
        match pairs.add(id, &headers, stream, Instant::now()) {
            Ok(Some(pair)) => {
                let connected = (state.connect)(target, pair.port);
                forwards.spawn(forward(pair, connected, target.clone()));
            }
            Ok(None) => {}
            Err(stream) => stream.output.reset(Status::Refused).await,
        }
    }
}
