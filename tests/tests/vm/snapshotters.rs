//! A pod's life with each snapshotter that Debian's containerd has, besides overlayfs: btrfs and devmapper answer with file
//! systems of their own, which need what only a machine of its own can have.
//!
//! zfs is in containerd and its kernel module is not in Debian: it has to be refused with the reason.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::{Value, json};

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{self, IDLE, SOON, container_id, manifest, running, shell, wait};

const BTRFS: &str = "root=/var/lib/containerd/io.containerd.snapshotter.v1.btrfs
truncate -s 600M /var/lib/btrfs.img
mkfs.btrfs -q /var/lib/btrfs.img
mount -o loop /var/lib/btrfs.img $root";

/// As containerd's own page on the snapshotter sets it up, on files.
const DEVMAPPER: &str = "modprobe dm-thin-pool
cd /var/lib
truncate -s 600M dm-data
truncate -s 16M dm-meta
data=$(losetup --find --show dm-data)
meta=$(losetup --find --show dm-meta)
dmsetup create pool --table \"0 $((600 * 2048)) thin-pool $meta $data 128 0\"
cat > /etc/containerd/config.toml <<'END'
version = 2
[plugins.\"io.containerd.snapshotter.v1.devmapper\"]
pool_name = \"pool\"
root_path = \"/var/lib/containerd/devmapper\"
base_image_size = \"128MB\"
END";

const NATIVE: &str = "true";

pub(crate) fn btrfs(machine: &Machine) -> Result<()> {
    a_pod_lives_and_leaves_nothing(machine, "btrfs", BTRFS, "btrfs")
}

pub(crate) fn devmapper(machine: &Machine) -> Result<()> {
    a_pod_lives_and_leaves_nothing(machine, "devmapper", DEVMAPPER, "ext4")
}

pub(crate) fn native(machine: &Machine) -> Result<()> {
    a_pod_lives_and_leaves_nothing(machine, "native", NATIVE, "ext4")
}

/// A snapshotter that does not work here: `limpet doctor` and an event say so, with those that do.
pub(crate) fn zfs(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    configure(&mut guest, "zfs")?;
    guest.until(SOON, "the event", "limpet events", |text| text.contains("SnapshotterUnavailable").then_some(()))?;
    let (code, said) = guest.attempt("limpet doctor")?;
    // Another line says that its layers cannot be mapped.
    let line = said.lines().find(|line| line.contains("zfs") && line.contains("skip plugin"));
    let line = line.with_context(|| format!("no reason: {said}"))?;
    ensure!(code != 0, "doctor: exit {code}: {line}");
    ensure!(said.contains("Set snapshotter to one of: ") && said.contains("overlayfs"), "no remedy: {said}");
    guest.power_cut();
    Ok(())
}

/// Waits for the end of every pod. What a pod leaves shows only after that, because while it is listed it may have
/// everything.
fn all_end(guest: &mut Guest) -> Result<()> {
    guest.run("rm /etc/limpet/manifests/*.yaml")?;
    pod::none(guest)?;
    leftovers::none(guest)
}

fn configure(guest: &mut Guest, snapshotter: &str) -> Result<()> {
    let key = format!("echo 'snapshotter: {snapshotter}' >> /etc/limpet/config.yaml");
    guest.run(&format!("{key} && systemctl restart limpet")).map(drop)
}

/// The pod starts, its image is edited, the agent is restarted, and the pod ends; `kind` is the type of the container's
/// root mount.
fn a_pod_lives_and_leaves_nothing(machine: &Machine, snapshotter: &str, set_up: &str, kind: &str) -> Result<()> {
    let mut guest = machine.resume()?;
    all_end(&mut guest)?;
    guest.run(&format!("set -e\nsystemctl stop limpet containerd\n{set_up}\nsystemctl start containerd"))?;
    configure(&mut guest, snapshotter)?;
    let before = inventory(&mut guest)?;

    guest.run(&manifest("box", &boxed(image::V1)))?;
    let first = container_id(&running(&mut guest, "box")?, "box")?;
    let root = guest.run("limpet exec box -c box -- sh -c 'echo 1 > /written && cat /proc/mounts /image/version'")?;
    ensure!(root.lines().any(|line| mounted_at(line, "/") == Some(kind)), "the root is no {kind}:\n{root}");
    ensure!(guest.run(&snapshots(snapshotter))?.contains(&first), "its snapshot is elsewhere");

    guest.run(&manifest("box", &boxed(image::V2)))?;
    let edited = wait(&mut guest, "box", "with the other image", |pod| {
        let status = container(pod);
        status["image"] == image::V2 && status["state"]["running"].is_object()
    })?;
    let second = container_id(&edited, "box")?;
    ensure!(second != first, "the edit made no new container");
    let (code, said) = guest.attempt("limpet exec box -c box -- cat /written")?;
    ensure!(code != 0, "the new container has what the first one wrote: {said}");

    guest.run("systemctl restart limpet")?;
    ensure!(container_id(&running(&mut guest, "box")?, "box")? == second, "the restart of the agent ended it");

    all_end(&mut guest)?;
    // The layers of the images stay.
    let left = guest.run(&snapshots(snapshotter))?;
    ensure!(left.lines().all(|line| line.contains("Committed")), "snapshots are left:\n{left}");
    let after = inventory(&mut guest)?;
    ensure!(after == before, "before:\n{before}\nafter:\n{after}");
    guest.power_cut();
    Ok(())
}

/// A container that stays, after an init container, with an image mounted.
fn boxed(image: &str) -> Value {
    let mut main = shell("box", image, IDLE);
    main["volumeMounts"] = json!([{ "name": "image", "mountPath": "/image" }]);
    json!({
        "initContainers": [shell("init", image::V1, "echo 1 > /init")], "containers": [main],
        "volumes": [{ "name": "image", "image": { "reference": image::V2, "pullPolicy": "IfNotPresent" } }],
        "terminationGracePeriodSeconds": 1,
    })
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// What a line of `/proc/mounts` has mounted there.
fn mounted_at<'a>(line: &'a str, path: &str) -> Option<&'a str> {
    let mut fields = line.split(' ').skip(1);
    fields.next().filter(|at| *at == path)?;
    fields.next()
}

fn snapshots(snapshotter: &str) -> String {
    format!("ctr -n k8s.io snapshots --snapshotter {snapshotter} ls | tail -n +2")
}

/// Mounts of the machine, of whatever file system.
fn inventory(guest: &mut Guest) -> Result<String> {
    guest.run("cut -d' ' -f2,3 /proc/mounts | sort")
}
