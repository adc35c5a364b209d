//! The configuration's layers: `--config`, the drop-ins of `--config-dir`, and kubelet's flags that correspond to
//! keys. Each layer is checked by itself. Then the later ones are merged over the earlier ones, and the result is
//! evaluated as one document of each kind.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::keys::{
    EARLIER_LIMPET_VERSIONS, KUBELET, Key, LIMPET, LIMPET_VERSION, RENAMED_LIMPET_KEYS, Shape, Support,
};
use super::super::kubelet_flags::KubeletFlags;
use super::super::tree::{Entry, Map, Node, Position, Value, put_over};
use super::super::{Config, ConfigError, RunFlags};
use super::{ConfigDiagnostics, read_capped};
use limpet_core::eviction::{Amount, DEFAULT_HARD};
use limpet_model::go_duration;

/// The extension of the files of `--config-dir` that kubelet reads.
const DROP_IN: &str = "conf";
/// More files than this in `--config-dir` are an error.
const MAX_DROP_INS: usize = 64;
/// How deep directories in `--config-dir` are read.
const MAX_DEPTH: usize = 8;
const HARD: &str = "evictionHard";
const CONFIG_DIR: &str = "--config-dir";

#[derive(Debug, Default)]
struct Merged {
    kubelet: Option<Vec<Entry>>,
    limpet: Option<Vec<Entry>>,
}

impl ConfigDiagnostics {
    /// Reads all layers and applies their values.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn layers(&mut self, flags: &RunFlags, config: &mut Config) -> Result<(), ConfigError> {
        let mut merged = Merged::default();
        let mut directory = PathBuf::from("/");
        // An empty path is none.
        let given = |path: &&PathBuf| !path.as_os_str().is_empty();
        let base = flags.config.as_ref().filter(given);
        let drop_ins = match flags.config_dir.as_ref().filter(given) {
            Some(path) => drop_ins(path).map_err(|source| ConfigError::Read { path: path.clone(), source })?,
            None => Vec::new(),
        };
        config.files.drop_in_dir = flags.config_dir.as_deref().and_then(|path| std::path::absolute(path).ok());
        if drop_ins.len() > MAX_DROP_INS {
            self.error(None, CONFIG_DIR, format!("has more than {MAX_DROP_INS} files"));
        }
        // Relative paths are relative to the directory of the first file.
        for path in base.into_iter().chain(drop_ins.iter().take(MAX_DROP_INS)) {
            let text = read_capped(path).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            self.origin = Arc::from(path.to_string_lossy());
            let absolute = std::path::absolute(path).ok();
            if config.files.main.is_none() {
                directory = absolute.as_deref().and_then(Path::parent).unwrap_or(Path::new("/")).to_owned();
                config.files.main = absolute;
            }
            self.file(&text, &mut merged);
            if base == Some(path) && !drop_ins.is_empty() {
                self.add_default_thresholds(&mut merged);
            }
        }
        // A setting as a whole may come from any of several files.
        let of_files = match base.iter().count() + drop_ins.len() {
            0 | 1 => Arc::clone(&self.origin),
            _ => Arc::from("configuration"),
        };
        self.flags_of_keys(&flags.kubelet, &mut merged);
        self.origin = of_files;
        if let Some(entries) = &merged.kubelet {
            self.kubelet(&Map { entries }, &directory, config);
            config.files.without_effect = without_effect(entries, KUBELET);
        }
        if let Some(entries) = &merged.limpet {
            self.limpet(&Map { entries }, config);
        }
        Ok(())
    }

    /// Applies kubelet's rule: if `--config` sets no hard thresholds, the drop-ins' are merged over the defaults. If
    /// there are only drop-ins, as in k3s, there are no defaults.
    fn add_default_thresholds(&mut self, merged: &mut Merged) {
        let position = self.place();
        // A file with only limpet's own settings does not count as a configuration file of kubelet's.
        let Some(kubelet) = &mut merged.kubelet else { return };
        let given = Map { entries: kubelet }.map(HARD);
        if !given.is_empty() {
            return;
        }
        let entry = |key: &str, value: Value| Entry { key: key.to_owned(), position, node: Node { position, value } };
        let thresholds = DEFAULT_HARD.into_iter().map(|(signal, amount)| {
            let text = match amount {
                Amount::Absolute(bytes) => bytes.to_string(),
                Amount::Share(share) => format!("{}%", (share * 100.0).round()),
            };
            entry(signal.as_str(), Value::Text(text))
        });
        let defaults = entry(HARD, Value::Map(thresholds.collect()));
        put_over(kubelet, vec![defaults]);
    }

    fn file(&mut self, text: &str, merged: &mut Merged) {
        let mut kinds: Vec<&'static str> = Vec::new();
        for node in self.documents(text) {
            match node.value {
                Value::Map(entries) => self.document(node.position, entries, merged, &mut kinds),
                Value::Null => {}
                other => self.error(Some(node.position), "", format!("expected a map, found {}", other.kind())),
            }
        }
    }

    fn document(
        &mut self,
        position: Position,
        mut entries: Vec<Entry>,
        merged: &mut Merged,
        kinds: &mut Vec<&'static str>,
    ) {
        let map = Map { entries: &entries };
        let none: &[&str] = &[];
        let (kind, version, earlier, keys) = match map.text("kind") {
            Some(("KubeletConfiguration", _)) => {
                ("KubeletConfiguration", "kubelet.config.k8s.io/v1beta1", none, KUBELET)
            }
            Some(("LimpetConfiguration", _)) => {
                ("LimpetConfiguration", LIMPET_VERSION, EARLIER_LIMPET_VERSIONS, LIMPET)
            }
            kind => {
                let message = "must be KubeletConfiguration or LimpetConfiguration";
                return self.error(Some(kind.map_or(position, |(_, at)| at)), "kind", message);
            }
        };
        if kinds.contains(&kind) {
            return self.error(Some(position), "kind", format!("a second {kind}"));
        }
        kinds.push(kind);
        match map.text("apiVersion") {
            Some((given, _)) if given == version => {}
            Some((given, at)) if earlier.contains(&given) => {
                self.warn(
                    Some(at),
                    "apiVersion",
                    format!("{given} is an earlier version, still accepted: write {version}"),
                );
            }
            written => {
                self.error(Some(written.map_or(position, |(_, at)| at)), "apiVersion", format!("must be {version}"))
            }
        }
        if kind == "LimpetConfiguration" {
            self.rename(&mut entries);
        }
        self.keys(&entries, keys, "");
        let into = if kind == "KubeletConfiguration" { &mut merged.kubelet } else { &mut merged.limpet };
        put_over(into.get_or_insert_default(), entries);
    }

    /// Gives keys with an earlier name their present one. If both exist, the earlier one is kept, which is an error.
    fn rename(&mut self, entries: &mut [Entry]) {
        for (earlier, name) in RENAMED_LIMPET_KEYS {
            if entries.iter().any(|entry| entry.key == *name) {
                continue;
            }
            for entry in entries.iter_mut().filter(|entry| entry.key == *earlier) {
                let message = format!("is an earlier name, still accepted: write {name}");
                self.warn(Some(entry.position), earlier, message);
                (*name).clone_into(&mut entry.key);
            }
        }
    }

    /// Flags override every file. As in kubelet, a flag replaces a map, except the feature gates, which are merged.
    fn flags_of_keys(&mut self, flags: &KubeletFlags, merged: &mut Merged) {
        self.origin = Arc::from("flags");
        let entries = flags.entries(self.place());
        if entries.is_empty() {
            return;
        }
        self.keys(&entries, KUBELET, "");
        let kubelet = merged.kubelet.get_or_insert_default();
        kubelet.retain(|known| known.key == "featureGates" || !entries.iter().any(|entry| entry.key == known.key));
        put_over(kubelet, entries);
    }
}

