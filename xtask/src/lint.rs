//! `cargo xtask lint`: the automatic checks of the code. Every check runs, and any warning is an error.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::agent::workspace_dir;

use crate::cargo_programs::{DENY, MACHETE};
use crate::{cargo, crate_borders, cross, ebpf, module_cycles, names, page_links, setup};

/// Which checks to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only look for cycles between modules. It takes a second and needs nothing set up.
    #[arg(long)]
    module_cycles: bool,
    /// Only look for names that say nothing, and for several types of one general name. It takes a second, too.
    #[arg(long, conflicts_with = "module_cycles")]
    names: bool,
}

/// Runs all checks and lists those that failed.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.module_cycles {
        return module_cycles::check();
    }
    if arguments.names {
        return names::check();
    }
    setup::default()?;
    let (deny, machete) = (DENY.installed()?, MACHETE.installed()?);
    let mut checks = Checks::default();
    checks.command("format", &mut cargo::command(&["fmt", "--all", "--check"]));
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    checks.command("clippy", &mut cargo::command(&clippy));
    // With its own features only: one that only another crate enables is missing then.
    let alone = ["clippy", "--quiet", "-p", "limpet-core", "--lib", "--", "--deny", "warnings"];
    checks.command("clippy of limpet-core alone", &mut cargo::command(&alone));
    let documentation = ["doc", "--quiet", "--no-deps", "--workspace", "--document-private-items"];
    checks.command(
        "documentation",
        cargo::command(&documentation).env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links"),
    );
    let rules = ["bans", "licenses", "sources"];
    checks.command("licences, versions and sources of dependencies", deny_command(&deny).args(rules));
    checks.command("unused dependencies", Command::new(&machete).arg(workspace_dir()));
    if advisories_at_hand(&deny)? {
        checks.command("advisories", deny_command(&deny).args(["--disable-fetch", "advisories"]));
    }
    for (name, check) in own_checks() {
        checks.run(name, check);
    }
    let failed = checks.failed;
    if !failed.is_empty() {
        bail!("lint failed: {}", failed.join(", "));
    }
    eprintln!("lint: passed");
    Ok(())
}

/// Runs one check after the other, with the seconds that each took.
#[derive(Default)]
struct Checks {
    failed: Vec<&'static str>,
}

impl Checks {
    fn command(&mut self, name: &'static str, command: &mut Command) {
        self.run(name, || cargo::run(command));
    }

    fn run(&mut self, name: &'static str, check: impl FnOnce() -> Result<()>) {
        eprintln!("lint: {name}");
        let begun = Instant::now();
        if let Err(error) = check() {
            eprintln!("{error:#}");
            self.failed.push(name);
        }
        eprintln!("lint: {name}: {} s", begun.elapsed().as_secs());
    }
}

/// A check that is not a single command, and its name.
type OwnCheck = (&'static str, fn() -> Result<()>);

fn own_checks() -> Vec<OwnCheck> {
    let mut checks: Vec<OwnCheck> = vec![
        ("no cycle between modules", module_cycles::check),
        ("the borders between crates", crate_borders::check),
        ("names that say what they name", names::check),
        ("links of the pages", page_links::check),
        ("a build without eBPF leaves aya out", without_ebpf),
    ];
    match ebpf::obstacle() {
        Some(obstacle) => eprintln!("lint: the BPF object is not compared with its sources: {obstacle}"),
        None => checks.push(("the BPF object is what its sources give", ebpf::compare)),
    }
    match cross::obstacle() {
        Some(obstacle) => {
            eprintln!("lint: the agent is not checked for other architectures: {obstacle}");
            checks.push(("clippy without attribution", without_attribution));
        }
        None => checks.push(("clippy for other architectures, and without attribution", cross::check)),
    }
    checks
}

fn without_attribution() -> Result<()> {
    let without = ["clippy", "--quiet", "-p", "limpet", "--no-default-features", "--all-targets"];
    cargo::run(cargo::command(&without).args(["--", "--deny", "warnings"]))
}

fn without_ebpf() -> Result<()> {
    let left_out = ["tree", "-p", "limpet", "--no-default-features", "--edges", "normal", "--prefix", "none"];
    let tree = cargo::command(&left_out).output().context("cargo tree")?;
    let listed = String::from_utf8_lossy(&tree.stdout);
    ensure!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr).trim_end());
    ensure!(!listed.lines().any(|line| line.starts_with("aya ")), "aya is still a dependency");
    Ok(())
}

fn deny_command(deny: &Path) -> Command {
    let mut command = Command::new(deny);
    command.args(["--log-level", "error", "check", "--deny", "warnings", "--hide-inclusion-graph"]);
    command.current_dir(workspace_dir());
    command
}

/// Fetches the advisory database; reports if it is not reachable.
fn advisories_at_hand(deny: &Path) -> Result<bool> {
    let output =
        Command::new(deny).args(["fetch", "db"]).current_dir(workspace_dir()).output().context("cargo-deny")?;
    if !output.status.success() {
        eprintln!("lint: advisories are not checked: their database cannot be fetched from here");
    }
    Ok(output.status.success())
}
