//! The power is cut in the middle of an operation. After the boot everything that was acknowledged exists, what should
//! run runs once, and nothing is left of what was half done.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::vm::{Disk, Guest};
use serde_json::json;

use crate::leftovers;
use crate::machine::{Machine, REGISTRY};
use crate::pod::{IDLE, SOON, base_is_back, manifest, noting, running, runs_volume, shell, wait};

/// Cuts when the first container of three has run, or (`round`) a later one.
pub(crate) fn cut_in_a_start(mut guest: Guest, round: usize) -> Result<Disk> {
    let spec = json!({
        "containers": [noting("one", IDLE), noting("two", IDLE), noting("three", IDLE)], "volumes": runs_volume(),
        "terminationGracePeriodSeconds": 1,
    });
    guest.run(&format!("{}; sync", manifest("cut", &spec)))?;
    let reached = ["one", "two", "three"][round % 3];
    guest.until(SOON, "the start to be under way", &format!("grep -c {reached} /var/lib/runs/list"), |_| Some(()))?;
    Ok(guest.power_cut())
}

pub(crate) fn in_a_start(machine: &Machine, round: usize) -> Result<()> {
    let disk = cut_in_a_start(machine.resume()?, round)?;
    let mut guest = machine.boot(disk)?;
    running(&mut guest, "cut")?;
    base_is_back(&mut guest)?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// An edit that makes a new pod.
pub(crate) fn in_an_edit(machine: &Machine, round: usize) -> Result<()> {
    let mut guest = machine.resume()?;
    let version = |value: &str| {
        let mut main = noting("main", IDLE);
        main["env"] = json!([{ "name": "EDIT", "value": value }]);
        json!({ "containers": [main], "volumes": runs_volume(), "terminationGracePeriodSeconds": 5 })
    };
    guest.run(&manifest("edited", &version("first")))?;
    let first = running(&mut guest, "edited")?;
    guest.run(&format!("sync; {}; sync", manifest("edited", &version("second"))))?;
    let events = "limpet events | grep edited-gateway";
    let stage = ["grep Killing", "grep -c Created | grep -v 1", "grep -c Started | grep -v 1"][round % 3];
    guest.until(SOON, "the edit to be under way", &format!("{events} | {stage}"), |_| Some(()))?;
    let mut guest = machine.boot(guest.power_cut())?;
    let second = wait(&mut guest, "edited", "running as edited", |pod| {
        pod["metadata"]["uid"] != first["metadata"]["uid"]
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    ensure!(second["spec"]["containers"][0]["env"][0]["value"] == "second", "{}", second["spec"]);
    base_is_back(&mut guest)?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// Starts the machine's registry until the next boot.
pub(crate) fn serve_registry() -> String {
    let port = REGISTRY.replace(':', "/");
    format!(
        "set -e; mkdir -p /run/registry; printf 'version: 0.1\\nstorage:\\n  filesystem:\\n    rootdirectory: \
         /payload/registry/data\\n  maintenance:\\n    readonly:\\n      enabled: true\\nhttp:\\n  addr: {REGISTRY}\\n' \
         > /run/registry/config.yml; systemd-run --unit=registry /payload/docker-registry serve /run/registry/config.yml
         timeout 120 bash -c 'until (exec 3<>/dev/tcp/{port}) 2> /dev/null; do sleep 0.2; done' || \
         {{ journalctl -u registry --no-pager; exit 1; }}"
    )
}

pub(crate) fn in_a_pull(machine: &Machine, round: usize) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run(&serve_registry())?;
    let image = format!("{REGISTRY}/large:1");
    let spec = json!({ "hostNetwork": true, "containers": [shell("main", &image, IDLE)] });
    guest.run(&format!("{}; sync", manifest("pulled", &spec)))?;
    // The pull is cut when it is announced, when it has begun, and with some megabytes on the disk.
    let stage = [
        "limpet events | grep Pulling",
        "ctr -n k8s.io content active | grep -q B",
        "ctr -n k8s.io content active | grep -q MB",
    ][round % 3];
    guest.until(SOON, "the pull to be under way", stage, |_| Some(()))?;
    let mut guest = machine.boot(guest.power_cut())?;
    guest.run(&serve_registry())?;
    running(&mut guest, "pulled")?;
    guest.run("ctr -n k8s.io images check | grep large | grep -q complete")?;
    base_is_back(&mut guest)?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// Pods are applied one after the other. Every acknowledged one exists afterwards, whether or not the last one does.
pub(crate) fn in_a_write(machine: &Machine, round: usize) -> Result<()> {
    let mut guest = machine.resume()?;
    let push = |number: usize| {
        // This pod is never started, because only what is stored of it counts.
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("pushed-{number}") },
            "spec": { "hostNetwork": true, "containers": [
                { "name": "main", "image": "registry.test/absent:1", "imagePullPolicy": "Never" }] } });
        format!("limpet apply -f - <<'END'\n{pod}\nEND")
    };
    let acknowledged = 3 + round;
    for number in 0..acknowledged {
        guest.run(&push(number))?;
    }
    guest.send(&push(acknowledged))?;
    // The cut is in the middle of the next one, a little later each time; the exact moment depends on the machine.
    std::thread::sleep(std::time::Duration::from_millis(40 * round as u64));
    let mut guest = machine.boot(guest.power_cut())?;
    base_is_back(&mut guest)?;
    let pods = guest.run("limpet pods -A -o name")?;
    for number in 0..acknowledged {
        let name = format!("pushed-{number}-gateway");
        ensure!(pods.lines().any(|line| line.ends_with(&name)), "{name} was acknowledged and is not in\n{pods}");
    }
    let sources = guest.run("limpet sources")?;
    ensure!(!sources.contains("salvaged"), "{sources}");
    leftovers::none(&mut guest).context("after the cut")?;
    guest.power_cut();
    Ok(())
}
