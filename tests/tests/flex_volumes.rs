//! Volumes of FlexVolume drivers: a program of the node's owner mounts them for a pod, and unmounts them with it. The
//! driver is a script that bind-mounts a directory.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::V1;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_volume_is_mounted_once_with_its_options_and_unmounted_with_its_pod),
        case!(a_directory_that_its_driver_fills_is_filled_once),
        case!(a_pod_that_has_ended_gives_its_volume_back),
        case!(a_volume_is_unmounted_before_what_lies_beside_it),
        case!(what_a_removed_pod_left_mounted_is_unmounted_later),
        case!(files_change_their_group_as_the_change_policy_says),
        case!(a_driver_that_is_missing_or_fails_holds_up_its_pod),
        case!(a_pod_is_removed_once_its_driver_has_unmounted),
    ])
}

/// The directory of drivers, and the files beside the driver's script.
struct Drivers {
    dir: PathBuf,
}

impl Drivers {
    /// Restarts the agent with an empty directory of drivers.
    fn prepare(node: &mut TestNode) -> Result<Self> {
        let dir = node.dir().join("drivers");
        fs::create_dir_all(dir.join("test~share"))?;
        fs::create_dir(dir.join("share"))?;
        node.agent.kill();
        node.agent.reconfigure(|settings| settings.kubelet.push(format!("volumePluginDir: {}", dir.display())))?;
        node.agent.start()?;
        Ok(Self { dir })
    }

    /// Installs the driver `test/share`: it records its calls, mounts the directory `share`, and answers `init` with
    /// `answer`. Files beside it change what it does: with `busy` it fails, with `loud` it prints what it was given,
    /// with `fill` it copies instead of mounting. It does not unmount while a part of the volume is mounted elsewhere.
    fn install(&self, answer: &Value) -> Result<()> {
        let script = format!(
            "#!/bin/sh\ncd {dir} || exit 1\necho \"$@\" >> calls\ncase $1 in\n\
             init) echo '{answer}'; exit ;;\n\
             mount) [ -e loud ] && echo \"$3\" >&2 && exit 1\n\
             [ -e fill ] && echo run >> \"$2/filled\" && echo '{{\"status\": \"Success\"}}' && exit\n\
             [ ! -e busy ] && mount --bind share \"$2\" && echo '{{\"status\": \"Success\"}}' && exit ;;\n\
             unmount) [ -e fill ] && [ ! -e busy ] && rm \"$2/\"* && echo '{{\"status\": \"Success\"}}' && exit\n\
             grep -q \"${{2%/volumes/*}}/volume-subpaths\" /proc/self/mountinfo && touch busy\n\
             [ ! -e busy ] && umount \"$2\" && echo '{{\"status\": \"Success\"}}' && exit ;;\n\
             esac\necho '{{\"status\": \"Failure\", \"message\": \"not today\"}}'\nexit 1\n",
            dir = self.dir.display(),
        );
        // The script is renamed into place, because a program that is open for writing cannot be run.
        let (written, program) = (self.dir.join("new"), self.dir.join("test~share/share"));
        fs::write(&written, script)?;
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(written, program)?)
    }

    /// The calls so far, each a word and what follows.
    fn calls(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        text.lines().filter_map(|line| line.split_once(' ').or(Some((line, "")))).map(owned).collect()
    }

    fn share(&self) -> PathBuf {
        self.dir.join("share")
    }
}

fn owned((call, arguments): (&str, &str)) -> (String, String) {
    (call.to_owned(), arguments.to_owned())
}

/// The answer to `init` of a driver that mounts and does not attach.
fn mounts() -> Value {
    json!({ "status": "Success", "capabilities": { "attach": false } })
}

/// A pod whose container counts its starts in the volume before it sleeps.
fn of_driver(name: &str, volume: Value) -> Value {
    let mounts = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let main = shell("main", &format!("echo run >> /data/runs; {IDLE}"));
    let volume = json!({ "name": "data", "flexVolume": with(json!({ "driver": "test/share" }), volume) });
    pod(name, json!({ "containers": [with(main, mounts)], "volumes": [volume] }))
}

