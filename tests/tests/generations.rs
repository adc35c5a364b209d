//! Generations of manifests: what works stays, what does not is undone, with a real containerd.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{NodeOptions, container_id};
use limpet_tests::{TestNode, case, image, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_good_update_is_committed_and_rolled_back_by_command).on(on_trial),
        case!(a_crash_loop_is_undone_and_not_tried_again).on(on_trial),
        case!(what_is_never_ready_is_undone_with_its_config_map).on(on_trial),
        case!(nothing_is_switched_while_an_image_is_missing).on(on_trial),
        case!(an_agent_that_is_killed_goes_on_where_it_was).on(on_trial),
        case!(a_deployment_is_rolled_back).on(on_trial),
        case!(an_applied_pod_is_undone_and_a_deleted_one_stays_away).on(on_trial),
        case!(a_check_decides_and_the_boot_is_reported).on(|node| node.agent = false),
        case!(without_a_policy_there_are_none),
    ])
}

fn settings(more: &str) -> String {
    format!(
        "generations: {{policy: {{file: all, push: all}}, progressDeadline: 12s, minReadySeconds: 1, maxRestarts: 1{more}}}"
    )
}

fn on_trial(node: &mut NodeOptions) {
    node.limpet = vec![settings("")];
}

/// The generations of a source.
fn generations(node: &TestNode, source: &str) -> Result<Value> {
    let text = node.agent.cli(&["generations", "-o", "json"])?.success()?;
    let all: Vec<Value> = serde_json::from_str(&text)?;
    all.into_iter().find(|generation| generation["source"] == source).with_context(|| format!("no {source} in {text}"))
}

/// The generations as text: `1 good, 2* trial`, with a star at the one that runs.
fn outcomes(view: &Value) -> String {
    let all = view["generations"].as_array().into_iter().flatten();
    let text = |generation: &Value| {
        let star = if generation["number"] == view["running"] { "*" } else { "" };
        format!("{}{star} {}", generation["number"], generation["outcome"].as_str().unwrap_or_default())
    };
    all.map(text).collect::<Vec<_>>().join(", ")
}

fn wait_outcomes(node: &TestNode, source: &str, wanted: &str) -> Result<Value> {
    wait::until(wait::SOON, &format!("generations {wanted}"), || {
        generations(node, source).ok().filter(|view| outcomes(view) == wanted)
    })
    .with_context(|| format!("{:#}", generations(node, source).unwrap_or_default()))
}

fn reason(view: &Value, number: u64) -> String {
    let all = view["generations"].as_array().into_iter().flatten();
    let reasons =
        all.filter(|generation| generation["number"] == number).filter_map(|generation| generation["reason"].as_str());
    reasons.map(str::to_owned).collect()
}

fn of_image(name: &str, image: &str, script: &str) -> Value {
    pod(name, json!({ "containers": [with(shell("main", script), json!({ "image": image }))] }))
}

fn runs(node: &TestNode, name: &str, image: &str) -> Result<Value> {
    node.wait_pod(name, &format!("ready with {image}"), |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["ready"] == true && status["image"] == image
    })
}

