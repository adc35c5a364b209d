//! Pods of the machine: manifests in its directory, and what the agent reports about them.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::{Value, json};

/// How long an emulated machine may take for what takes a second elsewhere.
pub(crate) const SOON: Duration = Duration::from_secs(240);

/// A script that runs until SIGTERM.
pub(crate) const IDLE: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// The commands that put a pod's manifest into the directory.
pub(crate) fn manifest(name: &str, spec: &Value) -> String {
    let manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
    let path = format!("/etc/limpet/manifests/{name}.yaml");
    format!("cat > {path}.new <<'END'\n{manifest}\nEND\nmv {path}.new {path}")
}

/// A container of `image` that runs `script`.
pub(crate) fn shell(name: &str, image: &str, script: &str) -> Value {
    json!({ "name": name, "image": image, "command": ["/bin/sh", "-c", script], "imagePullPolicy": "IfNotPresent" })
}

/// A container that writes a line to a file of the host for each run, so that a second run shows, even after a power
/// cut.
pub(crate) fn noting(name: &str, then: &str) -> Value {
    let mut container = shell(name, image::V1, &format!("echo {name} >> /runs/list; fsync /runs/list; {then}"));
    container["volumeMounts"] = json!([{ "name": "runs", "mountPath": "/runs" }]);
    container
}

/// The volume of [`noting`].
pub(crate) fn runs_volume() -> Value {
    json!([{ "name": "runs", "hostPath": { "path": "/var/lib/runs", "type": "DirectoryOrCreate" } }])
}

/// How often each [`noting`] container has run: `init1 stays2`.
pub(crate) fn runs(guest: &mut Guest) -> Result<String> {
    // A power cut may leave zeros in the place of a line that was not on the disk yet.
    let output = guest.run("tr -d '\\0' < /var/lib/runs/list | sort | uniq -c | awk '{print $2 $1}' | xargs")?;
    Ok(output.trim().to_owned())
}

/// Waits until every container of the pod `name` runs, and returns the pod.
pub(crate) fn running(guest: &mut Guest, name: &str) -> Result<Value> {
    wait(guest, name, "running", |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        !statuses.is_empty() && statuses.iter().all(|status| status["state"]["running"].is_object())
    })
}

/// Waits for the pod `name` to be as `accept` requires.
pub(crate) fn wait(guest: &mut Guest, name: &str, what: &str, accept: impl Fn(&Value) -> bool) -> Result<Value> {
    let full = format!("{name}-gateway");
    let awaited = guest.until(SOON, &format!("pod {name} {what}"), "limpet pods -A -o json", |output| {
        let list: Value = serde_json::from_str(output).ok()?;
        let pod = list["items"].as_array()?.iter().find(|pod| pod["metadata"]["name"] == full.as_str())?.clone();
        accept(&pod).then_some(pod)
    });
    awaited.map_err(|error| {
        let evidence = guest.attempt("limpet events; journalctl -u limpet -u containerd -n 60 --no-pager -o cat");
        anyhow!("{error:#}\n{}", evidence.map(|(_, text)| text).unwrap_or_default())
    })
}

/// Waits until there is no pod any more.
pub(crate) fn none(guest: &mut Guest) -> Result<()> {
    guest.until(SOON, "the end of all pods", "limpet pods -A -o json", |output| {
        let list: Value = serde_json::from_str(output).ok()?;
        list["items"].as_array()?.is_empty().then_some(())
    })
}

/// Waits for the end of the pod `name`.
pub(crate) fn gone(guest: &mut Guest, name: &str) -> Result<()> {
    let full = format!("{name}-gateway");
    guest.until(SOON, "the end of a pod", "limpet pods -o json", |pods| (!pods.contains(&full)).then_some(()))
}

/// The id of the container `name` as containerd knows it.
pub(crate) fn container_id(pod: &Value, name: &str) -> Result<String> {
    let statuses = pod["status"]["containerStatuses"].as_array().context("no statuses")?;
    let status = statuses.iter().find(|status| status["name"] == name).context("no such container")?;
    let id = status["containerID"].as_str().context("no id")?;
    Ok(id.trim_start_matches("containerd://").to_owned())
}

/// `stays` keeps running, after its init container; `once` has finished for good.
pub(crate) fn start_one_that_stays_and_one_that_finishes(guest: &mut Guest) -> Result<()> {
    let stays = json!({
        "initContainers": [noting("init", "true")], "containers": [noting("stays", IDLE)],
        "volumes": runs_volume(), "terminationGracePeriodSeconds": 1,
    });
    let once = json!({
        "restartPolicy": "Never", "hostNetwork": true, "containers": [noting("once", "exit 0")],
        "volumes": runs_volume(),
    });
    guest.run(&manifest("stays", &stays))?;
    guest.run(&manifest("once", &once))?;
    running(guest, "stays")?;
    wait(guest, "once", "finished", is_finished)?;
    Ok(())
}

/// Whether all its containers have ended well.
pub(crate) fn is_finished(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded"
}

/// After a boot: the pods of the base run again, or are finished still, and each container has run as often as it should.
pub(crate) fn base_is_back(guest: &mut Guest) -> Result<()> {
    base_is_back_after(guest, 1)
}

/// The same after that many boots.
pub(crate) fn base_is_back_after(guest: &mut Guest, boots: usize) -> Result<()> {
    wait(guest, "stays", &format!("running after {boots} boots"), |pod| {
        let main = &pod["status"]["containerStatuses"][0];
        main["state"]["running"].is_object() && main["restartCount"] == boots
    })?;
    wait(guest, "once", "still finished", is_finished)?;
    let (runs, again) = (runs(guest)?, boots + 1);
    for expected in [&format!("init{again}"), "once1", &format!("stays{again}")] {
        ensure!(runs.split(' ').any(|run| run == expected), "no {expected} in {runs}");
    }
    Ok(())
}