/// Keys without effect whose zero is a value, because they are pointers in Go's type. kubelet replaces the zero of
/// any other key by its default.
const POINTERS: [&str; 10] = [
    "eventRecordQPS",
    "kubeAPIQPS",
    "oomScoreAdj",
    "containerLogMaxWorkers",
    "containerLogMonitorInterval",
    "iptablesMasqueradeBit",
    "iptablesDropBit",
    "idsPerPod",
    "endpoint",
    "samplingRatePerMillion",
];

/// The entries of keys that do not act, by key, without those that have the zero of kubeadm's files: `syncFrequency: 0s`.
fn without_effect(entries: &[Entry], keys: &[Key]) -> serde_json::Map<String, serde_json::Value> {
    let mut shown = serde_json::Map::new();
    for entry in entries {
        let key = keys.iter().find(|key| key.name == entry.key);
        let shape = key.map(|key| key.shape);
        let acts = key.is_some_and(|key| key.support == Support::Acts);
        // kubelet reads its flags again after it has set the defaults.
        let by_flag = entry.node.position.at.is_none();
        if acts || !by_flag && is_zero(shape, &entry.node.value) && !POINTERS.contains(&&*entry.key) {
            continue;
        }
        let value = match (shape, &entry.node.value) {
            (Some(Shape::Object(keys)), Value::Map(entries)) => without_effect(entries, keys).into(),
            (_, value) => value.to_json(),
        };
        shown.insert(entry.key.clone(), value);
    }
    shown
}

/// Whether a value is the number zero, a duration of zero or an empty text.
fn is_zero(shape: Option<Shape>, value: &Value) -> bool {
    match (shape, value) {
        (Some(Shape::Duration | Shape::DurationOrInt), Value::Text(text)) => {
            go_duration::parse(text).is_some_and(|duration| duration.is_zero())
        }
        (_, Value::Text(text)) => text.is_empty(),
        (_, Value::Int(number)) => *number == 0,
        _ => false,
    }
}

/// The drop-ins of a directory and of those below it, by name; links to directories are not followed.
fn drop_ins(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    add_drop_ins(directory, MAX_DEPTH, &mut files)?;
    Ok(files)
}

fn add_drop_ins(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            let Some(depth) = depth.checked_sub(1) else {
                let message = format!("{} is more than {MAX_DEPTH} directories deep", path.display());
                return Err(std::io::Error::other(message));
            };
            add_drop_ins(&path, depth, files)?;
        } else if path.extension().is_some_and(|ending| ending == DROP_IN) && !path.is_dir() {
            files.push(path);
        }
        if files.len() > MAX_DROP_INS {
            break;
        }
    }
    Ok(())
}
