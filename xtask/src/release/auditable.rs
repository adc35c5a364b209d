//! The list of linked crates in the executable itself, as `cargo auditable` writes it: `cargo audit bin limpet` finds
//! known holes in an installed executable without its sources.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use auditable_serde::{DependencyKind, Package, Source, VersionInfo};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use limpet_tests::process;

use super::crates::LinkedCrate;
use crate::dist;

/// Copies the executable `from` of package `root` to `to` with the list in section `.dep-v0`, which is not loaded.
pub(super) fn add_list(from: &Path, root: &str, linked: &[LinkedCrate], to: &Path) -> Result<()> {
    let list = to.with_extension("dep-v0");
    fs::write(&list, section(root, linked)?).with_context(|| format!("{}", list.display()))?;
    let mut command = dist::objcopy()?;
    command.arg(format!("--add-section=.dep-v0={}", list.display())).args([from, to]);
    let copied = process::checked(&mut command);
    fs::remove_file(&list).ok();
    copied.map(drop)
}

fn section(root: &str, linked: &[LinkedCrate]) -> Result<Vec<u8>> {
    let packages = linked.iter().map(|linked| Package {
        name: linked.name.clone(),
        version: linked.version.clone(),
        source: if linked.is_published { Source::CratesIo } else { Source::Local },
        kind: DependencyKind::Runtime,
        dependencies: linked.dependencies.clone(),
        root: linked.name == root,
    });
    let list = VersionInfo { packages: packages.collect(), format: 0 };
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&serde_json::to_vec(&list)?)?;
    Ok(encoder.finish()?)
}
