//! `updates`: when updates that come by themselves are downloaded and applied, and how fast.

use std::path::PathBuf;
use std::time::Duration;

use limpet_host::wall_clock;
use limpet_model::clock::built;
use limpet_model::go_duration;
use limpet_model::object::workload::cron_job::Schedule;
use limpet_updates::{UpdateSettings, Window, WindowSettings};
use reqwest::header::HeaderMap;

use super::super::quantity;
use super::super::tree::{Entry, Map, Node, Value};
use super::ConfigDiagnostics;
use limpet_sources::http::{Address, HttpSettings};

const KEY: &str = "updates";
/// How often the node reports by default, and at most.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(900);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// The most windows of a phase.
const MAX_WINDOWS: usize = 64;
/// The longest window and the longest pause without a clock: 400 days.
const LONGEST: Duration = Duration::from_secs(400 * 86_400);
/// The slowest rate: 1 KiB per second.
const SLOWEST: u64 = 1 << 10;

impl ConfigDiagnostics {
    /// Also returns where the node's reports are sent.
    pub(super) fn updates(&mut self, map: &Map<'_>, updates: &mut UpdateSettings) -> Option<HttpSettings> {
        if !map.has_map(KEY) {
            return None;
        }
        let mut report = None;
        updates.gate.windows.zone = wall_clock::zone(None).unwrap_or(jiff::tz::TimeZone::UTC);
        for Entry { key, position, node } in map.map(KEY) {
            let path = format!("{KEY}.{key}");
            let read =
                match (key.as_str(), &node.value) {
                    ("timeZone", _) => self.time_zone(node, &mut updates.gate.windows),
                    ("withoutClock", _) => duration(node).map(|period| updates.gate.windows.without_clock = period),
                    ("bandwidth", _) => bandwidth(node).map(|rate| updates.bandwidth = Some(rate)),
                    ("download", Value::Map(fields)) => {
                        self.download(&path, fields, updates);
                        Ok(())
                    }
                    ("apply", Value::Map(fields)) => {
                        self.apply(&path, fields, updates);
                        Ok(())
                    }
                    ("report", Value::Map(fields)) => {
                        report = self.report(&path, fields);
                        Ok(())
                    }
                    ("download" | "apply" | "report", other) => Err(format!("expected a map, found {}", other.kind())),
                    _ => Err("no such key; updates has timeZone, withoutClock, bandwidth, download, apply and report"
                        .to_owned()),
                };
            if let Err(message) = read {
                self.error(Some(*position), &path, message);
            }
        }
        report
    }

    fn report(&mut self, path: &str, fields: &[Entry]) -> Option<HttpSettings> {
        let (mut address, mut ca_file, mut interval) = (None, None, DEFAULT_INTERVAL);
        for Entry { key, position, node } in fields {
            let path = format!("{path}.{key}");
            let read = match key.as_str() {
                "url" => text(node).and_then(Address::parse).map(|url| address = Some(url)),
                "caFile" => absolute(node).map(|file| ca_file = Some(file)),
                "interval" => match text(node).ok().and_then(go_duration::parse) {
                    Some(time) if time >= SHORTEST_INTERVAL => {
                        interval = time;
                        Ok(())
                    }
                    _ => Err("is no duration of a second or more, such as 15m".to_owned()),
                },
                _ => Err("no such key; a report has url, interval and caFile".to_owned()),
            };
            if let Err(message) = read {
                self.error(Some(*position), &path, message);
            }
        }
        if address.is_none() {
            self.error(None, path, "has no url to which reports are sent");
        }
        let (headers, client_files) = (HeaderMap::new(), None);
        Some(HttpSettings { address: address?, headers, frequency: interval, ca_file, client_files })
    }

    fn time_zone(&self, node: &Node, windows: &mut WindowSettings) -> Result<(), String> {
        let name = text(node)?;
        windows.zone = wall_clock::zone(Some(name))
            .ok_or_else(|| format!("{name:?}: the node has no such time zone in /usr/share/zoneinfo"))?;
        Ok(())
    }

