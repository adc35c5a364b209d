//! Images: absent ones, registries that require a password or break off, archives without any registry, a full disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::{self, Image, ImageBuilder};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container;
use limpet_tests::registry::{self, Proxy, Registry};
use limpet_tests::terminal::Terminal;
use limpet_tests::{TestNode, case, process, suite, tools, wait};
use serde_json::{Value, json};

#[path = "images/access.rs"]
mod access;
#[path = "images/wasm.rs"]
mod wasm;

use access::{
    an_image_pulled_with_a_secret_is_for_the_pods_that_have_it,
    what_a_pull_cut_by_a_crash_may_have_brought_is_not_preloaded,
};
use wasm::a_module_is_for_pods_whose_runtime_class_says_so;

fn main() -> ExitCode {
    suite::run([
        case!(an_absent_image_is_tried_until_it_is_there),
        case!(a_password_is_taken_from_the_auth_file),
        case!(a_wrong_password_is_reported),
        case!(a_password_is_taken_from_a_credential_provider),
        case!(an_image_is_pulled_through_the_proxy_of_the_agents_environment),
        case!(a_broken_download_goes_on_where_it_stopped),
        case!(an_image_that_is_here_serves_while_its_registry_is_gone),
        // The node has no demo images, because their lower layer is that of every image here.
        case!(layers_of_one_image_are_pulled_side_by_side).on(|node| node.images = false),
        case!(a_pull_shows_how_far_it_is).on(|node| node.images = false),
        case!(layers_compressed_with_zstd_are_unpacked),
        case!(an_image_with_the_digest_of_another_name_is_not_pulled),
        case!(an_image_pulled_with_a_secret_is_for_the_pods_that_have_it),
        case!(what_a_pull_cut_by_a_crash_may_have_brought_is_not_preloaded),
        case!(a_module_is_for_pods_whose_runtime_class_says_so),
        case!(an_archive_present_at_start).on(|node| (node.images, node.agent) = (false, false)),
        case!(an_archive_that_appears).on(|node| node.images = false),
        case!(a_truncated_archive_is_reported).on(|node| node.images = false),
        case!(native_snapshots_serve_containers_and_image_volumes).on(|node| node.snapshotter = "native"),
        case!(a_snapshotter_that_containerd_lacks_is_named)
            .on(|node| (node.snapshotter, node.images) = ("nydus", false)),
        case!(a_full_disk_is_reported_until_it_has_room).on(|node| node.root_size = Some(24 << 20)),
    ])
}

/// The name under which the tests' registry is known to the node.
const HOST: &str = "registry.test:5000";

fn start_registry(node: &TestNode, closed: bool) -> Result<Registry> {
    let dir = node.dir().join("registry");
    let registry = if closed { Registry::start_closed(&dir)? } else { Registry::start(&dir)? };
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    Ok(registry)
}

/// The registry's name has no address, so only the proxy leads there.
fn an_image_is_pulled_through_the_proxy_of_the_agents_environment(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    let image = build("proxied", 1000)?;
    registry.add(&image, "proxied", "v1")?;
    let hosts = node.containerd.certs_d().join(HOST);
    fs::create_dir_all(&hosts)?;
    fs::write(hosts.join("hosts.toml"), format!("server = \"http://{HOST}\"\n"))?;
    let proxy = Proxy::start(registry.address())?;
    let address = format!("http://{}", proxy.address());
    for (excepted, runs) in [("registry.test", false), ("other.test", true)] {
        node.agent.kill();
        node.agent.reconfigure(|settings| {
            settings.environment = vec![("HTTP_PROXY", address.clone()), ("NO_PROXY", excepted.to_owned())];
        })?;
        node.agent.start()?;
        node.apply(&running(&image))?;
        match runs {
            false => {
                node.wait_event("Failed to pull image")?;
                ensure!(proxy.requests().is_empty(), "{:?}", proxy.requests());
            }
            true => drop(node.wait_running("web")?),
        }
    }
    let asked = proxy.requests();
    ensure!(asked.iter().any(|head| head.starts_with(&format!("GET http://{HOST}/v2/"))), "{asked:?}");
    Ok(())
}

