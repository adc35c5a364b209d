//! `imagePolicy`: which images may be used.

use std::path::PathBuf;

use super::super::tree::{Entry, Map, Node, Position, Value};
use super::ConfigDiagnostics;
use limpet_image_policy::pattern::ImagePattern;
use limpet_image_policy::policy::{ImagePolicy, Requirement, Rule};

const KEY: &str = "imagePolicy";
/// How many rules there may be, and how many patterns and keys a rule may have.
const MAX_ENTRIES: usize = 64;

impl ConfigDiagnostics {
    /// Reads `rules`, each with `images`, `require` and `keys`, and `default`, which has no `images`.
    pub(super) fn image_policy(&mut self, map: &Map<'_>) -> Option<ImagePolicy> {
        if !map.has_map(KEY) {
            return None;
        }
        let entries = map.map(KEY);
        let mut policy = ImagePolicy::default();
        for Entry { key, position, node } in entries {
            let path = format!("{KEY}.{key}");
            match (key.as_str(), &node.value) {
                ("rules", Value::List(rules)) if rules.len() <= MAX_ENTRIES => {
                    for (index, rule) in rules.iter().enumerate() {
                        policy.rules.extend(self.image_rule(&format!("{path}[{index}]"), rule));
                    }
                }
                ("rules", Value::List(_)) => {
                    self.error(Some(*position), &path, format!("more than {MAX_ENTRIES} rules"))
                }
                ("default", Value::Map(fields)) => {
                    if let Some((_, requirement)) = self.rule_fields(&path, *position, fields, false) {
                        policy.default = requirement;
                    }
                }
                ("rules", other) => {
                    self.error(Some(*position), &path, format!("expected a list, found {}", other.kind()))
                }
                ("default", other) => {
                    self.error(Some(*position), &path, format!("expected a map, found {}", other.kind()))
                }
                _ => self.error(Some(*position), &path, "no such key; imagePolicy has rules and default"),
            }
        }
        Some(policy)
    }

    fn image_rule(&mut self, path: &str, node: &Node) -> Option<Rule> {
        let Value::Map(fields) = &node.value else {
            self.error(Some(node.position), path, format!("expected a map, found {}", node.value.kind()));
            return None;
        };
        let (images, requirement) = self.rule_fields(path, node.position, fields, true)?;
        Some(Rule { images, requirement })
    }

    fn rule_fields(
        &mut self,
        path: &str,
        at: Position,
        fields: &[Entry],
        has_images: bool,
    ) -> Option<(Vec<ImagePattern>, Requirement)> {
        let (mut images, mut keys, mut word) = (Vec::new(), Vec::new(), None);
        let mut wrong = Vec::new();
        for Entry { key, position, node } in fields {
            let read = match (key.as_str(), &node.value) {
                ("images", value) if has_images => list(value, ImagePattern::parse).map(|read| images = read),
                ("keys", value) => list(value, key_file).map(|read| keys = read),
                ("require", Value::Text(text)) => {
                    word = Some(text.as_str());
                    Ok(())
                }
                ("require", other) => Err(format!("expected text, found {}", other.kind())),
                _ if has_images => Err("no such key; a rule has images, require and keys".to_owned()),
                _ => Err("no such key; the default has require and keys".to_owned()),
            };
            wrong.extend(read.err().map(|message| (*position, format!("{path}.{key}"), message)));
        }
        let misses_images = has_images && images.is_empty() && wrong.is_empty();
        if misses_images {
            wrong.push((at, path.to_owned(), "has no images; name some, as registry.example/plant/*".to_owned()));
        }
        let requirement =
            requirement(word, keys).map_err(|message| wrong.push((at, format!("{path}.require"), message)));
        let is_sound = wrong.is_empty();
        for (position, path, message) in wrong {
            self.error(Some(position), &path, message);
        }
        requirement.ok().filter(|_| is_sound).map(|requirement| (images, requirement))
    }
}

