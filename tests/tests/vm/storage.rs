//! Storage that needs a distribution's kernel: NFS and iSCSI with its own servers, huge pages limited by cgroup v2, and
//! project quotas.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::json;

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{self, IDLE, SOON, container_id, gone, manifest, running, shell, wait};

/// The commands by which the machine exports a directory to itself.
const SERVE: &str = "mkdir -p /srv/data && \
    echo '/srv/data *(rw,sync,no_subtree_check,no_root_squash)' > /etc/exports && systemctl start nfs-server";
/// The command after which the server neither answers nor refuses anything.
const SILENCE: &str = "iptables -I INPUT -p tcp --dport 2049 -j DROP";
const VOICE: &str = "iptables -D INPUT -p tcp --dport 2049 -j DROP";

/// The commands that make the machine an iSCSI target with one blank disk and a password.
const TARGET: &str = "set -e
modprobe -a target_core_file iscsi_target_mod
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
core=/sys/kernel/config/target/core/fileio_0/disk
mkdir -p $core && truncate -s 64M /srv/disk.img
echo fd_dev_name=/srv/disk.img,fd_dev_size=67108864 > $core/control
echo 1 > $core/enable
group=/sys/kernel/config/target/iscsi/iqn.2001-04.test:disk/tpgt_1
mkdir -p $group && mkdir -p $group/np/127.0.0.1:3260 $group/lun/lun_0
ln -s $core $group/lun/lun_0/disk
echo 1 > $group/attrib/generate_node_acls
echo 1 > $group/attrib/cache_dynamic_acls
echo 0 > $group/attrib/demo_mode_write_protect
echo 1 > $group/attrib/authentication
printf node > $group/auth/userid
printf correct-horse > $group/auth/password
echo 1 > $group/enable";
/// The command that writes the Secret with the node's password for the target.
const PASSWORD: &str = "cat > /etc/limpet/manifests/chap.yaml.new <<'END'
{apiVersion: v1, kind: Secret, metadata: {name: chap}, stringData: {
  node.session.auth.username: node, node.session.auth.password: correct-horse}}
END
mv /etc/limpet/manifests/chap.yaml.new /etc/limpet/manifests/chap.yaml";
/// The check that nothing is left of the disk: no session, no mount, no record.
const DETACHED: &str = "test -z \"$(find /sys/class/iscsi_session /var/lib/iscsi/nodes /var/lib/limpet/plugins/kubernetes.io/iscsi \
    -mindepth 1; grep kubernetes.io.iscsi /proc/mounts)\"";

/// The commands that put volumes of pods on a file system with project quotas.
const COUNTED_DISK: &str = "set -e
systemctl stop limpet
truncate -s 200M /var/lib/counted.img
mkfs.ext4 -q -O quota,project -E quotatype=prjquota /var/lib/counted.img
mount -o loop,prjquota /var/lib/counted.img /var/lib/limpet/pods
systemctl start limpet";

/// An export is mounted, stays during a restart of the agent, and is unmounted with its pod, even if its server has
/// died.
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
    disk(&mut guest)?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// A disk of a target is formatted once and stays attached during a restart of the agent. Its session ends with its
/// pod, even if another agent ends it.
fn disk(guest: &mut Guest) -> Result<()> {
    guest.run(TARGET)?;
    guest.run(PASSWORD)?;
    let volume = json!({ "name": "data", "iscsi": { "targetPortal": "127.0.0.1", "iqn": "iqn.2001-04.test:disk", "lun": 0,
        "chapAuthSession": true, "secretRef": { "name": "chap" } } });
    let mut main = shell("main", image::V1, IDLE);
    main["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let pod = manifest(
        "disk",
        &json!({ "terminationGracePeriodSeconds": 1, "securityContext": { "fsGroup": 2000 }, "containers": [main],
            "volumes": [volume] }),
    );
    guest.run(&pod)?;
    let id = container_id(&running(guest, "disk")?, "main")?;
    guest.run("limpet exec disk -- sh -c 'echo on the disk > /data/file'")?;
    let attributes = guest.run("limpet exec disk -- stat -c '%g %a' /data")?;
    ensure!(attributes.trim() == "2000 2775", "{attributes}");
    guest.run("grep 'kubernetes.io~iscsi/data ext4 ' /proc/mounts")?;
    guest.run("systemctl restart limpet")?;
    ensure!(container_id(&running(guest, "disk")?, "main")? == id, "restarted by a restart of the agent");

    guest.run("rm /etc/limpet/manifests/disk.yaml")?;
    gone(guest, "disk")?;
    guest.until(SOON, "the end of the session", DETACHED, |_| Some(()))?;
    guest.run(&pod)?;
    running(guest, "disk")?;
    ensure!(guest.run("limpet exec disk -- cat /data/file")? == "on the disk");
    guest.run("systemctl stop limpet && rm /etc/limpet/manifests/disk.yaml && systemctl start limpet")?;
    gone(guest, "disk")?;
    guest.until(SOON, "the end of the session after a restart", DETACHED, |_| Some(()))?;
    guest.run("rm /etc/limpet/manifests/chap.yaml && ! journalctl --no-pager | grep correct-horse").map(drop)
}

/// Pages that the kernel has set aside are a resource; pod and container have no more than they request.
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

/// For a pod with a user namespace the file system counts what an emptyDir uses, including open files without a name,
/// which a walk does not see.
pub(crate) fn project_quota(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run("rm /etc/limpet/manifests/*.yaml")?;
    pod::none(&mut guest)?;
    guest.run(COUNTED_DISK)?;
    let mut main = shell("main", image::V1, "exec 3> /data/f; rm /data/f; head -c 5000000 /dev/zero >&3; sleep 100000");
    main["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let volume = json!({ "name": "data", "emptyDir": { "sizeLimit": "2Mi" } });
    let spec =
        json!({ "terminationGracePeriodSeconds": 1, "hostUsers": false, "containers": [main], "volumes": [volume] });
    guest.run(&manifest("hidden", &spec))?;
    let pod = wait(&mut guest, "hidden", "evicted", |pod| pod["status"]["reason"] == "Evicted")?;
    let message = pod["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("EmptyDir volume \"data\" exceeds the limit \"2Mi\""), "{message}");
    guest.run("rm /etc/limpet/manifests/hidden.yaml")?;
    gone(&mut guest, "hidden")?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}
