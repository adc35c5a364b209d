//! `cargo xtask setup`: installs or unpacks what is missing on this machine.

use std::path::Path;

use anyhow::{Result, bail};
use limpet_tests::tools::{self, ContainerdPrograms};

use crate::apt::{self, Machine};

/// What to set up.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Also fetch this major version of containerd, for tests and benches that compare.
    #[arg(long, value_name = "MAJOR", value_parser = clap::value_parser!(u32).range(1..=2))]
    containerd: Option<u32>,
}

/// Packages that apt installs, each with the program by which its presence is known.
const INSTALLED: [(&str, &str); 3] = [("protobuf-compiler", "protoc"), ("runc", "runc"), ("iptables", "iptables")];

/// Packages that are unpacked beside the machine: installed, they would start services, replace another package or
/// change what a cluster on this machine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Busybox,
    Registry,
    CniPlugins,
    Containerd,
    ContainerdTwo,
    Etcd,
    Prometheus,
    Faketime,
    Runsc,
    /// One of those that OpenRC consists of, in tests of the installation.
    OpenRc(&'static str),
    /// One of those with which Podman works.
    Podman(&'static str),
}

impl Beside {
    fn package(self) -> &'static str {
        match self {
            Self::Busybox => "busybox-static",
            Self::Registry => "docker-registry",
            Self::CniPlugins => "containernetworking-plugins",
            Self::Containerd | Self::ContainerdTwo => "containerd",
            Self::Etcd => "etcd-server",
            Self::Prometheus => "prometheus",
            Self::Faketime => "libfaketime",
            Self::Runsc => "runsc",
            Self::OpenRc(package) | Self::Podman(package) => package,
        }
    }

    fn is_missing(self) -> bool {
        match self {
            Self::Busybox => tools::busybox().is_none(),
            Self::Registry => tools::registry().is_none(),
            Self::CniPlugins => tools::cni_plugins().is_none(),
            Self::Containerd => ContainerdPrograms::of_major(1).or_else(|| ContainerdPrograms::of_major(2)).is_none(),
            Self::ContainerdTwo => ContainerdPrograms::of_major(2).is_none(),
            Self::Etcd => tools::etcd().is_none(),
            Self::Prometheus => tools::prometheus().is_none(),
            Self::Faketime => tools::faketime().is_none(),
            Self::Runsc => tools::runsc().is_none(),
            Self::OpenRc(_) => tools::openrc_packages().is_none(),
            Self::Podman(_) => tools::podman_packages().is_none(),
        }
    }

    fn suites(self, machine: &Machine) -> Vec<String> {
        match (self, machine.is_debian()) {
            (Self::Containerd, true) => vec!["trixie".to_owned()],
            (Self::ContainerdTwo, true) => vec!["unstable".to_owned()],
            (Self::Containerd | Self::ContainerdTwo, false) => {
                vec![machine.codename.clone(), format!("{}-updates", machine.codename)]
            }
            _ => vec![machine.codename.clone()],
        }
    }
}

/// Installs what is missing, and prints nothing if nothing is.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let install: Vec<_> = INSTALLED
        .iter()
        .filter(|(_, program)| tools::on_path(program).is_none())
        .map(|(package, _)| *package)
        .collect();
    let mut wanted = vec![Beside::Busybox, Beside::Registry, Beside::CniPlugins];
    wanted.extend(tools::OPENRC_PACKAGES.map(Beside::OpenRc));
    wanted.push(Beside::Containerd);
    match arguments.containerd {
        Some(2) => wanted.push(Beside::ContainerdTwo),
        Some(_) if ContainerdPrograms::of_major(1).is_none() => return fetch_all(&install, &wanted, true),
        _ => {}
    }
    fetch_all(&install, &wanted, false)
}

/// Setup without options, for the tasks that need it.
pub(crate) fn default() -> Result<()> {
    run(&Arguments { containerd: None })
}

/// Sets up containerd 2 as well, beside the other one.
pub(crate) fn with_containerd_2() -> Result<()> {
    run(&Arguments { containerd: Some(2) })
}

