//! Upgrades and downgrades: an agent reads the state of every release, and refuses what it does not know. A new version
//! takes over, and one that does not work is undone, whenever the power is cut.

mod state;
mod supervisor;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::{self, Reply};
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::node::container_id;
use limpet_tests::release_file::{tarball, version};
use limpet_tests::release_key::ReleaseKey;
use limpet_tests::{TestNode, broken_version, case, release_file, suite};
use serde_json::json;
use state::{state_of_an_unknown_version_is_refused_and_not_changed, the_state_of_every_release_is_read};
use supervisor::Supervisor;

fn main() -> ExitCode {
    if let Some(code) = broken_version::main() {
        return code;
    }
    let code = suite::run([
        case!(the_state_of_every_release_is_read).on(|node| node.agent = false),
        case!(state_of_an_unknown_version_is_refused_and_not_changed).on(|node| node.agent = false),
        case!(a_new_version_takes_over_and_the_previous_one_comes_back).on(|node| node.agent = false),
        case!(a_version_that_ends_is_undone).on(|node| node.agent = false),
        case!(a_version_that_hangs_is_undone).on(|node| node.agent = false),
        case!(a_version_that_does_not_answer_is_undone).on(|node| node.agent = false),
        case!(a_power_cut_at_any_step_leaves_one_of_both_versions).on(|node| node.agent = false),
        case!(what_is_not_to_be_trusted_is_refused_and_nothing_changes).on(|node| node.agent = false),
        case!(a_slot_has_the_versions_of_a_system_that_cannot_be_written).on(|node| node.agent = false),
    ]);
    let _ = fs::remove_file(stripped());
    code
}

const PODS: [&str; 3] = ["one", "two", "three"];

/// The executable under test without debug information: some tens of megabytes, which are copied often.
fn program() -> Result<PathBuf> {
    static STRIPPED: Mutex<bool> = Mutex::new(false);
    let mut is_there = STRIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_there {
        release_file::strip(&agent::program()?, &stripped())?;
        *is_there = true;
    }
    Ok(stripped())
}

fn stripped() -> PathBuf {
    std::env::temp_dir().join(format!("limpet-test-stripped-{}", std::process::id()))
}

/// Runs three pods, and returns their containers.
fn run_pods(node: &TestNode) -> Result<Vec<String>> {
    PODS.iter().try_for_each(|pod| node.apply(&simple(pod, IDLE)))?;
    containers(node)
}

/// The ids of the pods' containers, none of which was restarted.
fn containers(node: &TestNode) -> Result<Vec<String>> {
    let id = |pod: &&str| {
        let running = node.wait_running(pod)?;
        let restarts = &running["status"]["containerStatuses"][0]["restartCount"];
        ensure!(*restarts == json!(0), "{pod} was restarted: {restarts}");
        container_id(&running, "main")
    };
    PODS.iter().map(id).collect()
}

