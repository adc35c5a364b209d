//! ConfigMaps and Secrets beside the pods: environment, files that change under a running container, pods that wait
//! for them, registry passwords; and that no output contains a Secret's value.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64_STANDARD;
use limpet_tests::image::ImageBuilder;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::registry::{self, Registry};
use limpet_tests::{TestNode, case, suite, wait};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(the_environment_comes_from_both_and_stays),
        case!(a_mounted_config_map_changes_at_once_and_restarts_nothing),
        case!(a_value_that_only_a_start_reads_restarts_its_reader_if_that_is_wanted),
        case!(volumes_are_adopted_and_follow_edits_made_meanwhile),
        case!(a_secret_is_in_memory_only_and_shown_nowhere),
        case!(its_memory_is_dumped_nowhere),
        case!(a_pod_waits_for_its_objects_and_starts_when_they_come),
        case!(a_projected_volume_holds_all_its_sources),
        case!(a_broken_object_leaves_the_last_good_one),
        case!(a_registry_password_from_a_secret),
        case!(pushed_objects_serve_pushed_pods_and_survive_a_crash),
        case!(a_secret_is_encrypted_on_disk_and_unusable_without_its_key).on(|node| node.agent = false),
    ])
}

/// The key is installed, removed, and installed again.
fn a_secret_is_encrypted_on_disk_and_unusable_without_its_key(node: &mut TestNode) -> Result<()> {
    let key = node.dir().join("secret.key");
    fs::write(&key, "5b".repeat(32))?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    node.agent.reconfigure(|settings| settings.limpet.push(format!("secretEncryptionKey: {}", key.display())))?;
    node.agent.start()?;
    let token = secret("token", json!({ "b": VALUE })).to_string();
    node.agent.cli_with_input(&["apply", "-f", "-"], token.as_bytes())?.success()?;
    let database = fs::read(node.agent.settings().root().join("limpet.db"))?;
    for text in [VALUE.to_owned(), BASE64_STANDARD.encode(VALUE)] {
        let shown = database.windows(text.len()).any(|part| part == text.as_bytes());
        ensure!(!shown, "the database has the Secret's value");
    }

    node.agent.kill();
    let aside = key.with_extension("aside");
    fs::rename(&key, &aside)?;
    node.agent.start()?;
    let volume = json!({ "name": "conf", "secret": { "secretName": "token" } });
    let web = web(json!({ "volumeMounts": [{ "name": "conf", "mountPath": "/conf" }] }), json!([volume]));
    node.agent.cli_with_input(&["apply", "-f", "-"], web.to_string().as_bytes())?.success()?;
    node.wait_event("secret \"token\" not found")?;
    let refused = node.agent.cli_with_input(&["apply", "-f", "-"], token.as_bytes())?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("secretEncryptionKey"), "{refused:?}");

    node.agent.kill();
    fs::rename(&aside, &key)?;
    node.agent.start()?;
    node.wait_running("web")?;
    wait_reads(node, "/conf/b", VALUE)
}

fn its_memory_is_dumped_nowhere(node: &mut TestNode) -> Result<()> {
    let pid = node.agent.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).context("a pid")?;
    rustix::process::prlimit(Some(pid), Resource::Core, Rlimit { current: None, maximum: None })?;
    let status = node.agent.end(Signal::ABORT)?;
    ensure!(status.signal() == Some(Signal::ABORT.as_raw()) && !status.core_dumped(), "{status}");
    Ok(())
}

/// A Secret's value, which no output may contain.
const VALUE: &str = "hunter2-of-the-gateway";

fn config_map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

fn secret(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data })
}

/// A pod `web` of one container with these fields, and these volumes.
fn web(container: Value, volumes: Value) -> Value {
    pod("web", json!({ "containers": [with(shell("main", IDLE), container)], "volumes": volumes }))
}

/// Waits until the container reads `text` from `path`.
fn wait_reads(node: &TestNode, path: &str, text: &str) -> Result<()> {
    let read = || node.exec("web", "main", &["cat", path]);
    wait::until_true(wait::SOON, &format!("{text:?} in {path}"), || read().is_ok_and(|contents| contents == text))
        .with_context(|| format!("it reads {:?}", read()))
}

