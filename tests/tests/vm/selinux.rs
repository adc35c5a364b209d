//! SELinux separates pods as with kubelet and containerd with `enable_selinux`: Debian's kernel enforces Debian's
//! policy.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::pod::{IDLE, SOON, container_id, manifest, running, shell, wait};

/// The policy confines containerd, and knows its directories and kubelet's: limpet's are like them. What was installed without
/// SELinux is labelled, but for the pins of namespaces, and started again in the domains that the policy has for it.
const LABEL: &str = "set -e
cat > /etc/selinux/default/contexts/files/file_contexts.subs <<'END'
/run/limpet /run/containerd
/var/lib/limpet /var/lib/kubelet
END
echo 'd /run/limpet 0755 root root' > /etc/tmpfiles.d/limpet.conf
systemctl stop limpet containerd
restorecon -R /usr/bin /etc /opt /var
systemd-tmpfiles --create limpet.conf
restorecon -R /run/limpet 2> /dev/null || true
systemctl start containerd limpet";
/// What a container writes to all its volumes, and says in its log.
const WRITES: &str = "set -e; for place in disk memory; do echo mine > /$place/file; done; echo started";
/// A file of the node, which every user may read as far as permissions go, in a directory that containerd may mount.
const OPEN: &str = "set -e
install -d -m 0755 /var/lib/open && echo open > /var/lib/open/file && chmod 0644 /var/lib/open/file
chcon -t container_var_lib_t /var/lib/open && chcon -t var_t /var/lib/open/file";

pub(crate) fn pods_are_apart(machine: &Machine) -> Result<()> {
    let mut guest = machine.boot_with_selinux()?;
    guest.run(LABEL)?;
    running(&mut guest, "stays")?;
    let line = doctor(&mut guest)?;
    ensure!(line.contains("ok") && line.contains("policy default, permissive: containers get"), "{line}");
    guest.run("setenforce 1 && test $(getenforce) = Enforcing")?;
    guest.run(OPEN)?;
    guest.run(&object("one"))?;
    for pod in ["alice", "bob"] {
        guest.run(&manifest(pod, &with_volumes(&json!({}))))?;
    }
    let (alice, bob) = (Labels::read(&mut guest, "alice")?, Labels::read(&mut guest, "bob")?);
    ensure!(alice.level != bob.level, "two pods have level {}", alice.level);
    a_pod_reads_what_is_its_own(&mut guest, &alice)?;
    a_pod_reads_nothing_of_another(&mut guest, &bob)?;
    labels_that_a_pod_names(&mut guest)?;
    levels_outlive_the_agent(&mut guest, &alice)?;
    guest.power_cut();
    Ok(())
}

/// The pod can use its volumes, the files of the agent, a volume that changes, and its log, but no directory of the
/// node.
fn a_pod_reads_what_is_its_own(guest: &mut Guest, alice: &Labels) -> Result<()> {
    for path in ["/disk/file", "/memory/file", "/map/key", "/etc/hosts", "/etc/resolv.conf", "/dev/shm", "/"] {
        ensure!(can_read(guest, "alice", path)?, "alice cannot read {path} of its own");
    }
    ensure!(!can_read(guest, "alice", "/open/file")?, "a file of the node was read");
    ensure!(guest.run("limpet logs alice")?.contains("started"), "no log");
    let volumes = format!("{}/volumes", directory(guest, "alice")?);
    for volume in ["empty-dir/disk/file", "empty-dir/memory/file", "configmap/map/key"] {
        let label = guest.run(&format!("stat -L -c %C '{volumes}/kubernetes.io~{volume}'"))?;
        ensure!(label.trim() == alice.file(), "{volume}: {label}");
    }
    guest.run(&object("two"))?;
    guest.until(SOON, "the changed volume", "limpet exec alice -- cat /map/key", |text| {
        (text.trim() == "two").then_some(())
    })?;
    let label = guest.run(&format!("stat -L -c %C '{volumes}/kubernetes.io~configmap/map/key'"))?;
    ensure!(label.trim() == alice.file(), "the changed volume: {label}");
    Ok(())
}

/// A directory of another pod is read by no pod but one with that pod's level.
fn a_pod_reads_nothing_of_another(guest: &mut Guest, bob: &Labels) -> Result<()> {
    let path = format!("{}/volumes/kubernetes.io~empty-dir/disk", directory(guest, "bob")?);
    for (pod, options, reads) in [("thief", json!({}), false), ("friend", json!({ "level": bob.level }), true)] {
        let mut spec = with_volumes(&options);
        let volume = json!({ "name": "other", "hostPath": { "path": path } });
        spec["volumes"].as_array_mut().context("no volumes")?.push(volume);
        let mounts = spec["containers"][0]["volumeMounts"].as_array_mut().context("no mounts")?;
        mounts.push(json!({ "name": "other", "mountPath": "/other" }));
        guest.run(&manifest(pod, &spec))?;
        running(guest, pod)?;
        ensure!(can_read(guest, pod, "/other/file")? == reads, "{pod}: whether it reads bob's file");
    }
    Ok(())
}

