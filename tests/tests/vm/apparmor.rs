//! AppArmor confines containers as containerd's CRI plugin has it: only Debian's kernel has AppArmor, not that of every
//! machine which runs the other suites.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::pod::{IDLE, SOON, manifest, running, shell};

/// containerd's default profile, as the kernel names it for a process.
const DEFAULT: &str = "cri-containerd.apparmor.d (enforce)";

/// The profile that Debian 13 has for runc. It confines nothing, and what runc starts without another one keeps it.
const UNCONFINED: &str = "runc (unconfined)";

/// The commands that load a profile of the node, which forbids only the writing of one file.
const TIGHT: &str = "apparmor_parser --replace --skip-cache <<'END'
profile tight flags=(attach_disconnected,mediate_deleted) {
  file,
  capability,
  network,
  signal,
  ptrace,
  unix,
  deny /refused w,
}
END";

/// The container's processes have each type of profile, and it confines them.
pub(crate) fn profiles_confine(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    ensure!(profile(&mut guest, "stays")? == DEFAULT, "a pod that asks for no profile lacks the default one");
    let doctor = guest.attempt("limpet doctor")?.1;
    let line =
        doctor.lines().find(|line| line.contains("AppArmor")).with_context(|| format!("no AppArmor: {doctor}"))?;
    ensure!(line.contains("ok"), "{line}");
    guest.run(TIGHT)?;
    for (name, profile) in [
        ("default", json!({ "type": "RuntimeDefault" })),
        ("tight", json!({ "type": "Localhost", "localhostProfile": "tight" })),
        ("free", json!({ "type": "Unconfined" })),
        ("absent", json!({ "type": "Localhost", "localhostProfile": "absent" })),
    ] {
        guest.run(&manifest(name, &mounting(json!({ "appArmorProfile": profile }))))?;
    }
    guest.run(&manifest("privileged", &mounting(json!({ "privileged": true }))))?;
    profiles_refuse_mounts(&mut guest)?;
    ensure!(attempt(&mut guest, "tight", "touch /refused")? != 0 && attempt(&mut guest, "tight", "touch /taken")? == 0);
    let message = "Cannot enforce AppArmor: profile \"absent\" is not loaded; load it with apparmor_parser";
    guest.until(SOON, "the refusal", "limpet events", |events| events.contains(message).then_some(()))?;
    guest.run(&TIGHT.replace("profile tight", "profile absent"))?;
    running(&mut guest, "absent")?;
    guest.power_cut();
    Ok(())
}

/// All of these pods may mount as far as capabilities and seccomp go, so the profile refuses it.
fn profiles_refuse_mounts(guest: &mut Guest) -> Result<()> {
    for (name, expected, mounts) in [
        ("default", DEFAULT, false),
        ("tight", "tight (enforce)", false),
        ("free", UNCONFINED, true),
        ("privileged", UNCONFINED, true),
    ] {
        running(guest, name)?;
        let confined = profile(guest, name)?;
        ensure!(confined == expected, "{name}: {confined} instead of {expected}");
        let code = attempt(guest, name, "mkdir -p /place && mount -t tmpfs none /place")?;
        ensure!((code == 0) == mounts, "{name}: mount ended with {code}");
    }
    Ok(())
}

/// A pod with the privileges that a mount needs, and with `security`.
fn mounting(security: Value) -> Value {
    let mut container = shell("main", image::V1, IDLE);
    container["securityContext"] = security;
    if container["securityContext"]["privileged"] != true {
        container["securityContext"]["capabilities"] = json!({ "add": ["SYS_ADMIN"] });
        container["securityContext"]["seccompProfile"] = json!({ "type": "Unconfined" });
    }
    json!({ "containers": [container], "terminationGracePeriodSeconds": 1 })
}

/// The profile of the container's first process; one that `limpet exec` starts has to have the same.
fn profile(guest: &mut Guest, pod: &str) -> Result<String> {
    let said =
        guest.run(&format!("limpet exec {pod} -- cat /proc/1/attr/current /proc/self/attr/current 2> /dev/null"))?;
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines.len() == 2 && lines[0] == lines[1], "{pod}: the container and exec differ:\n{said}");
    Ok(lines[0].to_owned())
}

/// The exit code of `script` in the pod.
fn attempt(guest: &mut Guest, pod: &str, script: &str) -> Result<i32> {
    Ok(guest.attempt(&format!("limpet exec {pod} -- sh -c '{script}'"))?.0)
}
