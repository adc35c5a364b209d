//! The package for Fedora, openSUSE and what follows them, by rpmbuild, from `deploy/rpm/limpet.spec`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use limpet_tests::agent::workspace_dir;
use limpet_tests::{process, tools};

use super::{Release, VERSION};
use crate::apt;
use crate::architecture::Architecture;

/// Packs `tree`; returns the package.
pub(super) fn make(release: &Release, architecture: Architecture, tree: &Path) -> Result<PathBuf> {
    if tools::on_path("rpmbuild").is_none() {
        apt::install(&["rpm"])?;
    }
    let top = release.work.join(architecture.name()).join("rpm");
    let name = format!("limpet-{VERSION}-1.{}.rpm", architecture.rpm());
    let mut command = Command::new("rpmbuild");
    command.args(["-bb", "--quiet", "--target", &format!("{}-linux", architecture.rpm())]);
    for (macro_name, value) in [
        ("_topdir", top.display().to_string()),
        ("_rpmdir", release.out.display().to_string()),
        ("_rpmfilename", name.clone()),
        ("tree", tree.display().to_string()),
        ("limpet_version", VERSION.to_owned()),
        ("limpet_date", release.time.strftime("%a %b %d %Y").to_string()),
    ] {
        command.arg("--define").arg(format!("{macro_name} {value}"));
    }
    command.arg(workspace_dir().join("deploy/rpm/limpet.spec"));
    process::checked(command.env("SOURCE_DATE_EPOCH", release.seconds().to_string())).context("rpmbuild")?;
    Ok(release.out.join(name))
}
