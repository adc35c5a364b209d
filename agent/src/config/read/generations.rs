//! `generations`: for which sources a change is on trial, how long, and what it has to pass.

use std::path::PathBuf;
use std::time::Duration;

use limpet_generations::{CheckAction, Policies, Policy};
use limpet_model::go_duration;
use limpet_model::source::SourceKind;

use super::super::tree::{Entry, Map, Node, Value};
use super::ConfigDiagnostics;
use crate::generations::GenerationSettings;

const KEY: &str = "generations";
/// The sources as the configuration names them. The cluster's own controllers serve the apiserver's pods.
const SOURCES: [(&str, SourceKind); 4] =
    [("file", SourceKind::File), ("push", SourceKind::Push), ("bundle", SourceKind::Bundle), ("url", SourceKind::Http)];
/// How many generations of a kind may be kept.
const MAX_HISTORY: i64 = 100;
/// The longest time that may be set: a day.
const MAX_TIME: Duration = Duration::from_secs(86_400);

impl ConfigDiagnostics {
    pub(super) fn generations(&mut self, map: &Map<'_>, generations: &mut GenerationSettings) {
        for Entry { key, position, node } in map.map(KEY) {
            let path = format!("{KEY}.{key}");
            let settings = &mut generations.settings;
            let read = match key.as_str() {
                "policy" => {
                    self.generation_policies(&path, node, &mut settings.policies);
                    Ok(())
                }
                "check" => {
                    if let Value::Map(fields) = &node.value {
                        self.generation_check(&path, fields, generations);
                        Ok(())
                    } else {
                        Err(format!("expected a map, found {}", node.value.kind()))
                    }
                }
                "progressDeadline" => time(node).map(|time| settings.progress_deadline = time),
                "minReadySeconds" => {
                    number(node, 1, 86_400).map(|seconds| settings.min_ready = Duration::from_secs(seconds))
                }
                "maxRestarts" => {
                    number(node, 0, 1_000).map(|most| settings.max_restarts = u32::try_from(most).unwrap_or(0))
                }
                "historyLimit" => number(node, 1, MAX_HISTORY)
                    .map(|limit| settings.history_limit = usize::try_from(limit).unwrap_or(1)),
                "bootCheckDirectory" => directory(node).map(|path| generations.boot_check_dir = path),
                _ => Err("no such key; generations has policy, progressDeadline, minReadySeconds, maxRestarts, \
                          historyLimit, check and bootCheckDirectory"
                    .to_owned()),
            };
            if let Err(message) = read {
                self.error(Some(*position), &path, message);
            }
        }
        let settings = &generations.settings;
        if settings.min_ready >= settings.progress_deadline {
            self.error(None, KEY, "progressDeadline must be longer than minReadySeconds");
        }
    }

    fn generation_policies(&mut self, path: &str, node: &Node, policies: &mut Policies) {
        let Value::Map(entries) = &node.value else {
            self.error(Some(node.position), path, format!("expected a map, found {}", node.value.kind()));
            return;
        };
        for Entry { key, position, node } in entries {
            let path = format!("{path}.{key}");
            let Some((_, source)) = SOURCES.iter().find(|(name, _)| name == key) else {
                let names = SOURCES.map(|(name, _)| name).join(", ");
                self.error(Some(*position), &path, format!("is not a source with generations; use {names}"));
                continue;
            };
            let policy = match &node.value {
                Value::Text(text) => Policy::from_name(text),
                // YAML reads `off` as a boolean.
                Value::Bool(false) => Some(Policy::Off),
                _ => None,
            };
            match policy {
                Some(policy) => *policies = policies.with(*source, policy),
                None => {
                    let names = Policy::NAMES.map(|(name, _)| name).join(", ");
                    self.error(Some(node.position), &path, format!("is not a policy; use {names}"));
                }
            }
        }
    }

    fn generation_check(&mut self, path: &str, fields: &[Entry], generations: &mut GenerationSettings) {
        let settings = &mut generations.settings;
        let mut actions = Vec::new();
        for Entry { key, position, node } in fields {
            let path = format!("{path}.{key}");
            let read = match (key.as_str(), &node.value) {
                ("command", Value::List(words)) => {
                    command(words).map(|words| actions.push(CheckAction::Command(words)))
                }
                ("url", Value::Text(url)) if url.starts_with("http://") || url.starts_with("https://") => {
                    actions.push(CheckAction::Url(url.clone()));
                    Ok(())
                }
                ("url", _) => Err("expected a URL that begins with http:// or https://".to_owned()),
                ("command", other) => Err(format!("expected a list, found {}", other.kind())),
                ("timeout", _) => time(node).map(|time| settings.check_timeout = time),
                _ => Err("no such key; a check has command or url, and timeout".to_owned()),
            };
            if let Err(message) = read {
                self.error(Some(*position), &path, message);
            }
        }
        match <[CheckAction; 1]>::try_from(actions) {
            Ok([action]) => settings.check = Some(action),
            Err(_) => self.error(None, path, "a check has either command or url"),
        }
    }
}

