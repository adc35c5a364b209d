//! `fieldValidation`: whether manifests of each source are refused for fields that do not exist or are given twice.

use limpet_model::pod::field_validation::FieldValidation;
use limpet_model::source::SourceKind;

use super::super::tree::{Entry, Map, Value};
use super::ConfigDiagnostics;
use limpet_sources::settings::SourceSettings;

const KEY: &str = "fieldValidation";
/// The sources as the configuration names them. As in kubelet, the pods of an apiserver are never refused for that.
const SOURCES: [(&str, SourceKind); 4] =
    [("file", SourceKind::File), ("push", SourceKind::Push), ("bundle", SourceKind::Bundle), ("url", SourceKind::Http)];

impl ConfigDiagnostics {
    pub(super) fn field_validation(&mut self, map: &Map<'_>, sources: &mut SourceSettings) {
        for Entry { key, position, node } in map.map(KEY) {
            let path = format!("{KEY}.{key}");
            let Some((_, source)) = SOURCES.iter().find(|(name, _)| name == key) else {
                let names = SOURCES.map(|(name, _)| name).join(", ");
                self.error(Some(*position), &path, format!("is not a source of manifests; use {names}"));
                continue;
            };
            let validation = match &node.value {
                Value::Text(text) => text.parse::<FieldValidation>().ok(),
                _ => None,
            };
            match validation {
                Some(validation) => sources.field_validation = sources.field_validation.with(*source, validation),
                None => {
                    let names = FieldValidation::NAMES.join(" or ");
                    self.error(Some(node.position), &path, format!("must be {names}"));
                }
            }
        }
    }
}
