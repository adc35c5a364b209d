//! Claims of pods: directories, devices, exports and disks, by the volumes that they are bound to.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, Cluster, join};
use limpet_tests::loop_device::LoopDevice;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::nfs_tools::NfsTools;
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, process, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{create, path, wait_deleted, wait_reported};

/// The group of every volume.
const GROUP: &str = "4321";

/// The group of the pod.
const FS_GROUP: u32 = 5432;

/// Creates the claim, which belongs to `owner` if there is one. Returns its path.
fn claim(cluster: &Cluster, name: &str, owner: Option<&Value>) -> Result<String> {
    claim_of_mode(cluster, name, owner, "Filesystem")
}

fn claim_of_mode(cluster: &Cluster, name: &str, owner: Option<&Value>, mode: &str) -> Result<String> {
    let owners = owner.map(|pod| {
        let metadata = &pod["metadata"];
        json!({ "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"] })
    });
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "ownerReferences": owners.into_iter().collect::<Vec<_>>() },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } }, "storageClassName": "",
            "volumeMode": mode },
    });
    cluster.create(claims, &claim)?;
    Ok(format!("{claims}/{name}"))
}

/// Binds the claim to a new volume with this source, as a cluster's controller does.
fn bind(cluster: &Cluster, claim: &str, volume: &str, source: &Value) -> Result<()> {
    let shown = cluster.get(claim)?.context("no claim")?;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Mi" }, "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
            "name": shown["metadata"]["name"], "uid": shown["metadata"]["uid"] },
    });
    let document = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": volume, "annotations": { "pv.beta.kubernetes.io/gid": GROUP } },
        "spec": with(spec, source.clone()) });
    cluster.create("/api/v1/persistentvolumes", &document)?;
    cluster.patch(claim, &json!({ "spec": { "volumeName": volume } }))?;
    cluster.patch(&format!("{claim}/status"), &json!({ "status": { "phase": "Bound" } }))
}

pub(super) fn claims_are_directories_of_the_node(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let name = format!("data-{}", node.name());
    let (data, scratch) = (node.dir().join("data"), node.dir().join("scratch"));
    std::fs::create_dir(&scratch)?;
    std::fs::write(scratch.join("earlier"), "")?;
    let main = with(
        shell("main", &format!("echo run >> /data/runs; {IDLE}")),
        json!({ "volumeMounts": [
            { "name": "data", "mountPath": "/data" }, { "name": "again", "mountPath": "/again" },
            { "name": "scratch", "mountPath": "/scratch" },
        ] }),
    );
    let template =
        json!({ "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } } });
    let volumes = json!([
        { "name": "data", "persistentVolumeClaim": { "claimName": name } },
        { "name": "again", "persistentVolumeClaim": { "claimName": name, "readOnly": true } },
        { "name": "scratch", "ephemeral": { "volumeClaimTemplate": template } },
    ]);
    let context = json!({ "fsGroup": FS_GROUP });
    create(
        node,
        &cluster,
        &pod("web", json!({ "containers": [main], "volumes": volumes, "securityContext": context })),
    )?;
    node.wait_event(&format!("persistentvolumeclaim \"{name}\" not found"))?;
    let claimed = claim(&cluster, &name, None)?;
    node.wait_event(&format!("PVC {name} is not bound"))?;
    let host_path = json!({ "hostPath": { "path": data, "type": "DirectoryOrCreate" } });
    bind(&cluster, &claimed, &format!("pv-{}", node.name()), &host_path)?;
    let web = cluster.get(&path(node, "web"))?.context("no pod")?;
    let scratched = claim(&cluster, &format!("{}-scratch", node.full_name("web")), Some(&web))?;
    let anywhere = json!({ "key": "kubernetes.io/hostname", "operator": "Exists" });
    let local = json!({
        "local": { "path": scratch },
        "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [anywhere] }] } },
    });
    bind(&cluster, &scratched, &format!("scratch-{}", node.name()), &local)?;
    let before = container_id(&wait_reported(node, &cluster, "web")?, "main")?;
    node.exec("web", "main", &["sh", "-c", "echo 1 > /scratch/file"])?;
    ensure!(node.exec("web", "main", &["cat", "/again/runs"])? == "run\n");
    ensure!(node.exec("web", "main", &["sh", "-c", "echo 1 > /again/file"]).is_err(), "written to a read-only volume");
    ensure!(std::fs::read_to_string(scratch.join("file"))? == "1\n");
    let of_local = scratch.join("earlier").metadata()?.gid();
    ensure!(of_local == FS_GROUP && data.metadata()?.gid() == 0, "fsGroup is for local volumes alone: {of_local}");
    let status = node.exec("web", "main", &["cat", "/proc/1/status"])?;
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).context("no groups")?;
    ensure!(groups.split_whitespace().any(|group| group == GROUP), "the volume's group is missing: {groups}");
    // An agent that starts without an apiserver knows the volumes.
    cluster.stop()?;
    node.agent.kill();
    node.agent.start()?;
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == before);
    process::signal_pid(task.context("no task")?.pid, Signal::KILL);
    wait::until_true(wait::SOON, "a second run", || {
        std::fs::read_to_string(data.join("runs")).is_ok_and(|runs| runs == "run\nrun\n")
    })?;
    cluster.start()?;
    wait_reported(node, &cluster, "web")?;
    cluster.delete(&path(node, "web"))?;
    wait_deleted(node, &cluster, "web")?;
    ensure!(data.join("runs").exists() && scratch.join("file").exists(), "the volumes are the cluster's to clear");
    Ok(())
}