fn a_good_update_is_committed_and_rolled_back_by_command(node: &mut TestNode) -> Result<()> {
    node.apply(&of_image("web", image::V1, IDLE))?;
    wait_outcomes(node, "file", "1* good")?;
    node.apply(&of_image("web", image::V2, IDLE))?;
    wait_outcomes(node, "file", "1 good, 2* good")?;
    runs(node, "web", image::V2)?;
    let status = node.agent.cli(&["status"])?.success()?;
    ensure!(status.contains("generation 2, good"), "{status}");
    let checked = node.agent.cli(&["generations", "--check"])?;
    ensure!(checked.code == Some(0), "{checked:?}");

    let diff = node.agent.cli(&["diff", "--generation", "1", "--source", "file"])?;
    let change = format!("{} -> {}", image::V2, image::V1);
    ensure!(diff.code == Some(1) && diff.stdout.contains(&change) && diff.stdout.contains("restarts"), "{diff:?}");
    let same = node.agent.cli(&["diff", "--generation", "2", "--source", "file"])?;
    ensure!(same.code == Some(0), "{same:?}");
    let missing = node.agent.cli(&["diff", "--generation", "9", "--source", "file"])?;
    ensure!(missing.code == Some(2) && missing.stderr.contains("file has no generation 9, only 1, 2"), "{missing:?}");
    let said = node.agent.cli(&["rollback", "--source", "file"])?.success()?;
    ensure!(said == "generation 1 of file runs again\n", "{said}");
    let (metrics, counted) =
        (node.agent.metrics()?, "limpet_generation_changes_total{source=\"file\",change=\"Committed\"} 2");
    ensure!(metrics.contains(counted), "{metrics}");
    let id = container_id(&runs(node, "web", image::V1)?, "main")?;
    node.agent.kill();
    node.agent.start()?;
    wait_outcomes(node, "file", "1* good, 2 refused")?;
    ensure!(container_id(&runs(node, "web", image::V1)?, "main")? == id, "restarted by the agent's restart");
    let status = node.agent.cli(&["status"])?;
    ensure!(
        status.code == Some(1) && status.stdout.contains("generation 2 was undone, generation 1 runs"),
        "{status:?}"
    );
    let refused = node.agent.cli(&["rollback", "2", "--source", "file"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("generation 2 was not good"), "{refused:?}");
    Ok(())
}

fn a_crash_loop_is_undone_and_not_tried_again(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.apply(&simple("other", IDLE))?;
    wait::until_true(wait::SOON, "a good generation", || {
        generations(node, "file").is_ok_and(|view| outcomes(&view).ends_with("* good") && view["waiting"].is_null())
    })?;
    let good = generations(node, "file")?["running"].as_u64().context("nothing runs")?;
    let other = container_id(&node.wait_running("other")?, "main")?;
    let broken = simple("web", "exit 3");
    node.apply(&broken)?;
    let bad = good + 1;
    let view = wait::until(wait::SOON, "the crash loop to be undone", || {
        let view = generations(node, "file").ok()?;
        (view["running"] == good && view["refused"] == bad).then_some(view)
    })?;
    ensure!(reason(&view, bad).contains("web-"), "{view:#}");
    node.wait_event("GenerationUndone")?;
    node.wait_running("web")?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_running("web")?;
    // The same text again changes nothing, and neither does another file.
    node.apply(&broken)?;
    ensure!(generations(node, "file")?["running"] == good, "the bad one is tried again");
    node.apply(&simple("web", &format!("{IDLE} # fixed")))?;
    wait::until_true(wait::SOON, "the fixed one to be good", || {
        generations(node, "file").is_ok_and(|view| view["running"] == bad + 1 && outcomes(&view).ends_with("* good"))
    })?;
    ensure!(container_id(&node.wait_running("other")?, "main")? == other, "a sibling was restarted");
    Ok(())
}

/// The pod is ready by a file of the ConfigMap, and the update edits only the ConfigMap.
fn what_is_never_ready_is_undone_with_its_config_map(node: &mut TestNode) -> Result<()> {
    let config = |word: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" }, "data": { "word": word } });
    let probe = json!({ "exec": { "command": ["/bin/grep", "-q", "good", "/etc/settings/word"] }, "periodSeconds": 1 });
    let container = with(
        shell("main", IDLE),
        json!({ "readinessProbe": probe, "volumeMounts": [{ "name": "settings", "mountPath": "/etc/settings" }] }),
    );
    let reader = pod(
        "reader",
        json!({ "containers": [container], "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }] }),
    );
    let file = |word: &str| format!("{}\n---\n{}", config(word), reader);
    node.drop_text("all.yaml", &file("good"))?;
    wait_outcomes(node, "file", "1* good")?;
    node.drop_text("all.yaml", &file("bad"))?;
    let view = wait_outcomes(node, "file", "1* good, 2 refused")?;
    ensure!(reason(&view, 2).contains("is not ready"), "{view:#}");
    runs(node, "reader", image::V1)?;
    ensure!(node.exec("reader", "main", &["/bin/cat", "/etc/settings/word"])? == "good");
    Ok(())
}

fn nothing_is_switched_while_an_image_is_missing(node: &mut TestNode) -> Result<()> {
    node.apply(&of_image("web", image::V1, IDLE))?;
    wait_outcomes(node, "file", "1* good")?;
    let id = container_id(&runs(node, "web", image::V1)?, "main")?;
    let missing =
        with(shell("main", IDLE), json!({ "image": "registry.test/limpet/none:v9", "imagePullPolicy": "Never" }));
    node.apply(&pod("web", json!({ "containers": [missing] })))?;
    node.wait_event("GenerationWaiting")?;
    let view = generations(node, "file")?;
    ensure!(outcomes(&view) == "1* good", "{view:#}");
    ensure!(view["waiting"].as_str().is_some_and(|why| why.contains("none:v9")), "{view:#}");
    ensure!(container_id(&runs(node, "web", image::V1)?, "main")? == id, "restarted");
    let checked = node.agent.cli(&["generations", "--check"])?;
    ensure!(checked.code == Some(1) && checked.stdout.contains("the newest version waits"), "{checked:?}");
    node.apply(&of_image("web", image::V2, IDLE))?;
    wait_outcomes(node, "file", "1 good, 2* good").map(drop)
}

fn an_agent_that_is_killed_goes_on_where_it_was(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    wait_outcomes(node, "file", "1* good")?;
    let unready = json!({ "exec": { "command": ["/bin/false"] }, "periodSeconds": 1 });
    let container = with(shell("main", IDLE), json!({ "readinessProbe": unready }));
    node.apply(&pod("web", json!({ "containers": [container] })))?;
    // The agent is killed before the trial, during it, and after its end.
    node.agent.kill();
    node.agent.start()?;
    wait_outcomes(node, "file", "1 good, 2* trial")?;
    node.agent.kill();
    node.agent.start()?;
    wait_outcomes(node, "file", "1* good, 2 refused")?;
    node.agent.kill();
    node.agent.start()?;
    runs(node, "web", image::V1)?;
    let view = wait_outcomes(node, "file", "1* good, 2 refused")?;
    ensure!(view["refused"] == 2, "{view:#}");
    Ok(())
}

fn a_deployment_is_rolled_back(node: &mut TestNode) -> Result<()> {
    let deployment = |image: &str, script: &str| {
        let container = with(shell("main", script), json!({ "image": image }));
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": {
                "replicas": 2, "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container] },
                },
            },
        })
    };
    let images = || -> Option<Vec<String>> {
        let pods = node.pods().ok()?;
        let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        let image = |pod: &Value| pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
        pods.iter().all(ready).then(|| pods.iter().map(image).collect())
    };
    node.apply(&deployment(image::V1, IDLE))?;
    wait_outcomes(node, "file", "1* good")?;
    node.apply(&deployment(image::V2, IDLE))?;
    wait_outcomes(node, "file", "1 good, 2* good")?;
    ensure!(images() == Some(vec![image::V2.to_owned(); 2]), "{:?}", images());
    node.apply(&deployment(image::V1, "exit 1"))?;
    wait_outcomes(node, "file", "1 good, 2* good, 3 refused")?;
    wait::until_true(wait::SOON, "two pods as before", || images() == Some(vec![image::V2.to_owned(); 2]))
}

