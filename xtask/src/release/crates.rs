//! The crates that are linked into the executable of one architecture: what licences, SBOM and audit data are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::process;
use semver::Version;
use serde::Deserialize;

use crate::architecture::Architecture;
use crate::cargo;

/// The packages whose executables are released: the agent's, and the shim's.
pub(super) const ROOTS: [&str; 2] = ["limpet", "limpet-shim"];

/// A crate that is linked into an executable.
#[derive(Debug)]
pub(super) struct LinkedCrate {
    pub(super) name: String,
    pub(super) version: Version,
    /// An SPDX expression.
    pub(super) licence: String,
    /// The directory of its sources.
    pub(super) directory: PathBuf,
    /// Whether it comes from crates.io; the others are limpet's own.
    pub(super) is_published: bool,
    /// The indexes, in the list, of the crates that it uses itself.
    pub(super) dependencies: Vec<usize>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: Version,
    license: Option<String>,
    license_file: Option<String>,
    manifest_path: PathBuf,
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// `build` or `dev`; none for one that is linked.
    kind: Option<String>,
}

/// The crates of the executables of these packages, by name and version.
pub(super) fn linked(architecture: Architecture, packages: &[&str]) -> Result<Vec<LinkedCrate>> {
    let target = architecture.target();
    // The tree knows which features these packages enable, and leaves out what runs in the compiler.
    let tree = ["tree", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--target", target];
    let tree = process::checked(cargo::command(&tree).args(packages.iter().flat_map(|name| ["--package", name])))?;
    let metadata = ["metadata", "--format-version", "1", "--filter-platform", target];
    let metadata = process::checked(&mut cargo::command(&metadata))?;
    select(&names(&tree), serde_json::from_str(&metadata).context("cargo metadata")?)
}

/// Names and versions in the lines of `cargo tree`: `serde v1.0.229 (*)`.
fn names(tree: &str) -> BTreeSet<(String, String)> {
    let pairs = tree.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" v")?;
        let version = rest.split_whitespace().next()?;
        Some((name.to_owned(), version.to_owned()))
    });
    pairs.collect()
}

fn select(names: &BTreeSet<(String, String)>, metadata: Metadata) -> Result<Vec<LinkedCrate>> {
    let is_named = |package: &Package| names.contains(&(package.name.clone(), package.version.to_string()));
    let mut packages: Vec<_> = metadata.packages.into_iter().filter(is_named).collect();
    packages.sort_by(|left, other| (&left.name, &left.version).cmp(&(&other.name, &other.version)));
    ensure!(packages.len() == names.len(), "cargo metadata has {} of {} linked crates", packages.len(), names.len());
    let places: BTreeMap<String, usize> =
        packages.iter().enumerate().map(|(place, package)| (package.id.clone(), place)).collect();
    let mut dependencies: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for node in &metadata.resolve.nodes {
        let normal = node.deps.iter().filter(|used| used.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        let mut used: Vec<_> = normal.filter_map(|used| places.get(&used.pkg).copied()).collect();
        used.sort_unstable();
        dependencies.insert(&node.id, used);
    }
    let crates = packages.into_iter().map(|package| {
        let directory = package.manifest_path.parent().unwrap_or(Path::new("/")).to_owned();
        let licence = package.license.or_else(|| package.license_file.map(|_| "LicenseRef-file".to_owned()));
        let dependencies = dependencies.get(package.id.as_str()).cloned().unwrap_or_default();
        let licence = licence.with_context(|| format!("{} {} names no licence", package.name, package.version))?;
        Ok(LinkedCrate {
            licence: licence.replace('/', " OR "),
            is_published: package.source.is_some(),
            name: package.name,
            version: package.version,
            directory,
            dependencies,
        })
    });
    crates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_name_each_crate_once() {
        let tree = "limpet v0.1.0 (/limpet/agent)\nserde v1.0.2\nserde v1.0.2 (*)\n\nlimpet-core v0.1.0 (/limpet/agent/core)\n";
        let names: Vec<_> = names(tree).into_iter().map(|(name, version)| format!("{name} {version}")).collect();
        assert_eq!(names, ["limpet 0.1.0", "limpet-core 0.1.0", "serde 1.0.2"]);
    }

    #[test]
    fn only_what_is_linked_is_listed_as_used() {
        let package = |name: &str, source: Option<&str>| {
            serde_json::json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
                "license_file": null, "manifest_path": format!("/src/{name}/Cargo.toml"), "source": source })
        };
        let metadata = serde_json::json!({
            "packages": [package("b", Some("registry")), package("a", None), package("not-linked", None)],
            "resolve": { "nodes": [{ "id": "a", "deps": [
                { "pkg": "b", "dep_kinds": [{ "kind": null }] },
                { "pkg": "not-linked", "dep_kinds": [{ "kind": null }] },
                { "pkg": "a", "dep_kinds": [{ "kind": "dev" }] },
            ] }] },
        });
        let names = ["a", "b"].map(|name| (name.to_owned(), "1.0.0".to_owned())).into();
        let crates = select(&names, serde_json::from_value(metadata).unwrap_or_else(|error| panic!("{error}")));
        let crates = crates.unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(crates.iter().map(|linked| linked.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(crates[0].dependencies, [1]);
        assert_eq!(crates[1].licence, "MIT OR Apache-2.0");
        assert!(!crates[0].is_published && crates[1].is_published);
    }
}