fn upgrade(node: &TestNode, arguments: &[&str]) -> Result<Reply> {
    node.agent.cli(&[&["upgrade"], arguments].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn a_new_version_takes_over_and_the_previous_one_comes_back(node: &mut TestNode) -> Result<()> {
    let supervisor = Supervisor::start(node, &program()?)?;
    let ids = run_pods(node)?;
    let key = ReleaseKey::new(node.dir(), "release")?;
    let old = fs::metadata(supervisor.installed())?.len();
    let new = version(supervisor.installed(), &node.dir().join("limpet-new"), 1)?;
    let archive = tarball(&new, &new, &node.dir().join("limpet.tar.gz"))?;
    key.sign(&archive, "limpet 9 file:limpet.tar.gz")?;

    let arguments = [text(&archive), "--key", text(key.public())];
    let checked = upgrade(node, &[&arguments[..], &["--check"]].concat())?.success()?;
    ensure!(checked.contains("would be installed") && checked.contains("limpet 9 file"), "{checked}");
    ensure!(supervisor.files()?.len() == 1, "--check has left files");

    let said = upgrade(node, &arguments)?.success()?;
    ensure!(said.contains("3 pods were taken over") && said.contains("--rollback"), "{said}");
    ensure!(supervisor.running_size()? == old + 1, "the old version runs");
    ensure!(containers(node)? == ids, "containers were replaced");
    ensure!(supervisor.file("containerd-shim-limpet-v1").exists(), "the shim is missing");
    ensure!(fs::metadata(supervisor.file("limpet.previous"))?.len() == old, "the old version is not kept");
    node.wait_event("Upgraded")?;
    let status = node.agent.cli(&["status"])?.stdout;
    ensure!(status.contains("installed") && status.contains("Upgrade"), "{status}");
    ensure!(
        node.agent.metrics()?.contains("limpet_last_upgrade_timestamp_seconds{outcome=\"installed\"}"),
        "no metric"
    );
    // A pod that was started now has a logger that outlives the names of the upgrade.
    node.apply(&simple("late", "echo hello; sleep 100000"))?;
    node.wait_logged("late", "main", "hello")?;

    let again = upgrade(node, &arguments)?.success()?;
    ensure!(again.contains("is installed already"), "{again}");
    upgrade(node, &["--rollback"])?.success()?;
    ensure!(supervisor.running_size()? == old, "the new version runs");
    ensure!(containers(node)? == ids, "containers were replaced by the rollback");
    Ok(())
}

fn a_version_that_ends_is_undone(node: &mut TestNode) -> Result<()> {
    undone(node, broken_version::EXIT, "it ended 3 times")
}

fn a_version_that_hangs_is_undone(node: &mut TestNode) -> Result<()> {
    undone(node, broken_version::HANG, "the agent does not answer after 5 s")
}

fn a_version_that_does_not_answer_is_undone(node: &mut TestNode) -> Result<()> {
    undone(node, broken_version::DEAF, "the agent does not answer after 5 s")
}

/// Upgrades to a version that is broken in that way.
fn undone(node: &mut TestNode, mode: &str, reason: &str) -> Result<()> {
    let supervisor = Supervisor::start(node, &program()?)?;
    let ids = run_pods(node)?;
    let key = ReleaseKey::new(node.dir(), "release")?;
    let old = fs::metadata(supervisor.installed())?.len();
    let new = version(&std::env::current_exe()?, &node.dir().join("limpet-broken"), 0)?;
    key.sign(&new, "limpet 9.9.9")?;
    fs::write(supervisor.file(broken_version::MODE), mode)?;

    let reply = upgrade(node, &[text(&new), "--key", text(key.public()), "--deadline", "5"])?;
    let said = format!(
        "limpet {} was undone, limpet {} runs again: {reason}",
        broken_version::VERSION,
        env!("CARGO_PKG_VERSION")
    );
    ensure!(reply.code == Some(1) && reply.stderr.contains(&said), "{reply:?}");
    ensure!(supervisor.running_size()? == old, "another version runs");
    ensure!(containers(node)? == ids, "containers were replaced");
    ensure!(!supervisor.file("limpet.new").exists(), "the new version was left");
    node.wait_event("UpgradeUndone")?;
    let status = node.agent.cli(&["status"])?;
    ensure!(status.code == Some(1) && status.stdout.contains("was undone"), "{status:?}");
    ensure!(node.agent.metrics()?.contains("limpet_last_upgrade_timestamp_seconds{outcome=\"undone\"}"), "no metric");
    Ok(())
}

fn a_power_cut_at_any_step_leaves_one_of_both_versions(node: &mut TestNode) -> Result<()> {
    let supervisor = Supervisor::start(node, &program()?)?;
    let ids = run_pods(node)?;
    let old = fs::metadata(supervisor.installed())?.len();
    let new = version(supervisor.installed(), &node.dir().join("limpet-new"), 1)?;
    let present = fs::read(supervisor.installed())?;
    let socket = node.agent.settings().socket();
    let journal = |step: serde_json::Value| {
        let mut journal = json!({
            "from": "0.1.0", "to": "9", "deadlineSeconds": 40, "socket": socket,
            "baseline": { "containerd": true, "pods": [], "sources": ["file"] },
        });
        journal
            .as_object_mut()
            .into_iter()
            .zip(step.as_object())
            .for_each(|(journal, step)| journal.extend(step.clone()));
        journal.to_string()
    };
    let put = |step: serde_json::Value, staged: bool, previous: bool| -> Result<()> {
        let place = |name: &str, from: &Path| fs::copy(from, supervisor.file(name)).map(drop);
        for name in ["limpet.new", "limpet.previous"] {
            let _ = fs::remove_file(supervisor.file(name));
        }
        // The executable may be running, so a new file takes its name.
        fs::write(supervisor.file("limpet.tmp"), &present)?;
        fs::set_permissions(supervisor.file("limpet.tmp"), fs::Permissions::from_mode(0o755))?;
        fs::rename(supervisor.file("limpet.tmp"), supervisor.installed())?;
        if staged {
            place("limpet.new", &new)?;
        } else if step["step"] == "accepted" {
            fs::rename(supervisor.installed(), supervisor.file("limpet.previous"))?;
            place("limpet", &new)?;
        }
        if previous {
            fs::hard_link(supervisor.installed(), supervisor.file("limpet.previous"))?;
        }
        Ok(fs::write(supervisor.file("limpet-upgrade.json"), journal(step))?)
    };
    // The states that a power cut leaves after each write, and the version that runs in the end.
    let steps = [
        (json!({ "step": "trial", "attempts": 0 }), true, false, old + 1),
        (json!({ "step": "trial", "attempts": 2 }), true, false, old + 1),
        (json!({ "step": "trial", "attempts": 3 }), true, false, old),
        (json!({ "step": "trial", "attempts": 1 }), false, false, old),
        (json!({ "step": "accepted" }), true, false, old + 1),
        (json!({ "step": "accepted" }), true, true, old + 1),
        (json!({ "step": "accepted" }), false, false, old + 1),
        (json!({ "step": "undone", "at": "2026-01-01T00:00:00Z", "reason": "x" }), true, false, old),
    ];
    for (step, staged, previous, expected) in steps {
        supervisor.cut_power(|| put(step.clone(), staged, previous))?;
        supervisor.wait_over().with_context(|| step.to_string())?;
        supervisor.wait_answer(node)?;
        let size = supervisor.running_size()?;
        ensure!(size == expected, "after {step}: {size} bytes run, not {expected}");
        ensure!(containers(node)? == ids, "after {step}: containers were replaced");
    }
    // The power is cut twice in the middle of a trial, whose third attempt succeeds.
    supervisor.cut_power(|| put(json!({ "step": "trial", "attempts": 0 }), true, false))?;
    for _ in 0..2 {
        supervisor.wait_answer(node)?;
        supervisor.cut_power(|| Ok(()))?;
    }
    ensure!(supervisor.wait_over()? == "installed", "the third attempt failed");
    ensure!(supervisor.running_size()? == old + 1 && containers(node)? == ids, "the third attempt");
    Ok(())
}

fn what_is_not_to_be_trusted_is_refused_and_nothing_changes(node: &mut TestNode) -> Result<()> {
    let supervisor = Supervisor::start(node, &program()?)?;
    let (key, other) = (ReleaseKey::new(node.dir(), "release")?, ReleaseKey::new(node.dir(), "other")?);
    let dir = node.dir().to_owned();
    let signed = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        fs::write(&path, bytes)?;
        key.sign(&path, name)?;
        Ok::<_, anyhow::Error>(path)
    };
    // This test's executable is used, because it is smaller than an agent.
    let executable = std::env::current_exe()?;
    let program = fs::read(&executable)?;
    let archive = tarball(&executable, &executable, &dir.join("whole.tar.gz"))?;
    let archive = fs::read(archive)?;
    let mut foreign = program.clone();
    // This byte is part of ELF's e_machine, and means MIPS.
    foreign[18] = 8;
    let changed = signed("changed", &program)?;
    fs::write(&changed, [&program[..], b"x"].concat())?;
    let cut = signed("cut.tar.gz", &archive)?;
    fs::write(&cut, &archive[..archive.len() / 2])?;
    let unsigned = dir.join("unsigned");
    fs::write(&unsigned, &program)?;
    let of_other = signed("of-other", &program)?;
    let before = supervisor.files()?;
    for (path, key, expected) in [
        (changed, &key, "is not what was signed"),
        (cut, &key, "is not what was signed"),
        (unsigned, &key, "unsigned.minisig"),
        (of_other, &other, "of-other"),
        (signed("foreign", &foreign)?, &key, "is for machine 8 of ELF"),
        (signed("half.tar.gz", &archive[..archive.len() / 2])?, &key, "is neither an executable nor the tarball"),
        (signed("script", b"#!/bin/sh\nexec true\n")?, &key, "is neither an executable nor the tarball"),
        (signed("head", &program[..4096])?, &key, "does not run here"),
    ] {
        let reply = upgrade(node, &[text(&path), "--key", text(key.public())])?;
        ensure!(reply.code == Some(1) && reply.stderr.contains(expected), "{}: {reply:?}", path.display());
        ensure!(supervisor.files()? == before, "{} has changed files", path.display());
    }
    let reply = upgrade(node, &["/nonexistent"])?;
    ensure!(reply.code == Some(2) && reply.stderr.contains("--key"), "{reply:?}");
    let reply = upgrade(node, &["--rollback"])?;
    ensure!(reply.code == Some(1) && reply.stderr.contains("there was no upgrade"), "{reply:?}");
    Ok(())
}

fn a_slot_has_the_versions_of_a_system_that_cannot_be_written(node: &mut TestNode) -> Result<()> {
    let (system, slot) = (node.dir().join("system"), node.dir().join("data"));
    let supervisor = Supervisor::start_in(node, &program()?, &system, Some(&slot))?;
    let ids = run_pods(node)?;
    let key = ReleaseKey::new(node.dir(), "release")?;
    let old = fs::metadata(supervisor.installed())?.len();
    let new = version(supervisor.installed(), &node.dir().join("limpet-new"), 1)?;
    key.sign(&new, "limpet 9")?;
    let url = serve(node.dir())?;
    let elsewhere = upgrade(node, &[text(&new), "--key", text(key.public()), "--slot", "/nonexistent"])?;
    ensure!(elsewhere.code == Some(2) && elsewhere.stderr.contains("LIMPET_SLOT=/nonexistent"), "{elsewhere:?}");
    let missing = upgrade(node, &[&format!("{url}/missing"), "--key", text(key.public())])?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("404"), "{missing:?}");

    let place = format!("{url}/limpet-new");
    upgrade(node, &[&place, "--key", text(key.public()), "--slot", text(&slot)])?.success()?;
    ensure!(supervisor.running_size()? == old + 1, "the installed version runs");
    ensure!(fs::read_dir(&system)?.count() == 1, "the system was changed");
    supervisor.cut_power(|| Ok(()))?;
    supervisor.wait_answer(node)?;
    ensure!(supervisor.running_size()? == old + 1, "the installed version runs after a power cut");
    ensure!(containers(node)? == ids, "containers were replaced");
    upgrade(node, &["--rollback"])?.success()?;
    ensure!(supervisor.running_size()? == old, "the new version runs after the rollback");
    ensure!(containers(node)? == ids && supervisor.slot() == slot, "containers were replaced");
    Ok(())
}

/// Serves the files of a directory until the test ends. Returns its URL.
fn serve(directory: &Path) -> Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let (url, directory) = (format!("http://{}", listener.local_addr()?), directory.to_owned());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let name = head.split_whitespace().nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
            let (status, body) = match fs::read(directory.join(name)) {
                Ok(body) => ("200 OK", body),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    Ok(url)
}
