//! The machine is a whole cluster: limpet runs the control plane from its manifest directory, joins it, and runs what
//! it schedules. The power is cut, and there is no network but loopback: first with the apiserver among what comes
//! back, then without.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::kubeadm::{CONTROL_PLANE, first_node, images, uids};
use limpet_tests::vm::{self, Guest};
use limpet_tests::{cluster, image, tools};
use serde_json::{Value, json};

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, SOON, gone, noting, runs, runs_volume};

/// The machine's only address besides those of loopback, which is on the loopback device.
const ADDRESS: &str = "192.0.2.1";
/// How long an emulated machine may take to start a control plane.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(900);

/// The commands that a person runs once: for an address, kubeadm's files, the images, and limpet, with the manifests,
/// as the node of the cluster.
const SET_UP: [&str; 4] = [ADDRESS_AT_BOOT, KUBEADM, "limpet images import /payload/control-plane.tar", JOIN];
const ADDRESS_AT_BOOT: &str = "set -e
cat > /etc/systemd/system/address.service <<'END'
[Unit]
Before=limpet.service
[Service]
Type=oneshot
ExecStart=/usr/sbin/ip address add 192.0.2.1/32 dev lo
[Install]
WantedBy=multi-user.target
END
systemctl enable --now address";
const KUBEADM: &str = "set -e
for phase in 'certs all' 'kubeconfig all' 'control-plane all' 'etcd local'; do
    /payload/kubeadm init phase $phase --config /payload/kubeadm.yaml