pub(super) fn claims_of_mode_block_are_devices_of_the_node(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let disk = LoopDevice::attach(&node.dir().join("disk"))?;
    let (name, volume) = (format!("disk-{}", node.name()), format!("disk-{}", node.name()));
    let claimed = claim_of_mode(&cluster, &name, None, "Block")?;
    let anywhere = json!({ "key": "kubernetes.io/hostname", "operator": "Exists" });
    let local = json!({
        "local": { "path": disk.path() }, "volumeMode": "Block",
        "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [anywhere] }] } },
    });
    bind(&cluster, &claimed, &volume, &local)?;
    let volumes = |read_only: bool| json!([{ "name": "disk", "persistentVolumeClaim": { "claimName": name, "readOnly": read_only } }]);
    let device = json!({ "volumeDevices": [{ "name": "disk", "devicePath": "/dev/data" }] });
    let main = || json!([with(shell("main", IDLE), device.clone())]);
    create(node, &cluster, &pod("web", json!({ "containers": main(), "volumes": volumes(false) })))?;
    create(node, &cluster, &pod("reader", json!({ "containers": main(), "volumes": volumes(true) })))?;
    wait_reported(node, &cluster, "web")?;
    wait_reported(node, &cluster, "reader")?;
    let write = ["/bin/sh", "-c", "echo of the pod | dd of=/dev/data conv=fsync"];
    node.exec("web", "main", &write)?;
    let read = node.exec("reader", "main", &["/bin/sh", "-c", "dd if=/dev/data bs=11 count=1 2> /dev/null"])?;
    ensure!(read == "of the pod\n", "{read:?}");
    ensure!(node.exec("reader", "main", &write).is_err(), "written to a read-only device");
    // A container that mounts it as a directory is refused, in kubelet's words.
    let mount = json!({ "volumeMounts": [{ "name": "disk", "mountPath": "/data" }] });
    let mounts = json!({ "containers": [with(shell("main", IDLE), mount)], "volumes": volumes(false) });
    create(node, &cluster, &pod("mounts", mounts))?;
    node.wait_event("volume disk has volumeMode Block, but is specified in volumeMounts")?;
    for name in ["web", "reader", "mounts"] {
        cluster.delete(&path(node, name))?;
        wait_deleted(node, &cluster, name)?;
    }
    Ok(())
}

