//! The harness itself, without the agent: it works, and leaves nothing behind.

use std::fs;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::image::{self, ImageBuilder, V1, V2};
use limpet_tests::registry::{self, Proxy, Registry};
use limpet_tests::{TestNode, case, suite, wait};

fn main() -> ExitCode {
    suite::run([
        case!(both_archive_formats_are_images).on(|node| (node.agent, node.images) = (false, false)),
        case!(tasks_outlive_containerd).on(|node| node.agent = false),
        case!(a_closed_registry_requires_its_password).on(|node| node.agent = false),
        case!(what_a_pod_may_leave_is_seen).on(|node| node.agent = false),
        case!(a_line_is_cut_once).on(|node| node.agent = false),
    ])
}

/// Runs a container to its end and returns what it printed.
fn run_once(node: &TestNode, image: &str, command: &[&str]) -> Result<String> {
    let (id, cgroup) = (format!("{}-once", node.name()), format!("/{}/once", node.cgroup()));
    node.containerd.ctr(&[&["run", "--rm", "--cgroup", &cgroup, image, &id], command].concat())
}

fn both_archive_formats_are_images(node: &mut TestNode) -> Result<()> {
    let [first, second] = image::demo_images()?;
    let (oci, docker) = (node.dir().join("oci.tar"), node.dir().join("docker.tar"));
    image::write_oci_archive(&[&first], &oci)?;
    image::write_docker_archive(&[&second], &docker)?;
    node.containerd.import(&oci)?;
    node.containerd.import(&docker)?;
    for (name, version) in [(V1, "1\n"), (V2, "2\n")] {
        let said = run_once(node, name, &["cat", "/version"])?;
        ensure!(said == version, "{name} says {said:?}");
    }
    Ok(())
}

fn tasks_outlive_containerd(node: &mut TestNode) -> Result<()> {
    // runc knows the containers of all containerds of a machine by their ids alone.
    let id = format!("{}-lasting", node.name());
    let cgroup = format!("/{}/lasting", node.cgroup());
    node.containerd.ctr(&["run", "--detach", "--cgroup", &cgroup, V1, &id, "sleep", "1000"])?;
    let before = node.containerd.tasks()?;
    ensure!(before.len() == 1, "{before:?}");
    // containerd answers before it has found all its shims again.
    let found_again = |node: &TestNode| {
        wait::until_true(wait::SOON, "the task, found again", || node.containerd.tasks().is_ok_and(|now| now == before))
    };
    node.containerd.kill();
    node.containerd.start()?;
    found_again(node)?;
    node.containerd.stop()?;
    node.containerd.start()?;
    found_again(node)
}

fn what_a_pod_may_leave_is_seen(node: &mut TestNode) -> Result<()> {
    node.wait_nothing_runs()?;
    let settings = node.agent.settings();
    let (mount, log) = (settings.run().join("sandboxes/uid/shm"), settings.container_logs().join("a.log"));
    node.containerd.ctr(&["snapshots", "prepare", "a-snapshot"])?;
    node.containerd.ctr(&["containers", "create", V1, "a-container"])?;
    fs::create_dir_all(&mount)?;
    rustix::mount::mount("limpet-test", &mount, "tmpfs", rustix::mount::MountFlags::empty(), None)?;
    fs::write(&log, "")?;
    let left = node.leftovers()?;
    let mount = format!("mount {}", mount.display());
    for expected in ["snapshot a-snapshot Active", "containers a-container", &mount, &log.display().to_string()] {
        ensure!(left.iter().any(|difference| difference == expected), "no {expected:?} in {left:?}");
    }
    // Without containerd the harness cannot show that nothing is left.
    node.containerd.kill();
    ensure!(node.leftovers().is_err(), "{:?}", node.leftovers());
    ensure!(node.wait_nothing_runs().is_err());
    Ok(())
}

fn a_closed_registry_requires_its_password(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start_closed(&node.dir().join("registry"))?;
    let image = ImageBuilder::new("registry.test/closed:v1").file("closed", "yes\n", 0o644).build()?;
    registry.add(&image, "closed", "v1")?;
    let name = format!("{}/closed:v1", registry.address());
    let pull = |more: &[&str]| node.containerd.ctr(&[&["images", "pull", "--plain-http"], more, &[&name]].concat());
    ensure!(pull(&[]).is_err(), "the registry gave an image without a password");
    pull(&["--user", &format!("{}:{}", registry::USER, registry::PASSWORD)])?;
    let said = run_once(node, &name, &["cat", "/closed"])?;
    ensure!(said == "yes\n", "{said:?}");
    Ok(())
}

fn a_line_is_cut_once(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    let image = ImageBuilder::new("registry.test/big:v1").file("big", vec![7; 4 << 20], 0o644).build()?;
    registry.add(&image, "big", "v1")?;
    let proxy = Proxy::start(registry.address())?;
    proxy.cut_after([1 << 20]);
    registry::allow_plain_http(&node.containerd.certs_d(), "registry.test", proxy.address())?;
    let certs = node.containerd.certs_d().display().to_string();
    // containerd may try again by itself. It only matters that the line broke and works afterwards.
    for _ in 0..2 {
        node.containerd.ctr(&["images", "pull", "--hosts-dir", &certs, &image.name]).ok();
    }
    ensure!(proxy.was_cut());
    ensure!(proxy.bytes() > 4 << 20, "{} bytes", proxy.bytes());
    ensure!(proxy.requests().iter().any(|head| head.starts_with("GET /v2/big/manifests/")), "{:?}", proxy.requests());
    let said = run_once(node, &image.name, &["stat", "-c", "%s", "/big"])?;
    ensure!(said == format!("{}\n", 4 << 20), "{said:?}");
    Ok(())
}