fn the_environment_comes_from_both_and_stays(node: &mut TestNode) -> Result<()> {
    node.apply(&config_map("settings", json!({ "COLOUR": "green", "HOST": "a.test" })))?;
    node.apply(&secret("token", json!({ "TOKEN": VALUE, "HOST": "b.test" })))?;
    let env = json!({
        "envFrom": [{ "configMapRef": { "name": "settings" } }, { "secretRef": { "name": "token" } },
            { "configMapRef": { "name": "settings" }, "prefix": "P_" },
            { "secretRef": { "name": "absent", "optional": true } }],
        "env": [
            { "name": "ONE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "COLOUR" } } },
            { "name": "TWO", "valueFrom": { "secretKeyRef": { "name": "token", "key": "TOKEN" } } },
            { "name": "URL", "value": "http://$(HOST)/$(ONE)" },
        ],
    });
    node.apply(&web(env, json!([])))?;
    let before = node.wait_running("web")?;
    let shown = node.exec("web", "main", &["sh", "-c", "echo $COLOUR $HOST $P_HOST $ONE $TWO $TOKEN $URL"])?;
    ensure!(shown == format!("green b.test a.test green {VALUE} {VALUE} http://b.test/green\n"), "{shown}");
    // An edit reaches the next start and not the running container. Once another pod has started with it, the agent
    // knows it.
    node.apply(&config_map("settings", json!({ "COLOUR": "red", "HOST": "a.test" })))?;
    let red = json!({ "envFrom": [{ "configMapRef": { "name": "settings" } }] });
    let waits_for_red = shell("main", &format!("[ $COLOUR = red ] || exit 1; {IDLE}"));
    node.apply(&pod("later", json!({ "containers": [with(waits_for_red, red)] })))?;
    node.wait_pod("later", "running with the edit", |pod| {
        container(pod, "main")["state"]["running"].is_object()
            && node.exec("later", "main", &["sh", "-c", "echo $COLOUR"]).is_ok_and(|colour| colour == "red\n")
    })?;
    node.ensure_unchanged("web", &before)?;
    ensure!(node.exec("web", "main", &["sh", "-c", "echo $COLOUR"])? == "green\n");
    Ok(())
}

/// In the same pod, once per change, also when the agent was away.
fn a_value_that_only_a_start_reads_restarts_its_reader_if_that_is_wanted(node: &mut TestNode) -> Result<()> {
    let map = |colour: &str| config_map("settings", json!({ "COLOUR": colour }));
    node.apply(&map("green"))?;
    let env = json!({ "envFrom": [{ "configMapRef": { "name": "settings" } }] });
    let file = json!({ "volumeMounts": [{ "name": "conf", "mountPath": "/one", "subPath": "COLOUR" }] });
    let whole = json!({ "volumeMounts": [{ "name": "conf", "mountPath": "/conf" }] });
    let containers =
        json!([with(shell("main", IDLE), env), with(shell("file", IDLE), file), with(shell("whole", IDLE), whole),]);
    let volumes = json!([{ "name": "conf", "configMap": { "name": "settings" } }]);
    let mut web = pod("web", json!({ "containers": containers, "volumes": volumes }));
    web["metadata"]["annotations"] = json!({ "limpet.dev/restart-on-change": "configmaps" });
    node.apply(&web)?;
    let before = node.wait_running("web")?;
    let address = &before["status"]["podIP"];
    let id = |pod: &Value, name: &str| container_id(pod, name).unwrap_or_default();
    let restarted = |node: &TestNode, before: &Value, count: u64| {
        node.wait_pod("web", "restarted", |pod| {
            ["main", "file"].iter().all(|name| {
                let status = container(pod, name);
                status["ready"] == true && status["restartCount"] == count && id(pod, name) != id(before, name)
            })
        })
    };
    node.apply(&map("red"))?;
    let red = restarted(node, &before, 1)?;
    ensure!(id(&red, "whole") == id(&before, "whole"), "what follows an edit was restarted: {red:#}");
    ensure!(red["metadata"]["uid"] == before["metadata"]["uid"] && red["status"]["podIP"] == *address, "{red:#}");
    ensure!(node.exec("web", "main", &["sh", "-c", "echo $COLOUR"])? == "red\n");
    ensure!(node.exec("web", "file", &["cat", "/one"])? == "red");
    node.wait_event("Container main is restarted: values that it has read at its start have changed")?;

    node.agent.kill();
    node.apply(&map("blue"))?;
    node.agent.start()?;
    let blue = restarted(node, &red, 2)?;
    ensure!(node.exec("web", "main", &["sh", "-c", "echo $COLOUR"])? == "blue\n");
    node.agent.kill();
    node.agent.start()?;
    ensure!(id(&node.wait_running("web")?, "main") == id(&blue, "main"), "restarted without a change");
    Ok(())
}

fn mounted(volume: Value) -> Value {
    let mounts = json!({ "volumeMounts": [{ "name": "conf", "mountPath": "/conf" },
        { "name": "conf", "mountPath": "/one", "subPath": "a" }] });
    web(mounts, json!([with(json!({ "name": "conf" }), volume)]))
}

fn a_mounted_config_map_changes_at_once_and_restarts_nothing(node: &mut TestNode) -> Result<()> {
    let map = |value: &str| config_map("settings", json!({ "a": value, "b": value }));
    node.apply(&map("first"))?;
    node.apply(&mounted(json!({ "configMap": { "name": "settings" } })))?;
    let before = node.wait_running("web")?;
    wait_reads(node, "/conf/a", "first")?;
    ensure!(node.exec("web", "main", &["sh", "-c", "echo x > /conf/a && echo written || true"])? != "written\n");
    // Both files are read through one directory, so a reader sees one version of both.
    let watch = "cd /conf; for i in $(seq 200000); do cd /conf/..data 2>/dev/null && x=$(cat a b 2>/dev/null); \
        case $x in firstfirst|'') ;; secondsecond) echo swapped; exit;; *) echo torn $x; exit;; esac; done";
    let watcher = std::thread::scope(|scope| {
        let seen = scope.spawn(|| node.exec("web", "main", &["sh", "-c", watch]));
        let edited = node.apply(&map("second"));
        edited.and(seen.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?)
    })?;
    ensure!(watcher == "swapped\n", "{watcher}");
    wait_reads(node, "/conf/b", "second")?;
    wait_reads(node, "/one", "first")?;
    node.ensure_unchanged("web", &before)?;
    node.remove("settings")?;
    node.wait_event("configmap \"settings\" not found")?;
    wait_reads(node, "/conf/a", "second")?;
    node.ensure_unchanged("web", &before)?;
    node.remove("web")?;
    node.wait_gone("web")?;
    node.wait_nothing_runs()
}

fn volumes_are_adopted_and_follow_edits_made_meanwhile(node: &mut TestNode) -> Result<()> {
    let labelled = |label: &str| {
        let mut web = mounted(json!({ "projected": { "sources": [
            { "secret": { "name": "token" } },
            { "downwardAPI": { "items": [{ "path": "label", "fieldRef": { "fieldPath": "metadata.labels['l']" } }] } },
        ] } }));
        web["metadata"]["labels"] = json!({ "l": label });
        web
    };
    node.apply(&secret("token", json!({ "a": "first" })))?;
    node.apply(&labelled("one"))?;
    let before = node.wait_running("web")?;
    wait_reads(node, "/conf/label", "one")?;
    node.agent.kill();
    node.apply(&secret("token", json!({ "a": "second" })))?;
    node.agent.start()?;
    wait_reads(node, "/conf/a", "second")?;
    node.ensure_unchanged("web", &before)?;
    node.apply(&labelled("two"))?;
    wait_reads(node, "/conf/label", "two")?;
    node.ensure_unchanged("web", &before)
}

fn a_secret_is_in_memory_only_and_shown_nowhere(node: &mut TestNode) -> Result<()> {
    node.apply(&secret("token", json!({ "a": VALUE })))?;
    let fields = json!({
        "env": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "token", "key": "a" } } }],
        "volumeMounts": [{ "name": "conf", "mountPath": "/conf" }],
    });
    let volumes = json!([{ "name": "conf", "secret": { "secretName": "token", "defaultMode": 256 } }]);
    node.apply(&web(fields, volumes))?;
    let running = node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["cat", "/conf/a"])? == VALUE);
    let stat = node.exec("web", "main", &["sh", "-c", "stat -f -c %T /conf; stat -L -c %a /conf/a"])?;
    ensure!(stat == "tmpfs\n400\n", "{stat}");
    let uid = running["metadata"]["uid"].as_str().context("a uid")?;
    let dir = node.agent.settings().root().join("pods").join(uid).join("volumes/kubernetes.io~secret/conf");
    ensure!(fs::metadata(dir.join("a")).is_ok(), "{}", dir.display());
    // A version that is refused, and one that a pod cannot use, are reported without its value, too.
    node.drop_text(
        "bad.yaml",
        &format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: bad}}\ndata: {{a: {VALUE}}}\n"),
    )?;
    node.wait_event("data.a: is not base64")?;
    for text in [
        format!("stringData: {{a: \"{VALUE}"),
        format!("stringData: {{a: *{VALUE}}}"),
        format!("stringData: {{a: !!int {VALUE}}}\n"),
    ] {
        let mark = node.mark()?;
        node.drop_text("worse.yaml", &format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: worse}}\n{text}"))?;
        node.wait_log_since(&mark, &["manifest rejected", "worse.yaml"])?;
    }
    let command = json!({ "name": "main", "command": ["$(TOKEN)"], "image": limpet_tests::image::V1,
        "env": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "token", "key": "a" } } }] });
    node.apply(&pod("named", json!({ "containers": [command], "restartPolicy": "Never" })))?;
    node.wait_pod("named", "its failure", |pod| pod["status"]["phase"] == "Failed")?;
    let (full, named) = (node.full_name("web"), node.full_name("named"));
    let mut said = vec![("log", node.agent.log())];
    let commands = [
        &["events"][..],
        &["describe", &full],
        &["pods", "-o", "json"],
        &["pods", "-o", "yaml"],
        &["pods", "-o", "wide"],
        &["describe", &named],
        &["sources"],
        &["logs", &full],
    ];
    for args in commands {
        let reply = node.agent.cli(args)?;
        said.push((args[0], format!("{}{}", reply.stdout, reply.stderr)));
    }
    for (what, text) in said {
        ensure!(!text.contains(VALUE), "the value is in {what}: {text}");
    }
    let mode = fs::metadata(node.agent.settings().root().join("limpet.db"))?.mode();
    ensure!(mode & 0o077 == 0, "limpet.db is {mode:o}");
    Ok(())
}

