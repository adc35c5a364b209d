//! The certificates of a node that joins by a bootstrap token, if kube-controller-manager approves and signs them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::bootstrap::{self, BOOTSTRAPPERS, Bootstrap, bind_group};
use limpet_tests::cluster::kubelet_api::NodeAddress;
use limpet_tests::cluster::{self, CERTIFICATE_LIFE, Cluster, condition, wait_at, wait_node};
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, process, wait};
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";
const TOKEN: [&str; 2] = ["limpet", "0123456789abcdef"];
/// The prefix of the permissions by which the controllers approve requests.
const APPROVED: &str = "system:certificates.k8s.io:certificatesigningrequests";

/// Permits nodes to join as kubeadm does: by a token, and by what the controllers may approve.
fn admit_bootstrappers(cluster: &Cluster) -> Result<()> {
    let [id, secret] = TOKEN;
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    if cluster.get(&format!("{secrets}/bootstrap-token-{id}"))?.is_some() {
        return Ok(());
    }
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": { "name": format!("bootstrap-token-{id}"), "namespace": "kube-system" },
        "stringData": { "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true" },
    });
    cluster.create(secrets, &token)?;
    bind_group(cluster, BOOTSTRAPPERS, &format!("{APPROVED}:nodeclient"))?;
    bind_group(cluster, "system:nodes", &format!("{APPROVED}:selfnodeclient"))
}

/// The requests to that signer by that user.
fn requests(cluster: &Cluster, signer: &str, user: &str) -> Result<Vec<Value>> {
    let spec = |request: &Value| request["spec"]["signerName"] == signer && request["spec"]["username"] == user;
    Ok(cluster.list(REQUESTS)?.into_iter().filter(spec).collect())
}

/// The target of the link to the current certificate, once it differs from `before`.
fn wait_current(pki: &Path, name: &str, before: Option<&Path>) -> Result<PathBuf> {
    let link = pki.join(format!("{name}-current.pem"));
    let look = || std::fs::read_link(&link).ok().filter(|now| Some(&**now) != before);
    wait::until(wait::SOON, &format!("a new {}", link.display()), look)
}

/// The node's certificate is signed by the controllers, renewed while it is valid, and the node outlives the first one
/// without a restart of a pod. The certificate of kubelet's API is approved by a person, as clusters require.
pub(super) fn certificates_are_signed_and_renewed_by_the_controllers(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::whole()?, NodeAddress::add()?, Port::claim()?);
    admit_bootstrappers(&cluster)?;
    let user = json!({ "token": TOKEN.join(".") });
    let token = format!("system:bootstrap:{}", TOKEN[0]);
    // Nodes of other cases use the same token.
    let asked = requests(&cluster, CLIENT, &token)?.len();
    let Bootstrap { pki, .. } = bootstrap::begin(node, &cluster, &user, &port, &address)?;
    node.apply(&simple("kept", IDLE))?;
    node.agent.start()?;
    let first = wait_current(&pki, "kubelet-client", None)?;
    let issued = Instant::now();
    wait_node(node, &cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True")?;
    let before = node.wait_running("kept")?;

    let itself = format!("system:node:{}", node.name());
    let serving = || requests(&cluster, SERVING, &itself).ok()?.into_iter().next();
    let serving = wait::until(wait::SOON, "a request for the certificate of its API", serving)?;
    let name = serving["metadata"]["name"].as_str().context("no name")?;
    cluster.run_kubectl(&["certificate", "approve", name])?;
    wait_current(&pki, "kubelet-server", None)?;
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "10", "--cacert"]).arg(cluster.authority());
    let health = process::checked(curl.arg(format!("https://{}:{}/healthz", address.address, port.number)))?;
    ensure!(health == "ok", "{health}");

    wait_current(&pki, "kubelet-client", Some(&first))?;
    // If the first certificate had expired, there would be another request by the token.
    ensure!(requests(&cluster, CLIENT, &token)?.len() == asked + 1, "more than one request by the token");
    wait::until_true(2 * CERTIFICATE_LIFE, "the end of the first certificate", || issued.elapsed() > CERTIFICATE_LIFE)?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    let old = cluster.get(&lease)?.context("no lease")?;
    wait_at(&cluster, &lease, "renewed", |now| now["spec"]["renewTime"] != old["spec"]["renewTime"])?;
    wait_node(node, &cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True")?;
    // The controllers backdate certificates: by their dates alone these would be old as they come.
    let renewals = requests(&cluster, CLIENT, &itself)?.len();
    ensure!((1..10).contains(&renewals), "{renewals} renewals");
    let after = node.wait_running("kept")?;
    ensure!(container_id(&after, "main")? == container_id(&before, "main")?, "the pod was restarted");
    ensure!(container(&after, "main")["restartCount"] == 0, "{after}");
    Ok(())
}

/// A node whose certificate expires while the apiserver is away, its agent running, bootstraps once more by the token
/// that it still has.
pub(super) fn a_node_bootstraps_again_after_its_certificate_has_expired(node: &mut TestNode) -> Result<()> {
    bootstrap_again(node, |_, cluster| cluster.stop(), |_, cluster| cluster.start())
}

/// The same happens to a node that is off meanwhile.
pub(super) fn a_node_bootstraps_again_whose_certificate_expired_while_it_was_off(node: &mut TestNode) -> Result<()> {
    bootstrap_again(node, |node, _| node.agent.terminate().map(drop), |node, _| node.agent.start())
}

fn bootstrap_again(
    node: &mut TestNode,
    leave: fn(&mut TestNode, &mut Cluster) -> Result<()>,
    come_back: fn(&mut TestNode, &mut Cluster) -> Result<()>,
) -> Result<()> {
    let (mut cluster, address, port) = (cluster::whole()?, NodeAddress::add()?, Port::claim()?);
    admit_bootstrappers(&cluster)?;
    let user = json!({ "token": TOKEN.join(".") });
    let Bootstrap { pki, .. } = bootstrap::begin(node, &cluster, &user, &port, &address)?;
    let token = format!("system:bootstrap:{}", TOKEN[0]);
    let asked = requests(&cluster, CLIENT, &token)?.len();
    node.apply(&simple("kept", IDLE))?;
    node.agent.start()?;
    wait_node(node, &cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True")?;
    let before = node.wait_running("kept")?;
    ensure!(requests(&cluster, CLIENT, &token)?.len() == asked + 1, "no request by the token");

    leave(node, &mut cluster)?;
    let current = pki.join("kubelet-client-current.pem");
    wait::until_true(3 * CERTIFICATE_LIFE, "the end of the certificate", || {
        let mut openssl = Command::new("openssl");
        openssl.args(["x509", "-noout", "-checkend", "0", "-in"]).arg(&current);
        process::checked(&mut openssl).is_err()
    })?;
    come_back(node, &mut cluster)?;
    wait::until_true(wait::SOON, "another request by the token", || {
        requests(&cluster, CLIENT, &token).is_ok_and(|all| all.len() == asked + 2)
    })?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    let old = cluster.get(&lease)?.context("no lease")?;
    wait_at(&cluster, &lease, "renewed", |now| now["spec"]["renewTime"] != old["spec"]["renewTime"])?;
    let after = node.wait_running("kept")?;
    ensure!(container_id(&after, "main")? == container_id(&before, "main")?, "the pod was restarted");
    Ok(())
}
