//! Removes what may not leave the node from documents. Pure.
//!
//! A pod loses every value that its author chose freely and that may be secret: those of environment variables,
//! annotations, headers and drivers' attributes, and the arguments of commands. Names and references stay. Text loses
//! everything in the form of a credential. For pods that is a second safeguard, for programs' output the only one.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex_lite::Regex;
use serde_json::Value;

/// Replaces a removed value.
pub(super) const REDACTED: &str = "<redacted>";

/// Annotations that kubelet or limpet sets, which tell where a pod is from.
const OWN_ANNOTATIONS: &str = "kubernetes.io/config.";

/// Reasons of states and events whose messages quote the output of a container's programs.
const QUOTING: [&str; 4] = ["Unhealthy", "ProbeWarning", "FailedPostStartHook", "FailedPreStopHook"];
/// The reason of the state of a container whose hook failed.
const HOOK: &str = "PostStartHookError";

/// Redacts every Pod in `document`. With `printed`, the output of the pods' programs stays.
pub(super) fn pod(document: &mut Value, printed: bool) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(|item| pod(item, printed)),
        Value::Object(fields) => {
            fields.remove("managedFields");
            let reason = fields.get("reason").and_then(Value::as_str).unwrap_or_default();
            let quotes = QUOTING.contains(&reason) || fields.contains_key("exitCode");
            // A failed hook's message is its command's output, which kubelet shows nowhere.
            let hides = reason == HOOK || (quotes && !printed);
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "annotations" => annotations(value),
                    "env" | "httpHeaders" => each(value, |item| hide(&mut item["value"])),
                    "httpGet" => {
                        http_get(value);
                        pod(value, printed);
                    }
                    "command" => keep_first(value),
                    "args" => each(value, hide),
                    "volumeAttributes" | "options" => each(value, hide),
                    "message" if hides => hide(value),
                    "message" => scrub(value),
                    _ => pod(value, printed),
                }
            }
        }
        _ => {}
    }
}

/// The longest path segment that cannot be a token.
const MAX_WORD: usize = 15;

/// Keeps only words in the path that a probe or hook requests: `/healthz`, but not `/hook/6f1c…` or the query.
fn http_get(action: &mut Value) {
    let Some(Value::String(path)) = action.get_mut("path") else { return };
    let (words, query) = path.split_once('?').map_or((&path[..], ""), |(words, _)| (words, "?<redacted>"));
    let shown = |word| if is_word(word) { word } else { REDACTED };
    *path = format!("{}{query}", words.split('/').map(shown).collect::<Vec<_>>().join("/"));
}

fn is_word(text: &str) -> bool {
    text.len() <= MAX_WORD || text.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '-' | '_' | '.'))
}

/// Keeps a message except for credentials.
fn scrub(value: &mut Value) {
    if let Value::String(message) = value {
        *message = text(message);
    }
}

fn hide(value: &mut Value) {
    if !value.is_null() {
        *value = REDACTED.into();
    }
}

/// Applies `change` to the items of a list or the values of a map; hides anything else.
fn each(value: &mut Value, change: impl Fn(&mut Value)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(change),
        Value::Object(fields) => fields.values_mut().for_each(change),
        other => hide(other),
    }
}

fn annotations(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.iter_mut().filter(|(name, _)| !name.starts_with(OWN_ANNOTATIONS)).for_each(|(_, value)| hide(value));
        }
        other => hide(other),
    }
}

/// Keeps the program of a command and hides its arguments, which may be passwords.
fn keep_first(value: &mut Value) {
    match value {
        Value::Array(words) => words.iter_mut().skip(1).for_each(hide),
        other => hide(other),
    }
}

/// A pattern and its replacement.
struct Rule {
    /// A string that every match contains, for a fast check: most texts lack it.
    contains: &'static str,
    pattern: Regex,
    replacement: &'static str,
}

/// Forms that are credentials in any context.
static FORMS: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    rules(&[
        ("PRIVATE KEY", r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)", REDACTED),
        // The end of a key whose beginning was cut off.
        ("PRIVATE KEY", r"(?s)\A.*-----END [A-Z ]*PRIVATE KEY-----", REDACTED),
        // A JSON Web Token, such as a service account's.
        ("eyJ", r"\beyJ[\w-]{8,}\.[\w-]+(\.[\w-]*)?", REDACTED),
        ("@", r#"(\w://)[^\s/?#"'<>]*@"#, "${1}<redacted>@"),
        ("?", r#"(\w://[^\s?"'<>]*\?)[^\s"'<>]+"#, "${1}<redacted>"),
        ("", r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}", "${1} <redacted>"),
    ])
});

/// Names whose values in programs' output are credentials.
static NAMES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let name =
        r#"(?i)((?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)"#;
    let value = r#"["'\\]*\s*[=:]\s*["'\\]*)[^\s"'\\,;&]+"#;
    rules(&[("", &format!("{name}{value}"), "${1}<redacted>")])
});

fn rules(rules: &[(&'static str, &str, &'static str)]) -> Vec<Rule> {
    let rule = |(contains, pattern, replacement): &(&'static str, &str, &'static str)| {
        #[expect(clippy::expect_used, reason = "the patterns are literals of this file, and a test compiles them")]
        let pattern = Regex::new(pattern).expect("a valid pattern");
        Rule { contains, pattern, replacement }
    };
    rules.iter().map(rule).collect()
}

