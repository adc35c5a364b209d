//! `limpet events`: the node's events, in kubectl's columns.

use clap_complete::engine::ArgValueCompleter;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use super::error::{CliError, EXIT_UNREACHABLE};
use super::output::DocumentFormat;
use super::screen::{Screen, Tone};
use super::table::{Cell, Table};
use super::{age, completion, target};
use limpet_wire::socket_client::{ClientError, SocketClient};

/// Arguments of `limpet events`.
#[derive(Debug, clap::Args)]
pub struct EventsArgs {
    /// Only the events of this pod
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completion::pods))]
    pod: Option<String>,
    /// The pod's namespace
    #[arg(short, long, value_name = "NAME", requires = "pod")]
    namespace: Option<String>,
    /// Watch for further events
    #[arg(short, long)]
    watch: bool,
    /// An EventList; with -w one Event per line
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

pub(super) async fn run(client: &SocketClient, args: EventsArgs, screen: Screen) -> Result<u8, CliError> {
    let about = match &args.pod {
        Some(pod) => Some(pod_query(client, pod, args.namespace.as_deref()).await?),
        None => None,
    };
    if args.watch {
        return watch(client, about, args.output, screen).await;
    }
    let query = about.map(|about| format!("?{about}")).unwrap_or_default();
    let mut list: Value = client.get_json(&format!("/limpet/v1/events{query}")).await?;
    if let Some(format) = args.output {
        screen.print(&format.render(&list)?)?;
        return Ok(0);
    }
    let events: Vec<Event> = serde_json::from_value(list["items"].take())
        .map_err(|error| ClientError::Answer { path: "/limpet/v1/events".to_owned(), message: error.to_string() })?;
    if events.is_empty() {
        screen.remark("No events.")?;
        return Ok(0);
    }
    let now = Timestamp::now();
    screen.print(&all(&events, &screen, now))?;
    Ok(0)
}

/// The query for one pod. A removed pod still has events, so an unknown name is used as given.
async fn pod_query(client: &SocketClient, pod: &str, namespace: Option<&str>) -> Result<String, CliError> {
    let key = match target::find(client, pod, namespace).await {
        Ok(names) => format!("{}/{}", names.namespace, names.name),
        Err(CliError::Target(_)) if pod.contains('/') => pod.to_owned(),
        Err(error) => return Err(error),
    };
    // `&` and `=` separate query parameters and cannot be part of a name.
    if key.contains(['&', '#', '%', ' ']) {
        return Err(CliError::Usage(format!("{pod} is not the name of a pod")));
    }
    Ok(format!("pod={key}"))
}

async fn watch(
    client: &SocketClient,
    about: Option<String>,
    format: Option<DocumentFormat>,
    screen: Screen,
) -> Result<u8, CliError> {
    let about = about.map(|about| format!("&{about}")).unwrap_or_default();
    let mut lines = client.lines::<Event>(&format!("/limpet/v1/events?watch=1{about}")).await?;
    let mut table = table();
    while let Some(event) = lines.next().await? {
        let text = match format {
            Some(DocumentFormat::Json) => {
                let line = serde_json::to_string(&event).map_err(std::io::Error::other)?;
                format!("{line}\n")
            }
            Some(DocumentFormat::Yaml) => format!("---\n{}", DocumentFormat::Yaml.render(&event)?),
            None => table.render(&screen, &[row(&event, Timestamp::now())]),
        };
        screen.print(&text)?;
    }
    screen.remark("limpet stopped; its pods keep running")?;
    Ok(EXIT_UNREACHABLE)
}

fn table() -> Table {
    Table::new(vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"])
}

fn row(event: &Event, now: Timestamp) -> Vec<Cell> {
    let kind = event.type_.as_deref().unwrap_or_default();
    let tone = if kind == "Warning" { Tone::Warn } else { Tone::Plain };
    let object = &event.involved_object;
    let object_kind = object.kind.as_deref().unwrap_or_default().to_lowercase();
    vec![
        Cell::from(seen(event, now)),
        Cell::toned(kind, tone),
        Cell::from(event.reason.as_deref().unwrap_or_default()),
        Cell::from(format!("{object_kind}/{}", object.name.as_deref().unwrap_or_default())),
        Cell::from(message(event)),
    ]
}

/// How long ago it last happened: `40s`.
fn seen(event: &Event, now: Timestamp) -> String {
    event.last_timestamp.as_ref().map_or_else(|| "<unknown>".to_owned(), |last| age::since(last.0, now))
}

/// The message, with the count if it happened more than once.
fn message(event: &Event) -> String {
    let text = event.message.as_deref().unwrap_or_default().trim_end();
    match event.count.unwrap_or(1) {
        0 | 1 => text.to_owned(),
        count => format!("{text} (x{count})"),
    }
}

/// The table of all events.
pub(super) fn all(events: &[Event], screen: &Screen, now: Timestamp) -> String {
    table().render(screen, &events.iter().map(|event| row(event, now)).collect::<Vec<_>>())
}

/// The table at the end of `limpet describe`: without the object, which is the pod.
pub(super) fn section(events: &[Event], screen: &Screen, now: Timestamp) -> String {
    let cells = |event: &Event| -> Vec<Cell> {
        let mut row = row(event, now);
        row.remove(3);
        row
    };
    let mut table = Table::new(vec!["LAST SEEN", "TYPE", "REASON", "MESSAGE"]);
    table.render(screen, &events.iter().map(cells).collect::<Vec<_>>())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_counted_and_aligned() {
        let event = |kind: &str, reason: &str, count: i32, message: &str| -> Event {
            serde_json::from_value(json!({
                "metadata": {}, "type": kind, "reason": reason, "count": count, "message": message,
                "involvedObject": {"kind": "Pod", "name": "web-edge1"}, "lastTimestamp": "2026-01-01T00:00:20Z",
            }))
            .unwrap()
        };
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let events =
            [event("Normal", "Pulled", 1, "Image is there"), event("Warning", "BackOff", 4, "Back-off\nrestarting")];
        let screen = Screen { color: false, quiet: false };
        assert_eq!(
            all(&events, &screen, now),
            "LAST SEEN   TYPE      REASON    OBJECT          MESSAGE\n\
             40s         Normal    Pulled    pod/web-edge1   Image is there\n\
             40s         Warning   BackOff   pod/web-edge1   Back-off\\nrestarting (x4)\n"
        );
        assert!(section(&events, &screen, now).starts_with("LAST SEEN   TYPE      REASON    MESSAGE\n40s "));
    }
}