    fn download(&mut self, path: &str, fields: &[Entry], updates: &mut UpdateSettings) {
        let zone = updates.gate.windows.clone();
        for Entry { key, position, node } in fields {
            let path = format!("{path}.{key}");
            let download = &mut updates.gate.download;
            let read = match key.as_str() {
                "windows" => self.windows(&path, node, &zone).map(|windows| download.windows = windows),
                "meteredCommand" => command(node).map(|words| download.metered_command = Some(words)),
                _ => Err("no such key; download has windows and meteredCommand".to_owned()),
            };
            if let Err(message) = read {
                self.error(Some(*position), &path, message);
            }
        }
    }

    fn apply(&mut self, path: &str, fields: &[Entry], updates: &mut UpdateSettings) {
        let zone = updates.gate.windows.clone();
        for Entry { key, position, node } in fields {
            let path = format!("{path}.{key}");
            let apply = &mut updates.gate.apply;
            let read = match key.as_str() {
                "windows" => self.windows(&path, node, &zone).map(|windows| apply.windows = windows),
                "lockFile" => absolute(node).map(|file| apply.lock_file = Some(file)),
                "vetoURL" => url(node).map(|url| apply.veto_url = Some(url)),
                _ => Err("no such key; apply has windows, lockFile and vetoURL".to_owned()),
            };
            if let Err(message) = read {
                self.error(Some(*position), &path, message);
            }
        }
    }

    /// The windows that are right; the others are reported.
    fn windows(&mut self, path: &str, node: &Node, settings: &WindowSettings) -> Result<Vec<Window>, String> {
        let Value::List(items) = &node.value else {
            return Err(format!("expected a list, found {}", node.value.kind()));
        };
        if items.is_empty() || items.len() > MAX_WINDOWS {
            return Err(format!("has 1 to {MAX_WINDOWS} windows"));
        }
        let mut windows = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match window(item, settings) {
                Ok(window) => windows.push(window),
                Err(message) => self.error(Some(item.position), &format!("{path}[{index}]"), message),
            }
        }
        Ok(windows)
    }
}

fn window(node: &Node, settings: &WindowSettings) -> Result<Window, String> {
    let Value::Map(fields) = &node.value else { return Err(format!("expected a map, found {}", node.value.kind())) };
    let (mut start, mut written, mut length) = (None, String::new(), None);
    for Entry { key, node, .. } in fields {
        match key.as_str() {
            "start" => {
                let text = text(node)?;
                (start, written) = (Some(schedule(text)?), text.to_owned());
            }
            "duration" => length = Some(duration(node).map_err(|message| format!("duration {message}"))?),
            _ => return Err(format!("{key}: no such key; a window has start and duration")),
        }
    }
    let (Some(start), Some(duration)) = (start, length) else { return Err("has no start or no duration".to_owned()) };
    match start.next(built(), &settings.zone) {
        Some(_) => Ok(Window { start, written, duration }),
        None => Err("its start is no time of any year".to_owned()),
    }
}

/// A window begins by the calendar: a period has no beginning.
fn schedule(text: &str) -> Result<Schedule, String> {
    match Schedule::parse(text) {
        Ok(schedule @ Schedule::Calendar(_)) => Ok(schedule),
        Ok(Schedule::Every(_)) => Err("start: write times of the calendar, such as \"0 2 * * *\"".to_owned()),
        Err(why) => Err(format!("start: {why}")),
    }
}

fn text(node: &Node) -> Result<&str, String> {
    match &node.value {
        Value::Text(text) => Ok(text),
        other => Err(format!("expected text, found {}", other.kind())),
    }
}

fn duration(node: &Node) -> Result<Duration, String> {
    let time = text(node).ok().and_then(go_duration::parse);
    let time = time.filter(|time| (Duration::from_secs(60)..=LONGEST).contains(time));
    time.ok_or_else(|| "is no duration of a minute or more, such as 2h".to_owned())
}

fn bandwidth(node: &Node) -> Result<u64, String> {
    let rate = match &node.value {
        Value::Text(text) => quantity::bytes(text),
        Value::Int(bytes) => u64::try_from(*bytes).ok(),
        _ => None,
    };
    rate.filter(|rate| *rate >= SLOWEST)
        .ok_or_else(|| "is no number of bytes per second from 1Ki on, such as 200Ki".to_owned())
}

fn absolute(node: &Node) -> Result<PathBuf, String> {
    let path = text(node)?;
    path.starts_with('/').then(|| PathBuf::from(path)).ok_or_else(|| "is not an absolute path".to_owned())
}