fn time(node: &Node) -> Result<Duration, String> {
    let time = match &node.value {
        Value::Text(text) => go_duration::parse(text),
        _ => None,
    };
    let time = time.filter(|time| (Duration::from_secs(1)..=MAX_TIME).contains(time));
    time.ok_or_else(|| "is no duration between 1s and 24h, such as 5m".to_owned())
}

fn number(node: &Node, least: i64, most: i64) -> Result<u64, String> {
    let number = match node.value {
        Value::Int(number) if (least..=most).contains(&number) => u64::try_from(number).ok(),
        _ => None,
    };
    number.ok_or_else(|| format!("is not {least} to {most}"))
}

fn directory(node: &Node) -> Result<PathBuf, String> {
    match &node.value {
        Value::Text(text) if text.starts_with('/') => Ok(PathBuf::from(text)),
        _ => Err("is not an absolute path".to_owned()),
    }
}

/// A program by its absolute path, and its arguments.
fn command(nodes: &[Node]) -> Result<Vec<String>, String> {
    let words = nodes.iter().map(|node| match &node.value {
        Value::Text(text) => Ok(text.clone()),
        other => Err(format!("expected text, found {}", other.kind())),
    });
    let words = words.collect::<Result<Vec<_>, _>>()?;
    match words.first() {
        Some(program) if program.starts_with('/') => Ok(words),
        _ => Err("begins with no absolute path of a program".to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use limpet_generations::Settings;

    use super::super::tests::load_text;
    use super::*;

    /// The settings in `tests/supported.yaml`.
    pub(in super::super) fn tried() -> GenerationSettings {
        let policies = Policies::default().with(SourceKind::File, Policy::All).with(SourceKind::Http, Policy::Pods);
        GenerationSettings {
            settings: Settings {
                policies,
                progress_deadline: Duration::from_secs(600),
                min_ready: Duration::from_secs(30),
                max_restarts: 5,
                history_limit: 4,
                check: Some(CheckAction::Command(vec!["/usr/bin/check".to_owned(), "-v".to_owned()])),
                check_timeout: Duration::from_secs(60),
            },
            boot_check_dir: "/boot-check".into(),
        }
    }

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let text = "apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\ngenerations:\n  \
                    policy:\n    apiserver: all\n    file: some\n    push: off\n  \
                    progressDeadline: 0s\n  minReadySeconds: 0\n  maxRestarts: -1\n  historyLimit: 0\n  \
                    check: {command: [check], url: ftp://a, timeout: 1}\n  bootCheckDirectory: boot\n  deadline: 5m\n";
        let mistakes = load_text(text, &[]).0.unwrap_err();
        let expected = [
            (":5:", "generations.policy.apiserver: is not a source with generations; use file, push, bundle, url"),
            (":6:", "generations.policy.file: is not a policy; use off, pods, all"),
            (":8:", "generations.progressDeadline: is no duration"),
            (":9:", "generations.minReadySeconds: is not 1 to 86400"),
            (":10:", "generations.maxRestarts: is not 0 to 1000"),
            (":11:", "generations.historyLimit: is not 1 to 100"),
            (":12:", "generations.check.command: begins with no absolute path"),
            (":12:", "generations.check.url: expected a URL"),
            (":12:", "generations.check.timeout: is no duration"),
            ("", "generations.check: a check has either command or url"),
            (":13:", "generations.bootCheckDirectory: is not an absolute path"),
            (":14:", "generations.deadline: no such key"),
        ];
        for (line, message) in expected {
            let is_named = mistakes.iter().any(|mistake| mistake.contains(line) && mistake.contains(message));
            assert!(is_named, "{line} {message}: {mistakes:#?}");
        }
        assert!(!mistakes.iter().any(|mistake| mistake.contains("policy.push")), "{mistakes:#?}");
        let short = "apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\ngenerations: {progressDeadline: 10s}\n";
        let mistakes = load_text(short, &[]).0.unwrap_err();
        assert!(mistakes[0].contains("must be longer than minReadySeconds"), "{mistakes:?}");
    }
}
