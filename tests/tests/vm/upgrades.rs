//! Upgrades on the machine: under systemd, with many pods, to versions that do not work, and with the power cut at each
//! of their steps.

pub(crate) mod cuts;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::vm::Guest;
use limpet_tests::{agent, broken_version, image, release_file, release_key};
use serde_json::{Value, json};

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, SOON, manifest, shell};

/// The directory of [`write_files`] in the machine.
const FILES: &str = "/payload/upgrade";
/// The directory of the agent's executable.
const SLOT: &str = "/usr/bin";
/// The pods besides those of the base.
const PODS: usize = 20;
/// How many of them have addresses of their own. Emulated, each start of a CNI plugin takes long.
const PODS_WITH_NETWORK: usize = 4;

/// A version to which the machine is upgraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// The version that the base of the machine has.
    First,
    /// The same executables with other sizes.
    Second,
    /// One that never works.
    Broken,
}

impl Version {
    /// Its file among [`write_files`].
    const fn name(self) -> &'static str {
        match self {
            Self::First => "first.tar.gz",
            Self::Second => "second.tar.gz",
            Self::Broken => "broken",
        }
    }

    /// The command that upgrades to it.
    fn upgrade(self) -> String {
        format!("limpet upgrade {FILES}/{} --key {FILES}/release.pub", self.name())
    }
}

/// Writes versions of the executables in `files` with their signatures, and the key, into a directory there.
pub(crate) fn write_files(files: &Path) -> Result<()> {
    let directory = &files.join("upgrade");
    fs::create_dir_all(directory)?;
    let key = release_key::ReleaseKey::new(directory, "release")?;
    let (program, shim) = (files.join("limpet"), files.join(agent::SHIM.0));
    let second = release_file::version(&program, &directory.join("limpet"), 1)?;
    let second_shim = release_file::version(&shim, &directory.join(agent::SHIM.0), 1)?;
    release_file::tarball(&program, &shim, &directory.join(Version::First.name()))?;
    release_file::tarball(&second, &second_shim, &directory.join(Version::Second.name()))?;
    for file in [second, second_shim] {
        fs::remove_file(file)?;
    }
    release_file::strip(&std::env::current_exe()?, &directory.join(Version::Broken.name()))?;
    for version in [Version::First, Version::Second, Version::Broken] {
        key.sign(&directory.join(version.name()), version.name())?;
    }
    Ok(())
}

/// What is installed and what runs, by the sizes of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Installed {
    /// The step of the journal, if there is one.
    step: Option<String>,
    running: u64,
    present: u64,
    shim: u64,
}

impl Installed {
    /// The sizes of the next version.
    fn successor(&self) -> [u64; 2] {
        [self.present + 1, self.shim + 1]
    }

    fn sizes(&self) -> [u64; 2] {
        [self.present, self.shim]
    }

    fn is_over(&self) -> bool {
        !matches!(self.step.as_deref(), Some("trial" | "accepted")) && self.running == self.present
    }

    fn parse(text: &str) -> Option<Self> {
        let (journal, sizes) = text.split_once('\n')?;
        let journal: Value = serde_json::from_str(journal).ok()?;
        let sizes = sizes.lines().map(|line| line.trim().parse().ok()).collect::<Option<Vec<u64>>>()?;
        let [running, present, shim] = sizes[..] else { return None };
        Some(Self { step: journal["step"].as_str().map(str::to_owned), running, present, shim })
    }
}

/// Waits until no version is on trial, and the agent answers.
fn installed(guest: &mut Guest) -> Result<Installed> {
    let script = format!(
        "limpet pods > /dev/null && cd {SLOT} && {{ cat limpet-upgrade.json 2> /dev/null || echo {{}}; }} && echo && \
         stat -L -c %s /proc/$(systemctl show -P MainPID limpet)/exe limpet {}",
        agent::SHIM.0
    );
    let state = guest.until(SOON, "the end of the upgrade", &script, |text| {
        Installed::parse(&text.replace("\n\n", "\n")).filter(Installed::is_over)
    });
    state.with_context(|| {
        let evidence = format!(
            "cat {SLOT}/limpet-upgrade.json; ls -l {SLOT}/limpet*; journalctl -u limpet -n 60 --no-pager -o cat"
        );
        guest.attempt(&evidence).map(|(_, text)| text).unwrap_or_default()
    })
}