fn build(repository: &str, size: usize) -> Result<Image> {
    let filler: Vec<u8> = (0..size).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    ImageBuilder::new(&format!("{HOST}/{repository}:v1")).file("filler", filler, 0o644).build()
}

fn running(image: &Image) -> Value {
    pod("web", json!({ "containers": [with(shell("main", IDLE), json!({ "image": &image.name }))] }))
}

/// A registry behind a line that can hold requests back, with one image of two layers.
fn start_held(node: &TestNode, repository: &str) -> Result<(Registry, Proxy, Image)> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    let image = build(repository, 1 << 20)?;
    registry.add(&image, repository, "v1")?;
    let proxy = Proxy::start(registry.address())?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, proxy.address())?;
    Ok((registry, proxy, image))
}

/// The path of a layer's request.
fn request(image: &Image, layer: usize) -> String {
    format!("/blobs/{}", image.layers[layer].digest())
}

fn layers_of_one_image_are_pulled_side_by_side(node: &mut TestNode) -> Result<()> {
    let (_registry, proxy, image) = start_held(node, "layers")?;
    // The first layer is sent only after the second one was requested.
    proxy.hold(&request(&image, 0));
    node.apply(&running(&image))?;
    proxy.wait_request(&request(&image, 1))?;
    proxy.wait_request(&request(&image, 0))?;
    proxy.release();
    node.wait_running("web").map(drop)
}

fn a_pull_shows_how_far_it_is(node: &mut TestNode) -> Result<()> {
    let (_registry, proxy, image) = start_held(node, "shown")?;
    proxy.hold(&request(&image, 1));
    let mark = node.mark()?;
    node.apply(&running(&image))?;
    let shown = format!("pulling {}: ", image.name);
    wait::until_true(wait::SOON, "the note of the pod", || {
        let pods = node.agent.cli(&["pods"]).map(|reply| reply.stdout).unwrap_or_default();
        pods.contains(&shown) && pods.contains("1 of 2 layers")
    })?;

    let mut command = node.agent.cli_command(&["pods", "-w"])?;
    let mut watching = Terminal::on_terminal(command.env("TERM", "xterm"), &node.dir().join("watching"))?;
    watching.wait_for(&shown)?;
    watching.wait_for("1 of 2 layers")?;

    // The same pull is made by hand, on a terminal and without one.
    let pull = || node.agent.cli_command(&["images", "pull", &image.name]);
    let mut command = pull()?;
    let mut on_terminal = Terminal::on_terminal(command.env("TERM", "xterm"), &node.dir().join("terminal"))?;
    let mut piped = Terminal::piped(pull()?, &node.dir().join("piped"))?;
    for shown_by in [&mut on_terminal, &mut piped] {
        shown_by.wait_for(&shown)?;
        shown_by.wait_for("1 of 2 layers")?;
    }
    proxy.release();
    let pulled = format!("image {} pulled", image.name);
    for shown_by in [&mut on_terminal, &mut piped] {
        shown_by.wait_end()?;
    }
    ensure!(piped.shown().lines().all(|line| line.starts_with(&shown) || line == pulled), "{}", piped.shown());
    ensure!(piped.shown().lines().last() == Some(&pulled), "{}", piped.shown());
    // The line that was redrawn has left nothing.
    let screen = on_terminal.screen(120, 10).contents();
    ensure!(screen.trim() == pulled, "{screen}");
    node.wait_running("web")?;
    let said = ["Pulled web-", "Successfully pulled image", "including waiting). Image size: "];
    node.wait_event_since(&mark, &said)?;
    for layer in 0..2 {
        let asked = proxy.offsets(&image.layers[layer].digest());
        ensure!(asked == [0], "layer {layer} was asked for at {asked:?}");
    }

    let missing = node.agent.cli(&["images", "pull", &format!("{HOST}/none:v1")])?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("not found"), "{missing:?}");
    Ok(())
}

fn layers_compressed_with_zstd_are_unpacked(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node, false)?;
    for (repository, docker) in [("oci", false), ("docker", true)] {
        let image = ImageBuilder::new(&format!("{HOST}/{repository}:v1")).file("version", "zstd\n", 0o644);
        let image = image.zstd(docker).build()?;
        registry.add(&image, repository, "v1")?;
        let main = with(shell("main", IDLE), json!({ "image": &image.name }));
        node.apply(&pod(repository, json!({ "containers": [main] })))?;
        node.wait_running(repository)?;
        ensure!(node.exec(repository, "main", &["cat", "/version"])? == "zstd\n");
    }
    Ok(())
}