fn url(node: &Node) -> Result<String, String> {
    let url = text(node)?;
    let is_http = url.starts_with("http://") || url.starts_with("https://");
    is_http.then(|| url.to_owned()).ok_or_else(|| "expected a URL that begins with http:// or https://".to_owned())
}

/// A program by its absolute path, and its arguments.
fn command(node: &Node) -> Result<Vec<String>, String> {
    let Value::List(words) = &node.value else { return Err(format!("expected a list, found {}", node.value.kind())) };
    let words = words.iter().map(|word| text(word).map(str::to_owned)).collect::<Result<Vec<_>, _>>()?;
    match words.first() {
        Some(program) if program.starts_with('/') => Ok(words),
        _ => Err("begins with no absolute path of a program".to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use limpet_updates::{ApplySettings, DownloadSettings, GateSettings};

    use super::super::tests::load_text;
    use super::*;

    /// What `tests/supported.yaml` has.
    pub(in super::super) fn tried() -> UpdateSettings {
        let window = |start: &str, hours: u64| Window {
            start: Schedule::parse(start).unwrap(),
            written: start.to_owned(),
            duration: Duration::from_secs(hours * 3_600),
        };
        UpdateSettings {
            gate: GateSettings {
                windows: WindowSettings { zone: jiff::tz::TimeZone::UTC, without_clock: Duration::from_secs(7_200) },
                download: DownloadSettings {
                    windows: vec![window("0 1 * * *", 4)],
                    metered_command: Some(vec!["/usr/bin/metered".to_owned(), "-q".to_owned()]),
                },
                apply: ApplySettings {
                    windows: vec![window("0 2 * * sun", 2), window("30 12 * * *", 1)],
                    lock_file: Some("/run/plant/busy".into()),
                    veto_url: Some("http://127.0.0.1:8080/may-update".to_owned()),
                },
            },
            bandwidth: Some(200 << 10),
        }
    }

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let text = "apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\nupdates:\n  \
                    timeZone: Atlantis\n  withoutClock: 1s\n  bandwidth: 12\n  windows: []\n  download:\n    \
                    windows:\n    - {start: '0 2 * *', duration: 1h}\n    - {start: '@every 1h', duration: 1h}\n    \
                    - {start: '0 0 31 2 *', duration: 1h}\n    - {start: '0 2 * * *', duration: 1s}\n    - {start: '0 2 * * *'}\n    \
                    meteredCommand: [metered]\n    lockFile: /x\n  \
                    apply: {windows: [], lockFile: busy, vetoURL: 'ftp://a'}\n  \
                    report: {interval: 1, caFile: a, key: b}\n";
        let mistakes = load_text(text, &[]).0.unwrap_err();
        let expected = [
            (":4:", "updates.timeZone: \"Atlantis\": the node has no such time zone"),
            (":5:", "updates.withoutClock: is no duration"),
            (":6:", "updates.bandwidth: is no number of bytes per second"),
            (":7:", "updates.windows: no such key"),
            (":10:", "updates.download.windows[0]: start: expected exactly 5 fields"),
            (":11:", "updates.download.windows[1]: start: write times of the calendar"),
            (":12:", "updates.download.windows[2]: its start is no time of any year"),
            (":13:", "updates.download.windows[3]: duration is no duration"),
            (":14:", "updates.download.windows[4]: has no start or no duration"),
            (":15:", "updates.download.meteredCommand: begins with no absolute path"),
            (":16:", "updates.download.lockFile: no such key"),
            (":17:", "updates.apply.windows: has 1 to 64 windows"),
            (":17:", "updates.apply.lockFile: is not an absolute path"),
            (":17:", "updates.apply.vetoURL: expected a URL"),
            (":18:", "updates.report.interval: is no duration"),
            (":18:", "updates.report.caFile: is not an absolute path"),
            (":18:", "updates.report.key: no such key"),
            ("", "updates.report: has no url"),
        ];
        for (line, message) in expected {
            let is_named = mistakes.iter().any(|mistake| mistake.contains(line) && mistake.contains(message));
            assert!(is_named, "{line} {message}: {mistakes:#?}");
        }
    }
}
