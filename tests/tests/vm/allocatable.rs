//! What is reserved on a machine whose cgroups, version 2, are systemd's: the slice of all pods is limited to the rest, and a pod
//! that takes too much of it is evicted before the kernel ends anything.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, SOON, container_id, gone, manifest, noting, running, runs_volume, wait};

/// The memory that all pods may use if the rest is reserved, in bytes.
const OF_ALL_PODS: u64 = 256 << 20;
/// How much of it must stay available.
const THRESHOLD: &str = "100Mi";

pub(crate) fn all_pods_leave_what_is_reserved(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    let stays = container_id(&running(&mut guest, "stays")?, "stays")?;
    guest.run(&format!(
        "set -e
        reserved=$(($(awk '/^MemTotal/ {{ print $2 }}' /proc/meminfo) - {}))
        sed -i \"s|^staticPodPath:.*|&\\nsystemReserved: {{memory: ${{reserved}}Ki, cpu: 500m, pid: '1000'}}\\nevictionHard: {{memory.available: {THRESHOLD}}}\\nenforceNodeAllocatable: [pods, system-reserved]\\nsystemReservedCgroup: /system.slice|\" \
            /etc/limpet/config.yaml
        systemctl restart limpet
        limpet pods",
        OF_ALL_PODS >> 10
    ))?;
    // 1,500 of the 2,000 millicpus are a weight of 59 and the other 500 one of 20, as kubelet makes one of shares (KEP 2254).
    guest.until(
        SOON,
        "the limits of all pods",
        &format!(
            "cd /sys/fs/cgroup/kubepods.slice
            left=$(($(cat /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | sort -n | head -n 1) - 1000))
            test $(cat memory.max) = {OF_ALL_PODS} -a $(cat cpu.weight) = 59 -a $(cat pids.max) = $left &&
            test $(cat ../system.slice/cpu.weight) = 20 -a $(cat ../system.slice/pids.max) = 1000 &&
            test $(cat ../system.slice/memory.max) -gt $(cat memory.max) &&
            systemctl show -p MemoryMax -p TasksMax kubepods.slice | sort | tr '\\n' ' ' |
                grep -qx \"MemoryMax={OF_ALL_PODS} TasksMax=$left \""
        ),
        |_| Some(()),
    )?;

    let hog = noting("hog", &format!("dd if=/dev/zero of=/dev/shm/hog bs=1M count=200; {IDLE}"));
    let room = json!({ "name": "room", "emptyDir": { "medium": "Memory" } });
    let mut hog = json!({ "hostNetwork": true, "containers": [hog], "volumes": [runs_volume()[0], room] });
    hog["containers"][0]["volumeMounts"] =
        json!([{ "name": "runs", "mountPath": "/runs" }, { "name": "room", "mountPath": "/dev/shm" }]);
    guest.run(&manifest("hog", &hog))?;
    let evicted = wait(&mut guest, "hog", "evicted", |pod| pod["status"]["reason"] == "Evicted")?;
    let message = evicted["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("low on resource: memory. Threshold quantity: 100Mi, "), "{message}");
    ensure!(container_id(&running(&mut guest, "stays")?, "stays")? == stays, "the other pod was restarted");
    ensure!(guest.run("journalctl -k --no-pager | grep -c 'Killed process' || true")?.trim() == "0", "an OOM kill");
    guest.run("rm /etc/limpet/manifests/hog.yaml")?;
    gone(&mut guest, "hog")?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}
