//! Modules for WebAssembly: which manifest of an index a pod gets, by its runtime class. No runtime of modules is
//! available here: a script in its place records its calls, and runs a shell.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::image::{ImageBuilder, index_of_platforms};
use limpet_tests::manifest::{IDLE, pod, shell};
use limpet_tests::node::container_id;
use limpet_tests::registry::{self, Registry};
use serde_json::{Value, json};

use super::HOST;

const MODULE: Option<(&str, &str)> = Some(("wasi", "wasm"));

fn of_image(name: &str, repository: &str, class: Option<&str>) -> Value {
    let mut main = shell("main", IDLE);
    main["image"] = format!("{HOST}/{repository}:1").into();
    pod(name, json!({ "runtimeClassName": class, "containers": [main] }))
}

/// The contents of the file that tells the two images apart.
fn kind(node: &TestNode, pod: &str) -> Result<String> {
    node.exec(pod, "main", &["/bin/sh", "-c", "cat /kind"])
}

pub(super) fn a_module_is_for_pods_whose_runtime_class_says_so(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let program = ImageBuilder::new(&format!("{HOST}/both:1")).file("kind", "program", 0o644).build()?;
    let module = ImageBuilder::new(&format!("{HOST}/both:1")).file("kind", "module", 0o644).build()?;
    let module = module.for_platform("wasi", "wasm")?;
    for image in [&program, &module] {
        registry.add(image, "both", "part")?;
        registry.add(image, "alone", "part")?;
    }
    registry.add_index(&index_of_platforms(&[(&program, None), (&module, MODULE)]), "both", "1")?;
    registry.add_index(&index_of_platforms(&[(&module, MODULE)]), "alone", "1")?;
    registry.add(&module, "single", "1")?;

    let (runtime, called) = (node.dir().join("module-runtime"), node.dir().join("called"));
    fs::write(&runtime, format!("#!/bin/sh\necho \"$@\" >> {}\nexec runc \"$@\"\n", called.display()))?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755))?;
    node.agent.kill();
    let class = format!("runtimeClasses: {{wasm: {{binary: {}, platform: wasi/wasm}}}}", runtime.display());
    node.agent.reconfigure(|settings| settings.limpet.push(class))?;
    node.agent.start()?;

    // Both manifests of one index are used at the same time, and the second pull must not remove what the first pod
    // has.
    node.apply(&of_image("program", "both", None))?;
    node.wait_running("program")?;
    node.apply(&of_image("module", "both", Some("wasm")))?;
    let running = node.wait_running("module")?;
    ensure!(kind(node, "program")? == "program" && kind(node, "module")? == "module");
    let (calls, id) = (fs::read_to_string(&called)?, container_id(&running, "main")?);
    ensure!(calls.lines().any(|call| call.contains(" create ") && call.contains(&id)), "{calls}");

    // Without such a class the event says what would help; with it the same image runs.
    for repository in ["alone", "single"] {
        let mark = node.mark()?;
        node.apply(&of_image(repository, repository, None))?;
        node.wait_event_since(&mark, &[repository, "platform: wasi/wasm"])?;
        node.remove(repository)?;
        node.wait_gone(repository)?;
        node.apply(&of_image(repository, repository, Some("wasm")))?;
        node.wait_running(repository)?;
        ensure!(kind(node, repository)? == "module", "{repository}");
    }
    // Images of a preloaded node are found by name, whatever platform they are for.
    node.agent.cli(&["images", "pull", &format!("{HOST}/alone:1")])?.success()?;
    Ok(())
}
