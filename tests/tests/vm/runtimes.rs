//! A pod under crun, which refuses hosts with cgroups of both versions. The machine that runs the other suites may be
//! one.

use anyhow::{Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::{Value, json};

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, SOON, container_id, manifest, running, shell, wait};

const CLASS: &str =
    "echo 'runtimeClasses: {small: {binary: /usr/bin/crun}}' >> /etc/limpet/config.yaml && systemctl restart limpet";
/// What a container is made of, as its processes see it; how paths are masked is the runtime's own.
const LOOK: &str = "id; sed -n \"/^Cap/p;/^NoNew/p;/^Seccomp:/p\" /proc/self/status; cat /proc/self/limits; ls /dev; \
    cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max; cut -d\" \" -f5 /proc/self/mountinfo | sort";

/// The pod has a sidecar, a probe, a hook, limits, a restart and an end, each of which makes its own calls of the
/// runtime.
pub(crate) fn a_pod_under_crun(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run(CLASS)?;
    guest.run(&manifest("small", &spec(json!("small"))))?;
    guest.run(&manifest("plain", &spec(Value::Null)))?;
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let first = container_id(&wait(&mut guest, "small", "ready", ready)?, "main")?;
    wait(&mut guest, "plain", "ready", ready)?;
    // crun keeps a file `status` of each container, runc `state.json`.
    guest.run(&format!("test -e /run/containerd/runc/k8s.io/{first}/status"))?;
    let (crun, runc) = (view(&mut guest, "small")?, view(&mut guest, "plain")?);
    ensure!(crun == runc, "crun:\n{crun}\nrunc:\n{runc}");

    guest.run(&format!("kill -KILL $(ctr -n k8s.io tasks ls | awk '$1 == \"{first}\" {{print $2}}')"))?;
    let again = wait(&mut guest, "small", "started again and ready", |pod| {
        ready(pod) && container_id(pod, "main").is_ok_and(|id| id != first)
    })?;
    guest.run(&format!("test -e /run/containerd/runc/k8s.io/{}/status", container_id(&again, "main")?))?;
    running(&mut guest, "plain")?;
    guest.run("rm /etc/limpet/manifests/small.yaml /etc/limpet/manifests/plain.yaml")?;
    guest.until(SOON, "nothing of the pods", "limpet pods -o json", |output| {
        (!output.contains("small-gateway") && !output.contains("plain-gateway")).then_some(())
    })?;
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

fn spec(class: Value) -> Value {
    let shell = |name: &str| shell(name, image::V1, IDLE);
    let mut sidecar = shell("side");
    sidecar["restartPolicy"] = json!("Always");
    let mut main = shell("main");
    let command = |script: &str| json!({ "exec": { "command": ["/bin/sh", "-c", script] } });
    main["readinessProbe"] = command("test -e /tmp/hooked");
    // An emulated machine takes longer than the second that is the default.
    main["readinessProbe"]["timeoutSeconds"] = json!(60);
    main["lifecycle"] = json!({ "postStart": command("echo > /tmp/hooked") });
    main["resources"] = json!({ "limits": { "memory": "24Mi", "cpu": "200m" } });
    main["securityContext"] = json!({ "runAsUser": 1000, "capabilities": { "drop": ["ALL"] } });
    json!({
        "runtimeClassName": class, "terminationGracePeriodSeconds": 1, "initContainers": [sidecar], "containers": [main],
    })
}

fn view(guest: &mut Guest, pod: &str) -> Result<String> {
    guest.run(&format!("limpet exec {pod} -c main -- sh -c '{LOOK}'"))
}
