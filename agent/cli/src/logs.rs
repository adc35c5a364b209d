//! `limpet logs`: a container's log, as kubectl shows it.

use std::io::Write as _;

use clap_complete::engine::ArgValueCompleter;
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};

use super::completion;
use super::error::CliError;
use super::target::{container, find};
use limpet_wire::socket_client::{ClientError, SocketClient};

/// `limpet logs`.
#[derive(Debug, clap::Args)]
pub struct LogsArgs {
    /// The pod: its name, with or without the node name, or namespace/name
    #[arg(add = ArgValueCompleter::new(completion::pods))]
    pod: String,
    /// Follow the log until the container exits
    #[arg(short, long)]
    follow: bool,
    /// The previous instance
    #[arg(short, long)]
    previous: bool,
    /// The newest lines only; -1 for all
    #[arg(long, value_name = "LINES", default_value_t = -1, allow_negative_numbers = true)]
    tail: i64,
    /// Lines no older than this: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "since_time")]
    since: Option<SignedDuration>,
    /// Lines of this time or later (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since_time: Option<Timestamp>,
    /// Prefix each line with its time
    #[arg(long)]
    timestamps: bool,
    /// Stop after so many bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    limit_bytes: Option<u64>,
    /// The container; the pod's first one if not given
    #[arg(short, long, add = ArgValueCompleter::new(completion::containers))]
    container: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    namespace: Option<String>,
}

/// A positive duration.
fn duration(text: &str) -> Result<SignedDuration, String> {
    let duration: SignedDuration = text.parse().map_err(|_| "expected a duration such as 30s, 5m or 2h".to_owned())?;
    if duration.is_positive() { Ok(duration) } else { Err("expected a duration above zero".to_owned()) }
}

/// Prints the log to stdout as it arrives.
///
/// # Errors
/// When the agent cannot be reached, has no such log, or the output cannot be written.
pub(crate) async fn run(client: &SocketClient, args: LogsArgs) -> Result<u8, CliError> {
    let pod = find(client, &args.pod, args.namespace.as_deref()).await?;
    let container = container(&pod, args.container.as_deref())?;
    let path = format!("/containerLogs/{}/{}/{container}?{}", pod.namespace, pod.name, query(&args));
    print(client, &path).await
}

/// Prints the log at `path` as it arrives.
///
/// # Errors
/// As [`run`].
pub(super) async fn print(client: &SocketClient, path: &str) -> Result<u8, CliError> {
    let mut body = client.accepted(client.get(path).await?).await?.into_body();
    let mut out = std::io::stdout().lock();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ClientError::Connection {
            socket: client.socket().to_owned(),
            message: error.to_string(),
        })?;
        if let Some(data) = frame.data_ref() {
            out.write_all(data)?;
            // Each chunk is flushed, so that a follower sees it immediately.
            out.flush()?;
        }
    }
    Ok(0)
}

fn query(args: &LogsArgs) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, set) in [("follow", args.follow), ("previous", args.previous), ("timestamps", args.timestamps)] {
        if set {
            query.append_pair(name, "true");
        }
    }
    let since = args.since.map(|since| since.as_secs() + i64::from(since.subsec_nanos() > 0));
    let values = [
        ("tailLines", u64::try_from(args.tail).ok().map(|lines| lines.to_string())),
        ("sinceSeconds", since.map(|seconds| seconds.to_string())),
        ("sinceTime", args.since_time.map(|time| time.to_string())),
        ("limitBytes", args.limit_bytes.map(|bytes| bytes.to_string())),
    ];
    for (name, value) in values {
        if let Some(value) = value {
            query.append_pair(name, &value);
        }
    }
    query.finish()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LogsArgs,
    }

    #[test]
    fn arguments_become_kubelets_query_parameters() {
        for (line, expected) in [
            ("web", ""),
            ("web -f -p --timestamps --tail 20", "follow=true&previous=true&timestamps=true&tailLines=20"),
            ("web --tail=-1", ""),
            ("web --tail -1", ""),
            ("web --tail 0 --since 1h30m", "tailLines=0&sinceSeconds=5400"),
            ("web --since 1.5s", "sinceSeconds=2"),
            ("web --since-time 2026-01-02T03:04:05+02:00", "sinceTime=2026-01-02T01%3A04%3A05Z"),
            ("web --limit-bytes 7", "limitBytes=7"),
        ] {
            let line = Line::try_parse_from(["logs"].into_iter().chain(line.split(' '))).map_err(|e| e.to_string());
            assert_eq!(query(&line.unwrap().args), expected);
        }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for line in [
            "",
            "web --since soon",
            "web --since -5m",
            "web --limit-bytes 0",
            "web --since 5m --since-time 2026-01-02T03:04:05Z",
        ] {
            let words = line.split(' ').filter(|word| !word.is_empty());
            assert!(Line::try_parse_from(["logs"].into_iter().chain(words)).is_err(), "{line}");
        }
    }
}
