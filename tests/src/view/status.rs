//! A pod's status as lines: `containerStatuses[main].state.waiting.reason = CrashLoopBackOff`.

use serde_json::Value;

/// The lines of `status`, in the order of their text.
pub fn lines(status: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    walk(status, "", &mut lines);
    lines.sort();
    lines
}

fn walk(value: &Value, path: &str, lines: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(value, &path, lines);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                // An item is identified by its name if it has one, because its position means nothing.
                let name = ["name", "type"].iter().find_map(|key| item[*key].as_str());
                let name = name.map_or_else(|| index.to_string(), str::to_owned);
                walk(item, &format!("{path}[{name}]"), lines);
            }
        }
        // Null counts as a missing field.
        Value::Null => {}
        Value::String(text) if is_time(text) => lines.push(format!("{path} = TIME")),
        Value::String(text) => lines.push(format!("{path} = {}", text.replace('\n', "\\n"))),
        other => lines.push(format!("{path} = {other}")),
    }
}

/// `2026-11-24T22:00:00Z`.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().take(20).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00Z" || shape == "0000-00-00T00:00:00."
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_go_by_their_names_and_times_by_one_word() {
        let status = json!({
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastProbeTime": null }],
            "resources": {},
            "containerStatuses": [{ "name": "main", "state": { "running": { "startedAt": "2026-11-24T22:00:00Z" } } }],
            "podIPs": [{ "ip": "10.1.2.3" }],
        });
        let expected = [
            "conditions[Ready].status = True",
            "conditions[Ready].type = Ready",
            "containerStatuses[main].name = main",
            "containerStatuses[main].state.running.startedAt = TIME",
            "phase = Running",
            "podIPs[0].ip = 10.1.2.3",
        ];
        assert_eq!(lines(&status), expected);
    }
}
