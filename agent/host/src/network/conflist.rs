//! The CNI configuration: selects the file in the directory and parses it.
//!
//! As in containerd with libcni, the first file in byte order among `*.conflist`, `*.conf` and `*.json` is used. If
//! it is invalid, that is an error; the second file is not used, since it may define another network.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// The supported CNI versions, the newest last.
const VERSIONS: [&str; 7] = [UNVERSIONED, "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The version of a configuration without one.
const UNVERSIONED: &str = "0.1.0";

/// The largest configuration file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The most plugins in a list.
const MAX_PLUGINS: usize = 64;

/// A network: the plugins that attach a pod to it, in order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conflist {
    /// The network's name.
    pub name: String,
    /// The CNI version used with the plugins, one of [`VERSIONS`].
    pub version: String,
    /// `disableCheck`.
    pub disable_check: bool,
    /// The plugins' own configurations, each an object with a `type`.
    pub plugins: Vec<Map<String, Value>>,
}

/// Why the configuration is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("no network config found in {}", .0.display())]
    None(PathBuf),
    #[error("cannot read {}: {reason}", path.display())]
    Read { path: PathBuf, reason: String },
    #[error("network config {} is not usable: {reason}", path.display())]
    Broken { path: PathBuf, reason: String },
}

/// The name of the file to use in a directory.
pub(super) fn choose<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let known = |name: &&str| {
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("conflist" | "conf" | "json"))
    };
    names.into_iter().filter(known).min()
}

/// Reads the configuration in `dir`.
pub(super) fn load(dir: &Path) -> Result<Conflist, ConfigError> {
    let names = names(dir)?;
    let Some(name) = choose(names.iter().map(String::as_str)) else { return Err(ConfigError::None(dir.to_owned())) };
    let path = dir.join(name);
    let broken = |reason: String| ConfigError::Broken { path: path.clone(), reason };
    let value = read(&path)?;
    let list = name.ends_with(".conflist");
    let mut conflist = parse(value.clone(), list).map_err(broken)?;
    // Since 1.1 a list may have its plugins in files of a directory named after the network.
    if list && value.get("loadOnlyInlinedPlugins") != Some(&Value::Bool(true)) {
        conflist.plugins.extend(beside(&dir.join(&conflist.name))?);
    }
    if conflist.plugins.is_empty() {
        return Err(broken("it lists no plugins".to_owned()));
    }
    if conflist.plugins.len() > MAX_PLUGINS {
        return Err(broken(format!("it lists more than {MAX_PLUGINS} plugins")));
    }
    Ok(conflist)
}

