//! What a container may request of its volumes: parts of them, read-only mounts, propagation, variables from files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::huge_page_pool::HugePagePool;
use limpet_tests::loop_device::LoopDevice;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{NodeOptions, container};
use limpet_tests::{TestNode, case, image, process, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_sub_path_is_made_of_the_containers_variables),
        case!(a_mount_is_read_only_with_all_below_it),
        case!(mounts_propagate_as_configured),
        case!(an_image_is_a_volume),
        case!(volumes_that_an_image_declares_are_writable_and_its_own),
        case!(an_image_that_is_not_to_be_had_holds_up_its_container),
        case!(a_pod_that_takes_too_much_of_the_disk_is_evicted_and_runs_again).on(measured_often),
        case!(files_belong_to_the_requested_user),
        case!(variables_come_from_a_file_that_an_init_container_wrote),
        case!(a_block_device_of_the_host_is_a_device_of_the_container),
        case!(huge_pages_are_a_resource_and_a_medium),
    ])
}

/// A directory of the node with its own mounts, which are removed with it.
struct HostDir(PathBuf);

impl HostDir {
    /// Makes a mount that propagates, like the root of a node with systemd.
    fn shared(node: &TestNode, name: &str) -> Result<Self> {
        let dir = Self(node.dir().join(name));
        fs::create_dir_all(&dir.0)?;
        process::checked(Command::new("mount").arg("--bind").args([&dir.0, &dir.0]))?;
        process::checked(Command::new("mount").arg("--make-rshared").arg(&dir.0))?;
        Ok(dir)
    }

    /// Mounts a tmpfs below it.
    fn mount(&self, name: &str) -> Result<()> {
        let point = self.0.join(name);
        fs::create_dir_all(&point)?;
        process::checked(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(point)).map(drop)
    }
}

impl Drop for HostDir {
    fn drop(&mut self) {
        Command::new("umount").arg("--recursive").arg(&self.0).status().ok();
    }
}

fn a_block_device_of_the_host_is_a_device_of_the_container(node: &mut TestNode) -> Result<()> {
    let disk = LoopDevice::attach(&node.dir().join("disk"))?;
    let later = node.dir().join("later");
    let device = json!([{ "name": "disk", "devicePath": "/dev/data" }, { "name": "later", "devicePath": "/later" }]);
    let main = with(shell("main", IDLE), json!({ "volumeDevices": device }));
    let typed = json!({ "name": "disk", "hostPath": { "path": disk.path(), "type": "BlockDevice" } });
    let volumes = json!([typed, host_path("later", &later)]);
    node.apply(&pod("web", json!({ "containers": [main, shell("other", IDLE)], "volumes": volumes })))?;
    // The pod waits for a missing device, which is not created as a directory.
    node.wait_event(&format!("hostPath type check failed: {} is not a block device", later.display()))?;
    ensure!(!later.exists());
    std::os::unix::fs::symlink(disk.path(), &later)?;
    node.wait_running("web")?;
    node.exec("web", "main", &["/bin/sh", "-c", "echo of the pod | dd of=/dev/data conv=fsync 2> /dev/null"])?;
    let read = node.exec("web", "main", &["/bin/sh", "-c", "dd if=/later bs=11 count=1 2> /dev/null"])?;
    ensure!(read == "of the pod\n", "{read:?}");
    ensure!(fs::read(node.dir().join("disk"))?.starts_with(b"of the pod\n"), "it is the node's own device");
    ensure!(node.exec("web", "other", &["/bin/ls", "/dev/data"]).is_err(), "another container has none");
    node.remove("web")?;
    node.wait_gone("web")?;
    fs::remove_file(&later).context("the link is the node's")
}