fn labels_that_a_pod_names(guest: &mut Guest) -> Result<()> {
    let mut free = with_volumes(&json!({}));
    free["containers"][0]["securityContext"] = json!({ "privileged": true });
    guest.run(&manifest("free", &free))?;
    running(guest, "free")?;
    let label = guest.run("limpet exec free -- cat /proc/1/attr/current")?;
    ensure!(!label.contains(":container_t:"), "a privileged container is confined: {label}");
    guest.run(&manifest("odd", &with_volumes(&json!({ "type": "nonsense_t" }))))?;
    let refused = wait(guest, "odd", "refused", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerError"
    })?;
    let message = &refused["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    let words = "SELinux's policy does not know the label system_u:system_r:nonsense_t:s0:c";
    ensure!(message.as_str().is_some_and(|message| message.starts_with(words)), "{message}");
    let line = doctor(guest)?;
    ensure!(line.contains("ok") && line.contains("policy default, enforcing: containers get"), "{line}");
    Ok(())
}

fn levels_outlive_the_agent(guest: &mut Guest, alice: &Labels) -> Result<()> {
    let before = container_id(&running(guest, "alice")?, "main")?;
    // The policy lets no shell of this kind restart a service.
    guest.run("setenforce 0 && systemctl restart limpet && setenforce 1")?;
    running(guest, "alice")?;
    // The kill ends the command, too.
    guest.attempt("limpet exec alice -- sh -c 'kill 1'")?;
    wait(guest, "alice", "started again", |pod| {
        container_id(pod, "main").is_ok_and(|id| id != before)
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    let after = Labels::read(guest, "alice")?;
    ensure!(after.level == alice.level, "level {} became {}", alice.level, after.level);
    ensure!(can_read(guest, "alice", "/disk/file")?, "alice does not read its own after a restart");
    Ok(())
}

/// A container with a volume of each kind, and `options` for its pod.
fn with_volumes(options: &Value) -> Value {
    let mut main = shell("main", image::V1, &format!("{WRITES}; {IDLE}"));
    let mounts = ["disk", "memory", "map", "open"].map(|name| json!({ "name": name, "mountPath": format!("/{name}") }));
    main["volumeMounts"] = json!(mounts);
    json!({
        "terminationGracePeriodSeconds": 1, "containers": [main], "securityContext": { "seLinuxOptions": options },
        "volumes": [
            { "name": "disk", "emptyDir": {} }, { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "map", "configMap": { "name": "map" } }, { "name": "open", "hostPath": { "path": "/var/lib/open" } },
        ],
    })
}

/// The commands that put the ConfigMap of [`with_volumes`] into the directory.
fn object(value: &str) -> String {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "map" }, "data": { "key": value },
    });
    let path = "/etc/limpet/manifests/map.yaml";
    format!("cat > {path}.new <<'END'\n{map}\nEND\nmv {path}.new {path}")
}

/// The labels of a running pod's processes.
struct Labels {
    level: String,
}

impl Labels {
    /// Reads the label of the container's first process. One that `limpet exec` starts must have the same.
    fn read(guest: &mut Guest, pod: &str) -> Result<Self> {
        running(guest, pod)?;
        let script = "for it in 1 self; do tr -d \"\\000\" < /proc/$it/attr/current; echo; done";
        let said = guest.run(&format!("limpet exec {pod} -- sh -c '{script}'"))?;
        let lines: Vec<&str> = said.split_whitespace().collect();
        ensure!(lines.len() == 2 && lines[0] == lines[1], "{pod}: the container and exec differ:\n{said}");
        let level = lines[0].strip_prefix("system_u:system_r:container_t:").with_context(|| said.clone())?;
        Ok(Self { level: level.to_owned() })
    }

    fn file(&self) -> String {
        format!("system_u:object_r:container_file_t:{}", self.level)
    }
}

fn can_read(guest: &mut Guest, pod: &str, path: &str) -> Result<bool> {
    let script = format!("ls {path} > /dev/null && if test -f {path}; then cat {path}; fi");
    Ok(guest.attempt(&format!("limpet exec {pod} -- sh -c '{script}'"))?.0 == 0)
}

/// The directory of the pod on the node.
fn directory(guest: &mut Guest, pod: &str) -> Result<String> {
    let uid = running(guest, pod)?["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    Ok(format!("/var/lib/limpet/pods/{uid}"))
}

fn doctor(guest: &mut Guest) -> Result<String> {
    let doctor = guest.attempt("limpet doctor")?.1;
    let line = doctor.lines().find(|line| line.contains("SELinux"));
    line.map(str::to_owned).with_context(|| format!("no SELinux: {doctor}"))
}