/// The files in the directory; none if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>, ConfigError> {
    let fail = |error: std::io::Error| ConfigError::Read { path: dir.to_owned(), reason: error.to_string() };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fail(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        // Symlinks are followed, as in a projected volume.
        if entry.path().is_dir() {
            continue;
        }
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

/// The plugins of `*.conf` files in `dir`, in byte order.
fn beside(dir: &Path) -> Result<Vec<Map<String, Value>>, ConfigError> {
    let mut names = names(dir)?;
    names.retain(|name| name.ends_with(".conf"));
    names.sort();
    let plugin = |name: &String| {
        let path = dir.join(name);
        let value = read(&path)?;
        plugin(value).map_err(|reason| ConfigError::Broken { path, reason })
    };
    names.iter().take(MAX_PLUGINS).map(plugin).collect()
}

fn read(path: &Path) -> Result<Value, ConfigError> {
    use std::io::Read;
    let fail = |reason: String| ConfigError::Read { path: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let mut text = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(|error| fail(error.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(fail(format!("larger than {MAX_FILE} bytes")));
    }
    serde_json::from_slice(&text)
        .map_err(|error| ConfigError::Broken { path: path.to_owned(), reason: error.to_string() })
}

/// Parses a file as a list or a single plugin's configuration.
pub(super) fn parse(value: Value, list: bool) -> Result<Conflist, String> {
    let version = version(&value)?;
    let name = text(&value, "name")?.ok_or("it has no \"name\"")?.to_owned();
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if !first || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
        return Err(format!("network name {name:?} has characters that CNI does not allow"));
    }
    let disable_check = value.get("disableCheck").is_some_and(|flag| flag == &json!(true) || flag == "true");
    let plugins = if list {
        let Value::Object(mut object) = value else { return Err("it is not a JSON object".to_owned()) };
        match object.remove("plugins") {
            Some(Value::Array(plugins)) => plugins.into_iter().map(plugin).collect::<Result<_, _>>()?,
            Some(_) => return Err("\"plugins\" is not a list".to_owned()),
            None => Vec::new(),
        }
    } else {
        vec![plugin(value)?]
    };
    Ok(Conflist { name, version, disable_check, plugins })
}

/// A plugin's configuration: an object whose `type` is the bare name of an executable.
fn plugin(value: Value) -> Result<Map<String, Value>, String> {
    let Value::Object(object) = value else { return Err("a plugin is not a JSON object".to_owned()) };
    match object.get("type") {
        Some(Value::String(kind)) if kind.is_empty() || kind.contains('/') || kind.starts_with('.') => {
            Err(format!("plugin type {kind:?} is not the bare name of an executable"))
        }
        Some(Value::String(_)) => Ok(object),
        Some(_) => Err("a plugin's \"type\" is not a string".to_owned()),
        None if object.contains_key("plugins") => {
            Err("a plugin has no \"type\"; a list of plugins belongs in a file named *.conflist".to_owned())
        }
        None => Err("a plugin has no \"type\"".to_owned()),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Result<Option<&'a str>, String> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key:?} is not a string")),
    }
}

/// The newest supported version among `cniVersions` (1.1) and `cniVersion`.
fn version(value: &Value) -> Result<String, String> {
    let single = text(value, "cniVersion")?.filter(|version| !version.is_empty());
    let many = value.get("cniVersions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let offered: Vec<&str> = many.iter().filter_map(Value::as_str).chain(single).collect();
    if offered.is_empty() {
        return Ok(UNVERSIONED.to_owned());
    }
    let best = offered.iter().filter_map(|offered| VERSIONS.iter().position(|known| known == offered)).max();
    match best.and_then(|index| VERSIONS.get(index)) {
        Some(version) => Ok((*version).to_owned()),
        None => {
            Err(format!("cniVersion {} is not supported; set it to one of {}", offered.join(", "), VERSIONS.join(", ")))
        }
    }
}

impl Conflist {
    /// Whether plugins support CHECK, which exists since 0.4.0.
    pub(super) fn checks(&self) -> bool {
        !self.disable_check && !self.before_0_4()
    }

    /// Whether the version is before 0.4.0, so that a DEL has no `prevResult`.
    pub(super) fn before_0_4(&self) -> bool {
        matches!(self.version.as_str(), UNVERSIONED | "0.2.0" | "0.3.0" | "0.3.1")
    }

    /// Whether a plugin declares the capability.
    pub(super) fn has_capability(&self, name: &str) -> bool {
        self.plugins.iter().any(|plugin| is_declared(plugin.get("capabilities"), name))
    }

    /// A plugin's `type`.
    pub(super) fn plugin_type(&self, index: usize) -> &str {
        self.plugins.get(index).and_then(|plugin| plugin.get("type")).and_then(Value::as_str).unwrap_or_default()
    }

    /// The list as JSON, for the record that a DEL needs.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "cniVersion": self.version,
            "disableCheck": self.disable_check,
            "plugins": self.plugins,
        })
    }
}

