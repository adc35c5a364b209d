//! `memorySwap` and `singleProcessOOMKill`, which take cgroup v2 and a node that has swap.

use anyhow::{Result, ensure};
use limpet_tests::image;
use serde_json::json;

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, SOON, container_id, gone, manifest, running, shell};

const SWAP: &str = "set -e
fallocate -l 256M /var/lib/swap && chmod 0600 /var/lib/swap && mkswap /var/lib/swap && swapon /var/lib/swap
sed -i 's/^kind: KubeletConfiguration/&\\nmemorySwap: {swapBehavior: LimitedSwap}\\nsingleProcessOOMKill: true/' /etc/limpet/config.yaml
systemctl restart limpet";

/// With `LimitedSwap` a container has a share of the swap by its request of memory, and another one when that changes.
pub(crate) fn limited_swap(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run(SWAP)?;
    let spec = |requested: &str| {
        let mut main = shell("main", image::V1, IDLE);
        main["resources"] = json!({ "requests": { "memory": requested }, "limits": { "memory": "128Mi" } });
        json!({ "terminationGracePeriodSeconds": 1, "containers": [main] })
    };
    guest.run(&manifest("swaps", &spec("32Mi")))?;
    let pod = running(&mut guest, "swaps")?;
    let id = container_id(&pod, "main")?;
    let scope = format!("/sys/fs/cgroup/kubepods.slice/*/*/limpet-{id}.scope");
    ensure!(guest.run(&format!("cat {scope}/memory.oom.group"))?.trim() == "0", "singleProcessOOMKill has no effect");
    for requested in [32, 64] {
        guest.run(&manifest("swaps", &spec(&format!("{requested}Mi"))))?;
        // The kernel has whole pages.
        let share = format!(
            "awk -v asked={requested} '/^MemTotal/ {{m = $2}} /^SwapTotal/ {{s = $2}} END \
             {{printf \"%d\", int(asked * s / m * 256) * 4096}}' /proc/meminfo"
        );
        let share = guest.run(&share)?;
        guest.until(SOON, "a share of the swap", &format!("cat {scope}/memory.swap.max"), |written| {
            (written.trim() == share.trim() && share.trim() != "0").then_some(())
        })?;
    }
    ensure!(container_id(&running(&mut guest, "swaps")?, "main")? == id, "restarted by a resize");
    guest.run("rm /etc/limpet/manifests/swaps.yaml")?;
    gone(&mut guest, "swaps")?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}
