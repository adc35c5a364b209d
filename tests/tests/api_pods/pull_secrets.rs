//! `imagePullSecrets`: those of a service account are put into the pod by the apiserver's admission, and the node pulls with
//! them.

use anyhow::{Result, ensure};
use limpet_tests::image::ImageBuilder;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::registry::{self, Registry};
use limpet_tests::{TestNode, cluster};
use serde_json::json;

use super::create;

const HOST: &str = "registry.test:5000";

pub(super) fn an_image_is_pulled_with_the_secret_of_the_service_account(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    cluster::join(node, &cluster, &[])?;
    let registry = Registry::start_closed(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let image = ImageBuilder::new(&format!("{HOST}/closed:v1")).file("filler", vec![7; 1000], 0o644).build()?;
    registry.add(&image, "closed", "v1")?;

    // The pod names no secret: its service account does.
    let (account, secret) = (format!("puller-{}", node.name()), format!("pull-{}", node.name()));
    let auths = json!({ "auths": { HOST: { "username": registry::USER, "password": registry::PASSWORD } } });
    let namespace = "/api/v1/namespaces/default";
    let object = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account },
        "imagePullSecrets": [{ "name": secret }],
    });
    cluster.create(&format!("{namespace}/serviceaccounts"), &object)?;
    let containers = json!([with(shell("main", IDLE), json!({ "image": &image.name }))]);
    create(node, &cluster, &pod("web", json!({ "serviceAccountName": account, "containers": containers })))?;
    node.wait_event(&format!("Unable to retrieve some image pull secrets ({secret})"))?;
    ensure!(node.pod("web").is_none_or(|pod| pod["status"]["phase"] == "Pending"), "pulled without a password");

    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": secret },
        "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": auths.to_string() },
    });
    cluster.create(&format!("{namespace}/secrets"), &object)?;
    node.wait_running("web")?;
    let said = format!("{}{}", node.events()?, node.agent.log());
    ensure!(!said.contains(registry::PASSWORD), "the output contains the password");
    Ok(())
}
