//! The sets as they are on disk.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::agent::workspace_dir;

/// A set of manifests, with its versions in the order in which they are applied.
#[derive(Debug, Clone)]
pub struct Set {
    /// The name of its directory, and of the namespace of its objects.
    pub name: String,
    /// The documents of each version.
    pub versions: Vec<Vec<Value>>,
}

impl Set {
    /// The name of a version in the record.
    pub fn view_name(&self, version: usize) -> String {
        if version == 0 { self.name.clone() } else { format!("{}, version {}", self.name, version + 1) }
    }
}

/// The directory of all sets.
pub fn dir() -> PathBuf {
    workspace_dir().join("tests/sets")
}

/// Selects sets by a part of their names.
const PART_VARIABLE: &str = "LIMPET_TEST_SETS";

/// All sets by name; with `LIMPET_TEST_SETS=text` those whose name contains the text.
pub fn chosen() -> Result<Vec<Set>> {
    let part = std::env::var(PART_VARIABLE).unwrap_or_default();
    let dir = dir();
    let mut paths: Vec<PathBuf> = fs::read_dir(&dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().contains(&part)));
    paths.sort();
    ensure!(!paths.is_empty(), "no set in {} is called so: {part:?}", dir.display());
    paths.iter().map(|path| read(path).with_context(|| format!("{}", path.display()))).collect()
}

fn read(dir: &Path) -> Result<Set> {
    let name = dir.file_name().and_then(|name| name.to_str()).context("a name in UTF-8")?.to_owned();
    let files = (1..).map(|number| dir.join(format!("{number}.yaml"))).take_while(|path| path.exists());
    let versions = files.map(|path| documents(&fs::read_to_string(path)?, &name)).collect::<Result<Vec<_>>>()?;
    ensure!(!versions.is_empty(), "no 1.yaml");
    Ok(Set { name, versions })
}

/// The documents of the text, each in that namespace.
fn documents(text: &str, namespace: &str) -> Result<Vec<Value>> {
    let document = |text: &str| -> Result<Value> {
        let mut document: Value = serde_saphyr::from_str(text)?;
        ensure!(document["metadata"]["namespace"].is_null(), "the namespace is that of the set");
        document["metadata"]["namespace"] = json!(namespace);
        Ok(document)
    };
    text.split("\n---\n").map(document).collect()
}

/// `Deployment/web`.
pub fn kind_and_name(document: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&document["kind"]), text(&document["metadata"]["name"]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_least_sixty_sets() {
        let sets = chosen().unwrap();
        assert!(sets.len() >= 60 || std::env::var_os(PART_VARIABLE).is_some(), "{}", sets.len());
        assert!(sets.iter().flat_map(|set| set.versions.iter().flatten()).all(|it| it["kind"].is_string()));
    }
}