fn an_image_with_the_digest_of_another_name_is_not_pulled(node: &mut TestNode) -> Result<()> {
    let image = build("same", 1000)?;
    {
        let registry = start_registry(node, false)?;
        registry.add(&image, "same", "v1")?;
        node.apply(&running(&image))?;
        node.wait_running("web")?;
    }
    // Neither name has a registry any more.
    for (name, host) in [("again", HOST), ("elsewhere", "elsewhere.test:5000")] {
        let reference = format!("{host}/other/name@{}", image.manifest.digest());
        let main = with(shell("main", IDLE), json!({ "image": reference, "imagePullPolicy": "IfNotPresent" }));
        node.apply(&pod(name, json!({ "containers": [main] })))?;
        node.wait_running(name)?;
    }
    Ok(())
}

/// The reason and the message of the pod's waiting container.
fn waits(pod: &Value) -> (String, String) {
    let waiting = &container(pod, "main")["state"]["waiting"];
    let text = |key: &str| waiting[key].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

fn an_absent_image_is_tried_until_it_is_there(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node, false)?;
    let image = build("late", 1000)?;
    node.apply(&running(&image))?;
    let web = node.wait_pod("web", "ImagePullBackOff", |pod| waits(pod).0 == "ImagePullBackOff")?;
    ensure!(waits(&web).1.contains("late"), "{}", web["status"]);
    ensure!(web["status"]["phase"] == "Pending");
    node.wait_event("Failed")?;
    registry.add(&image, "late", "v1")?;
    node.wait_running("web").map(drop)
}

fn write_auth_file(node: &TestNode, password: &str) -> Result<()> {
    let auths = json!({ "auths": { HOST: { "username": registry::USER, "password": password } } });
    fs::write(node.agent.settings().root().join("config.json"), auths.to_string()).context("config.json")
}

fn a_password_is_taken_from_the_auth_file(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node, true)?;
    let image = build("closed", 1000)?;
    registry.add(&image, "closed", "v1")?;
    write_auth_file(node, registry::PASSWORD)?;
    node.apply(&running(&image))?;
    node.wait_running("web").map(drop)
}

fn a_wrong_password_is_reported(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node, true)?;
    let image = build("closed", 1000)?;
    registry.add(&image, "closed", "v1")?;
    write_auth_file(node, "not-it")?;
    let mark = node.mark()?;
    node.apply(&running(&image))?;
    node.wait_event_since(&mark, &["Failed web-", "Failed to pull image", "pull access denied", "401"])?;
    let web = node.wait_pod("web", "refused", |pod| waits(pod).0 == "ImagePullBackOff")?;
    ensure!(waits(&web).1.contains("pull access denied"), "{}", web["status"]);
    let said = format!("{}{}{}", node.events()?, node.agent.log(), web["status"]);
    ensure!(!said.contains("not-it"), "the output contains the password: {said}");
    write_auth_file(node, registry::PASSWORD)?;
    node.wait_running("web").map(drop)
}

/// Writes a provider for the registry, whose program counts its calls and prints `answer`, and its configuration.
fn write_provider(node: &TestNode, answer: &Value) -> Result<PathBuf> {
    let dir = node.dir().join("providers");
    fs::create_dir_all(&dir)?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "test-provider",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": ["*.test:5000"],
            "defaultCacheDuration": "10m",
            "args": ["get"],
            "env": [{ "name": "CALLS", "value": dir.join("calls") }],
        }],
    });
    fs::write(dir.join("config.yaml"), config.to_string())?;
    let program = dir.join("test-provider");
    let script = format!("#!/bin/sh\ncat >>$CALLS\necho \" $1\" >>$CALLS\ncat <<'END'\n{answer}\nEND\n");
    // The script is renamed into place, because a program that is open for writing cannot be run.
    fs::write(dir.join("new"), script)?;
    fs::set_permissions(dir.join("new"), fs::Permissions::from_mode(0o755))?;
    fs::rename(dir.join("new"), &program)?;
    Ok(dir)
}