fn huge_pages_are_a_resource_and_a_medium(node: &mut TestNode) -> Result<()> {
    if !HugePagePool::is_possible() {
        println!("skipped: the kernel has no huge pages of 2 MiB");
        return Ok(());
    }
    let _pool = HugePagePool::reserve(4)?;
    // The agent knows the pool as it was at its start, as kubelet does.
    node.agent.kill();
    node.agent.start()?;
    let with_pages = |amount: &str| {
        let resource = json!({ "resource": "limits.hugepages-2Mi", "divisor": "1Mi" });
        let main = json!({
            "resources": { "limits": { "hugepages-2Mi": amount, "memory": "64Mi" } },
            "env": [{ "name": "PAGES", "valueFrom": { "resourceFieldRef": resource } }],
            "volumeMounts": [{ "name": "huge", "mountPath": "/huge" }],
        });
        let volume = json!({ "name": "huge", "emptyDir": { "medium": "HugePages", "sizeLimit": "4Mi" } });
        json!({ "containers": [with(shell("main", IDLE), main)], "volumes": [volume] })
    };
    node.apply(&pod("web", with_pages("4Mi")))?;
    node.wait_running("web")?;
    node.apply(&pod("other", with_pages("6Mi")))?;
    node.wait_pod("other", "waiting for huge pages", |pod| pod["status"]["reason"] == "OutOfhugepages-2Mi")?;
    let message = "hugepages-2Mi, requested: 6291456, used: 4194304, capacity: 8388608";
    node.wait_event(message)?;
    ensure!(node.exec("web", "main", &["/bin/sh", "-c", "echo $PAGES"])? == "4\n");
    let mounts = node.exec("web", "main", &["/bin/sh", "-c", "grep ' /huge ' /proc/mounts"])?;
    ensure!(mounts.contains("hugetlbfs") && mounts.contains("pagesize=2M"), "{mounts}");
    node.exec("web", "main", &["/bin/fallocate", "-l", "4194304", "/huge/file"])?;
    let more = node.exec("web", "main", &["/bin/fallocate", "-l", "2097152", "/huge/more"]);
    ensure!(more.is_err(), "more than sizeLimit");

    // Another number of pages makes another pod, because its cgroup and its volumes depend on them.
    node.remove("web")?;
    node.wait_gone("web")?;
    node.wait_running("other")?;
    node.remove("other")?;
    node.wait_gone("other")?;
    wait::until_true(wait::SOON, "the pods' directories to go", || has_no_pod_dir(node))
}

fn has_no_pod_dir(node: &TestNode) -> bool {
    fs::read_dir(node.agent.settings().root().join("pods")).is_ok_and(|dirs| dirs.count() == 0)
}

fn host_path(name: &str, path: &Path) -> Value {
    json!({ "name": name, "hostPath": { "path": path } })
}

