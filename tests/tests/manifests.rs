//! Manifests that are broken, refused or moved: what ran keeps running, and the reason is reported.

use std::fs;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container;
use limpet_tests::{TestNode, case, image, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_broken_manifest_leaves_its_pod_running),
        case!(a_manifest_broken_while_the_agent_is_down),
        case!(a_field_limpet_does_not_act_on_is_refused),
        case!(a_pod_beyond_the_security_standard_of_its_source_is_refused).on(|node| {
            node.cni = true;
            node.limpet = vec!["podSecurity: {file: baseline, push: restricted}".to_owned()];
        }),
        case!(two_files_that_claim_one_pod_are_both_reported),
        case!(of_two_pods_with_one_uid_the_second_waits_for_the_end_of_the_first),
        case!(a_replaced_directory_is_followed),
        case!(what_diff_says_is_what_happens),
        case!(validate_needs_no_agent).on(|node| node.agent = false),
    ])
}

const BROKEN: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers: [\n";

/// Waits until `limpet pods` notes a rejection beside the pod.
fn wait_noted(node: &TestNode) -> Result<()> {
    let table = || node.agent.cli(&["pods"]).map(|reply| reply.stdout).unwrap_or_default();
    let noted = |table: &str| {
        table.lines().any(|line| {
            line.starts_with(&node.full_name("web")) && line.contains("Running") && line.contains("rejected")
        })
    };
    wait::until_true(wait::SOON, "the note of a rejection", || noted(&table()))
}

fn a_broken_manifest_leaves_its_pod_running(node: &mut TestNode) -> Result<()> {
    let good = simple("web", IDLE);
    node.apply(&good)?;
    let before = node.wait_running("web")?;
    node.drop_text("web.yaml", BROKEN)?;
    wait_noted(node)?;
    node.wait_event("web.yaml")?;
    node.ensure_unchanged("web", &before)?;
    node.apply(&good)?;
    wait::until_true(wait::SOON, "the note to go", || {
        node.agent.cli(&["pods"]).is_ok_and(|reply| reply.stdout.contains("web") && !reply.stdout.contains("rejected"))
    })?;
    node.ensure_unchanged("web", &before)
}

fn a_manifest_broken_while_the_agent_is_down(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    node.agent.kill();
    node.drop_text("web.yaml", BROKEN)?;
    node.agent.start()?;
    wait_noted(node)?;
    node.ensure_unchanged("web", &before)?;
    // The last good version counts, and not what happens to run: it is started if nothing runs.
    node.agent.kill();
    for task in node.containerd.tasks()? {
        limpet_tests::process::signal_pid(task.pid, rustix::process::Signal::KILL);
        wait::until_true(wait::SOON, "its end", || !limpet_tests::process::is_alive(task.pid))?;
    }
    node.agent.start()?;
    node.wait_running("web").map(drop)
}

fn a_field_limpet_does_not_act_on_is_refused(node: &mut TestNode) -> Result<()> {
    node.apply(&pod(
        "gated",
        json!({ "schedulingGates": [{ "name": "example.com/gate" }], "containers": [shell("main", IDLE)] }),
    ))?;
    node.wait_event("spec.schedulingGates")?;
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    ensure!(node.containerd.tasks()?.len() == 1, "it was run with its gate");
    Ok(())
}

/// The output of `limpet describe` about the pod.
fn described(node: &TestNode, name: &str) -> Result<String> {
    node.agent.cli(&["describe", &node.full_name(name)])?.success()
}

fn two_files_that_claim_one_pod_are_both_reported(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    node.drop_text("zzz.yaml", &simple("web", "echo second; sleep 100000").to_string())?;
    wait::until_true(wait::SOON, "a report on the winner", || {
        described(node, "web").is_ok_and(|text| text.contains("file zzz.yaml also defines this pod"))
    })?;
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.contains("zzz.yaml") && sources.contains("web.yaml"), "{sources}");
    node.wait_event("not run from file zzz.yaml")?;
    node.ensure_unchanged("web", &before)?;
    fs::remove_file(node.agent.settings().manifests().join("zzz.yaml"))?;
    wait::until_true(wait::SOON, "nothing more to be said", || {
        described(node, "web").is_ok_and(|text| !text.contains("Duplicates"))
    })?;
    node.ensure_unchanged("web", &before)
}

