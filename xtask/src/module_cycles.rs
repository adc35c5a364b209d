//! The check for cycles between the modules of a crate.
//!
//! Module `a` depends on module `b` when a file of `a` names a path below `b`: `crate::b::...` anywhere in the code, or
//! `super::b::...` where `super` reaches their common parent. A module and its own submodules may name each other; only
//! siblings count. Code that is compiled for tests alone does not count.
//!
//! Siblings are compared at every level of each crate: a cycle means that none of them can be read, tested or moved
//! without the others. What two of them share belongs to their parent, or to a third one below both.
//!
//! Not seen: names that reach a module through a glob import of its siblings (`use super::*`, `pub use b::*`), and code that
//! macros of other crates generate.

mod graph;
mod scan;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::agent::workspace_dir;
use serde_json::Value;

use crate::cargo;
use tree::Tree;

/// The kinds of targets that are neither a library nor an executable.
const NOT_CHECKED: [&str; 4] = ["bench", "custom-build", "example", "test"];

/// Modules that depend on each other in a circle.
#[derive(Debug, PartialEq, Eq)]
struct Cycle {
    members: Vec<String>,
    edges: Vec<Edge>,
}

/// One module's dependency on another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    from: String,
    to: String,
    /// How many paths in the code make the dependency.
    references: usize,
    /// The names that those paths lead to.
    names: BTreeSet<String>,
    /// The place of one such path, as `file:line`.
    example: String,
}

/// Fails when there is a cycle in a library or an executable of the workspace, and names the edges of each.
pub(crate) fn check() -> Result<()> {
    let mut report = String::new();
    for target in targets()? {
        let tree = tree::read(Path::new(&target.root), &|path| std::fs::read_to_string(path))
            .with_context(|| format!("the modules of {}", target.name))?;
        for cycle in cycles(&tree) {
            describe(&target.name, &cycle, &mut report);
        }
    }
    if !report.is_empty() {
        bail!("{}", report.trim_end());
    }
    Ok(())
}

/// A library or an executable, and the file it begins with.
struct Target {
    name: String,
    root: String,
}

/// The libraries and executables of all workspace members.
fn targets() -> Result<Vec<Target>> {
    let mut command = cargo::command(&["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let all = list(&metadata["packages"]).into_iter().flat_map(|package| list(&package["targets"]));
    let checked = all.filter_map(|target| {
        let kind = target["kind"][0].as_str().filter(|kind| !NOT_CHECKED.contains(kind))?;
        let root = target["src_path"].as_str()?.to_owned();
        Some(Target { name: format!("{} ({kind})", target["name"].as_str()?), root })
    });
    let checked: Vec<_> = checked.collect();
    ensure!(!checked.is_empty(), "cargo metadata names no library or executable");
    Ok(checked)
}

/// The cycles of one crate, at every level.
fn cycles(tree: &Tree) -> Vec<Cycle> {
    tree.modules.iter().flat_map(|parent| cycles_below(tree, parent)).collect()
}

/// The cycles among the children of `parent`.
fn cycles_below(tree: &Tree, parent: &[String]) -> Vec<Cycle> {
    let full = |child: &str| parent.iter().map(String::as_str).chain([child]).collect::<Vec<_>>().join("::");
    let mut edges: BTreeMap<(&str, &str), Edge> = BTreeMap::new();
    for reference in &tree.references {
        let Some((from, to)) = tree.siblings(parent, reference) else { continue };
        let edge = edges.entry((from, to)).or_insert_with(|| Edge {
            from: full(from),
            to: full(to),
            references: 0,
            names: BTreeSet::new(),
            example: format!("{}:{}", shown(&reference.file), reference.line),
        });
        edge.references += 1;
        edge.names.extend(reference.name().map(str::to_owned));
    }
    let components = graph::cyclic_components(edges.keys().copied());
    let cycle = |members: &Vec<&str>| {
        let inside = edges.iter().filter(|((from, to), _)| members.contains(from) && members.contains(to));
        Cycle {
            edges: inside.map(|(_, edge)| edge.clone()).collect(),
            members: members.iter().map(|member| full(member)).collect(),
        }
    };
    components.iter().map(cycle).collect()
}

/// A file as reports show it: relative to the workspace.
fn shown(file: &Path) -> String {
    file.strip_prefix(workspace_dir()).unwrap_or(file).display().to_string()
}

fn describe(target: &str, cycle: &Cycle, report: &mut String) {
    let Cycle { members, edges } = cycle;
    let width = edges.iter().map(|edge| edge.from.len() + edge.to.len() + 4).max().unwrap_or(0);
    // Writing to a string cannot fail.
    let _ = writeln!(report, "{target}: a cycle of {} modules: {}", members.len(), members.join(", "));
    for Edge { from, to, references, names, example } in edges {
        let edge = format!("{from} -> {to}");
        let more = if *references > 1 { format!(" and {} more", references - 1) } else { String::new() };
        let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let _ = writeln!(report, "    {edge:<width$}  {example}{more}: {names}");
    }
}