fn a_sub_path_is_made_of_the_containers_variables(node: &mut TestNode) -> Result<()> {
    let data = node.dir().join("data");
    fs::create_dir(&data)?;
    let container_of = |name: &str, expression: &str| {
        let env = json!([{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }]);
        let mount = json!({ "name": "data", "mountPath": "/data", "subPathExpr": expression });
        let script = format!("echo {name} > /data/written; {IDLE}");
        with(shell(name, &script), json!({ "env": env, "volumeMounts": [mount] }))
    };
    let containers = json!([container_of("good", "of/$(POD)"), container_of("bad", "of/$(NONE)")]);
    node.apply(&pod("web", json!({ "containers": containers, "volumes": [host_path("data", &data)] })))?;
    let message = "missing value for NONE";
    let waits = |pod: &Value| {
        let waiting = &container(pod, "bad")["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
            && waiting["message"].as_str().is_some_and(|text| text.contains(message))
    };
    node.wait_pod("web", "waiting for a variable", waits)?;
    let written = data.join("of").join(node.full_name("web")).join("written");
    wait::until_true(wait::SOON, "the file in the part of the volume", || {
        fs::read_to_string(&written).is_ok_and(|text| text == "good\n")
    })
}

fn a_mount_is_read_only_with_all_below_it(node: &mut TestNode) -> Result<()> {
    let data = HostDir::shared(node, "data")?;
    data.mount("below")?;
    let mount = |path: &str, more: Value| with(json!({ "name": "data", "mountPath": path, "readOnly": true }), more);
    let mounts = json!([
        mount("/plain", json!({})),
        mount("/all", json!({ "recursiveReadOnly": "Enabled" })),
        mount("/part", json!({ "recursiveReadOnly": "IfPossible", "subPath": "below" })),
    ]);
    let main = with(shell("main", IDLE), json!({ "volumeMounts": mounts }));
    node.apply(&pod("web", json!({ "containers": [main], "volumes": [host_path("data", &data.0)] })))?;
    let running = node.wait_running("web")?;
    let writes = |path: &str| node.exec("web", "main", &["/bin/touch", path]).is_ok();
    ensure!(!writes("/plain/x") && writes("/plain/below/x"), "readOnly alone leaves mounts below as they are");
    ensure!(!writes("/all/x") && !writes("/all/below/x") && !writes("/part/x"), "read-only below, too");
    let status = &container(&running, "main")["volumeMounts"];
    let shown = |path: &str, below: &str| json!({ "name": "data", "mountPath": path, "readOnly": true, "recursiveReadOnly": below });
    let expected = json!([shown("/plain", "Disabled"), shown("/all", "Enabled"), shown("/part", "Enabled")]);
    ensure!(*status == expected, "{status}");

    // A restart of the container recreates the mounts; the end of the pod leaves the node's own.
    // The command may end with the container that it ends.
    node.exec("web", "main", &["/bin/kill", "1"]).ok();
    node.wait_pod("web", "restarted once", |pod| {
        container(pod, "main")["restartCount"] == 1 && !container(pod, "main")["state"]["running"].is_null()
    })?;
    ensure!(!writes("/all/below/x"));
    node.remove("web")?;
    node.wait_gone("web")?;
    wait::until_true(wait::SOON, "the pod's directory to go", || has_no_pod_dir(node))?;
    fs::write(data.0.join("below/mine"), "").context("the node's mount is still there, and writable")?;
    ensure!(data.0.join("below/x").exists());
    Ok(())
}

fn mounts_propagate_as_configured(node: &mut TestNode) -> Result<()> {
    let data = HostDir::shared(node, "data")?;
    let container_of = |name: &str, propagation: &str| {
        let mount = json!({ "name": "data", "mountPath": "/data", "mountPropagation": propagation });
        with(shell(name, IDLE), json!({ "volumeMounts": [mount], "securityContext": { "privileged": true } }))
    };
    let names = ["None", "HostToContainer", "Bidirectional"];
    let containers: Vec<Value> = names.iter().map(|name| container_of(&name.to_lowercase(), name)).collect();
    node.apply(&pod("web", json!({ "containers": containers, "volumes": [host_path("data", &data.0)] })))?;
    node.wait_running("web")?;
    data.mount("host")?;
    fs::write(data.0.join("host/seen"), "")?;
    let sees = |name: &str, path: &str| {
        node.exec("web", &name.to_lowercase(), &["/bin/ls", path]).is_ok_and(|list| list.contains("seen"))
    };
    let seen: Vec<bool> = names.iter().map(|name| sees(name, "/data/host")).collect();
    ensure!(seen == [false, true, true], "a mount of the node: {seen:?}");

    let mount = |name: &str| {
        let script = format!("mkdir /data/{name} && mount -t tmpfs tmpfs /data/{name} && touch /data/{name}/seen");
        node.exec("web", name, &["/bin/sh", "-c", &script])
    };
    for name in names {
        mount(&name.to_lowercase())?;
    }
    let seen: Vec<bool> = names.iter().map(|name| data.0.join(name.to_lowercase()).join("seen").exists()).collect();
    ensure!(seen == [false, false, true], "a container's mount: {seen:?}");
    ensure!(sees("HostToContainer", "/data/bidirectional"), "from one container through the node to another");
    Ok(())
}

fn image_volume(name: &str, reference: &str) -> Value {
    json!({ "name": name, "image": { "reference": reference, "pullPolicy": "IfNotPresent" } })
}

fn an_image_is_a_volume(node: &mut TestNode) -> Result<()> {
    let mounts = json!([
        { "name": "tools", "mountPath": "/tools" },
        { "name": "tools", "mountPath": "/programs", "subPath": "bin" },
    ]);
    let lost = json!([{ "name": "tools", "mountPath": "/tools", "subPath": "none/such" }]);
    let containers = json!([
        with(shell("main", IDLE), json!({ "volumeMounts": mounts })),
        with(shell("beside", IDLE), json!({ "volumeMounts": mounts })),
        with(shell("lost", IDLE), json!({ "volumeMounts": lost })),
    ]);
    let views = |node: &TestNode| -> Result<usize> {
        Ok(node.containerd.snapshots()?.iter().filter(|snapshot| snapshot.kind == "View").count())
    };
    node.apply(&pod("web", json!({ "containers": containers, "volumes": [image_volume("tools", image::V2)] })))?;
    let waits = |pod: &Value| {
        let message = &container(pod, "lost")["state"]["waiting"]["message"];
        message.as_str().is_some_and(|text| text.contains("the image of volume \"tools\" has no \"none/such\""))
            && ["main", "beside"].iter().all(|name| !container(pod, name)["state"]["running"].is_null())
    };
    node.wait_pod("web", "two containers with the image, one without its path", waits)?;
    let shown = |node: &TestNode| -> Result<()> {
        for name in ["main", "beside"] {
            let listed =
                node.exec("web", name, &["/bin/sh", "-c", "/tools/bin/busybox ls -d /tools/bin/sh /programs/sh"])?;
            ensure!(listed == "/programs/sh\n/tools/bin/sh\n", "{listed:?}");
            ensure!(node.exec("web", name, &["/bin/touch", "/tools/x"]).is_err(), "an image is never written");
        }
        Ok(())
    };
    shown(node)?;
    ensure!(views(node)? == 1, "one view for the whole pod");

    // The volume outlives the agent and a container, and containers that start later share it.
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("web", "found again", waits)?;
    // The command may end with the container that it ends.
    node.exec("web", "main", &["/bin/kill", "1"]).ok();
    node.wait_pod("web", "restarted once", |pod| {
        container(pod, "main")["restartCount"] == 1 && !container(pod, "main")["state"]["running"].is_null()
    })?;
    shown(node)?;

    node.remove("web")?;
    node.wait_gone("web")?;
    wait::until_true(wait::SOON, "the view of the image to go", || views(node).is_ok_and(|views| views == 0))?;
    wait::until_true(wait::SOON, "the pod's directory to go", || has_no_pod_dir(node))?;
    Ok(())
}

/// An image that declares volumes, and its name.
fn declaring_image() -> Result<(&'static str, image::Image)> {
    let name = "registry.test/declaring:v1";
    let volumes = json!({ "/srv/data": {}, "/new": {}, "/own": {} });
    let image = image::ImageBuilder::new(name).file("srv/data/seed", "seed\n", 0o640).config("Volumes", volumes);
    Ok((name, image.build()?))
}

fn volumes_that_an_image_declares_are_writable_and_its_own(node: &mut TestNode) -> Result<()> {
    let (name, image) = declaring_image()?;
    node.import(&[&image])?;
    let declared = json!({
        "image": name,
        "securityContext": { "readOnlyRootFilesystem": true },
        "volumeMounts": [{ "name": "own", "mountPath": "/own" }],
    });
    let script =
        "cat /srv/data/* /new/* /own/* 2> /dev/null; for dir in /srv/data /new /own; do echo $dir > $dir/x; done";
    let main = with(shell("main", &format!("{script}; {IDLE}")), declared.clone());
    let volumes = json!([{ "name": "own", "emptyDir": {} }]);
    node.apply(&pod(
        "web",
        json!({ "containers": [main, with(shell("beside", IDLE), declared)], "volumes": volumes }),
    ))?;
    let uid = node.wait_running("web")?["metadata"]["uid"].as_str().context("no UID")?.to_owned();
    let seen = node.exec("web", "main", &["/bin/sh", "-c", "cat /srv/data/seed /*/x /srv/data/x"])?;
    ensure!(seen == "seed\n/new\n/own\n/srv/data\n", "{seen:?}");
    let beside = node.exec("web", "beside", &["/bin/sh", "-c", "ls /srv/data /new; stat -c %a /srv/data/seed"])?;
    ensure!(beside == "/new:\n\n/srv/data:\nseed\n640\n", "each container has volumes of its own: {beside:?}");

    // A container that starts again begins with the image's contents; what the instances before the last one have left
    // is removed.
    for restart in 1..=3 {
        node.exec("web", "main", &["/bin/kill", "1"]).ok();
        node.wait_pod("web", "restarted", |pod| {
            container(pod, "main")["restartCount"] == restart && !container(pod, "main")["state"]["running"].is_null()
        })?;
    }
    let logged = node.wait_logged("web", "main", "/own")?;
    ensure!(!logged.contains("/new") && logged.contains("seed"), "{logged}");
    let of_main = node.agent.settings().root().join("pods").join(uid).join("containers/main");
    wait::until_true(wait::SOON, "the directories of two instances", || {
        let names = fs::read_dir(&of_main).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().ends_with("-volumes")).count() == 2
    })?;
    node.remove("web")?;
    node.wait_gone("web")?;
    wait::until_true(wait::SOON, "the pods' directories to go", || has_no_pod_dir(node))
}