/// Redacts a rendered document.
pub(super) fn document(text: &str) -> String {
    replaced(Cow::Borrowed(text), &FORMS).into_owned()
}

/// Redacts programs' output, including values with telling names.
pub(super) fn text(text: &str) -> String {
    replaced(replaced(Cow::Borrowed(text), &FORMS), &NAMES).into_owned()
}

fn replaced<'a>(text: Cow<'a, str>, rules: &[Rule]) -> Cow<'a, str> {
    let replace = |text: Cow<'a, str>, rule: &Rule| match rule.pattern.replace_all(&text, rule.replacement) {
        Cow::Borrowed(_) => text,
        Cow::Owned(replaced) => Cow::Owned(replaced),
    };
    rules.iter().fold(text, |text, rule| if text.contains(rule.contains) { replace(text, rule) } else { text })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_keeps_names_and_loses_values() {
        let mut document = json!({ "pod": {
            "metadata": { "name": "web", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"hunter2\": 1}",
                "kubernetes.io/config.source": "file",
            }, "managedFields": [{ "manager": "hunter2" }] },
            "spec": {
                "imagePullSecrets": [{ "name": "pull" }],
                "initContainers": [{ "name": "first", "args": ["hunter2"], "env": "hunter2" }],
                "containers": [{
                    "name": "main", "command": ["/bin/app", "--password", "hunter2"], "args": ["-p", "hunter2"],
                    "env": [{ "name": "PASSWORD", "value": "hunter2" },
                        { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "token", "key": "k" } } }],
                    "readinessProbe": { "httpGet": { "path": "/ready/live-and-healthy/hunter2hunter2hunter2?key=hunter2" } },
                    "livenessProbe": { "httpGet": { "path": "/", "httpHeaders": [{ "name": "X", "value": "hunter2" }] } },
                    "lifecycle": { "preStop": { "exec": { "command": ["/bin/end", "hunter2"] } } },
                }],
                "volumes": [{ "csi": { "driver": "d", "volumeAttributes": { "key": "hunter2" } } },
                    { "flexVolume": { "driver": "d", "options": { "key": "hunter2" } } }],
            },
            "status": { "containerStatuses": [
                { "state": { "terminated": { "exitCode": 1, "message": "printed" } } },
                { "state": { "waiting": { "reason": "PostStartHookError",
                    "message": "command exited with 1, message: \"hunter2\"" } } },
            ] },
        } });
        pod(&mut document, true);
        let text = document.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        for kept in [
            "PASSWORD",
            "\"/bin/app\"",
            "token",
            "\"pull\"",
            "config.source\":\"file",
            "/bin/end",
            "printed",
            "/ready/live-and-healthy/<redacted>?<redacted>",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        pod(&mut document, false);
        assert!(!document.to_string().contains("printed"), "{document}");
    }

    #[test]
    fn an_events_message_is_printed_by_a_program_where_it_quotes_one() {
        let mut kept = json!([{ "reason": "Unhealthy", "message": "probe failed: token=hunter2" },
            { "reason": "Pulled", "message": "Image is there" }]);
        pod(&mut kept, true);
        assert_eq!(kept[0]["message"], "probe failed: token=<redacted>");
        pod(&mut kept, false);
        assert_eq!(kept[0]["message"], REDACTED);
        assert_eq!(kept[1]["message"], "Image is there");
    }

    #[test]
    fn credentials_are_taken_out_of_text() {
        let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIhunter2\n-----END RSA PRIVATE KEY-----";
        for (given, expected) in [
            (key, "<redacted>"),
            ("-----BEGIN PRIVATE KEY-----\nMIIhunter2", "<redacted>"),
            ("hunter2\n-----END EC PRIVATE KEY-----\nafter", "<redacted>\nafter"),
            ("got eyJhbGciOiJSUzI1NiJ9.eyJodW50ZXIyIjoxfQ.c2ln-x, fine", "got <redacted>, fine"),
            ("GET https://me:hunter2@fleet.example/x?y", "GET https://<redacted>@fleet.example/x?y"),
            (
                "pull of https://registry.example:5000/web:v1@sha256:00",
                "pull of https://registry.example:5000/web:v1@sha256:00",
            ),
            ("authorization: bearer hunter2hunter2", "authorization: bearer <redacted>"),
            ("DB_PASSWORD=hunter2 MODE=edge", "DB_PASSWORD=<redacted> MODE=edge"),
            (r#"{"token": "hunter2", "n": 1}"#, r#"{"token": "<redacted>", "n": 1}"#),
            (r#"{"line": "{\"password\":\"hunter2\"}"}"#, r#"{"line": "{\"password\":\"<redacted>\"}"}"#),
            ("secretName is gateway", "secretName is gateway"),
            ("the token expired", "the token expired"),
        ] {
            assert_eq!(text(given), expected, "{given}");
        }
        assert_eq!(document(r#""token": "name-of-a-secret""#), r#""token": "name-of-a-secret""#);
    }
}