fn requirement(word: Option<&str>, keys: Vec<PathBuf>) -> Result<Requirement, String> {
    let requirement = match word {
        Some("cosign") if keys.is_empty() => {
            return Err("cosign needs keys: a list of files with public keys".to_owned());
        }
        Some("cosign") => return Ok(Requirement::Cosign(keys)),
        Some("allow") => Requirement::Allow,
        Some("digest") => Requirement::Digest,
        Some("reject") => Requirement::Reject,
        Some(other) => return Err(format!("{other:?} is unknown; use one of allow, digest, cosign, reject")),
        None => return Err("is missing; use one of allow, digest, cosign, reject".to_owned()),
    };
    if keys.is_empty() {
        Ok(requirement)
    } else {
        Err("only cosign has keys; remove them, or require cosign".to_owned())
    }
}

fn list<T>(value: &Value, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let Value::List(nodes) = value else { return Err(format!("expected a list, found {}", value.kind())) };
    if nodes.len() > MAX_ENTRIES {
        return Err(format!("more than {MAX_ENTRIES} entries"));
    }
    let parsed = nodes.iter().map(|node| match &node.value {
        Value::Text(text) => parse(text),
        other => Err(format!("expected text, found {}", other.kind())),
    });
    parsed.collect()
}

fn key_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is not an absolute path")) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::super::tests::load_text;
    use super::*;

    /// The policy in `tests/supported.yaml`.
    pub(in super::super) fn tried() -> ImagePolicy {
        let patterns = |texts: &[&str]| texts.iter().map(|text| ImagePattern::parse(text).unwrap()).collect();
        ImagePolicy {
            rules: vec![
                Rule {
                    images: patterns(&["registry.example/plant/*", "registry.example/line"]),
                    requirement: Requirement::Cosign(vec!["/plant.pub".into()]),
                },
                Rule { images: patterns(&["docker.io/**"]), requirement: Requirement::Allow },
            ],
            default: Requirement::Digest,
        }
    }

    #[test]
    fn every_mistake_of_a_policy_is_named_with_its_place() {
        let text = "apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\nimagePolicy:\n  rules:\n  \
                    - {images: [busybox], require: allow}\n  \
                    - {images: [a.io/b], require: cosign}\n  \
                    - {images: [a.io/b], require: cosign, keys: [plant.pub]}\n  \
                    - {images: [a.io/b], require: allow, keys: [/plant.pub]}\n  \
                    - {images: [a.io/b], require: notation}\n  \
                    - {require: allow}\n  \
                    - {images: [a.io/b], key: [/plant.pub], require: reject}\n  \
                    - allow\n  default: {images: [a.io/b], require: allow}\n  defaults: {}\n";
        let (config, ..) = load_text(text, &[]);
        let mistakes = config.unwrap_err();
        let expected = [
            (":5:", "imagePolicy.rules[0].images: \"busybox\" does not name the registry"),
            (":6:", "imagePolicy.rules[1].require: cosign needs keys"),
            (":7:", "imagePolicy.rules[2].keys: \"plant.pub\" is not an absolute path"),
            (":8:", "imagePolicy.rules[3].require: only cosign has keys"),
            (":9:", "imagePolicy.rules[4].require: \"notation\" is unknown"),
            (":10:", "imagePolicy.rules[5]: has no images"),
            (":11:", "imagePolicy.rules[6].key: no such key"),
            (":12:", "imagePolicy.rules[7]: expected a map, found text"),
            (":13:", "imagePolicy.default.images: no such key"),
            (":14:", "imagePolicy.defaults: no such key"),
        ];
        for (line, message) in expected {
            let is_named = mistakes.iter().any(|mistake| mistake.contains(line) && mistake.contains(message));
            assert!(is_named, "{line} {message}: {mistakes:#?}");
        }
    }

    #[test]
    fn a_policy_without_a_default_rejects() {
        let text = "apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\nimagePolicy: {rules: []}\n";
        assert_eq!(load_text(text, &[]).0.unwrap().images.policy, Some(ImagePolicy::default()));
        assert_eq!(ImagePolicy::default().default, Requirement::Reject);
    }
}