fn an_image_that_is_not_to_be_had_holds_up_its_container(node: &mut TestNode) -> Result<()> {
    let mounts = json!([{ "name": "tools", "mountPath": "/tools" }]);
    let containers = json!([with(shell("main", IDLE), json!({ "volumeMounts": mounts })), shell("beside", IDLE)]);
    let reference = "127.0.0.1:1/limpet/none:v1";
    node.apply(&pod("web", json!({ "containers": containers, "volumes": [image_volume("tools", reference)] })))?;
    let waits = |pod: &Value| {
        let waiting = &container(pod, "main")["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        waiting["reason"] == "ImagePullBackOff"
            && message.contains(reference)
            && !container(pod, "beside")["state"]["running"].is_null()
    };
    node.wait_pod("web", "waiting for the image of a volume", waits)?;
    Ok(())
}

fn measured_often(node: &mut NodeOptions) {
    node.kubelet.push("volumeStatsAggPeriod: 1s".to_owned());
}

fn a_pod_that_takes_too_much_of_the_disk_is_evicted_and_runs_again(node: &mut TestNode) -> Result<()> {
    let declaring = declaring_image()?;
    node.import(&[&declaring.1])?;
    let (mark, filled) = (node.mark()?, node.dir().join("filled"));
    std::fs::create_dir(&filled)?;
    // Each pod uses too much once.
    let fill = |name: &str, command: &str| {
        let once = format!("test -e /filled/{name} || {{ touch /filled/{name}; {command}; }}; {IDLE}");
        with(shell("main", &once), json!({ "volumeMounts": [{ "name": "filled", "mountPath": "/filled" }] }))
    };
    let limit = json!({ "resources": { "limits": { "ephemeral-storage": "1Mi" } } });
    let with_volume = |name: &str| {
        let mut main = fill(name, "head -c 3000000 /dev/zero > /data/file");
        let mount = json!({ "name": "data", "mountPath": "/data" });
        main["volumeMounts"].as_array_mut().into_iter().for_each(|mounts| mounts.push(mount.clone()));
        main
    };
    // Files of the agent that can be written on a read-only root file system, too.
    let into = |name: &str, file: &str| {
        let read_only = json!({ "securityContext": { "readOnlyRootFilesystem": true } });
        with(with(fill(name, &format!("head -c 3000000 /dev/zero >> {file}")), limit.clone()), read_only)
    };
    let data = |limit: &str| Some(json!({ "name": "data", "emptyDir": { "sizeLimit": limit } }));
    let critical = json!({ "priorityClassName": "system-node-critical" });
    // The pods that stay come first: when the others have been evicted, these have been measured.
    let pods = [
        ("small", with_volume("small"), data("4Mi"), json!({})),
        ("critical", with_volume("critical"), data("1Mi"), critical),
        ("volume", with_volume("volume"), data("1Mi"), json!({})),
        ("layer", with(fill("layer", "head -c 3000000 /dev/zero > /root/file"), limit.clone()), None, json!({})),
        ("logs", with(fill("logs", "head -c 3000000 /dev/zero | tr '\\0' x"), limit.clone()), None, json!({})),
        ("message", into("message", "/dev/termination-log"), None, json!({})),
        ("hosts", into("hosts", "/etc/hosts"), None, json!({})),
        ("declared", with(into("declared", "/srv/data/file"), json!({ "image": declaring.0 })), None, json!({})),
    ];
    for (name, container, volume, more) in pods {
        let hostdir = json!({ "name": "filled", "hostPath": { "path": filled } });
        let volumes: Vec<_> = volume.into_iter().chain([hostdir]).collect();
        node.apply(&pod(name, with(json!({ "containers": [container], "volumes": volumes }), more)))?;
        if ["small", "critical"].contains(&name) {
            node.wait_running(name)?;
        }
    }
    let total = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    let volume = "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ";
    for (name, message) in [
        ("volume", volume),
        ("layer", total),
        ("logs", total),
        ("message", total),
        ("hosts", total),
        ("declared", total),
    ] {
        node.wait_event_since(&mark, &[&node.full_name(name), "Evicted", message])?;
        node.wait_event_since(&mark, &[&node.full_name(name), "EvictionOver"])?;
        let again = node.wait_running(name)?;
        ensure!(container(&again, "main")["restartCount"] == 0, "{again}");
    }
    for name in ["small", "critical"] {
        let (full, pod) = (node.full_name(name), node.wait_running(name)?);
        let events = node.events_since(&mark)?;
        ensure!(!events.iter().any(|event| event.contains(&full) && event.contains("Evicted")), "{pod}\n{events:#?}");
    }
    Ok(())
}

fn files_belong_to_the_requested_user(node: &mut TestNode) -> Result<()> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" }, "data": { "a": "1", "b": "2" },
    });
    let items = json!([{ "key": "a", "path": "a" }, { "key": "b", "path": "b", "user": 1001 }]);
    let source = json!({ "name": "settings", "defaultUser": 1000, "defaultMode": 0o400, "items": items });
    let projected = json!({ "defaultUser": 1000, "sources": [{ "configMap": { "name": "settings" } }] });
    let mounts = json!([{ "name": "disk", "mountPath": "/disk" }, { "name": "memory", "mountPath": "/memory" }]);
    let user = json!({ "securityContext": { "runAsUser": 1000 }, "volumeMounts": mounts });
    let volumes = json!([{ "name": "disk", "configMap": source }, { "name": "memory", "projected": projected }]);
    let web = pod("web", json!({ "containers": [with(shell("main", IDLE), user)], "volumes": volumes }));
    node.drop_text("web.yaml", &format!("{map}\n---\n{web}"))?;
    node.wait_running("web")?;
    let owners = "stat -L -c %u /disk/a /disk/b /memory/a; cat /disk/a";
    let shown = node.exec("web", "main", &["/bin/sh", "-c", owners])?;
    ensure!(shown == "1000\n1001\n1000\n1", "{shown:?}");
    ensure!(node.exec("web", "main", &["/bin/cat", "/disk/b"]).is_err(), "of another user, who alone reads it");
    Ok(())
}

