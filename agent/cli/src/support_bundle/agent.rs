//! The agent's documents, each fetched, redacted and written before the next one.

use std::io::{self, Write};
use std::time::Duration;

use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use super::archive::Archive;
use super::redaction;
use crate::error::CliError;
use crate::screen::Screen;
use crate::{describe, events, pods};
use limpet_wire::pods::{DescribeDocument, PodNames};
use limpet_wire::socket_client::SocketClient;

/// The deadline of one document.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of a response.
const MAX_ANSWER: usize = 16 << 20;
/// The output format of tables in files.
const PLAIN: Screen = Screen { color: false, quiet: false };

/// Documents without values that users chose: their paths and routes.
const DOCUMENTS: [(&str, &str); 5] = [
    ("version.json", "/limpet/v1/version"),
    ("sources.json", "/limpet/v1/sources"),
    ("images.json", "/limpet/v1/images"),
    ("images-disk.json", "/limpet/v1/images/disk"),
    ("stats-summary.json", "/stats/summary"),
];
/// Pages of metrics.
const PAGES: [(&str, &str); 5] = [
    ("metrics/agent.txt", "/metrics"),
    ("metrics/resource.txt", "/metrics/resource"),
    ("metrics/cadvisor.txt", "/metrics/cadvisor"),
    ("metrics/probes.txt", "/metrics/probes"),
    ("healthz.txt", "/healthz"),
];

/// Adds the agent's documents. Returns the configuration in effect. `printed` includes output of containers'
/// programs.
pub(super) async fn add<W: Write>(
    archive: &mut Archive<W>,
    client: &SocketClient,
    printed: bool,
) -> io::Result<Option<Value>> {
    for (path, route) in DOCUMENTS {
        match json(client, route).await {
            Ok(document) => archive.json(path, &document)?,
            Err(why) => archive.lacks(path, &why),
        }
    }
    for (path, route) in PAGES {
        let page = answer(client, route).await;
        archive.text_or_why(path, page.map(|page| String::from_utf8_lossy(&page).into_owned()))?;
    }
    match json(client, "/limpet/v1/events").await {
        Ok(list) => add_events(archive, list, printed)?,
        Err(why) => archive.lacks("events.json", &why),
    }
    add_pods(archive, client, printed).await?;
    match json(client, "/configz").await {
        Ok(configuration) => Ok(Some(configuration)),
        Err(why) => {
            archive.lacks("the configuration in effect; configz.json is what the file says", &why);
            Ok(None)
        }
    }
}

fn add_events<W: Write>(archive: &mut Archive<W>, mut list: Value, printed: bool) -> io::Result<()> {
    redaction::pod(&mut list, printed);
    archive.json("events.json", &list)?;
    let events: Vec<Event> = serde_json::from_value(list["items"].take()).map_err(io::Error::other)?;
    archive.text("events.txt", &events::all(&events, &PLAIN, Timestamp::now()))
}

/// Adds each pod as in `limpet describe`, with its events and history, and a table of all pods.
async fn add_pods<W: Write>(archive: &mut Archive<W>, client: &SocketClient, printed: bool) -> io::Result<()> {
    let mut overview = pods::Overview::default();
    let names = match json(client, "/limpet/v1/names").await {
        Ok(names) => serde_json::from_value::<Vec<PodNames>>(names).map_err(io::Error::other)?,
        Err(why) => {
            archive.lacks("pods", &why);
            return Ok(());
        }
    };
    for PodNames { namespace, name, .. } in names {
        let path = format!("pods/{namespace}/{name}");
        match json(client, &format!("/limpet/v1/pods/{namespace}/{name}/describe")).await {
            Ok(mut document) => {
                redaction::pod(&mut document, printed);
                archive.json(&format!("{path}.json"), &document)?;
                match serde_json::from_value::<DescribeDocument>(document) {
                    Ok(document) => {
                        overview.add(&document.entry, Timestamp::now());
                        archive.text(&format!("{path}.txt"), &describe::render(&document, &PLAIN, Timestamp::now()))?;
                    }
                    Err(error) => archive.lacks(&format!("{path}.txt"), &error.to_string()),
                }
            }
            // The pod may have ended meanwhile.
            Err(why) => archive.lacks(&path, &why),
        }
    }
    archive.text("pods.txt", &overview.render(&PLAIN))
}

async fn json(client: &SocketClient, route: &str) -> Result<Value, String> {
    serde_json::from_slice(&answer(client, route).await?).map_err(|error| error.to_string())
}

/// The response's body, up to the limit, or why there is none.
async fn answer(client: &SocketClient, route: &str) -> Result<Vec<u8>, String> {
    let read = async {
        let mut body = client.accepted(client.get(route).await?).await?.into_body();
        let mut data = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| CliError::Target(error.to_string()))?;
            data.extend(frame.data_ref().into_iter().flatten());
            if data.len() > MAX_ANSWER {
                return Err(CliError::Target(format!("more than {MAX_ANSWER} bytes")));
            }
        }
        Ok(data)
    };
    match tokio::time::timeout(DOCUMENT_TIMEOUT, read).await {
        Ok(answer) => answer.map_err(|error: CliError| error.to_string()),
        Err(_) => Err(format!("no answer in {} s", DOCUMENT_TIMEOUT.as_secs())),
    }
}
