//! Storage that takes a kernel of a distribution: NFS with its own server, and huge pages limited by cgroup v2.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::json;

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, SOON, container_id, manifest, running, shell};

/// The machine serves a directory to itself.
const SERVE: &str = "mkdir -p /srv/data && \
    echo '/srv/data *(rw,sync,no_subtree_check,no_root_squash)' > /etc/exports && systemctl start nfs-server";
/// From here on the server answers nothing, and refuses nothing either.
const SILENCE: &str = "iptables -I INPUT -p tcp --dport 2049 -j DROP";
const VOICE: &str = "iptables -D INPUT -p tcp --dport 2049 -j DROP";

/// An export is mounted, stays through a restart of the agent, and goes with its pod, also when its server has died.
pub(crate) fn nfs(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run(SERVE)?;
    let share = |name: &str| {
        let mut main = shell("main", image::V1, IDLE);
        main["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
        let volume = json!({ "name": "data", "nfs": { "server": "127.0.0.1", "path": "/srv/data" } });
        manifest(name, &json!({ "terminationGracePeriodSeconds": 1, "containers": [main], "volumes": [volume] }))
    };
    guest.run(&share("share"))?;
    let id = container_id(&running(&mut guest, "share")?, "main")?;
    guest.run("limpet exec share -- sh -c 'echo of the pod > /data/file'")?;
    ensure!(guest.run("cat /srv/data/file")? == "of the pod");
    guest.run("grep 'kubernetes.io~nfs.* nfs4 ' /proc/mounts")?;
    guest.run("systemctl restart limpet")?;
    ensure!(container_id(&running(&mut guest, "share")?, "main")? == id, "restarted by a restart of the agent");

    guest.run(SILENCE)?;
    guest.run(&share("waits"))?;
    guest.until(SOON, "a failed mount", "limpet events", |events| {
        events.contains("mount 127.0.0.1:/srv/data: no answer from the server for 30 s").then_some(())
    })?;
    guest.run("rm /etc/limpet/manifests/share.yaml /etc/limpet/manifests/waits.yaml")?;
    gone(&mut guest, "share")?;
    gone(&mut guest, "waits")?;
    guest.until(SOON, "the end of the mounts", "! grep kubernetes.io~nfs /proc/mounts", |_| Some(()))?;
    guest.run(VOICE)?;
    ensure!(guest.run("cat /srv/data/file")? == "of the pod");
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// Pages that the kernel has set aside are a resource; pod and container have no more than they ask for.
pub(crate) fn huge_pages(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run("echo 4 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages && systemctl restart limpet")?;
    let mut main = shell("main", image::V1, IDLE);
    main["resources"] = json!({ "limits": { "hugepages-2Mi": "4Mi", "memory": "64Mi" } });
    main["volumeMounts"] = json!([{ "name": "huge", "mountPath": "/huge" }]);
    let volume = json!({ "name": "huge", "emptyDir": { "medium": "HugePages-2Mi" } });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [main], "volumes": [volume] });
    guest.run(&manifest("huge", &spec))?;
    let pod = running(&mut guest, "huge")?;
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?.replace('-', "_");
    let slice = format!("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
    let scope = format!("{slice}/limpet-{}.scope", container_id(&pod, "main")?);
    for group in [&slice, &scope] {
        let limit = guest.run(&format!("cat {group}/hugetlb.2MB.max"))?;
        ensure!(limit.trim() == "4194304", "{group}: {limit}");
    }
    guest.run("limpet exec huge -- fallocate -l 4194304 /huge/file")?;
    guest.run("rm /etc/limpet/manifests/huge.yaml")?;
    gone(&mut guest, "huge")?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

fn gone(guest: &mut Guest, name: &str) -> Result<()> {
    let full = format!("{name}-gateway");
    guest.until(SOON, "the end of a pod", "limpet pods -o json", |pods| (!pods.contains(&full)).then_some(()))
}