pub(super) fn claims_of_nfs_are_mounted_with_their_options(node: &mut TestNode) -> Result<()> {
    let tools = NfsTools::below(node.dir())?;
    tools.install()?;
    let data = tools.export("/srv/data")?;
    node.agent.put_on_path(tools.programs());
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let name = format!("nfs-{}", node.name());
    let claimed = claim(&cluster, &name, None)?;
    let nfs = json!({ "nfs": { "server": "nas", "path": "/srv/data" }, "mountOptions": ["nfsvers=4.1", "hard"] });
    bind(&cluster, &claimed, &name, &nfs)?;
    let mount = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let main = with(shell("main", &format!("echo run >> /data/runs; {IDLE}")), mount);
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": name } }]);
    create(node, &cluster, &pod("web", json!({ "containers": [main], "volumes": volumes })))?;
    wait_reported(node, &cluster, "web")?;
    wait::until_true(wait::SOON, "a first run", || data.join("runs").exists())?;
    let calls = tools.calls();
    ensure!(calls.len() == 1 && calls[0].starts_with("nas:/srv/data "), "{calls:?}");
    ensure!(calls[0].ends_with("/volumes/kubernetes.io~nfs/data -o nfsvers=4.1,hard"), "{calls:?}");
    cluster.delete(&path(node, "web"))?;
    wait_deleted(node, &cluster, "web")?;
    ensure!(data.join("runs").exists(), "what the server has is the server's");
    Ok(())
}

/// The target's Secret reaches the node's tool, which quotes it when it fails, but no event has it.
pub(super) fn claims_of_iscsi_are_attached_with_their_secret(node: &mut TestNode) -> Result<()> {
    const PASSWORD: &str = "correct-horse-battery";
    let (programs, calls) = (node.dir().join("programs"), node.dir().join("calls"));
    std::fs::create_dir_all(&programs)?;
    let tool = programs.join("iscsiadm");
    std::fs::write(
        &tool,
        format!(
            "#!/bin/sh\necho \"$*\" >> {}\ncase \"$*\" in *auth.password*) echo \"iscsiadm: cannot set $*\" >&2; exit 6;; esac\n",
            calls.display()
        ),
    )?;
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755))?;
    node.agent.put_on_path(&programs);
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let name = format!("iscsi-{}", node.name());
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "stringData": { "node.session.auth.username": "me", "node.session.auth.password": PASSWORD } });
    cluster.create("/api/v1/namespaces/default/secrets", &secret)?;
    let claimed = claim(&cluster, &name, None)?;
    let disk = json!({ "iscsi": { "targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.test:disk", "lun": 0,
        "chapAuthSession": true, "secretRef": { "name": name, "namespace": "default" } } });
    bind(&cluster, &claimed, &name, &disk)?;
    let mount = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": name } }]);
    let main = with(shell("main", IDLE), mount);
    create(node, &cluster, &pod("web", json!({ "containers": [main], "volumes": volumes })))?;
    node.wait_event(&format!("volume {name} is not attached to this node yet"))?;
    // The test does what the attach/detach controller does, which waits until the node reports the volume.
    let unique = "kubernetes.io/iscsi/192.0.2.1:iqn.2001-04.test:disk:0";
    let node_path = cluster::node_path(node);
    wait::until_true(wait::SOON, "the volume in use", || {
        cluster
            .get(&node_path)
            .is_ok_and(|object| object.is_some_and(|shown| shown["status"]["volumesInUse"] == json!([unique])))
    })?;
    ensure!(!calls.exists(), "attached before the cluster allows it");
    let attached = json!({ "volumesAttached": [{ "name": unique, "devicePath": "" }] });
    cluster.patch(&format!("{node_path}/status"), &json!({ "status": attached }))?;
    node.wait_event(
        "mount 192.0.2.1:3260-iqn.2001-04.test:disk-lun-0: failed to get any path for iscsi disk, last err seen: iscsi: \
         failed to update iscsi node to portal 192.0.2.1:3260: iscsiadm: cannot set -m node -p 192.0.2.1:3260 -T \
         iqn.2001-04.test:disk -I default -o update -n node.session.auth.password -v ***",
    )?;
    let called = std::fs::read_to_string(&calls)?;
    ensure!(called.contains(PASSWORD), "{called}");
    cluster.delete(&path(node, "web"))?;
    wait_deleted(node, &cluster, "web")?;
    let disks = node.agent.settings().root().join("plugins/kubernetes.io/iscsi");
    let left: Vec<_> = std::fs::read_dir(&disks)?.collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