fn variables_come_from_a_file_that_an_init_container_wrote(node: &mut TestNode) -> Result<()> {
    let mounts = json!([{ "name": "env", "mountPath": "/env" }]);
    let script = r##"printf "# made\nMODE='edge' # here\nLIST='a\nb'\n" > /env/settings"##;
    let setup = with(shell("setup", script), json!({ "volumeMounts": mounts }));
    let variable = |name: &str, key: &str, optional: bool| {
        let file = json!({ "volumeName": "env", "path": "settings", "key": key, "optional": optional });
        json!({ "name": name, "valueFrom": { "fileKeyRef": file } })
    };
    let good = with(
        shell("good", IDLE),
        json!({ "env": [variable("MODE", "MODE", false), variable("LIST", "LIST", false), variable("NONE", "NONE", true)] }),
    );
    let bad = with(shell("bad", IDLE), json!({ "env": [variable("NONE", "NONE", false)] }));
    let volumes = json!([{ "name": "env", "emptyDir": {} }]);
    node.apply(&pod("web", json!({ "initContainers": [setup], "containers": [good, bad], "volumes": volumes })))?;
    let waits = |pod: &Value| {
        let waiting = &container(pod, "bad")["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        !container(pod, "good")["state"]["running"].is_null()
            && waiting["reason"] == "CreateContainerConfigError"
            && message.contains("file \"settings\" of volume \"env\" has no key \"NONE\"")
    };
    node.wait_pod("web", "one with its variables, one without", waits)?;
    let shown = node.exec("web", "good", &["/bin/sh", "-c", "echo \"$MODE,$LIST,${NONE-unset}\""])?;
    ensure!(shown == "edge,a\nb,unset\n", "{shown:?}");
    Ok(())
}
