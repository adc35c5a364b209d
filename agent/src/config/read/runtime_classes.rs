//! `runtimeClasses`: what the `runtimeClassName` of a Pod refers to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::tree::{Entry, Map, Node, Value};
use super::ConfigDiagnostics;
use limpet_containerd::container::runtime::{RUNC_SHIM, RuntimeClass};
use limpet_containerd::image::WASM;
use limpet_model::pod::is_dns_subdomain;

const KEY: &str = "runtimeClasses";
const FIELDS: [&str; 7] = ["runtime", "binary", "config", "noPivotRoot", "noNewKeyring", "platform", "devices"];

impl ConfigDiagnostics {
    /// Reads the table: a class's name, then its fields, all optional.
    pub(super) fn runtime_classes(&mut self, map: &Map<'_>, classes: &mut BTreeMap<String, RuntimeClass>) {
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
                classes.insert(entry.key.clone(), class);
            }
        }
    }

    fn runtime_class(&mut self, name: &str, fields: &[Entry]) -> Option<RuntimeClass> {
        let mut class = RuntimeClass::with_runtime(RUNC_SHIM);
        let mut sound = true;
        for Entry { key, position, node } in fields {
            if let Err(message) = set(&mut class, key, &node.value) {
                self.error(Some(*position), &format!("{KEY}.{name}.{key}"), message);
                sound = false;
            }
        }
        for Entry { key, position, .. } in fields {
            if let Some(message) = misfit(&class, key) {
                self.error(Some(*position), &format!("{KEY}.{name}.{key}"), message);
                sound = false;
            }
        }
        sound.then_some(class)
    }
}

/// Sets one field.
///
/// # Errors
/// What is wrong with it.
fn set(class: &mut RuntimeClass, key: &str, value: &Value) -> Result<(), String> {
    match (key, value) {
        ("runtime", Value::Text(text)) if !text.is_empty() => class.runtime.clone_from(text),
        ("binary", Value::Text(text)) => class.binary = Some(file(text)?),
        ("config", Value::Text(text)) => class.config = Some(file(text)?),
        ("noPivotRoot", Value::Bool(given)) => class.no_pivot_root = *given,
        ("noNewKeyring", Value::Bool(given)) => class.no_new_keyring = *given,
        ("platform", Value::Text(text)) if text == WASM => class.wasm = true,
        ("platform", _) => return Err(format!("expected {WASM}, the one platform beside the node's own")),
        ("devices", Value::List(nodes)) => class.devices = nodes.iter().map(cdi_device).collect::<Result<_, _>>()?,
        ("runtime" | "binary" | "config", other) => return Err(format!("expected text, found {}", other.kind())),
        ("noPivotRoot" | "noNewKeyring", other) => {
            return Err(format!("expected true or false, found {}", other.kind()));
        }
        ("devices", other) => return Err(format!("expected a list, found {}", other.kind())),
        _ => return Err(format!("unknown key; a runtime class has {}", FIELDS.join(", "))),
    }
    Ok(())
}

fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is not an absolute path")) }
}

pub(super) fn cdi_device(node: &Node) -> Result<String, String> {
    let Value::Text(text) = &node.value else { return Err(format!("expected text, found {}", node.value.kind())) };
    let parts = text.split_once('=').and_then(|(kind, name)| Some((kind.split_once('/')?, name)));
    let is_device =
        parts.is_some_and(|((vendor, class), name)| [vendor, class, name].iter().all(|part| !part.is_empty()));
    if is_device { Ok(text.clone()) } else { Err(format!("{text:?} is not a CDI device; write vendor.com/class=name")) }
}

/// Why the field cannot be set for the class's runtime.
fn misfit(class: &RuntimeClass, key: &str) -> Option<String> {
    match (key, class.runtime == RUNC_SHIM) {
        ("config", true) => Some(format!("{RUNC_SHIM} has no configuration file; remove it, or set runtime")),
        ("binary" | "noPivotRoot" | "noNewKeyring", false) => {
            Some(format!("only {RUNC_SHIM} takes it; remove it, or runtime"))
        }
        _ => None,
    }
}