done";
const JOIN: &str = "set -e
mkdir -p /etc/systemd/system/limpet.service.d
cat > /etc/systemd/system/limpet.service.d/cluster.conf <<'END'
[Service]
ExecStart=
ExecStart=/usr/bin/limpet run --config /etc/limpet/config.yaml --kubeconfig /etc/kubernetes/kubelet.conf --node-ip 192.0.2.1
END
systemctl daemon-reload
systemctl restart limpet
cp /etc/kubernetes/manifests/*.yaml /etc/limpet/manifests/";

/// `hundredths` of a second since the boot; changes of the clock do not affect it.
const TO_1970: &str = "set -e
hundredths() { tr -d . < /proc/uptime | cut -d' ' -f1; }
echo $(($(date +%s) - $(hundredths) / 100)) > /run/boot-time
date -s 1970-01-02T00:00:00
systemctl restart limpet";
const TO_PRESENT: &str = "set -e
hundredths() { tr -d . < /proc/uptime | cut -d' ' -f1; }
begin=$(hundredths)
date -s @$(($(cat /run/boot-time) + begin / 100)) > /dev/null
until limpet status | grep -q 'Apiserver: *online'; do sleep 0.1; done
echo $(($(hundredths) - begin))";

pub(crate) fn outlives_a_power_cut(machine: &Machine) -> Result<()> {
    let payload = write_payload(machine.dir())?;
    let mut guest = machine.boot_with(None, &payload)?;
    SET_UP.iter().try_for_each(|script| guest.run(script).map(drop))?;
    let before = mirrors(&mut guest, 0)?;
    let [settings, deployment] = web();
    guest.run(&format!("{} <<'END'\n{settings}\n---\n{deployment}\nEND", kubectl("apply -f -")))?;
    let pod = ready_with_restarts(&mut guest, 0)?;
    ran(&mut guest, 1)?;
    a_clock_of_1970(&mut guest)?;
    guest.run("sync")?;

    let mut guest = machine.boot_with(Some(guest.power_cut()), &payload)?;
    let after = mirrors(&mut guest, 1).context("after the power cut")?;
    ensure!(uids(&before) == uids(&after), "the mirrors are others: {before:?} {after:?}");
    let again = ready_with_restarts(&mut guest, 1)?;
    ensure!(again["metadata"]["uid"] == pod["metadata"]["uid"], "another pod of the Deployment: {again}");
    ran(&mut guest, 2)?;
    guest.run(&kubectl("wait --for=condition=Ready node --all --timeout=240s"))?;
    leftovers::none(&mut guest)?;

    guest.run("rm /etc/limpet/manifests/kube-apiserver.yaml")?;
    gone(&mut guest, "kube-apiserver")?;
    guest.run("sync")?;
    let mut guest = machine.boot_with(Some(guest.power_cut()), &payload)?;
    ran(&mut guest, 3).context("without an apiserver")?;
    guest.run("limpet status | grep -i offline")?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// The agent starts in 1970, when no certificate is valid yet; once the clock is set, it is a node of its cluster again.
fn a_clock_of_1970(guest: &mut Guest) -> Result<()> {
    let before = containers(guest)?;
    guest.run(TO_1970)?;
    let skewed = "limpet status | grep 'Apiserver: *offline since .*: clock skew'";
    guest.until(SOON, "the state of a clock that is behind", skewed, |_| Some(()))?;
    let hundredths = guest.run(TO_PRESENT)?;
    let took = Duration::from_millis(10 * hundredths.trim().parse::<u64>().with_context(|| hundredths.clone())?);
    println!("online {took:?} after the clock was set");
    ensure!(containers(guest)? == before, "a container was restarted");
    Ok(())
}

/// The IDs of all containers, ended ones too.
fn containers(guest: &mut Guest) -> Result<String> {
    guest.run("limpet pods -A -o json | grep -o 'containerd://[0-9a-f]*' | sort")
}

/// kubeadm and kubectl, kubeadm's configuration, and the images of a control plane.
fn write_payload(dir: &Path) -> Result<PathBuf> {
    let (files, payload) = (dir.join("cluster"), dir.join("cluster.img"));
    fs::create_dir_all(&files)?;
    for name in ["kubeadm", "kubectl"] {
        let program =
            tools::kubernetes(name).with_context(|| format!("no {name}; run: cargo xtask nightly kubeadm"))?;
        fs::copy(program, files.join(name))?;
    }
    let [first_node, mut cluster] = first_node("gateway", ADDRESS, "15m0s");
    // Both would end while the clock is in 1970, because a leader that cannot renew its lease does.
    for component in ["controllerManager", "scheduler"] {
        cluster[component] = json!({ "extraArgs": [{ "name": "leader-elect", "value": "false" }] });
    }
    fs::write(files.join("kubeadm.yaml"), format!("{first_node}\n---\n{cluster}"))?;
    let images = images::control_plane()?;
    image::write_oci_archive(&images.each_ref(), &files.join("control-plane.tar"))?;
    vm::write_payload(&files, &payload)?;
    fs::remove_dir_all(files).context("remove what is in the payload now")?;
    Ok(payload)
}

fn kubectl(arguments: &str) -> String {
    format!("/payload/kubectl --kubeconfig /etc/kubernetes/super-admin.conf {arguments}")
}

/// The mirrors of the control plane, once the apiserver shows all as ready, and as restarted so often at least.
fn mirrors(guest: &mut Guest, restarts: u64) -> Result<Vec<Value>> {
    let command = kubectl("get pods -n kube-system -l tier=control-plane -o json");
    let mirrors = guest.until(CLUSTER_TIMEOUT, "the mirrors of the control plane", &command, |output| {
        let list: Value = serde_json::from_str(output).ok()?;
        let pods = list["items"].as_array()?.clone();
        let is_up = |pod: &Value| {
            let restarted = pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(restarts);
            cluster::condition(pod, "Ready")["status"] == "True" && restarted
        };
        (pods.len() == CONTROL_PLANE.len() && pods.iter().all(is_up)).then_some(pods)
    });
    mirrors.with_context(|| {
        let evidence = "limpet pods -A; limpet status; limpet events; journalctl -u limpet -n 40 --no-pager -o cat";
        guest.attempt(evidence).map(|(_, text)| text).unwrap_or_default()
    })
}

/// A Deployment whose pod records what its ConfigMap says, and whether it has a token.
fn web() -> [Value; 2] {
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" }, "data": { "greeting": "hello" },
    });
    let script = format!(
        "test -s /var/run/secrets/kubernetes.io/serviceaccount/token && \
         echo web-$(cat /settings/greeting) >> /runs/list; fsync /runs/list; {IDLE}"
    );
    let mut main = noting("web", IDLE);
    main["command"] = json!(["/bin/sh", "-c", script]);
    main["volumeMounts"] =
        json!([{ "name": "runs", "mountPath": "/runs" }, { "name": "settings", "mountPath": "/settings" }]);
    let volumes = json!([runs_volume()[0], { "name": "settings", "configMap": { "name": "settings" } }]);
    let labels = json!({ "app": "web" });
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    // kubeadm's last phases would remove these taints.
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [main], "volumes": volumes, "terminationGracePeriodSeconds": 1,
                },
            },
        },
    });
    [settings, deployment]
}

/// The Deployment's pod, once the apiserver shows it as ready, and its container as restarted so often.
fn ready_with_restarts(guest: &mut Guest, restarts: u32) -> Result<Value> {
    guest.until(CLUSTER_TIMEOUT, "the Deployment's pod", &kubectl("get pods -l app=web -o json"), |output| {
        let list: Value = serde_json::from_str(output).ok()?;
        let [pod] = list["items"].as_array()?.as_slice() else { return None };
        let is_ready = cluster::condition(pod, "Ready")["status"] == "True";
        (is_ready && pod["status"]["containerStatuses"][0]["restartCount"] == restarts).then(|| pod.clone())
    })
}

/// Waits until the Deployment's pod has run so often, with its ConfigMap and its token each time.
fn ran(guest: &mut Guest, times: usize) -> Result<()> {
    let expected = format!("web-hello{times}");
    guest.until(SOON, "a run of the Deployment's pod", "grep -c web-hello /var/lib/runs/list", |count| {
        (count.trim() == times.to_string()).then_some(())
    })?;
    let runs = runs(guest)?;
    ensure!(runs.split(' ').any(|run| run == expected), "no {expected} in {runs}");
    Ok(())
}