fn a_pod_waits_for_its_objects_and_starts_when_they_come(node: &mut TestNode) -> Result<()> {
    let fields = json!({
        "env": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "token", "key": "k" } } }],
        "volumeMounts": [{ "name": "conf", "mountPath": "/conf" }],
    });
    node.apply(&web(fields, json!([{ "name": "conf", "configMap": { "name": "settings" } }])))?;
    let waits = |pod: &Value, reason: &str| container(pod, "main")["state"]["waiting"]["reason"] == reason;
    node.wait_event("MountVolume.SetUp failed for volume \"conf\" : configmap \"settings\" not found")?;
    node.wait_pod("web", "ContainerCreating", |pod| waits(pod, "ContainerCreating"))?;
    node.apply(&config_map("settings", json!({ "a": "1" })))?;
    node.wait_event("Error: secret \"token\" not found")?;
    node.wait_pod("web", "CreateContainerConfigError", |pod| waits(pod, "CreateContainerConfigError"))?;
    node.apply(&secret("token", json!({ "other": "1" })))?;
    node.wait_event("couldn't find key k in Secret default/token")?;
    node.apply(&secret("token", json!({ "k": "1" })))?;
    node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["sh", "-c", "cat /conf/a; echo $TOKEN"])? == "11\n");
    Ok(())
}