fn a_password_is_taken_from_a_credential_provider(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node, true)?;
    for repository in ["closed", "team/closed"] {
        registry.add(&build(repository, 1000)?, repository, "v1")?;
    }
    let answer = json!({
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry",
        "auth": { HOST: { "username": registry::USER, "password": registry::PASSWORD } },
    });
    let dir = write_provider(node, &json!({ "apiVersion": "v1" }))?;
    for (flag, path) in [("config", dir.join("config.yaml")), ("bin-dir", dir.clone())] {
        let flag = format!("--image-credential-provider-{flag}={}", path.display());
        node.agent.reconfigure(|settings| settings.flags.push(flag))?;
    }
    node.agent.terminate()?;
    node.agent.start()?;
    node.apply(&running(&build("closed", 1000)?))?;
    let web = node.wait_pod("web", "refused", |pod| waits(pod).0 == "ImagePullBackOff")?;
    ensure!(
        waits(&web).1.contains("credential provider test-provider: it answered with apiVersion"),
        "{}",
        web["status"]
    );
    write_provider(node, &answer)?;
    node.wait_running("web")?;
    fs::remove_file(dir.join("calls"))?;
    let other = with(shell("main", IDLE), json!({ "image": build("team/closed", 1000)?.name }));
    node.apply(&pod("other", json!({ "containers": [other] })))?;
    node.wait_running("other")?;
    ensure!(!dir.join("calls").exists(), "the answer for the registry is cached");
    let said = format!("{}{}", node.events()?, node.agent.log());
    ensure!(!said.contains(registry::PASSWORD), "the output contains the password: {said}");
    Ok(())
}

fn a_broken_download_goes_on_where_it_stopped(node: &mut TestNode) -> Result<()> {
    const SIZE: u64 = 16 << 20;
    let registry = Registry::start(&node.dir().join("registry"))?;
    let image = build("big", SIZE as usize)?;
    registry.add(&image, "big", "v1")?;
    let proxy = Proxy::start(registry.address())?;
    proxy.cut_after([SIZE * 3 / 4]);
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, proxy.address())?;
    node.apply(&running(&image))?;
    node.wait_running("web")?;
    ensure!(proxy.was_cut());
    let resumed = proxy.requests().iter().any(|head| head.to_lowercase().contains("\r\nrange: bytes="));
    ensure!(resumed, "no request asked for the rest: {:#?}", proxy.requests());
    let whole = SIZE + (image.layers[0].bytes.len() as u64);
    ensure!(proxy.bytes() < whole + SIZE / 2, "{} bytes for an image of {whole}", proxy.bytes());
    ensure!(node.exec("web", "main", &["stat", "-c", "%s", "/filler"])? == format!("{SIZE}\n"));
    Ok(())
}

fn an_image_that_is_here_serves_while_its_registry_is_gone(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node, false)?;
    let image = build("asked", 1000)?;
    registry.add(&image, "asked", "v1")?;
    let always = |name: &str| {
        let asked = json!({ "image": &image.name, "imagePullPolicy": "Always" });
        pod(name, json!({ "containers": [with(shell("main", IDLE), asked)] }))
    };
    node.apply(&always("first"))?;
    node.wait_running("first")?;
    drop(registry);

    // This is kubelet's behaviour, unless another one is configured.
    node.apply(&always("second"))?;
    node.wait_pod("second", "refused", |pod| waits(pod).0 == "ImagePullBackOff")?;
    node.agent.reconfigure(|settings| settings.limpet.push("localImageWhenUnreachable: true".to_owned()))?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_running("second")?;
    node.wait_event("RegistryUnavailable").map(drop)
}

fn write_archive(dir: &Path, name: &str) -> Result<Image> {
    fs::create_dir_all(dir)?;
    let image = build(name, 1000)?;
    image::write_docker_archive(&[&image], &dir.join(format!("{name}.tar")))?;
    Ok(image)
}

fn an_archive_present_at_start(node: &mut TestNode) -> Result<()> {
    let image = write_archive(&node.agent.settings().root().join("images"), "saved")?;
    node.apply(&running(&image))?;
    node.agent.start()?;
    node.wait_running("web").map(drop)
}