/// Whether a plugin with these `capabilities` declares `name`.
pub(super) fn is_declared(capabilities: Option<&Value>, name: &str) -> bool {
    capabilities.and_then(|capabilities| capabilities.get(name)) == Some(&Value::Bool(true))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_in_byte_order_counts() {
        let table: [(&[&str], Option<&str>); 6] = [
            (&[], None),
            (&["README", "10-x.conflist.bak", ".conflist"], None),
            (&["20-b.conflist", "10-a.conf"], Some("10-a.conf")),
            (&["b.conflist", "B.conflist"], Some("B.conflist")),
            (&["9.json", "10.json"], Some("10.json")),
            (&["99-loopback.conf", "10-bridge.conflist", "00.swp"], Some("10-bridge.conflist")),
        ];
        for (names, chosen) in table {
            assert_eq!(choose(names.iter().copied()), chosen, "{names:?}");
        }
    }

    #[test]
    fn versions_are_negotiated() {
        let table = [
            (json!({"cniVersion": "1.0.0"}), Ok("1.0.0")),
            (json!({"cniVersion": "1.1.0"}), Ok("1.1.0")),
            (json!({"cniVersion": "0.3.1"}), Ok("0.3.1")),
            (json!({"cniVersions": ["0.4.0", "1.0.0", "9.0.0"]}), Ok("1.0.0")),
            (json!({"cniVersions": ["0.4.0"], "cniVersion": "1.1.0"}), Ok("1.1.0")),
            (json!({"cniVersion": "0.2.0"}), Ok("0.2.0")),
            (json!({}), Ok("0.1.0")),
            (json!({"cniVersion": ""}), Ok("0.1.0")),
            (json!({"cniVersion": null}), Ok("0.1.0")),
            (json!({"cniVersion": "2.0.0"}), Err("cniVersion 2.0.0 is not supported; set it to one of 0.1.0, ")),
            (json!({"cniVersions": ["9.0.0"]}), Err("cniVersion 9.0.0 is not supported")),
            (json!({"cniVersion": 1}), Err("\"cniVersion\" is not a string")),
        ];
        for (mut value, wanted) in table {
            value["name"] = json!("n");
            value["plugins"] = json!([{"type": "bridge"}]);
            let parsed = parse(value.clone(), true).map(|list| list.version);
            match wanted {
                Ok(version) => assert_eq!(parsed.as_deref(), Ok(version), "{value}"),
                Err(reason) => assert!(parsed.as_ref().unwrap_err().starts_with(reason), "{value}: {parsed:?}"),
            }
        }
    }

    #[test]
    fn invalid_files_are_errors_with_a_reason() {
        let table = [
            (json!([]), true, "it has no \"name\""),
            (json!({"cniVersion": "1.0.0"}), true, "it has no \"name\""),
            (json!({"name": "../x"}), true, "network name \"../x\" has characters that CNI does not allow"),
            (json!({"name": "n", "plugins": 1}), true, "\"plugins\" is not a list"),
            (json!({"name": "n", "plugins": [{}]}), true, "a plugin has no \"type\""),
            (
                json!({"name": "n", "plugins": [{"type": "../sh"}]}),
                true,
                "plugin type \"../sh\" is not the bare name of an executable",
            ),
            (
                json!({"name": "n", "plugins": []}),
                false,
                "a plugin has no \"type\"; a list of plugins belongs in a file named *.conflist",
            ),
        ];
        for (mut value, list, reason) in table {
            if value.is_object() {
                value["cniVersion"] = json!("1.0.0");
            }
            let reason_given = parse(value.clone(), list).unwrap_err();
            if value.is_object() {
                assert_eq!(reason_given, reason, "{value}");
            }
        }
    }

    #[test]
    fn a_directory_is_read_as_libcni_does() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            load(&dir.path().join("none")).unwrap_err().to_string().split('/').next(),
            Some("no network config found in ")
        );
        std::fs::create_dir(dir.path().join("00-dir.conflist")).unwrap();
        std::fs::write(dir.path().join("20-b.conf"), r#"{"cniVersion":"1.0.0","name":"b","type":"ptp"}"#).unwrap();
        assert_eq!(load(dir.path()).unwrap().name, "b");
        std::fs::write(dir.path().join("10-a.conflist"), r#"{"cniVersion":"1.1.0","name":"a"}"#).unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().ends_with("it lists no plugins"));
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/2.conf"), r#"{"type":"tuning"}"#).unwrap();
        std::fs::write(dir.path().join("a/1.conf"), r#"{"type":"bridge"}"#).unwrap();
        let list = load(dir.path()).unwrap();
        assert_eq!((list.plugin_type(0), list.plugin_type(1)), ("bridge", "tuning"));
        std::fs::write(dir.path().join("10-a.conflist"), "{").unwrap();
        assert!(matches!(load(dir.path()), Err(ConfigError::Broken { .. })), "the second file is not used instead");
    }

    #[test]
    fn a_recorded_list_is_the_same_list() {
        let plugins = json!([{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]);
        let list = parse(json!({"cniVersion": "0.4.0", "name": "net", "plugins": plugins}), true).unwrap();
        assert_eq!(parse(list.to_json(), true).unwrap(), list, "the recorded list parses to the same list");
    }
}
