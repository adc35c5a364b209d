//! Installation, and what a boot brings back: after a reboot, with a clock in 1970, without any server, after a shutdown.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::{Value, json};

use crate::machine::{Machine, REGISTRY};
use crate::pod::{IDLE, SOON, base_is_back, container_id, manifest, noting, running, runs, runs_volume, shell, wait};
use crate::{cuts, leftovers};

/// Two containers, one of them with limits.
fn web(image: &str) -> Value {
    let mut web = shell("web", image, IDLE);
    web["resources"] =
        json!({ "limits": { "memory": "64Mi", "cpu": "500m" }, "requests": { "memory": "32Mi", "cpu": "100m" } });
    json!({ "terminationGracePeriodSeconds": 2, "containers": [web, shell("side", image::V1, IDLE)] })
}

pub(crate) fn installed_as_the_readme_says_it_runs_pods(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run(&manifest("web", &web(image::V1)))?;
    let pod = running(&mut guest, "web")?;
    ensure!(pod["status"]["podIP"].as_str().is_some_and(|ip| ip.starts_with("10.88.")), "{}", pod["status"]);
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?.replace('-', "_");
    let slice = format!("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
    let id = container_id(&pod, "web")?;
    let limits = guest.run(&format!("cd {slice}/limpet-{id}.scope && cat memory.max cpu.max"))?;
    ensure!(limits.split_whitespace().eq(["67108864", "50000", "100000"]), "{limits}");
    // The units are named, because a pattern that no unit matches is no failure to systemctl.
    let slices = ["kubepods.slice", "kubepods-burstable.slice", &format!("kubepods-burstable-pod{uid}.slice")];
    for slice in slices {
        guest.run(&format!("systemctl is-active {slice}"))?;
    }
    guest.run(&format!("systemctl is-active limpet-{id}.scope"))?;
    restarts_of_agent_and_containerd_touch_nothing(&mut guest, &id)?;
    edit_in_place(&mut guest, &id)?;
    guest.run("limpet doctor")?;
    guest.run("rm /etc/limpet/manifests/web.yaml")?;
    guest.until(SOON, "nothing of the pod", &format!("test ! -e {slice} && limpet pods -o json"), |output| {
        (!output.contains("web-gateway")).then_some(())
    })?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

fn restarts_of_agent_and_containerd_touch_nothing(guest: &mut Guest, id: &str) -> Result<()> {
    guest.run("systemctl restart limpet")?;
    let after = running(guest, "web")?;
    ensure!(container_id(&after, "web")? == id, "restarted by a restart of the agent");
    guest.run(&format!("systemctl stop limpet && ctr -n k8s.io tasks ls | grep {id} | grep RUNNING"))?;
    guest.run("systemctl restart containerd && systemctl start limpet")?;
    let after = running(guest, "web")?;
    ensure!(container_id(&after, "web")? == id, "restarted by a restart of containerd");
    Ok(())
}

fn edit_in_place(guest: &mut Guest, id: &str) -> Result<()> {
    let before = running(guest, "web")?;
    guest.run(&manifest("web", &web(image::V2)))?;
    let edited = wait(guest, "web", "with its new image", |pod| {
        container_id(pod, "web").is_ok_and(|new| new != id) && pod["metadata"]["uid"] == before["metadata"]["uid"]
    })?;
    ensure!(container_id(&edited, "side")? == container_id(&before, "side")?, "the other container was touched");
    Ok(())
}

pub(crate) fn a_reboot(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.send("systemctl reboot")?;
    let mut guest = machine.boot(guest.wait_off()?)?;
    base_is_back(&mut guest)?;
    tell_recovery(&mut guest, "stays")?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// Prints how long after containerd the pod's containers ran. A gateway takes a second, an emulated one far longer.
pub(crate) fn tell_recovery(guest: &mut Guest, name: &str) -> Result<()> {
    let pod = running(guest, name)?;
    let started =
        pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"].as_str().context("no start")?;
    let seconds = guest.run(&format!(
        "ready=$(date -d \"$(systemctl show -P ActiveEnterTimestamp containerd)\" +%s); \
         echo $(( $(date -d {started} +%s) - ready ))"
    ))?;
    let took = Duration::from_secs(seconds.trim().parse().with_context(|| seconds.clone())?);
    println!("{name} ran {took:?} after containerd was ready");
    Ok(())
}

/// This is the worst case of a gateway: no battery, no network, and a power cut while a pod starts.
pub(crate) fn a_power_cut_and_a_clock_in_1970(machine: &Machine) -> Result<()> {
    let guest = machine.resume()?;
    let disk = cuts::cut_in_a_start(guest, 0)?;
    let mut guest = machine.boot_at(disk, "1970-01-02T00:00:00")?;
    running(&mut guest, "cut")?;
    base_is_back(&mut guest)?;
    let before = running(&mut guest, "stays")?;
    guest.run("date -s 2026-11-21T12:00:00 && limpet pods")?;
    let later = json!({ "hostNetwork": true, "containers": [noting("later", IDLE)], "volumes": runs_volume() });
    guest.run(&manifest("later", &later))?;
    running(&mut guest, "later")?;
    let after = running(&mut guest, "stays")?;
    ensure!(container_id(&before, "stays")? == container_id(&after, "stays")?, "the jump restarted a container");
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// There is a pod of a URL and one whose image came from a registry, and at the next boot neither server answers.
pub(crate) fn a_boot_without_servers(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    let list = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "fetched" }, "spec": {
        "hostNetwork": true, "terminationGracePeriodSeconds": 1,
        "containers": [{ "name": "main", "image": format!("{REGISTRY}/large:1"), "imagePullPolicy": "IfNotPresent",
                         "command": ["/bin/sh", "-c", IDLE] }],
    }});
    guest.run(&cuts::serve_registry())?;
    guest.run(&format!(
        "mkdir -p /run/www && cat > /run/www/pods <<'END'\n{list}\nEND\n\
         systemd-run --unit=www busybox httpd -f -p 127.0.0.1:8080 -h /run/www && \
         sed -i 's|^staticPodPath:.*|&\\nstaticPodURL: http://127.0.0.1:8080/pods|' /etc/limpet/config.yaml && systemctl restart limpet"
    ))?;
    running(&mut guest, "fetched")?;
    guest.run("sync")?;
    // What runs by itself at the next boot has neither server.
    let mut guest = machine.boot(guest.power_cut())?;
    running(&mut guest, "fetched")?;
    base_is_back(&mut guest)?;
    guest.until(SOON, "the URL to be reported as unreachable", "limpet sources -o json", |text| {
        let sources: Vec<Value> = serde_json::from_str(text).ok()?;
        let url = sources.iter().find(|source| source["source"] == "http")?;
        (url["health"] == "unavailable" && url["place"] == "http://127.0.0.1:8080/pods").then_some(())
    })?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

pub(crate) fn a_shutdown_lets_containers_end(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    let slow = "trap 'sleep 3; echo ended >> /runs/list; exit 0' TERM; sleep 100000 & wait";
    // A pod that would take an hour has no more than its grace period.
    let stubborn = "trap '' TERM; echo stubborn >> /runs/list; while :; do sleep 1; done";
    let spec = |container: Value, grace: u32| json!({ "containers": [container], "volumes": runs_volume(), "terminationGracePeriodSeconds": grace });
    guest.run(&manifest("slow", &spec(noting("slow", slow), 60)))?;
    guest.run(&manifest("stubborn", &spec(noting("begun", stubborn), 5)))?;
    running(&mut guest, "slow")?;
    running(&mut guest, "stubborn")?;
    guest.send("systemctl poweroff")?;
    let mut guest = machine.boot(guest.wait_off()?)?;
    running(&mut guest, "slow")?;
    running(&mut guest, "stubborn")?;
    base_is_back(&mut guest)?;
    let runs = runs(&mut guest)?;
    for expected in ["ended1", "slow2", "stubborn2"] {
        ensure!(runs.split(' ').any(|run| run == expected), "no {expected} in {runs}");
    }
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}