fn an_archive_that_appears(node: &mut TestNode) -> Result<()> {
    let image = write_archive(node.dir(), "packed")?;
    node.apply(&running(&image))?;
    node.wait_pod("web", "waiting for its image", |pod| !waits(pod).0.is_empty())?;
    let busybox = tools::busybox().context("no busybox")?;
    process::checked(Command::new(busybox).arg("gzip").arg(node.dir().join("packed.tar")))?;
    let images = node.agent.settings().root().join("images");
    fs::create_dir_all(&images)?;
    fs::copy(node.dir().join("packed.tar.gz"), images.join("packed.tar.gz"))?;
    node.wait_running("web").map(drop)
}

fn a_truncated_archive_is_reported(node: &mut TestNode) -> Result<()> {
    write_archive(node.dir(), "whole")?;
    let bytes = fs::read(node.dir().join("whole.tar"))?;
    let images = node.agent.settings().root().join("images");
    fs::create_dir_all(&images)?;
    let mark = node.mark()?;
    fs::write(images.join("short.tar"), &bytes[..bytes.len() / 2])?;
    node.wait_log_since(&mark, &["importing the image archive failed", "short.tar"])?;
    let image = write_archive(&images, "good")?;
    node.apply(&running(&image))?;
    node.wait_running("web").map(drop)
}

fn a_full_disk_is_reported_until_it_has_room(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("before", IDLE))?;
    let before = node.wait_running("before")?;
    let filler = node.agent.settings().root().join("filler");
    // The file is written until the disk is full, in small pieces at the end so that no block is left.
    for block in [1 << 16, 1 << 12, 1] {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&filler)?;
        while std::io::Write::write_all(&mut file, &vec![0; block]).is_ok() {}
    }
    let volume = json!({
        "containers": [with(
            shell("main", &format!("echo x > /data/x && {IDLE}")),
            json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }),
        )],
        "volumes": [{ "name": "data", "emptyDir": {} }],
    });
    let mark = node.mark()?;
    node.apply(&pod("web", volume))?;
    node.wait_event_since(&mark, &["web-", "No space left on device"])?;
    let still = node.wait_running("before")?;
    ensure!(container(&still, "main")["containerID"] == container(&before, "main")["containerID"]);
    fs::remove_file(&filler)?;
    node.wait_running("web").map(drop)
}

/// The mounts of this snapshotter are bind mounts, for containers and for image volumes.
fn native_snapshots_serve_containers_and_image_volumes(node: &mut TestNode) -> Result<()> {
    let mounts = json!({ "volumeMounts": [{ "name": "tools", "mountPath": "/tools" }] });
    let volume = json!({ "name": "tools", "image": { "reference": image::V2, "pullPolicy": "IfNotPresent" } });
    let web = |image: &str| {
        let main = with(with(shell("main", IDLE), mounts.clone()), json!({ "image": image }));
        pod("web", json!({ "containers": [main], "volumes": [volume] }))
    };
    node.apply(&web(image::V1))?;
    node.wait_running("web")?;
    let sh = |node: &TestNode, script: &str| node.exec("web", "main", &["/bin/sh", "-c", script]);
    ensure!(
        sh(node, "ls -d /tools/bin/sh; touch /mine; touch /tools/mine || echo read-only")?.ends_with("read-only\n")
    );
    ensure!(sh(node, "sed -n 's/^[^ ]* / /; s/.* - \\([^ ]*\\) .*/\\1/p; q' /proc/self/mountinfo")? != "overlay\n");
    node.apply(&web(image::V2))?;
    node.wait_pod("web", "the other image", |pod| {
        container(pod, "main")["restartCount"] == 1 && container(pod, "main")["state"]["running"].is_object()
    })?;
    ensure!(sh(node, "ls /mine || echo none")? == "none\n", "the new container has the old one's files");
    Ok(())
}

fn a_snapshotter_that_containerd_lacks_is_named(node: &mut TestNode) -> Result<()> {
    node.wait_event("SnapshotterUnavailable")?;
    let message = "snapshotter nydus: not in this containerd. Set snapshotter to one of: ";
    ensure!(node.events()?.contains(message), "{}", node.events()?);
    Ok(())
}
