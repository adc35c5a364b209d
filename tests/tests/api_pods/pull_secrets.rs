//! Pulls with what a service account brings: its `imagePullSecrets`, which the apiserver's admission puts into the pod, and its
//! tokens, for which a credential provider has a password.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use limpet_tests::image::ImageBuilder;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::registry::{self, Registry};
use limpet_tests::{TestNode, cluster};
use serde_json::{Value, json};

use super::create;

const HOST: &str = "registry.test:5000";
/// The audience of the tokens that the registry's credential provider accepts.
const AUDIENCE: &str = "registry.test";

pub(super) fn an_image_is_pulled_with_the_secret_of_the_service_account(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    cluster::join(node, &cluster, &[])?;
    let registry = Registry::start_closed(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let image = ImageBuilder::new(&format!("{HOST}/closed:v1")).file("filler", vec![7; 1000], 0o644).build()?;
    registry.add(&image, "closed", "v1")?;

    // The pod names no secret, but its service account does.
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

/// Writes a provider that takes tokens for the audience of the registry: its program keeps the last request, and answers with
/// the registry's password. Returns the directory.
fn write_provider(node: &TestNode) -> Result<PathBuf> {
    let dir = node.dir().join("providers");
    fs::create_dir_all(&dir)?;
    let version = "credentialprovider.kubelet.k8s.io/v1";
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "provider", "apiVersion": version, "matchImages": ["*.test:5000"], "defaultCacheDuration": "10m",
            "tokenAttributes": {
                "serviceAccountTokenAudience": AUDIENCE, "cacheType": "Token", "requireServiceAccount": true,
                "requiredServiceAccountAnnotationKeys": ["registry.test/role"],
            },
        }],
    });
    let answer = json!({
        "apiVersion": version, "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
        "auth": { HOST: { "username": registry::USER, "password": registry::PASSWORD } },
    });
    fs::write(dir.join("config.yaml"), config.to_string())?;
    fs::write(dir.join("answer"), answer.to_string())?;
    let program = dir.join("provider");
    fs::write(&program, format!("#!/bin/sh\ncat >{0}/request\ncat {0}/answer\n", dir.display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

pub(super) fn an_image_is_pulled_with_a_token_of_the_service_account(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    let dir = write_provider(node)?;
    let flags = [
        format!("--image-credential-provider-config={}", dir.join("config.yaml").display()),
        format!("--image-credential-provider-bin-dir={}", dir.display()),
    ];
    cluster::join(node, &cluster, &flags.each_ref().map(String::as_str))?;
    let registry = Registry::start_closed(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let image = ImageBuilder::new(&format!("{HOST}/closed:v1")).file("filler", vec![7; 1000], 0o644).build()?;
    registry.add(&image, "closed", "v1")?;

    let account = format!("puller-{}", node.name());
    let object = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account } });
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    cluster.create(accounts, &object)?;
    let containers = json!([with(shell("main", IDLE), json!({ "image": &image.name }))]);
    create(node, &cluster, &pod("web", json!({ "serviceAccountName": account, "containers": containers })))?;
    // Without the annotation the program is not run.
    node.wait_event("Failed to pull image")?;
    ensure!(!dir.join("request").exists(), "the program was asked");
    // Without a role for it, the apiserver gives a node no token for an audience that no volume of the pod names.
    let role = format!("audience-{}", node.name());
    let annotation = json!({ "metadata": { "annotations": { "registry.test/role": "reader" } } });
    cluster.patch(&format!("{accounts}/{account}"), &annotation)?;
    node.wait_event(&format!("is not authorized to request tokens for audience \"{AUDIENCE}\""))?;
    let rule =
        json!({ "apiGroups": [""], "resources": [AUDIENCE], "verbs": ["request-serviceaccounts-token-audience"] });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": role }, "rules": [rule],
    });
    cluster.create(&format!("{rbac}/clusterroles"), &object)?;
    let nodes = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes" });
    cluster.create(&format!("{rbac}/clusterrolebindings"), &cluster::cluster_role_binding(&role, &role, nodes))?;
    node.wait_running("web")?;

    let request: Value = serde_json::from_slice(&fs::read(dir.join("request"))?)?;
    ensure!(request["serviceAccountAnnotations"] == json!({ "registry.test/role": "reader" }), "{request}");
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": { "token": request["serviceAccountToken"], "audiences": [AUDIENCE] },
    });
    let review = cluster.ask("/apis/authentication.k8s.io/v1/tokenreviews", &review)?;
    let user = &review["status"]["user"];
    ensure!(user["username"] == format!("system:serviceaccount:default:{account}"), "{review}");
    let pod = json!([node.full_name("web")]);
    ensure!(user["extra"]["authentication.kubernetes.io/pod-name"] == pod, "{review}");
    let said = format!("{}{}", node.events()?, node.agent.log());
    let token = request["serviceAccountToken"].as_str().unwrap_or(registry::PASSWORD);
    ensure!(!said.contains(registry::PASSWORD) && !said.contains(token), "the output contains a password");
    Ok(())
}
