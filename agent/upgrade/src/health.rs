//! Reads the node's state from an agent, through its socket.

use std::collections::BTreeSet;
use std::path::Path;

use limpet_wire::pods::SourceDocument;
use limpet_wire::socket_client::{ClientError, SocketClient};
use limpet_wire::status::StatusDocument;
use serde::Deserialize;

use crate::plan::Observation;

/// The part of `/limpet/v1/pods` that is read: little, so that agents of all releases can be asked.
#[derive(Debug, Deserialize)]
struct Pods {
    pods: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    pod: Pod,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
}

#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    phase: String,
}

/// Asks the agent at `socket`; `None` if it does not answer.
pub(crate) async fn observe(socket: &Path) -> Option<Observation> {
    let client = SocketClient::new(socket);
    let status: StatusDocument = client.get_json("/limpet/v1/status").await.ok()?;
    ask(&client, &status).await.ok()
}

/// The same for an agent whose status is known.
///
/// # Errors
///
/// It does not answer.
pub(crate) async fn ask(client: &SocketClient, status: &StatusDocument) -> Result<Observation, ClientError> {
    let Pods { pods } = client.get_json("/limpet/v1/pods").await?;
    let sources: Vec<SourceDocument> = client.get_json("/limpet/v1/sources").await?;
    let is_read = |source: &SourceDocument| matches!(source.health.as_str(), "good" | "blind");
    // A pod is pending until its containers are found or started.
    let has_begun =
        |pod: &Pod| pod.status.as_ref().is_some_and(|status| !matches!(status.phase.as_str(), "" | "Pending"));
    Ok(Observation {
        containerd: status.containerd,
        pods: pods
            .into_iter()
            .map(|entry| entry.pod)
            .filter(has_begun)
            .map(|pod| (pod.metadata.uid, pod.metadata.name))
            .collect(),
        sources: sources.into_iter().filter(is_read).map(|source| source.source).collect::<BTreeSet<_>>(),
    })
}
