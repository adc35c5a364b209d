//! `runtimeClasses`: what the `runtimeClassName` of a Pod stands for.

use std::path::PathBuf;

use super::super::Config;
use super::super::tree::{Entry, Map, Value};
use super::Judge;
use limpet_containerd::container::runtime::{RUNC_SHIM, RuntimeClass};
use limpet_model::pod::is_dns_subdomain;

const KEY: &str = "runtimeClasses";
const FIELDS: [&str; 3] = ["runtime", "binary", "config"];

impl Judge {
    /// Reads the table: a class's name, then `runtime`, `binary` or `config`, all optional.
    pub(super) fn runtime_classes(&mut self, map: &Map<'_>, config: &mut Config) {
        for entry in map.map(KEY) {
            if !is_dns_subdomain(&entry.key) {
                let message = format!("{:?} is not the name of a runtime class", entry.key);
                self.error(Some(entry.position), KEY, message);
                continue;
            }
            let fields: &[Entry] = match &entry.node.value {
                Value::Map(fields) => fields,
                Value::Null => &[],
                other => {
                    let path = format!("{KEY}.{}", entry.key);
                    self.error(Some(entry.node.position), &path, format!("expected a map, found {}", other.kind()));
                    continue;
                }
            };
            if let Some(class) = self.runtime_class(&entry.key, fields) {
                config.runtime_classes.insert(entry.key.clone(), class);
            }
        }
    }

    fn runtime_class(&mut self, name: &str, fields: &[Entry]) -> Option<RuntimeClass> {
        let mut class = RuntimeClass { runtime: RUNC_SHIM.to_owned(), binary: None, config: None };
        let mut sound = true;
        for Entry { key, position, node } in fields {
            let path = format!("{KEY}.{name}.{key}");
            let file = |text: &str| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
            let wrong = match (key.as_str(), &node.value) {
                ("runtime", Value::Text(text)) if !text.is_empty() => {
                    class.runtime.clone_from(text);
                    continue;
                }
                ("binary", Value::Text(text)) => {
                    class.binary = file(text);
                    class.binary.is_none().then(|| format!("{text:?} is no absolute path"))
                }
                ("config", Value::Text(text)) => {
                    class.config = file(text);
                    class.config.is_none().then(|| format!("{text:?} is no absolute path"))
                }
                (known, other) if FIELDS.contains(&known) => Some(format!("expected text, found {}", other.kind())),
                _ => Some(format!("unknown key; a runtime class has {}", FIELDS.join(", "))),
            };
            if let Some(message) = wrong {
                self.error(Some(*position), &path, message);
                sound = false;
            }
        }
        let is_runc = class.runtime == RUNC_SHIM;
        for (key, given, fits) in
            [("binary", class.binary.is_some(), is_runc), ("config", class.config.is_some(), !is_runc)]
        {
            if given && !fits {
                let message = match is_runc {
                    true => format!("{RUNC_SHIM} has no configuration file; remove it, or set runtime"),
                    false => format!("only {RUNC_SHIM} takes a binary; remove it, or runtime"),
                };
                self.error(fields.first().map(|field| field.position), &format!("{KEY}.{name}.{key}"), message);
                sound = false;
            }
        }
        sound.then_some(class)
    }
}
