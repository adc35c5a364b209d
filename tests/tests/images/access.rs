//! Who may use a present image: the pods with the credentials of its pull, or all pods if it is so configured.

use anyhow::{Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::image::Image;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::registry::{self, Proxy, Registry};
use serde_json::{Value, json};

use super::{HOST, build, request, start_registry, waits};

/// A Secret with a password for the registry.
fn secret(name: &str, password: &str) -> Value {
    let auths = json!({ "auths": { HOST: { "username": registry::USER, "password": password } } });
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": auths.to_string() },
    })
}

/// A pod of the image with a pull policy, and with the Secret, if any.
fn user(name: &str, image: &Image, policy: &str, secret: Option<&str>) -> Value {
    let main = with(shell("main", IDLE), json!({ "image": &image.name, "imagePullPolicy": policy }));
    let secrets: Vec<Value> = secret.iter().map(|name| json!({ "name": name })).collect();
    pod(name, json!({ "containers": [main], "imagePullSecrets": secrets }))
}

fn restart_with(node: &mut TestNode, policy: &str) -> Result<()> {
    let line = format!("imagePullCredentialsVerificationPolicy: {policy}");
    node.agent.reconfigure(|settings| settings.kubelet = vec![line])?;
    node.agent.kill();
    node.agent.start()
}

pub(super) fn an_image_pulled_with_a_secret_is_for_the_pods_that_have_it(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node, true)?;
    let image = build("closed", 1000)?;
    registry.add(&image, "closed", "v1")?;
    node.apply(&secret("pull", registry::PASSWORD))?;
    node.apply(&user("holder", &image, "IfNotPresent", Some("pull")))?;
    node.wait_running("holder")?;

    // To a pod without credentials the image seems to be missing.
    node.apply(&user("other", &image, "IfNotPresent", None))?;
    node.apply(&user("never", &image, "Never", None))?;
    let refused = |node: &TestNode| -> Result<()> {
        let other = node.wait_pod("other", "refused", |pod| waits(pod).0 == "ImagePullBackOff")?;
        ensure!(waits(&other).1.contains("closed"), "{}", other["status"]);
        let never = node.wait_pod("never", "refused", |pod| waits(pod).0 == "ErrImageNeverPull")?;
        let wanted = format!("Container image \"{}\" is not present with pull policy of Never", image.name);
        ensure!(waits(&never).1 == wanted, "{}", never["status"]);
        Ok(())
    };
    refused(node)?;
    let described = node.agent.cli(&["describe", &node.full_name("other")])?.success()?;
    ensure!(described.contains("pull access denied"), "{described}");

    // Without the registry, these pods may use it: with the same Secret, with another one of the same password, and
    // with the same one of a new password.
    drop(registry);
    node.remove("holder")?;
    node.wait_gone("holder")?;
    node.agent.kill();
    node.agent.start()?;
    node.apply(&user("successor", &image, "IfNotPresent", Some("pull")))?;
    node.wait_running("successor")?;
    node.wait_event("already present on machine and can be accessed by the pod")?;
    node.apply(&secret("copy", registry::PASSWORD))?;
    node.apply(&user("copier", &image, "Never", Some("copy")))?;
    node.wait_running("copier")?;
    node.apply(&secret("foreign", "not-it"))?;
    node.apply(&user("foreigner", &image, "Never", Some("foreign")))?;
    node.wait_pod("foreigner", "refused", |pod| waits(pod).0 == "ErrImageNeverPull")?;
    refused(node)?;
    node.remove("foreigner")?;
    node.wait_gone("foreigner")?;
    node.apply(&secret("pull", "renewed"))?;
    node.apply(&user("renewed", &image, "Never", Some("pull")))?;
    node.wait_running("renewed")?;

    restart_with(node, "NeverVerify")?;
    node.wait_running("other")?;
    node.wait_running("never")?;
    let said = format!("{}{}", node.events()?, node.agent.log());
    ensure!(!said.contains(registry::PASSWORD), "the output contains the password");
    Ok(())
}

pub(super) fn what_a_pull_cut_by_a_crash_may_have_brought_is_not_preloaded(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start_closed(&node.dir().join("registry"))?;
    let (image, preloaded) = (build("closed", 1000)?, build("preloaded", 2000)?);
    registry.add(&image, "closed", "v1")?;
    let proxy = Proxy::start(registry.address())?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, proxy.address())?;
    // Its lower layer is already present, because it is that of the demo images.
    proxy.hold(&request(&image, 1));
    node.apply(&secret("pull", registry::PASSWORD))?;
    node.apply(&user("holder", &image, "IfNotPresent", Some("pull")))?;
    proxy.wait_request(&request(&image, 1))?;
    node.agent.kill();
    node.remove("holder")?;
    // The import makes what a pull leaves whose end the agent did not see.
    node.import(&[&image, &preloaded])?;
    node.agent.start()?;
    node.apply(&user("preloaded", &preloaded, "Never", None))?;
    node.wait_running("preloaded")?;
    node.apply(&user("other", &image, "Never", None))?;
    node.wait_pod("other", "refused", |pod| waits(pod).0 == "ErrImageNeverPull")?;
    // The registry accepts the pod with the password, and nothing is downloaded.
    proxy.release();
    node.apply(&user("again", &image, "IfNotPresent", Some("pull")))?;
    node.wait_running("again")?;

    restart_with(node, "AlwaysVerify")?;
    node.apply(&user("unverified", &preloaded, "Never", None))?;
    node.wait_pod("unverified", "refused", |pod| waits(pod).0 == "ErrImageNeverPull").map(drop)
}
