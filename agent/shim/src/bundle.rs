//! Reads the parts of a bundle's OCI spec that the shim needs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The annotations that name the group of containers served by one shim, as in containerd's runc shim; the first one
/// present counts.
const GROUPS: [&str; 2] = ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"];
/// The longest spec in bytes: seccomp rules and many mounts take tens of KiB.
const MAX_SPEC: u64 = 16 << 20;

/// The parts of an OCI spec that concern the shim.
#[derive(Debug, Default, Deserialize, PartialEq)]
pub(crate) struct Spec {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    linux: Linux,
    hooks: Option<Hooks>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
struct Hooks {
    poststart: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
struct Linux {
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
struct Namespace {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

impl Spec {
    /// Reads the spec of a bundle.
    pub(crate) fn read(bundle: &Path) -> io::Result<Self> {
        let file = BufReader::new(File::open(bundle.join("config.json"))?.take(MAX_SPEC));
        Ok(Self::from_reader(file)?)
    }

    pub(crate) fn from_reader(json: impl io::Read) -> serde_json::Result<Self> {
        serde_json::from_reader(json)
    }

    /// The group of container `id`; by default its own.
    pub(crate) fn group<'a>(&'a self, id: &'a str) -> &'a str {
        GROUPS.iter().find_map(|name| self.annotations.get(*name)).map_or(id, String::as_str)
    }

    /// Whether processes of the container may outlive its first one, because it has no PID namespace of its own.
    pub(crate) fn shares_pids(&self) -> bool {
        !self.linux.namespaces.iter().any(|namespace| namespace.kind == "pid" && namespace.path.is_empty())
    }

    /// Whether the runtime calls programs once the first process runs.
    pub(crate) fn has_poststart_hooks(&self) -> bool {
        let hooks = self.hooks.as_ref().and_then(|hooks| hooks.poststart.as_ref());
        hooks.is_some_and(|hooks| !hooks.is_empty())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_group_and_the_namespaces_of_a_spec_are_known() {
        let read = |text: &str| {
            let bundle = tempfile::tempdir().unwrap();
            std::fs::write(bundle.path().join("config.json"), text).unwrap();
            Spec::read(bundle.path())
        };
        let spec = read(
            r#"{"ociVersion":"1","annotations":{"io.kubernetes.cri.sandbox-id":"s","io.containerd.runc.v2.group":"g"},"linux":{"seccomp":{},"namespaces":[{"type":"pid"}]}}"#,
        )
        .unwrap();
        assert_eq!((spec.group("c"), spec.shares_pids()), ("g", false));
        let bare = read("{}").unwrap();
        assert_eq!((bare.group("c"), bare.shares_pids()), ("c", true));
        let shared = read(r#"{"linux":{"namespaces":[{"type":"pid","path":"/p"},{"type":"mount"}]}}"#).unwrap();
        assert!(shared.shares_pids());
        assert!(!shared.has_poststart_hooks());
        assert!(read(r#"{"hooks":{"poststart":[{"path":"/p"}]}}"#).unwrap().has_poststart_hooks());
        assert!(!read(r#"{"hooks":{"prestart":[{"path":"/p"}]}}"#).unwrap().has_poststart_hooks());
        assert!(read("[").is_err());
    }
}
