//! What the agent reports after a moment. What was in its log or its events before an action proves nothing about it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::TestNode;
use crate::wait;

/// A moment in the agent's log and in its list of events.
#[derive(Debug)]
pub struct Mark {
    log_size: usize,
    events: BTreeMap<String, Occurrence>,
}

/// How often an event has happened, and when last, because repetitions of an event are counted with it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Occurrence {
    count: u64,
    last: String,
}

impl TestNode {
    /// The current moment, taken before an action. The `…_since` methods see what comes after it. The agent has to
    /// run.
    pub fn mark(&self) -> Result<Mark> {
        Ok(Mark { log_size: self.agent.log_size(), events: self.occurrences()? })
    }

    /// Waits until one line of the agent's log contains all of `words`, and returns the line.
    pub fn wait_log_since(&self, mark: &Mark, words: &[&str]) -> Result<String> {
        let lines = || self.agent.log_from(mark.log_size);
        wait::until(wait::SOON, &format!("a line with {words:?} in the agent's log"), || {
            lines().lines().find(|line| holds(line, words)).map(str::to_owned)
        })
        .with_context(|| format!("logged since then:\n{}", lines()))
    }

    /// The events that have happened, each as `Warning Failed web-edge: its message`.
    pub fn events_since(&self, mark: &Mark) -> Result<Vec<String>> {
        Ok(news(&mark.events, self.occurrences()?))
    }

    /// Waits until one event contains all of `words`, and returns it.
    pub fn wait_event_since(&self, mark: &Mark, words: &[&str]) -> Result<String> {
        wait::until(wait::SOON, &format!("an event with {words:?}"), || {
            self.events_since(mark).ok()?.into_iter().find(|event| holds(event, words))
        })
        .with_context(|| format!("the events since then: {:#?}", self.events_since(mark)))
    }

    fn occurrences(&self) -> Result<BTreeMap<String, Occurrence>> {
        let text = self.agent.cli(&["events", "-o", "json"])?.success()?;
        let list: Value = serde_json::from_str(&text).context("limpet events -o json")?;
        let items = list["items"].as_array().with_context(|| format!("not an EventList: {text}"))?;
        Ok(items.iter().map(occurrence).collect())
    }
}

fn holds(text: &str, words: &[&str]) -> bool {
    words.iter().all(|word| text.contains(word))
}

fn occurrence(event: &Value) -> (String, Occurrence) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let said = format!(
        "{} {} {}: {}",
        text(&event["type"]),
        text(&event["reason"]),
        text(&event["involvedObject"]["name"]),
        text(&event["message"]),
    );
    (said, Occurrence { count: event["count"].as_u64().unwrap_or(1), last: text(&event["lastTimestamp"]) })
}

/// What is in `after` and differs from `before`.
fn news(before: &BTreeMap<String, Occurrence>, after: BTreeMap<String, Occurrence>) -> Vec<String> {
    let is_new = |said: &String, now: &Occurrence| before.get(said) != Some(now);
    after.into_iter().filter(|(said, now)| is_new(said, now)).map(|(said, _)| said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_happened_since_is_new() {
        let event = |message: &str, count: u64| {
            occurrence(&json!({
                "type": "Warning", "reason": "Failed", "message": message, "count": count,
                "involvedObject": { "name": "web" }, "lastTimestamp": "2026-11-23T00:00:00Z",
            }))
        };
        let before = BTreeMap::from([event("old", 1), event("repeated", 1)]);
        let after = BTreeMap::from([event("old", 1), event("repeated", 2), event("new", 1)]);
        assert_eq!(news(&before, after), ["Warning Failed web: new", "Warning Failed web: repeated"]);
    }
}
