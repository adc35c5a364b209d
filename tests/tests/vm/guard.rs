//! Who changed a manifest, as reported by BPF programs, and the guard over the manifests: both need their own kernel
//! and a cgroup v2.

use anyhow::{Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::pod::{IDLE, SOON, container_id, manifest, running, shell};

/// What the pod tries, each with the check that the host is unchanged if it is refused.
const ATTEMPTS: [(&str, &str); 5] = [
    ("echo a > /m/new.yaml", "test ! -e new.yaml"),
    ("rm /m/stays.yaml", "test -e stays.yaml"),
    ("mv /m/stays.yaml /m/gone.yaml", "test -e stays.yaml"),
    ("echo >> /m/once.yaml", "test -s once.yaml"),
    ("ln -s /etc/passwd /m/link.yaml", "test ! -L link.yaml"),
];

/// With BPF programs in this kernel the actor of each change is known, and the guard refuses pods, outlives the agent,
/// and is removed on command.
pub(crate) fn a_guard_and_the_actors(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    let mut writer = shell("writer", image::V1, IDLE);
    writer["volumeMounts"] = json!([{ "name": "m", "mountPath": "/m" }]);
    let volumes = json!([{ "name": "m", "hostPath": { "path": "/etc/limpet/manifests" } }]);
    guest.run(&manifest("writer", &json!({ "containers": [writer], "volumes": volumes })))?;
    let id = container_id(&running(&mut guest, "writer")?, "writer")?;
    actors_are_known(&mut guest)?;
    guest.run("echo 'manifestGuard: containers' >> /etc/limpet/config.yaml && systemctl restart limpet")?;
    guest.until(SOON, "the guard", "limpet guard status", |text| text.starts_with("on: containers").then_some(()))?;
    ensure!(container_id(&running(&mut guest, "writer")?, "writer")? == id, "restarted by the guard's start");
    attempts_are_refused(&mut guest, &|script| format!("limpet exec writer -- sh -c '{script}'"))?;
    guest.until(SOON, "the refusals", "limpet events", |text| {
        let reported =
            text.lines().any(|line| line.contains("ManifestGuardRefused") && line.contains("writer-gateway"));
        reported.then_some(())
    })?;
    // Processes outside of pods are not refused.
    guest.run("cd /etc/limpet/manifests && echo '# seen' >> once.yaml && touch notes.txt && rm notes.txt")?;
    guest.run("systemctl kill --signal=KILL limpet && systemctl stop limpet")?;
    attempts_are_refused(&mut guest, &|script| {
        format!("ctr -n k8s.io tasks exec --exec-id try-$RANDOM {id} sh -c '{script}'")
    })?;
    guest.run("systemctl start limpet && limpet guard status")?;
    ensure!(container_id(&running(&mut guest, "writer")?, "writer")? == id, "restarted by the agent's end");
    let said = guest.run("limpet guard off")?;
    ensure!(said.trim() == "the guard is off", "{said}");
    guest.run("limpet exec writer -- sh -c 'echo a > /m/notes.txt' && rm /etc/limpet/manifests/notes.txt")?;
    let (code, said) = guest.attempt("limpet guard status")?;
    ensure!((code, said.trim()) == (1, "off"), "{code} {said}");
    an_upgrade_under_a_strict_guard_starts(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// The guard of the old executable does not know the new one.
fn an_upgrade_under_a_strict_guard_starts(guest: &mut Guest) -> Result<()> {
    guest.run(
        "sed -i 's/^manifestGuard: .*/manifestGuard: strict/' /etc/limpet/config.yaml && systemctl restart limpet",
    )?;
    let on = "limpet guard status && ! touch /etc/limpet/manifests/notes.txt && limpet pods";
    guest.until(SOON, "the strict guard", on, |text| text.starts_with("on: strict").then_some(()))?;
    let before = guest.run("ls /sys/fs/bpf/limpet-guard")?;
    guest.run("install /payload/limpet /usr/bin/limpet")?;
    guest.run("systemctl restart limpet || { journalctl -u limpet -n 30 --no-pager -o cat; false; }")?;
    guest.until(SOON, "the new one's guard", &format!("{on} && ls /sys/fs/bpf/limpet-guard"), |text| {
        (!text.contains(before.trim())).then_some(())
    })?;
    guest
        .run("limpet guard off && touch /etc/limpet/manifests/notes.txt && rm /etc/limpet/manifests/notes.txt")
        .map(drop)
}

/// The change of a process that has ended at once, and that of a pod.
fn actors_are_known(guest: &mut Guest) -> Result<()> {
    guest.until(SOON, "the programs", "limpet sources", |text| text.contains("ebpf").then_some(()))?;
    guest.run(
        "cd /etc/limpet && sed 's/\"name\":\"stays\"/\"labels\":{\"a\":\"b\"},&/' manifests/stays.yaml > stays.new",
    )?;
    guest.run("cd /etc/limpet && useradd --no-create-home deployer && chmod 777 . manifests")?;
    guest.run("runuser -u deployer mv /etc/limpet/stays.new /etc/limpet/manifests/stays.yaml")?;
    let last = guest.until(SOON, "the change", "limpet history stays -o json", |text| {
        let document: Value = serde_json::from_str(text).ok()?;
        document["changes"].as_array()?.last().filter(|last| last["change"] == "edited").cloned()
    })?;
    let actor = &last["actor"];
    ensure!(actor["command"] == "mv" && actor["user"] == "deployer" && actor["pid"].is_u64(), "{last}");
    ensure!(actor["executable"] == "/usr/bin/mv" && actor["cgroup"].is_string(), "{last}");
    guest.run("limpet exec writer -- sh -c 'echo a > /m/notes.txt' && rm /etc/limpet/manifests/notes.txt")?;
    guest.until(SOON, "the alarm", "limpet events", |text| text.contains("PodChangesManifests").then_some(()))
}

/// Has the pod try everything by `in_pod`, and checks that it is refused.
fn attempts_are_refused(guest: &mut Guest, in_pod: &dyn Fn(&str) -> String) -> Result<()> {
    for (attempt, unchanged) in ATTEMPTS {
        let before = guest.run("cat /etc/limpet/manifests/once.yaml")?;
        let (code, said) = guest.attempt(&in_pod(attempt))?;
        ensure!(code != 0 && said.contains("not permitted"), "{attempt}: exit {code}: {said}");
        let after = guest.run(&format!("cd /etc/limpet/manifests && {unchanged} && cat once.yaml"))?;
        ensure!(after == before, "{attempt} went through");
    }
    Ok(())
}