/// Kills the container of that id in pod `web`, and waits for the next one.
fn restart_container(node: &TestNode, id: &str) -> Result<()> {
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task of that id")?;
    process::signal_pid(task.pid, Signal::KILL);
    let is_next = |pod: &Value| {
        container_id(pod, "main").is_ok_and(|now| now != id) && container(pod, "main")["state"]["running"].is_object()
    };
    node.wait_pod("web", "started again", is_next).map(drop)
}

fn mounted_below(dir: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter(|line| line.contains(&*dir.to_string_lossy()) && line.contains("test~share")).count()
}

fn a_volume_is_mounted_once_with_its_options_and_unmounted_with_its_pod(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    drivers.install(&mounts())?;
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "login" }, "data": { "user": "YW5uYQ==" } });
    node.drop_text("login.yaml", &secret.to_string())?;
    let volume = json!({ "fsType": "cifs", "options": { "path": "//nas/a" }, "secretRef": { "name": "login" } });
    let web = with(of_driver("web", volume), json!({ "spec": { "securityContext": { "fsGroup": 4321 } } }));
    node.apply(&web)?;
    let running = node.wait_running("web")?;
    let id = container_id(&running, "main")?;
    ensure!(drivers.share().metadata()?.gid() == 4321, "fsGroup is not set");
    let shown = node.agent.cli(&["describe", &node.full_name("web")])?.success()?;
    ensure!(shown.contains("FlexVolume test/share"), "{shown}");

    // The next agent finds it mounted, and so does the container's next start, even without the Secret.
    node.agent.kill();
    fs::remove_file(node.agent.settings().manifests().join("login.yaml"))?;
    node.agent.start()?;
    restart_container(node, &id)?;
    ensure!(fs::read_to_string(drivers.share().join("runs"))? == "run\nrun\n");
    node.remove("web")?;
    node.wait_gone("web")?;
    wait::until_true(wait::SOON, "the volume to be unmounted", || mounted_below(node.dir()) == 0)?;

    let [init, mount, unmount] = &drivers.calls()[..] else { anyhow::bail!("{:?}", drivers.calls()) };
    ensure!(*init == owned(("init", "")), "{init:?}");
    let (path, options) = mount.1.split_once(' ').context("no options")?;
    ensure!(mount.0 == "mount" && *unmount == owned(("unmount", path)), "{mount:?} {unmount:?}");
    // These are the options that kubelet passes, by its `NewOptionsForDriver` and `SetUpAt`.
    let wanted = json!({
        "kubernetes.io/fsType": "cifs", "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": "data",
        "kubernetes.io/pod.name": node.full_name("web"), "kubernetes.io/pod.namespace": "default",
        "kubernetes.io/pod.uid": running["metadata"]["uid"], "kubernetes.io/serviceAccount.name": "",
        "kubernetes.io/mounterArgs.FsGroup": "4321", "kubernetes.io/secret/user": "YW5uYQ==", "path": "//nas/a",
    });
    ensure!(serde_json::from_str::<Value>(options)? == wanted, "{options}");
    ensure!(drivers.share().join("runs").exists(), "what the driver mounts is its own");
    Ok(())
}

