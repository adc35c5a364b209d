//! `memoryReservationPolicy` and `memoryThrottlingFactor`, which take cgroup v2.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image;
use serde_json::{Value, json};

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, container_id, gone, manifest, running, shell};

const KEPT: &str = "set -e
sed -i 's/^kind: KubeletConfiguration/&\\nmemoryReservationPolicy: TieredReservation\\nmemoryThrottlingFactor: 0.5/' /etc/limpet/config.yaml
systemctl restart limpet";
const NOT_KEPT: &str = "set -e
sed -i '/^memoryReservationPolicy/d; /^memoryThrottlingFactor/d' /etc/limpet/config.yaml
systemctl restart limpet";
const MIB: u64 = 1 << 20;

/// The memory that pods request is protected in their own cgroups, and up to the slice of all pods; beyond it a
/// container is slowed.
pub(crate) fn what_is_requested_is_kept(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run(KEPT)?;
    let spec = |resources: Value| {
        let mut main = shell("main", image::V1, IDLE);
        main["resources"] = resources;
        json!({ "terminationGracePeriodSeconds": 1, "containers": [main] })
    };
    guest.run(&manifest("hard", &spec(json!({ "limits": { "cpu": "100m", "memory": "64Mi" } }))))?;
    let soft = json!({ "requests": { "memory": "32Mi" }, "limits": { "memory": "128Mi" } });
    guest.run(&manifest("soft", &spec(soft)))?;
    let hard = container_id(&running(&mut guest, "hard")?, "main")?;
    let soft = container_id(&running(&mut guest, "soft")?, "main")?;
    let hard = format!("kubepods.slice/*/limpet-{hard}.scope");
    let soft = format!("kubepods.slice/kubepods-burstable.slice/*/limpet-{soft}.scope");
    let mut bytes = |group: &str, file: &str| -> Result<u64> {
        let text = guest.run(&format!("cat /sys/fs/cgroup/{group}/memory.{file}"))?;
        text.trim().parse().with_context(|| format!("{group} {file}: {text:?}"))
    };
    ensure!(bytes(&hard, "min")? == 64 * MIB && bytes(&hard, "low")? == 0);
    ensure!(bytes(&soft, "min")? == 0 && bytes(&soft, "low")? == 32 * MIB && bytes(&soft, "high")? == 80 * MIB);
    ensure!(bytes(&format!("{hard}/.."), "min")? == 64 * MIB);
    ensure!(bytes(&format!("{soft}/.."), "low")? == 32 * MIB);
    // The machine's other pods are among these.
    let all = bytes("kubepods.slice", "min")?;
    ensure!(all >= 96 * MIB, "{all}");
    ensure!(bytes("kubepods.slice", "low")? == bytes("kubepods.slice/kubepods-burstable.slice", "low")?);
    guest.run("rm /etc/limpet/manifests/hard.yaml")?;
    gone(&mut guest, "hard")?;
    let mut bytes = |group: &str, file: &str| -> Result<u64> {
        Ok(guest.run(&format!("cat /sys/fs/cgroup/{group}/memory.{file}"))?.trim().parse()?)
    };
    ensure!(bytes("kubepods.slice", "min")? == all - 64 * MIB);
    guest.run("rm /etc/limpet/manifests/soft.yaml")?;
    gone(&mut guest, "soft")?;
    guest.run(NOT_KEPT)?;
    let left = guest.run("cat /sys/fs/cgroup/kubepods.slice/memory.min")?;
    ensure!(left.trim() == "0", "{left}");
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}
