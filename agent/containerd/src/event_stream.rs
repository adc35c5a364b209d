//! containerd's TaskExit and TaskOOM events, and whether containerd is reachable. BPF programs report what the kernel
//! adds.
//!
//! In: containerd's event stream. Out: [`LifecycleEvent`]s for the supervisor. An event is a hint about one container;
//! after every (re)connection the supervisor reads the whole state once. No event is missed in between: the
//! subscription is proven to be active before the state is read.

use std::path::Path;
use std::time::Duration;

use containerd_client::events::{TaskExit, TaskOom};
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::{PublishRequest, SubscribeRequest};
use containerd_client::types::Envelope;
use jiff::Timestamp;
use prost::{Message, Name};
use prost_types::Any;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use limpet_model::lifecycle::LifecycleEvent;

use crate::client::Client;
use crate::container::{exit_code, timestamp};
use limpet_host::path_watch::PathWatch;
use limpet_model::container::ContainerId;

/// The topic limpet publishes on to verify that its subscription is active.
const SUBSCRIBED_TOPIC: &str = "/limpet/subscribed";
/// How long the verification may take before the connection counts as broken.
const PROOF_DEADLINE: Duration = Duration::from_secs(10);
/// The first pause between attempts to reach a containerd whose socket exists.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Follows containerd until `stop`, through any number of its restarts.
pub async fn run(client: Client, events: mpsc::Sender<LifecycleEvent>, stop: CancellationToken) {
    let mut retry = INITIAL_RETRY_DELAY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            followed = follow(&client, &events) => match followed {
                Ok(()) => retry = INITIAL_RETRY_DELAY,
                Err(error) => tracing::debug!(%error, "containerd's event stream ended"),
            },
        }
        if events.send(LifecycleEvent::Disconnected).await.is_err() {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = socket_or_pause(client.socket(), retry) => retry = (retry * 2).min(MAX_RETRY_DELAY),
        }
    }
}

/// Waits until a missing socket appears or, while containerd does not answer on an existing one, for a growing pause.
async fn socket_or_pause(socket: &Path, pause: Duration) {
    if !socket.exists() {
        match appearance(socket).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, path = %socket.display(), "cannot watch for containerd's socket"),
        }
    }
    tokio::time::sleep(pause).await;
}

/// Resolves once `socket` exists.
async fn appearance(socket: &Path) -> std::io::Result<()> {
    let mut watch = PathWatch::file(socket).await?;
    // Checked after the watch is armed, so that a socket created in between is not missed.
    while !socket.exists() {
        watch.changed().await?;
    }
    Ok(())
}

/// One stream: subscribes, verifies the subscription, reports the connection, and forwards events until the stream ends.
async fn follow(client: &Client, events: &mpsc::Sender<LifecycleEvent>) -> Result<(), tonic::Status> {
    let token = format!("{}-{}", std::process::id(), Timestamp::now().as_nanosecond());
    let mut stream = subscribed(client, &token).await?;
    client.connected();
    if events.send(LifecycleEvent::Connected).await.is_err() {
        return Ok(());
    }
    while let Some(envelope) = stream.message().await? {
        if let Some(event) = decode(&envelope)
            && events.send(event).await.is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// Subscribes. The server answers a subscription only with its first event, so limpet publishes one itself.
async fn subscribed(client: &Client, token: &str) -> Result<Streaming<Envelope>, tonic::Status> {
    let filters = vec![
        format!("topic==\"/tasks/exit\",namespace=={}", crate::client::NAMESPACE),
        format!("topic==\"/tasks/oom\",namespace=={}", crate::client::NAMESPACE),
        format!("topic==\"{SUBSCRIBED_TOPIC}\""),
    ];
    let mut subscriber = EventsClient::new(client.channel());
    // Without a deadline, since the stream lives as long as containerd.
    let mut request = tonic::Request::new(SubscribeRequest { filters });
    request
        .metadata_mut()
        .insert("containerd-namespace", tonic::metadata::MetadataValue::from_static(crate::client::NAMESPACE));
    let subscribe = subscriber.subscribe(request);
    let prove = publish_until_dropped(client, token);
    tokio::pin!(subscribe, prove);
    let proven = async {
        let mut stream = tokio::select! {
            answer = &mut subscribe => answer?.into_inner(),
            failed = &mut prove => return Err(failed),
        };
        loop {
            match stream.message().await? {
                Some(envelope) if is_proof(&envelope, token) => return Ok(stream),
                Some(_) => {}
                None => return Err(tonic::Status::unavailable("the event stream ended")),
            }
        }
    };
    tokio::time::timeout(PROOF_DEADLINE, proven)
        .await
        .unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("containerd does not deliver events")))
}

/// Publishes the proof event repeatedly, because one published before the subscription was active is lost.
async fn publish_until_dropped(client: &Client, token: &str) -> tonic::Status {
    loop {
        let event = Any { type_url: "limpet/subscribed".to_owned(), value: token.as_bytes().to_vec() };
        let message = PublishRequest { topic: SUBSCRIBED_TOPIC.to_owned(), event: Some(event) };
        if let Err(status) = EventsClient::new(client.channel()).publish(client.request(message)).await {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_proof(envelope: &Envelope, token: &str) -> bool {
    envelope.topic == SUBSCRIBED_TOPIC && envelope.event.as_ref().is_some_and(|event| event.value == token.as_bytes())
}

/// The lifecycle event of an envelope; an exec's exit and other topics have none.
fn decode(envelope: &Envelope) -> Option<LifecycleEvent> {
    let event = envelope.event.as_ref()?;
    // containerd's type URLs have no host part.
    match event.type_url.trim_start_matches('/') {
        name if name == TaskExit::full_name() => {
            let exit = TaskExit::decode(event.value.as_slice()).ok()?;
            (exit.id == exit.container_id).then(|| LifecycleEvent::Exited {
                id: ContainerId::new(exit.container_id),
                pid: exit.pid,
                code: exit_code(exit.exit_status),
                at: timestamp(exit.exited_at.as_ref()),
            })
        }
        name if name == TaskOom::full_name() => {
            let oom = TaskOom::decode(event.value.as_slice()).ok()?;
            Some(LifecycleEvent::OutOfMemory { id: ContainerId::new(oom.container_id) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope<M: Message + Name>(message: &M) -> Envelope {
        let event = Any { type_url: M::full_name(), value: message.encode_to_vec() };
        Envelope { event: Some(event), ..Envelope::default() }
    }

    #[test]
    fn an_exit_of_the_init_process_counts_and_an_execs_does_not() {
        let exit = |id: &str| TaskExit {
            container_id: "c".into(),
            id: id.into(),
            pid: 7,
            exit_status: 137,
            ..TaskExit::default()
        };
        let event = decode(&envelope(&exit("c")));
        assert_eq!(
            event,
            Some(LifecycleEvent::Exited { id: ContainerId::new("c"), pid: 7, code: 137, at: Timestamp::UNIX_EPOCH })
        );
        assert_eq!(decode(&envelope(&exit("exec-1"))), None);
    }

    #[test]
    fn an_oom_names_its_container() {
        let event = decode(&envelope(&TaskOom { container_id: "c".into() }));
        assert_eq!(event, Some(LifecycleEvent::OutOfMemory { id: ContainerId::new("c") }));
    }
}