fn an_applied_pod_is_undone_and_a_deleted_one_stays_away(node: &mut TestNode) -> Result<()> {
    let apply = |pod: &Value| node.agent.cli_with_input(&["apply", "-f", "-"], pod.to_string().as_bytes())?.success();
    apply(&simple("web", IDLE))?;
    wait::until_true(wait::SOON, "a good generation", || {
        generations(node, "push").is_ok_and(|view| {
            view["generations"].as_array().into_iter().flatten().any(|generation| {
                generation["number"] == view["running"] && generation["outcome"] == "good" && generation["pods"] == 1
            })
        })
    })?;
    let good = generations(node, "push")?["running"].as_u64().context("nothing runs")?;
    apply(&simple("web", "exit 1"))?;
    wait::until_true(wait::SOON, "the bad one to be undone", || {
        generations(node, "push").is_ok_and(|view| view["running"] == good && view["refused"] == good + 1)
    })?;
    node.wait_running("web")?;
    node.agent.cli(&["delete", "web"])?.success()?;
    node.wait_gone("web")?;
    node.agent.kill();
    node.agent.start()?;
    wait::until_true(wait::SOON, "the source to be read", || {
        generations(node, "push").is_ok_and(|view| view["running"].is_u64())
    })?;
    node.wait_gone("web")
}

fn a_check_decides_and_the_boot_is_reported(node: &mut TestNode) -> Result<()> {
    let directory = node.dir().join("boot-check.d");
    let (word, allowed) = (node.dir().join("word"), node.dir().join("allowed"));
    fs::create_dir(&directory)?;
    let program = directory.join("10-note");
    fs::write(&program, format!("#!/bin/sh\necho \"$1\" >> {}\n", word.display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::write(&allowed, "")?;
    let check = format!(
        ", check: {{command: [/bin/sh, -c, 'test -e {} || test $LIMPET_GENERATION = 1']}}, bootCheckDirectory: {}",
        allowed.display(),
        directory.display()
    );
    let line = settings(&check);
    node.agent.reconfigure(|settings| settings.limpet.push(line))?;
    node.apply(&of_image("web", image::V1, IDLE))?;
    node.agent.start()?;
    wait_outcomes(node, "file", "1* good")?;
    let said = || fs::read_to_string(&word).unwrap_or_default();
    wait::until_true(wait::SOON, "the boot to be reported", || said() == "good\n")?;
    fs::remove_file(&allowed)?;
    node.apply(&of_image("web", image::V2, IDLE))?;
    let view = wait_outcomes(node, "file", "1* good, 2 refused")?;
    ensure!(reason(&view, 2).contains("the check failed: /bin/sh ended with 1"), "{view:#}");
    runs(node, "web", image::V1)?;
    node.agent.kill();
    node.agent.start()?;
    wait_outcomes(node, "file", "1* good, 2 refused")?;
    ensure!(said() == "good\n", "reported twice: {}", said());
    Ok(())
}

fn without_a_policy_there_are_none(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", "exit 1"))?;
    let listed = node.agent.cli(&["generations"])?;
    ensure!(listed.code == Some(0) && listed.stderr.contains("No source has generations"), "{listed:?}");
    let refused = node.agent.cli(&["rollback"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("no source has generations"), "{refused:?}");
    Ok(())
}
