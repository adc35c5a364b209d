//! `podSecurity`: the Pod Security Standard that the pods of each source must meet.

use limpet_model::pod::security::SecurityLevel;
use limpet_model::source::SourceKind;

use super::super::tree::{Entry, Map, Value};
use super::ConfigDiagnostics;
use limpet_sources::settings::SourceSettings;

const KEY: &str = "podSecurity";
/// The sources as the configuration names them.
const SOURCES: [(&str, SourceKind); 5] = [
    ("file", SourceKind::File),
    ("push", SourceKind::Push),
    ("bundle", SourceKind::Bundle),
    ("url", SourceKind::Http),
    ("apiserver", SourceKind::Api),
];

impl ConfigDiagnostics {
    pub(super) fn pod_security(&mut self, map: &Map<'_>, sources: &mut SourceSettings) {
        for Entry { key, position, node } in map.map(KEY) {
            let path = format!("{KEY}.{key}");
            let Some((_, source)) = SOURCES.iter().find(|(name, _)| name == key) else {
                let names = SOURCES.map(|(name, _)| name).join(", ");
                self.error(Some(*position), &path, format!("is not a source; use {names}"));
                continue;
            };
            let level = match &node.value {
                Value::Text(text) => text.parse::<SecurityLevel>().ok(),
                _ => None,
            };
            match level {
                Some(level) => sources.pod_security = sources.pod_security.with(*source, level),
                None => {
                    let names = SecurityLevel::NAMES.join(", ");
                    self.error(Some(node.position), &path, format!("is not a level; use {names}"));
                }
            }
        }
    }
}