/// Twenty pods run on through an upgrade, a return, and two versions that do not work.
pub(crate) fn twenty_pods_run_on(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    let first = installed(&mut guest)?;
    let pods: Vec<_> = (0..PODS).map(many).collect();
    guest.run(&pods.join("\n"))?;
    let before = containers(&mut guest)?;

    // Emulated, the takeover of all pods takes longer than the deadline on a node.
    let patient = format!("--deadline {}", SOON.as_secs());
    let said = timed(&mut guest, "an upgrade", &format!("{} {patient}", Version::Second.upgrade()), 0)?;
    ensure!(said.contains("pods were taken over"), "{said}");
    let second = installed(&mut guest)?;
    ensure!(second.sizes() == first.successor(), "after the upgrade: {second:?}, before: {first:?}");
    ensure!(containers(&mut guest)? == before, "the upgrade restarted containers");
    timed(&mut guest, "a return", &format!("limpet upgrade --rollback {patient}"), 0)?;
    ensure!(installed(&mut guest)?.sizes() == first.sizes(), "the return did not bring the first version");
    ensure!(containers(&mut guest)? == before, "the return restarted containers");

    for (mode, reason) in
        [(broken_version::HANG, "the agent does not answer after 40 s"), (broken_version::EXIT, "it ended 3 times")]
    {
        guest.run(&format!("printf {mode} > {SLOT}/{}", broken_version::MODE))?;
        let said = timed(&mut guest, &format!("a version with the fault {mode:?}"), &Version::Broken.upgrade(), 1)?;
        ensure!(said.contains(&format!("runs again: {reason}")), "{mode}: {said}");
        ensure!(installed(&mut guest)?.sizes() == first.sizes(), "{mode}: another version is installed");
        ensure!(containers(&mut guest)? == before, "{mode}: containers were restarted");
        let (_, status) = guest.attempt("limpet status")?;
        ensure!(status.contains("was undone"), "{mode}: {status}");
    }
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// The manifest of a pod of many.
fn many(number: usize) -> String {
    let spec = json!({
        "hostNetwork": number >= PODS_WITH_NETWORK, "terminationGracePeriodSeconds": 1,
        "containers": [shell("main", image::V1, IDLE)],
    });
    manifest(&format!("many-{number}"), &spec)
}

/// The ids of all containers of the many pods, once they run. None was restarted.
fn containers(guest: &mut Guest) -> Result<Vec<String>> {
    let ids = |text: &str| {
        let list: Value = serde_json::from_str(text).ok()?;
        let pods = list["items"].as_array()?.iter();
        let many = pods.filter(|pod| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("many-")));
        let id = |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            let runs = status["state"]["running"].is_object() && status["restartCount"] == 0;
            runs.then(|| status["containerID"].as_str().map(str::to_owned)).flatten()
        };
        let mut ids = many.map(id).collect::<Option<Vec<_>>>()?;
        ids.sort();
        (ids.len() == PODS).then_some(ids)
    };
    // Emulated, starts of twenty pods take minutes.
    guest.until(2 * SOON, "twenty pods that were never restarted", "limpet pods -A -o json", ids)
}

/// Runs a command that has to end with `code`, and prints how long it took. Returns its output.
fn timed(guest: &mut Guest, what: &str, command: &str, code: i32) -> Result<String> {
    let hundredths = "$(tr -d . < /proc/uptime | cut -d' ' -f1)";
    let script = format!("begin={hundredths}; {command}; code=$?; echo; echo $(({hundredths} - begin)); exit $code");
    let (ended, text) = guest.attempt(&script)?;
    ensure!(ended == code, "{command}: exit {ended}: {text}");
    let (said, last) = text.trim_end().rsplit_once('\n').with_context(|| text.clone())?;
    let took = Duration::from_millis(10 * last.parse::<u64>().with_context(|| text.clone())?);
    println!("{what} took {took:?}: {}", said.trim().lines().last().unwrap_or_default());
    Ok(said.to_owned())
}