fn files_change_their_group_as_the_change_policy_says(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    drivers.install(&mounts())?;
    let web = |name: &str, policy: &str| {
        let context = json!({ "fsGroup": 4321, "fsGroupChangePolicy": policy });
        with(of_driver(name, json!({})), json!({ "spec": { "securityContext": context } }))
    };
    let foreign = drivers.share().join("foreign");
    let group_of_foreign = || Ok::<_, std::io::Error>(foreign.metadata()?.gid());
    fs::write(&foreign, "")?;
    // For the first pod the group of the directory itself differs, so everything in it is changed.
    for (name, policy, root, expected) in
        [("first", "OnRootMismatch", 0, 4321), ("second", "OnRootMismatch", 4321, 99), ("third", "Always", 4321, 4321)]
    {
        std::os::unix::fs::chown(&foreign, None, Some(99))?;
        ensure!(drivers.share().metadata()?.gid() == root, "{name}: {:?}", drivers.share().metadata()?);
        node.apply(&web(name, policy))?;
        node.wait_running(name)?;
        ensure!(group_of_foreign()? == expected, "{name}: {}", group_of_foreign()?);
        node.remove(name)?;
        node.wait_gone(name)?;
    }
    Ok(())
}

fn a_driver_that_is_missing_or_fails_holds_up_its_pod(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    node.apply(&of_driver("web", json!({})))?;
    node.wait_event("MountVolume.SetUp failed for volume \"data\" : mount test/share: ")?;
    node.wait_event("share is not on this node: install the driver in volumePluginDir")?;
    drivers.install(&json!({ "status": "Success" }))?;
    node.wait_event("its driver attaches volumes (capability attach), which a controller of a cluster has to do")?;
    drivers.install(&json!({ "status": "Failure", "message": "no license" }))?;
    node.wait_event("init: status Failure: no license")?;
    // What the driver was given is not shown.
    drivers.install(&mounts())?;
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "login" }, "data": { "user": "YW5uYQ==" } });
    node.drop_text("login.yaml", &secret.to_string())?;
    fs::write(drivers.dir.join("loud"), "")?;
    node.apply(&of_driver("loud", json!({ "secretRef": { "name": "login" } })))?;
    node.wait_event("kubernetes.io/secret/user\":\"***\"")?;
    let said = format!("{}{}", node.events()?, node.agent.log());
    ensure!(!said.contains("YW5uYQ=="), "the output contains the secret");
    fs::remove_file(drivers.dir.join("loud"))?;
    node.wait_running("web")?;
    node.remove("web")?;
    node.wait_gone("web")
}

fn a_directory_that_its_driver_fills_is_filled_once(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    // A driver that is written in Go with kubelet's types prints this.
    drivers.install(&json!({ "status": "Success", "Capabilities": { "attach": false } }))?;
    fs::write(drivers.dir.join("fill"), "")?;
    let mut web = of_driver("web", json!({}));
    let beside = with(shell("beside", IDLE), json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }));
    let containers = web["spec"]["containers"].as_array_mut().context("no containers")?;
    containers.push(beside);
    node.apply(&web)?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.agent.kill();
    node.agent.start()?;
    restart_container(node, &id)?;
    ensure!(node.exec("web", "main", &["cat", "/data/filled"])? == "run\n");
    // A driver that fails to unmount is called until it succeeds.
    fs::write(drivers.dir.join("busy"), "")?;
    node.remove("web")?;
    node.wait_event("unmount test/share: unmount: status Failure: not today")?;
    fs::remove_file(drivers.dir.join("busy"))?;
    node.wait_gone("web")?;
    let calls: Vec<String> = drivers.calls().into_iter().map(|(call, _)| call).collect();
    let unmounts = calls.iter().filter(|call| *call == "unmount").count();
    ensure!(calls[..2] == ["init", "mount"] && calls.len() == 2 + unmounts && unmounts > 1, "{calls:?}");
    Ok(())
}

fn a_pod_that_has_ended_gives_its_volume_back(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    drivers.install(&mounts())?;
    let mut job = of_driver("job", json!({}));
    job["spec"]["containers"][0] =
        with(shell("main", "exit 0"), json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }));
    node.apply(&with(job, json!({ "spec": { "restartPolicy": "Never" } })))?;
    node.wait_pod("job", "finished", |pod| pod["status"]["phase"] == "Succeeded")?;
    wait::until_true(wait::SOON, "the volume to be unmounted", || {
        mounted_below(node.dir()) == 0 && drivers.calls().iter().any(|(call, _)| call == "unmount")
    })?;
    node.remove("job")?;
    node.wait_gone("job")?;
    let unmounts = drivers.calls().iter().filter(|(call, _)| call == "unmount").count();
    ensure!(unmounts == 1, "{:?}", drivers.calls());
    Ok(())
}

