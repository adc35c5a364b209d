//! The offline bundle: the tarball with a runtime out of Debian's packages: containerd, runc, CNI plugins, and the C
//! library that they are linked with, so that they run on a system with another one or none.
//!
//! The programs name the bundle's own loader and libraries by their absolute paths, which are fixed: `deploy/install.sh`
//! installs to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use limpet_tests::{process, tools};

use super::{Release, base_name, stage, tarball};
use crate::apt::{self, Fetched, Foreign, Machine};
use crate::architecture::Architecture;

/// The release of Debian whose packages are taken: the first with containerd 1.7.
const SUITE: &str = "trixie";
const PACKAGES: [&str; 5] = ["containerd", "runc", "containernetworking-plugins", "libc6", "libseccomp2"];
/// Where the runtime is installed.
const INSTALLED: &str = "/opt/limpet/runtime";

const PROGRAMS: [&str; 3] = ["usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/sbin/runc"];
/// The plugins that a configuration for one node uses; all of them would add 20 MB to the file.
const PLUGINS: [&str; 8] = ["bridge", "firewall", "host-local", "ipvlan", "loopback", "macvlan", "portmap", "static"];
/// The directory of the plugins in Debian's package.
const PLUGIN_DIRECTORY: &str = "usr/lib/cni";

/// Packs `tree` and the runtime.
pub(super) fn make(release: &Release, architecture: Architecture, tree: &Path) -> Result<PathBuf> {
    let root = release.work.join(architecture.name()).join("bundle");
    stage::copy(tree, &root)?;
    stage::add_script(&root)?;
    let unpacked = release.work.join(architecture.name()).join("debian");
    let fetched = fetch(release, architecture, &unpacked)?;
    add_runtime(&unpacked, &root.join("runtime"))?;
    describe(&fetched, &unpacked, &root.join("runtime"))?;
    let name = format!("{}-offline", base_name(architecture));
    let path = release.out.join(format!("{name}.tar.gz"));
    tarball::pack(&root, &name, release.seconds(), &path)?;
    Ok(path)
}

fn fetch(release: &Release, architecture: Architecture, target: &Path) -> Result<Vec<Fetched>> {
    let machine = Machine::read(Path::new("/"))?;
    if !machine.is_debian() {
        bail!("the runtime is taken from Debian's own mirror, and this is {}", machine.name);
    }
    let foreign = Foreign {
        suite: SUITE,
        with_security_updates: release.with_security_updates,
        architecture: architecture.debian(),
        packages: &PACKAGES,
    };
    apt::unpack_foreign(&machine, &foreign, target)
}

fn add_runtime(unpacked: &Path, runtime: &Path) -> Result<()> {
    if tools::on_path("patchelf").is_none() {
        apt::install(&["patchelf"])?;
    }
    let mut libraries = BTreeSet::new();
    let programs = PROGRAMS.map(|program| ("bin", program.to_owned())).into_iter();
    let plugins = PLUGINS.map(|plugin| ("cni", format!("{PLUGIN_DIRECTORY}/{plugin}")));
    for (directory, program) in programs.chain(plugins) {
        let from = unpacked.join(&program);
        let to = runtime.join(directory).join(super::file_name(&from));
        stage::write(&to, &fs::read(&from).with_context(|| program.clone())?, 0o755)?;
        libraries.extend(needed(&to)?);
        let mut command = Command::new("patchelf");
        command.args(["--set-interpreter", &format!("{INSTALLED}/lib/ld.so"), "--force-rpath", "--set-rpath"]);
        process::checked(command.arg(format!("{INSTALLED}/lib")).arg(&to))?;
    }
    add_libraries(unpacked, runtime, libraries)
}

/// Adds the missing libraries, those that they need themselves, and the loader, which is one of these.
fn add_libraries(unpacked: &Path, runtime: &Path, mut missing: BTreeSet<String>) -> Result<()> {
    let mut added = BTreeSet::new();
    while let Some(name) = missing.pop_first() {
        let from = library(unpacked, &name)?.with_context(|| format!("no package has {name}"))?;
        missing.extend(needed(&from)?);
        let is_loader = name.starts_with("ld-linux");
        let to = runtime.join("lib").join(if is_loader { "ld.so" } else { &name });
        stage::write(&to, &fs::read(&from)?, if is_loader { 0o755 } else { 0o644 })?;
        added.insert(name);
        missing.retain(|name| !added.contains(name));
    }
    if !runtime.join("lib/ld.so").is_file() {
        bail!("no library needs the loader by name");
    }
    Ok(())
}

/// The libraries that an ELF file names.
fn needed(file: &Path) -> Result<Vec<String>> {
    let names = process::checked(Command::new("patchelf").arg("--print-needed").arg(file))?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// A library by its name, in one of the directories that packages have for them.
fn library(unpacked: &Path, name: &str) -> Result<Option<PathBuf>> {
    for directory in ["usr/lib", "lib", "usr/lib64", "lib64"] {
        let directory = unpacked.join(directory);
        let mut places = vec![directory.clone()];
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            places.push(entry?.path());
        }
        if let Some(file) = places.into_iter().map(|place| place.join(name)).find(|file| file.is_file()) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Lists the packages with their versions, and adds their licences.
fn describe(fetched: &[Fetched], unpacked: &Path, runtime: &Path) -> Result<()> {
    let mut list =
        format!("Out of these packages of Debian {SUITE}, whose sources Debian offers under the same names:\n\n");
    for Fetched { package, version } in fetched {
        list.push_str(&format!("{package} {version}, licences: licences/{package}\n"));
        let copyright = unpacked.join("usr/share/doc").join(package).join("copyright");
        let text = fs::read(&copyright).with_context(|| format!("{}", copyright.display()))?;
        stage::write(&runtime.join("licences").join(package), &text, 0o644)?;
    }
    stage::write(&runtime.join("VERSIONS"), list.as_bytes(), 0o644)
}
