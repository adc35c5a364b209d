//! Short Pod manifests for tests. They are JSON, which is YAML.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::image;

/// Ends at once on SIGTERM, and otherwise never.
pub const IDLE: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// A pod called `name` with the given `spec`, on the host's network and with a second of grace unless the spec
/// says otherwise.
pub fn pod(name: &str, spec: Value) -> Value {
    let defaults = json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1 });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": with(defaults, spec),
    })
}

/// A pod of one container called `main` that runs `script`.
pub fn simple(name: &str, script: &str) -> Value {
    pod(name, json!({ "containers": [shell("main", script)] }))
}

/// A container that runs `script` in a shell, from the first demo image.
pub fn shell(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": image::V1, "command": ["/bin/sh", "-c", script] })
}

/// Writes the manifest `file` into `dir` as careful tools do: under another name, then renamed.
pub fn put(dir: &Path, file: &str, text: &str) -> Result<()> {
    let partial = dir.join(format!(".{file}.partial"));
    fs::write(&partial, text).with_context(|| format!("{}", partial.display()))?;
    fs::rename(&partial, dir.join(file)).with_context(|| format!("rename {file}"))
}

/// `base` with the keys of `more`; objects are merged, everything else is replaced.
pub fn with(mut base: Value, more: Value) -> Value {
    merge(&mut base, more);
    base
}

fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_spec_says_wins_over_the_defaults() {
        let pod = pod("web", json!({ "hostNetwork": false, "containers": [] }));
        let spec = json!({ "hostNetwork": false, "terminationGracePeriodSeconds": 1, "containers": [] });
        assert_eq!(pod["spec"], spec);
    }

    #[test]
    fn merging_keeps_what_is_not_named() {
        let merged = with(json!({ "a": { "b": 1, "c": 2 }, "l": [1] }), json!({ "a": { "c": 3 }, "l": [2] }));
        assert_eq!(merged, json!({ "a": { "b": 1, "c": 3 }, "l": [2] }));
    }
}