/// Image volumes are detached with all that is mounted for the pod, and a subPath keeps a volume in use.
fn a_volume_is_unmounted_before_what_lies_beside_it(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    drivers.install(&mounts())?;
    let mut web = of_driver("web", json!({}));
    web["spec"]["volumes"]
        .as_array_mut()
        .context("no volumes")?
        .push(json!({ "name": "image", "image": { "reference": V1 } }));
    web["spec"]["containers"][0]["volumeMounts"] = json!([
        { "name": "data", "mountPath": "/data" }, { "name": "data", "mountPath": "/part", "subPath": "part" },
        { "name": "image", "mountPath": "/image" },
    ]);
    node.apply(&web)?;
    node.wait_running("web")?;
    ensure!(drivers.share().join("part").is_dir(), "no subPath");
    node.remove("web")?;
    node.wait_gone("web")?;
    let calls: Vec<String> = drivers.calls().into_iter().map(|(call, _)| call).collect();
    ensure!(calls == ["init", "mount", "unmount"] && !drivers.dir.join("busy").exists(), "{calls:?}");
    Ok(())
}

fn what_a_removed_pod_left_mounted_is_unmounted_later(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    drivers.install(&mounts())?;
    node.agent.kill();
    // Neither a source nor containerd knows this pod.
    let pod = node.agent.settings().root().join("pods/0d2f3b51-6c0e-4f7a-9d0b-4c9d3f6a1e77");
    let path = pod.join("volumes/test~share/data");
    fs::create_dir_all(&path)?;
    process::checked(Command::new("mount").arg("--bind").arg(drivers.share()).arg(&path))?;
    fs::write(drivers.dir.join("busy"), "")?;
    node.agent.start()?;
    let failed = || node.agent.log().contains("removing leftovers failed; retried later");
    wait::until_true(wait::SOON, "the driver to fail", failed)?;
    fs::remove_file(drivers.dir.join("busy"))?;
    wait::until_true(wait::SOON, "the volume to be unmounted", || mounted_below(node.dir()) == 0)?;
    wait::until_true(wait::SOON, "the pod's directory to be removed", || !pod.exists())
}

fn a_pod_is_removed_once_its_driver_has_unmounted(node: &mut TestNode) -> Result<()> {
    let drivers = Drivers::prepare(node)?;
    drivers.install(&mounts())?;
    // A pod whose volume was never mounted has nothing to unmount.
    fs::write(drivers.dir.join("busy"), "")?;
    node.apply(&of_driver("never", json!({})))?;
    node.wait_event("mount: status Failure: not today")?;
    node.remove("never")?;
    node.wait_gone("never")?;
    fs::remove_file(drivers.dir.join("busy"))?;

    node.apply(&of_driver("web", json!({ "readOnly": true })))?;
    node.apply(&of_driver("kept", json!({})))?;
    node.wait_running("kept")?;
    node.exec("kept", "main", &["touch", "/data/of-kept"])?;
    node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["touch", "/data/of-web"]).is_err(), "the volume is read-only");
    fs::write(drivers.dir.join("busy"), "")?;
    node.remove("web")?;
    let why = "unmount test/share: unmount: status Failure: not today";
    let shown = || node.agent.cli(&["pods"]).is_ok_and(|reply| reply.stdout.contains(why));
    wait::until_true(wait::SOON, why, shown)?;
    fs::remove_file(drivers.dir.join("busy"))?;
    wait::until_true(wait::SOON, "the volume to be unmounted", || mounted_below(node.dir()) == 1)?;
    node.wait_gone("web")?;
    node.wait_running("kept").map(drop)
}