fn of_two_pods_with_one_uid_the_second_waits_for_the_end_of_the_first(node: &mut TestNode) -> Result<()> {
    let with_uid = |name: &str| {
        let mut manifest = simple(name, IDLE);
        manifest["metadata"]["uid"] = json!("0b5d2f1e-3c4a-4e5f-8a6b-7c8d9e0f1a2b");
        manifest
    };
    node.apply(&with_uid("web"))?;
    let first = node.wait_running("web")?;
    node.apply(&with_uid("zoo"))?;
    wait::until_true(wait::SOON, "a report on the second", || {
        described(node, "zoo").is_ok_and(|text| text.contains("not run: its uid"))
    })?;
    ensure!(node.containerd.tasks()?.len() == 1, "both run");
    node.ensure_unchanged("web", &first)?;
    node.remove("web")?;
    node.wait_gone("web")?;
    let second = node.wait_running("zoo")?;
    ensure!(second["metadata"]["uid"] == first["metadata"]["uid"]);
    ensure!(container(&second, "main")["restartCount"] == 0, "{}", second["status"]);
    ensure!(node.containerd.tasks()?.len() == 1, "the first still runs");
    Ok(())
}

fn a_replaced_directory_is_followed(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    let dir = node.agent.settings().manifests();
    let aside = dir.with_file_name("manifests-old");
    fs::rename(&dir, &aside)?;
    fs::create_dir(&dir)?;
    node.apply(&simple("marker", IDLE))?;
    node.apply(&simple("web", IDLE))?;
    node.wait_running("marker")?;
    node.ensure_unchanged("web", &before)?;
    node.remove("web")?;
    node.wait_gone("web")
}

/// A pod of two containers, and one with a variable.
fn gateway_and_modbus(proxy: &str, baud: &str) -> [Value; 2] {
    let image = json!({ "image": proxy });
    let gateway = json!({ "containers": [shell("web", IDLE), with(shell("proxy", IDLE), image)] });
    let variable = json!({ "env": [{ "name": "BAUD", "value": baud }] });
    [pod("gateway", gateway), pod("modbus", json!({ "containers": [with(shell("main", IDLE), variable)] }))]
}

fn stage(node: &TestNode, manifests: &[Value]) -> Result<String> {
    let dir = node.dir().join("staged");
    fs::create_dir_all(&dir)?;
    for manifest in manifests {
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        fs::write(dir.join(format!("{name}.yaml")), serde_json::to_string_pretty(manifest)?)?;
    }
    Ok(dir.display().to_string())
}

