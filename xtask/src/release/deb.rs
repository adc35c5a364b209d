//! The package for Debian and what follows it, by dpkg-deb, from the control files in `deploy/deb`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use limpet_tests::agent::workspace_dir;
use limpet_tests::process;

use super::stage::{self, gzip};
use super::{Release, VERSION};
use crate::architecture::Architecture;

/// Control files that are the same for all architectures, and their modes.
const CONTROL: [(&str, u32); 5] =
    [("conffiles", 0o644), ("postinst", 0o755), ("postrm", 0o755), ("prerm", 0o755), ("templates", 0o644)];

/// Packs `tree`; returns the package.
pub(super) fn make(release: &Release, architecture: Architecture, tree: &Path) -> Result<PathBuf> {
    let root = release.work.join(architecture.name()).join("deb");
    stage::copy(tree, &root)?;
    follow_policy(&root, release)?;
    let control = fs::read_to_string(source("control")).context("deploy/deb/control")?;
    let control = control
        .replace("@VERSION@", VERSION)
        .replace("@ARCHITECTURE@", architecture.debian())
        .replace("@INSTALLED_SIZE@", &kibibytes(&root)?.to_string());
    stage::write(&root.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    for (name, mode) in CONTROL {
        let bytes = fs::read(source(name)).with_context(|| format!("deploy/deb/{name}"))?;
        stage::write(&root.join("DEBIAN").join(name), &bytes, mode)?;
    }
    let package = release.out.join(format!("limpet_{VERSION}-1_{}.deb", architecture.debian()));
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(&package);
    // dpkg-deb sets times to this one that are later, which all of them are.
    process::checked(command.env("SOURCE_DATE_EPOCH", release.seconds().to_string()))?;
    Ok(package)
}

/// Moves what Debian has elsewhere, and adds what its policy requires.
fn follow_policy(root: &Path, release: &Release) -> Result<()> {
    let completions = root.join("usr/share/zsh");
    fs::rename(completions.join("site-functions"), completions.join("vendor-completions"))?;
    let documents = root.join("usr/share/doc/limpet");
    // Debian has this text in /usr/share/common-licenses.
    fs::remove_file(documents.join("LICENSE"))?;
    let copyright = fs::read(source("copyright")).context("deploy/deb/copyright")?;
    stage::write(&documents.join("copyright"), &copyright, 0o644)?;
    let overrides = fs::read(source("lintian-overrides")).context("deploy/deb/lintian-overrides")?;
    stage::write(&root.join("usr/share/lintian/overrides/limpet"), &overrides, 0o644)?;
    let date = release.time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string();
    let changelog = format!(
        "limpet ({VERSION}-1) unstable; urgency=medium\n\n  * New upstream release: see changelog.gz.\n\n \
         -- The limpet project <maintainers@limpet.dev>  {date}\n"
    );
    stage::write(&documents.join("changelog.Debian.gz"), &gzip(changelog.as_bytes())?, 0o644)
}

fn source(name: &str) -> PathBuf {
    workspace_dir().join("deploy/deb").join(name)
}

/// The size of a tree's files in KiB.
fn kibibytes(tree: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(tree).with_context(|| format!("{}", tree.display()))? {
        let entry = entry?;
        sum += match entry.metadata()? {
            directory if directory.is_dir() => 1 + kibibytes(&entry.path())?,
            file => file.len().div_ceil(1024),
        };
    }
    Ok(sum)
}