fn a_projected_volume_holds_all_its_sources(node: &mut TestNode) -> Result<()> {
    node.apply(&config_map("settings", json!({ "a": "map", "b": "map" })))?;
    node.apply(&secret("token", json!({ "b": "secret" })))?;
    let volume = json!({ "projected": { "defaultMode": 288, "sources": [
        { "configMap": { "name": "settings", "items": [{ "key": "a", "path": "deep/a" }, { "key": "b", "path": "b" }] } },
        { "secret": { "name": "token" } },
        { "secret": { "name": "absent", "optional": true } },
        { "downwardAPI": { "items": [
            { "path": "name", "fieldRef": { "fieldPath": "metadata.namespace" } },
            { "path": "memory", "resourceFieldRef": { "containerName": "main", "resource": "limits.memory", "divisor": "1Mi" } },
        ] } },
    ] } });
    let fields = json!({ "volumeMounts": [{ "name": "conf", "mountPath": "/conf" }],
        "resources": { "limits": { "memory": "48Mi" } } });
    let mut web = web(fields, json!([with(json!({ "name": "conf" }), volume)]));
    web["spec"]["securityContext"] = json!({ "fsGroup": 4321 });
    node.apply(&web)?;
    node.wait_running("web")?;
    let shown = node.exec(
        "web",
        "main",
        &["sh", "-c", "cd /conf; cat deep/a b name; echo; cat memory; stat -L -c ' %a %g' b"],
    )?;
    ensure!(shown == "mapsecretdefault\n48 440 4321\n", "{shown}");
    Ok(())
}

