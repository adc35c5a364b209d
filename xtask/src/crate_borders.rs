//! The check of the borders between crates: which of limpet's crates each one uses is what the table in ARCHITECTURE.md says,
//! and only those of rows above its own.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::agent::workspace_dir;
use serde_json::Value;

use crate::cargo;

/// The prefix of the crates' names, which the table leaves out.
const PREFIX: &str = "limpet-";
const HEAD: &str = "| crate | contents | limpet's crates that it uses |";

/// The crates of the table in its order, each with those that it uses.
type Table = Vec<(String, BTreeSet<String>)>;

/// Compares ARCHITECTURE.md with the workspace.
pub(crate) fn check() -> Result<()> {
    let file = workspace_dir().join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let output =
        cargo::command(&["metadata", "--no-deps", "--format-version", "1"]).output().context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let faults = differences(&table(&text), &used(&metadata));
    if !faults.is_empty() {
        bail!("ARCHITECTURE.md, section 3: {}", faults.join("\n"));
    }
    Ok(())
}

/// The rows of the table in the page.
fn table(page: &str) -> Table {
    let rows = page.lines().skip_while(|line| *line != HEAD).skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (name, crates) = (cells.next()?.to_owned(), cells.nth(1)?);
        let crates = crates.split(',').map(str::trim).filter(|name| *name != "none").map(str::to_owned);
        Some((name, crates.collect()))
    };
    rows.filter_map(row).collect()
}

/// The crates of limpet that each one uses, except those for tests.
fn used(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let crates = packages.filter_map(|package| {
        let name = short(package["name"].as_str()?)?;
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
        let names = normal.filter_map(|dependency| short(dependency["name"].as_str()?));
        Some((name, names.filter(|name| name != "tests").collect()))
    });
    crates.collect()
}

fn short(package: &str) -> Option<String> {
    let name = package.strip_prefix(PREFIX).or((package == "limpet").then_some(package))?;
    Some(name.to_owned())
}

/// The differences between the table and the workspace. Programs that use the agent as a library have no row.
fn differences(table: &Table, used: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let (mut faults, mut above) = (Vec::new(), BTreeSet::new());
    for (name, listed) in table {
        match used.get(name) {
            None => faults.push(format!("there is no crate {name}")),
            Some(used_crates) if used_crates != listed => {
                let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                faults.push(format!("{name} uses {}; the table says {}", list(used_crates), list(listed)));
            }
            Some(used_crates) => {
                let below = used_crates.iter().filter(|other| !above.contains(other.as_str()));
                faults.extend(below.map(|other| format!("{name} uses {other}, whose row is not above its own")));
            }
        }
        above.insert(name.as_str());
    }
    let lacking = used.iter().filter(|(name, uses)| !above.contains(name.as_str()) && !uses.contains("limpet"));
    faults.extend(lacking.filter(|(name, _)| *name != "tests").map(|(name, _)| format!("{name} has no row")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "x\n| crate | contents | limpet's crates that it uses |\n|---|---|---|\n| model | types | none |\n\
                        | core | decisions | model |\n\n| other | table | none |\n";

    /// Crates, each with those that it uses.
    type Crates = &'static [(&'static str, &'static [&'static str])];

    fn workspace(crates: Crates) -> BTreeMap<String, BTreeSet<String>> {
        let all = crates
            .iter()
            .map(|(name, uses)| ((*name).to_owned(), uses.iter().map(|name| (*name).to_owned()).collect()));
        all.collect()
    }

    #[test]
    fn the_table_and_the_workspace_are_compared() {
        let table = table(PAGE);
        let agrees: Crates = &[("core", &["model"]), ("model", &[]), ("fuzz", &["limpet"])];
        assert_eq!(differences(&table, &workspace(agrees)), [""; 0]);
        let cases: [(Crates, &str); 4] = [
            (&[("core", &["model"]), ("model", &["core"])], "model uses core; the table says "),
            (&[("core", &[]), ("model", &[])], "core uses ; the table says model"),
            (&[("model", &[])], "there is no crate core"),
            (&[("core", &["model"]), ("model", &[]), ("host", &[])], "host has no row"),
        ];
        for (crates, fault) in cases {
            assert_eq!(differences(&table, &workspace(crates)), [fault], "{crates:?}");
        }
    }

    #[test]
    fn a_crate_uses_only_those_above_it() {
        let table =
            vec![("core".to_owned(), BTreeSet::from(["model".to_owned()])), ("model".to_owned(), BTreeSet::new())];
        let faults = differences(&table, &workspace(&[("core", &["model"]), ("model", &[])]));
        assert_eq!(faults, ["core uses model, whose row is not above its own"]);
    }
}