/// Sets up what building limpet needs besides Rust.
pub(crate) fn for_building() -> Result<()> {
    let install: &[&str] = if tools::on_path("protoc").is_none() { &["protobuf-compiler"] } else { &[] };
    fetch_all(install, &[], false)
}

/// Sets up what an apiserver needs: its store, and its client.
pub(crate) fn for_apiserver() -> Result<()> {
    let install: &[&str] = if tools::on_path("curl").is_none() { &["curl"] } else { &[] };
    fetch_all(install, &[Beside::Etcd], false)
}

/// Sets up the Prometheus that reads a node's metrics in tests.
pub(crate) fn for_dashboard() -> Result<()> {
    fetch_all(&[], &[Beside::Prometheus], false)
}

/// Sets up gVisor, which is a runtime class in tests.
pub(crate) fn for_runtime_classes() -> Result<()> {
    fetch_all(&[], &[Beside::Runsc], false)
}

/// Sets up the Podman of the benches.
pub(crate) fn for_podman() -> Result<()> {
    fetch_all(&[], &tools::PODMAN_PACKAGES.map(Beside::Podman), false)
}

/// Sets up what kube-proxy needs: it has nft change its rules.
pub(crate) fn for_kube_proxy() -> Result<()> {
    let install: &[&str] = if tools::on_path("nft").is_none() { &["nftables"] } else { &[] };
    fetch_all(install, &[], false)
}

/// Sets up what shows a node another time of day in tests.
pub(crate) fn for_clocks() -> Result<()> {
    fetch_all(&[], &[Beside::Faketime], false)
}

/// Sets up what `--containerd MAJOR` of another task needs. Returns the variables by which the harness uses that
/// version.
pub(crate) fn for_major(major: Option<u32>) -> Result<Vec<(&'static str, String)>> {
    run(&Arguments { containerd: major })?;
    Ok(major.map(|major| (tools::CONTAINERD_VARIABLE, major.to_string())).into_iter().collect())
}

fn fetch_all(install: &[&str], wanted: &[Beside], containerd_one: bool) -> Result<()> {
    let missing = |beside: &Beside| beside.is_missing() || (containerd_one && *beside == Beside::Containerd);
    let beside: Vec<_> = wanted.iter().copied().filter(missing).collect();
    if install.is_empty() && beside.is_empty() {
        return Ok(());
    }
    let machine = able_machine(install, &beside)?;
    if !install.is_empty() {
        apt::install(install)?;
    }
    let mut rest = &beside[..];
    while let Some(first) = rest.first() {
        let suites = first.suites(&machine);
        let together = rest.iter().take_while(|other| other.suites(&machine) == suites).count();
        let packages: Vec<_> = rest[..together].iter().map(|beside| beside.package()).collect();
        apt::unpack_beside(&machine, &suites, &packages)?;
        rest = &rest[together..];
    }
    match beside.iter().find(|beside| beside.is_missing()) {
        None => Ok(()),
        Some(Beside::ContainerdTwo) => bail!("{} has no containerd 2 for this machine", machine.name),
        Some(beside) => {
            bail!("{} was downloaded, but its programs are missing or do not run", beside.package())
        }
    }
}

/// The machine, if this process can set it up.
fn able_machine(install: &[&str], beside: &[Beside]) -> Result<Machine> {
    let packages: Vec<_> = install.iter().copied().chain(beside.iter().map(|beside| beside.package())).collect();
    let missing = packages.join(", ");
    if !["apt-get", "dpkg-deb"].iter().all(|program| tools::on_path(program).is_some()) {
        bail!(
            "missing here: {missing}. Setup needs apt (Debian or Ubuntu); elsewhere install them by hand, containerd 1.7 or newer"
        );
    }
    if !install.is_empty() && !tools::is_root() {
        bail!("missing here: {missing}. Run as root to install them: sudo -E env PATH=\"$PATH\" cargo xtask setup");
    }
    Machine::read(Path::new("/"))
}
