//! `devices`: which devices of the host provide an extended resource.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::tree::{Entry, Map, Position, Value};
use super::ConfigDiagnostics;
use super::runtime_classes::cdi_device;
use limpet_model::node::Device;
use limpet_model::pod::device::is_device;

const KEY: &str = "devices";
const FIELDS: [&str; 4] = ["paths", "cdi", "exclusive", "permissions"];

impl ConfigDiagnostics {
    /// Reads the table: a resource's name, then `paths` or `cdi` or both, and `exclusive` and `permissions`, which are
    /// optional.
    pub(super) fn devices(&mut self, map: &Map<'_>, devices: &mut BTreeMap<String, Device>) {
        for Entry { key, position, node } in map.map(KEY) {
            let path = format!("{KEY}.{key}");
            if !is_device(key) {
                let message = "is not an extended resource; name it with a domain, as example.com/modem";
                self.error(Some(*position), &path, message);
                continue;
            }
            let Value::Map(fields) = &node.value else {
                self.error(Some(node.position), &path, format!("expected a map, found {}", node.value.kind()));
                continue;
            };
            if let Some(device) = self.device(&path, *position, fields) {
                devices.insert(key.clone(), device);
            }
        }
    }

    fn device(&mut self, path: &str, at: Position, fields: &[Entry]) -> Option<Device> {
        let mut device = Device { paths: Vec::new(), cdi: Vec::new(), exclusive: false, permissions: "rwm".to_owned() };
        let mut sound = true;
        for Entry { key, position, node } in fields {
            let wrong = match (key.as_str(), &node.value) {
                ("paths", Value::List(items)) => {
                    let texts = items.iter().map(|item| if let Value::Text(text) = &item.value { text } else { "" });
                    device.paths = texts.map(PathBuf::from).collect();
                    let inside = |path: &PathBuf| {
                        path.starts_with("/dev/")
                            && !path.components().any(|part| part == std::path::Component::ParentDir)
                    };
                    (!device.paths.iter().all(inside)).then(|| "must be paths below /dev".to_owned())
                }
                ("cdi", Value::List(items)) => {
                    let names: Result<Vec<String>, String> = items.iter().map(cdi_device).collect();
                    names.map(|names| device.cdi = names).err()
                }
                ("exclusive", Value::Bool(exclusive)) => {
                    device.exclusive = *exclusive;
                    None
                }
                ("permissions", Value::Text(text)) => {
                    device.permissions.clone_from(text);
                    let known = !text.is_empty() && text.chars().all(|letter| "rwm".contains(letter));
                    (!known).then(|| format!("{text:?} may contain only r, w and m"))
                }
                (known, other) if FIELDS.contains(&known) => Some(format!("has a wrong type: {}", other.kind())),
                _ => Some(format!("unknown key; a device has {}", FIELDS.join(", "))),
            };
            if let Some(message) = wrong {
                self.error(Some(*position), &format!("{path}.{key}"), message);
                sound = false;
            }
        }
        if sound && device.paths.is_empty() && device.cdi.is_empty() {
            self.error(Some(at), &format!("{path}.paths"), "is missing: the devices of the host, or cdi: those of CDI");
            sound = false;
        }
        sound.then_some(device)
    }
}