fn what_diff_says_is_what_happens(node: &mut TestNode) -> Result<()> {
    let mut first = gateway_and_modbus(image::V1, "9600").to_vec();
    first.push(simple("old", IDLE));
    first.iter().try_for_each(|manifest| node.apply(manifest))?;
    let [gateway, modbus, _] = ["gateway", "modbus", "old"].map(|name| node.wait_running(name));
    let (gateway, modbus) = (gateway?, modbus?);
    node.wait_running("old")?;
    ensure!(node.agent.cli(&["diff"])?.success()?.is_empty(), "what runs is what is wanted");

    let mut then = gateway_and_modbus(image::V2, "19200").to_vec();
    then.push(simple("fresh", IDLE));
    let staged = stage(node, &then)?;
    let said = node.agent.cli(&["diff", "--prune", "-f", &staged, "-o", "json"])?;
    ensure!(said.code == Some(1), "{said:?}");
    let said: Value = serde_json::from_str(&said.stdout)?;
    let forecast: Vec<String> = said["pods"].as_array().into_iter().flatten().map(change).collect();
    let wanted = [
        format!("{} starts [] []", node.full_name("fresh")),
        format!(r#"{} updates ["proxy"] ["web"]"#, node.full_name("gateway")),
        format!("{} recreates [] []", node.full_name("modbus")),
        format!("{} stops [] []", node.full_name("old")),
    ];
    ensure!(forecast == wanted, "{forecast:?}");
    ensure!(said["pods"][1]["images"][0]["present"] == true, "{said}");
    let page = node.agent.cli(&["diff", "--prune", "-f", &staged])?.stdout;
    for line in [
        "restarts: container proxy (image present: no wait)   keeps: container web",
        "(env cannot change in place), grace 1s",
    ] {
        ensure!(page.contains(line), "{page}");
    }
    ensure!(node.wait_running("gateway")? == gateway, "asking has changed something");

    then.iter().try_for_each(|manifest| node.apply(manifest))?;
    node.remove("old")?;
    node.wait_gone("old")?;
    node.wait_running("fresh")?;
    let id = |pod: &Value, name: &str| container(pod, name)["containerID"].clone();
    let now = node.wait_pod("gateway", "a new proxy", |pod| {
        let new = container(pod, "proxy");
        new["state"]["running"].is_object() && new["containerID"] != id(&gateway, "proxy")
    })?;
    ensure!(id(&now, "web") == id(&gateway, "web") && now["metadata"]["uid"] == gateway["metadata"]["uid"]);
    node.wait_pod("modbus", "made anew", |pod| {
        pod["metadata"]["uid"] != modbus["metadata"]["uid"] && container(pod, "main")["state"]["running"].is_object()
    })?;
    node.agent.cli(&["diff"])?.success()?;
    refused_and_offline(node, &staged)
}

/// What the document says of a pod: what happens to it, its restarts, and what is kept.
fn change(pod: &Value) -> String {
    let text = |field: &str| pod[field].as_str().unwrap_or_default().to_owned();
    format!("{} {} {} {}", text("name"), text("change"), pod["restarts"], pod["keeps"])
}

fn refused_and_offline(node: &mut TestNode, staged: &str) -> Result<()> {
    let broken = node.agent.cli_with_input(&["diff", "-f", "-"], BROKEN.as_bytes())?;
    ensure!(broken.code == Some(2) && broken.stderr.contains("error: standard input:"), "{broken:?}");
    let edited = node.dir().join("gateway.yaml");
    fs::write(&edited, gateway_and_modbus(image::V1, "0")[0].to_string())?;
    let edited = edited.display().to_string();
    node.agent.kill();
    ensure!(node.agent.cli(&["diff", "-f", &edited])?.code == Some(3), "nobody is there to ask");
    let offline = node.agent.cli(&["diff", "--offline", &format!("{staged}/gateway.yaml"), "-f", &edited])?;
    ensure!(offline.code == Some(1) && offline.stdout.contains("restarts: container proxy"), "{offline:?}");
    Ok(())
}

fn validate_needs_no_agent(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.drop_text("broken.yaml", BROKEN)?;
    node.drop_text(
        "typo.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: typo}\nspec:\n  containers:\n  - name: a\n    \
        image: registry.test/limpet/demo:v1\n    ports:\n    - containerPort: 80800\n",
    )?;
    let validate = |file: &str| {
        let path = node.agent.settings().manifests().join(file);
        node.agent.cli(&["validate", &path.display().to_string()])
    };
    let good = validate("web.yaml")?;
    ensure!(good.code == Some(0), "{good:?}");
    for (file, word) in [("broken.yaml", "broken.yaml:"), ("typo.yaml", "containerPort")] {
        let reply = validate(file)?;
        let said = format!("{}{}", reply.stdout, reply.stderr);
        ensure!(reply.code == Some(1) && said.contains(word), "{file}: {:?} {said}", reply.code);
    }
    Ok(())
}

fn a_pod_beyond_the_security_standard_of_its_source_is_refused(node: &mut TestNode) -> Result<()> {
    let good = with(simple("web", IDLE), json!({ "spec": { "hostNetwork": false } }));
    node.apply(&good)?;
    let before = node.wait_running("web")?;
    node.apply(&with(good.clone(), json!({ "spec": { "hostPID": true } })))?;
    wait_noted(node)?;
    node.wait_event("violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)")?;
    node.ensure_unchanged("web", &before)?;
    // The last good version also runs after a restart.
    node.agent.kill();
    node.agent.start()?;
    wait_noted(node)?;
    node.ensure_unchanged("web", &before)?;
    // Another source has another level: what a file may have, a pushed pod may not.
    let mut pushed = with(simple("pushed", IDLE), json!({ "spec": { "hostNetwork": false } }));
    let refused = node.agent.cli_with_input(&["apply", "-f", "-"], pushed.to_string().as_bytes())?;
    ensure!(
        refused.code == Some(1) && refused.stderr.contains("violates PodSecurity \"restricted:latest\""),
        "{refused:?}"
    );
    pushed["spec"]["containers"][0]["securityContext"] = json!({
        "runAsNonRoot": true, "runAsUser": 1000, "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
    });
    node.agent.cli_with_input(&["apply", "-f", "-"], pushed.to_string().as_bytes())?.success()?;
    node.wait_running("pushed")?;
    // A source that is not named has no level.
    node.agent.kill();
    node.agent.reconfigure(|settings| settings.limpet = vec!["podSecurity: {file: baseline}".to_owned()])?;
    node.agent.start()?;
    let pushed = with(simple("free", IDLE), json!({ "spec": { "hostPID": true } })).to_string();
    node.agent.cli_with_input(&["apply", "-f", "-"], pushed.as_bytes())?.success()?;
    node.wait_running("free").map(drop)
}