fn a_broken_object_leaves_the_last_good_one(node: &mut TestNode) -> Result<()> {
    node.apply(&config_map("settings", json!({ "a": "good" })))?;
    node.apply(&mounted(json!({ "configMap": { "name": "settings" } })))?;
    let before = node.wait_running("web")?;
    node.apply(&config_map("settings", json!({ "a": 5 })))?;
    node.wait_event("data.a: must be a string")?;
    wait_reads(node, "/conf/a", "good")?;
    // This also holds if only the agent still has it, and after a restart of the agent.
    node.agent.kill();
    node.agent.start()?;
    node.ensure_unchanged("web", &before)?;
    wait_reads(node, "/conf/a", "good")?;
    node.apply(&config_map("settings", json!({ "a": "mended" })))?;
    wait_reads(node, "/conf/a", "mended")
}

fn a_registry_password_from_a_secret(node: &mut TestNode) -> Result<()> {
    const HOST: &str = "registry.test:5000";
    let registry = Registry::start_closed(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let image = ImageBuilder::new(&format!("{HOST}/closed:v1")).file("filler", vec![7; 1000], 0o644).build()?;
    registry.add(&image, "closed", "v1")?;
    // The node's own credentials are wrong, and so are the pod's first ones.
    let auths = |password: &str| json!({ "auths": { HOST: { "username": registry::USER, "password": password } } });
    fs::write(node.agent.settings().root().join("config.json"), auths("not-it").to_string())?;
    let spec = json!({ "containers": [with(shell("main", IDLE), json!({ "image": &image.name }))],
        "imagePullSecrets": [{ "name": "absent" }, { "name": "pull" }] });
    let mark = node.mark()?;
    node.apply(&pod("web", spec))?;
    node.wait_event("Unable to retrieve some image pull secrets (absent, pull)")?;
    node.wait_event_since(&mark, &["Failed web-", "Failed to pull image", "pull access denied"])?;
    let pull = |password: &str| {
        let mut pull = secret("pull", json!({ ".dockerconfigjson": auths(password).to_string() }));
        pull["type"] = "kubernetes.io/dockerconfigjson".into();
        pull
    };
    node.apply(&pull(registry::PASSWORD))?;
    node.wait_running("web")?;
    // A missing Secret is not reported if nothing has to be pulled.
    node.apply(&pod(
        "local",
        json!({ "containers": [shell("main", IDLE)], "imagePullSecrets": [{ "name": "absent" }] }),
    ))?;
    node.wait_running("local")?;
    let of_local = |line: &str| line.contains("local-") && line.contains("image pull secrets");
    ensure!(!node.events()?.lines().any(of_local), "{}", node.events()?);
    let said = format!("{}{}", node.events()?, node.agent.log());
    ensure!(!said.contains(registry::PASSWORD), "the output contains the password");
    Ok(())
}

fn pushed_objects_serve_pushed_pods_and_survive_a_crash(node: &mut TestNode) -> Result<()> {
    let volume = |source: Value| with(json!({ "name": "conf" }), source);
    let mount = json!({ "volumeMounts": [{ "name": "conf", "mountPath": "/conf" }] });
    let projected = json!({ "projected": { "sources": [
        { "configMap": { "name": "settings" } }, { "secret": { "name": "token" } } ] } });
    let web = web(mount, json!([volume(projected)]));
    let map = |value: &str| config_map("settings", json!({ "a": value }));
    let token = secret("token", json!({ "b": VALUE }));
    // The order does not matter: what the pod needs is applied first.
    let all = [&web, &map("first"), &token].map(ToString::to_string).join("\n---\n");
    let said = node.agent.cli_with_input(&["apply", "-f", "-"], all.as_bytes())?.success()?;
    node.agent.kill();
    ensure!(said == "configmap/settings created\nsecret/token created\npod/web created\n", "{said}");
    node.agent.start()?;
    let before = node.wait_running("web")?;
    wait_reads(node, "/conf/a", "first")?;
    wait_reads(node, "/conf/b", VALUE)?;

    // A ConfigMap of the same name in a file is another object, for the pods of files.
    node.apply(&config_map("settings", json!({ "a": "of a file" })))?;
    let edit = map("second").to_string();
    let said = node.agent.cli_with_input(&["apply", "-f", "-"], edit.as_bytes())?.success()?;
    ensure!(said == "configmap/settings configured\n", "{said}");
    wait_reads(node, "/conf/a", "second")?;
    node.ensure_unchanged("web", &before)?;
    let sources = node.agent.cli(&["sources", "-o", "json"])?.success()?;
    let counted = |source: &str| -> Result<Value> {
        let all: Vec<Value> = serde_json::from_str(&sources)?;
        Ok(all.iter().find(|each| each["source"] == source).context("a source")?["objects"].clone())
    };
    ensure!(counted("push")? == 2 && counted("file")? == 1, "{sources}");

    let deleted = node.agent.cli(&["delete", "secret/token"])?;
    let warning =
        format!("warning: Secret default/token is still referred to by pod default/{}\n", node.full_name("web"));
    ensure!(deleted.code == Some(0) && deleted.stdout == "secret \"token\" deleted\n", "{deleted:?}");
    ensure!(deleted.stderr == warning, "{deleted:?}");
    node.wait_event("secret \"token\" not found")?;
    wait_reads(node, "/conf/b", VALUE)?;
    node.ensure_unchanged("web", &before)?;

    let broken = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: token}}\ndata: {{b: {VALUE}}}\n");
    let refused = node.agent.cli_with_input(&["apply", "-f", "-"], broken.as_bytes())?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("data.b: is not base64"), "{refused:?}");
    let said = format!("{}{}{}{refused:?}{sources}", node.events()?, node.agent.log(), deleted.stdout);
    ensure!(!said.contains(VALUE), "the output contains the value");

    let both = [&web, &map("second")].map(ToString::to_string).join("\n---\n");
    let said = node.agent.cli_with_input(&["delete", "-f", "-"], both.as_bytes())?.success()?;
    ensure!(said == "pod \"web\" deleted\nconfigmap \"settings\" deleted\n", "{said}");
    node.wait_nothing_runs()
}
