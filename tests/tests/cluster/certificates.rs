//! The certificates that a node requests: by a bootstrap kubeconfig, and again before they expire. The test approves and
//! signs, with openssl and the cluster's authority.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use limpet_tests::claim::Port;
use limpet_tests::cluster::bootstrap::{self, Bootstrap};
use limpet_tests::cluster::kubelet_api::NodeAddress;
use limpet_tests::cluster::{self, Cluster, condition, wait_node};
use limpet_tests::{TestNode, process, wait};
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

/// From when to when a certificate is valid, in minutes from now.
type Minutes = (i32, i32);
/// Most of its lifetime has passed: an agent that starts with it requests the next one at once.
const OLD: Minutes = (-60, 3);
const NEW: Minutes = (-1, 600);

/// The pending requests to the signer.
fn pending(cluster: &Cluster, signer: &str) -> Result<Vec<Value>> {
    let is_pending =
        |request: &Value| request["status"]["conditions"].is_null() && request["spec"]["signerName"] == signer;
    Ok(cluster.list(REQUESTS)?.into_iter().filter(is_pending).collect())
}

fn wait_pending(cluster: &Cluster, signer: &str) -> Result<Value> {
    let look = || pending(cluster, signer).ok()?.into_iter().next();
    wait::until(wait::SOON, &format!("a request to {signer}"), look)
}

/// Approves the request, and signs it.
fn issue(node: &TestNode, cluster: &Cluster, request: &Value, (from, to): Minutes) -> Result<()> {
    let name = request["metadata"]["name"].as_str().context("no name")?;
    let dir = node.dir().join(name);
    fs::create_dir_all(dir.join("issued"))?;
    let encoded = request["spec"]["request"].as_str().context("no request")?;
    fs::write(dir.join("request.pem"), BASE64_STANDARD.decode(encoded)?)?;
    fs::write(dir.join("index.txt"), "")?;
    let usage = if request["spec"]["signerName"] == CLIENT { "clientAuth" } else { "serverAuth" };
    let authority = cluster.authority();
    let settings = format!(
        "[ca]\ndefault_ca = all\n[all]\ndatabase = index.txt\nnew_certs_dir = issued\ncertificate = {}\nprivate_key = {}\n\
         rand_serial = yes\ndefault_md = sha256\npolicy = subject\ncopy_extensions = copy\nx509_extensions = usage\n\
         [subject]\norganizationName = supplied\ncommonName = supplied\n[usage]\nextendedKeyUsage = {usage}\n",
        authority.display(),
        authority.with_extension("key").display(),
    );
    fs::write(dir.join("ca.cnf"), settings)?;
    let sign = ["ca", "-batch", "-notext", "-config", "ca.cnf", "-in", "request.pem", "-out", "certificate.pem"];
    let times = ["-startdate", &time(from)?, "-enddate", &time(to)?];
    process::checked(Command::new("openssl").args(sign).args(times).current_dir(&dir))?;
    let path = format!("{REQUESTS}/{name}");
    let approval = json!({ "type": "Approved", "status": "True", "reason": "Test", "message": "approved by the test" });
    cluster.patch(&format!("{path}/approval"), &json!({ "status": { "conditions": [approval] } }))?;
    let certificate = BASE64_STANDARD.encode(fs::read(dir.join("certificate.pem"))?);
    cluster.patch(&format!("{path}/status"), &json!({ "status": { "certificate": certificate } }))
}

/// A time in the form that openssl accepts.
fn time(minutes: i32) -> Result<String> {
    let when = format!("{minutes:+} minutes");
    Ok(process::checked(Command::new("date").args(["--utc", "--date", &when, "+%Y%m%d%H%M%SZ"]))?.trim().to_owned())
}

/// The current certificate, once it is another one than `before`.
fn wait_current(pki: &Path, name: &str, before: Option<&str>) -> Result<String> {
    let look = || fs::read_to_string(pki.join(format!("{name}-current.pem"))).ok().filter(|now| Some(&**now) != before);
    wait::until(wait::SOON, &format!("a new {name}-current.pem"), look)
}

pub(super) fn a_node_gets_its_certificates_and_renews_them(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::shared()?, NodeAddress::add()?, Port::claim()?);
    let pair = cluster.client("bootstrap", "/O=system:bootstrappers/CN=system:bootstrap:test", 1)?;
    let user = json!({ "client-certificate": pair, "client-key": pair });
    let Bootstrap { kubeconfig, pki } = bootstrap::begin(node, &cluster, &user, &port, &address)?;
    node.agent.start()?;
    let request = wait_pending(&cluster, CLIENT)?;
    ensure!(request["spec"]["username"] == "system:bootstrap:test", "{request}");
    ensure!(!kubeconfig.exists(), "a kubeconfig without a certificate");

    // The restarted agent has already sent its request.
    let size = node.agent.log_size();
    node.agent.terminate()?;
    node.agent.start()?;
    wait::until_true(wait::SOON, "the second agent's request", || {
        node.agent.log_from(size).contains("certificate requested")
    })?;
    let names: Vec<_> =
        pending(&cluster, CLIENT)?.into_iter().map(|request| request["metadata"]["name"].clone()).collect();
    ensure!(names == [request["metadata"]["name"].clone()], "{names:?}");

    issue(node, &cluster, &request, OLD)?;
    wait_node(node, &cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True")?;
    let first = wait_current(&pki, "kubelet-client", None)?;
    let written: Value = serde_json::from_slice(&fs::read(&kubeconfig)?)?;
    let user = &written["users"][0]["user"];
    ensure!(user["client-key"] == json!(pki.join("kubelet-client-current.pem")), "{written}");

    node.agent.terminate()?;
    node.agent.start()?;
    let renewal = wait_pending(&cluster, CLIENT)?;
    let itself = format!("system:node:{}", node.name());
    ensure!(renewal["spec"]["username"] == itself, "{renewal}");
    issue(node, &cluster, &renewal, NEW)?;
    wait_current(&pki, "kubelet-client", Some(&first))?;

    let serving = wait_pending(&cluster, SERVING)?;
    ensure!(serving["spec"]["username"] == itself, "{serving}");
    issue(node, &cluster, &serving, NEW)?;
    wait_current(&pki, "kubelet-server", None)?;
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "10", "--cacert"]).arg(cluster.authority());
    let metrics = node.agent.metrics()?;
    for name in ["client_ttl_seconds", "server_ttl_seconds", "client_expiration_renew_errors"] {
        ensure!(metrics.contains(&format!("\nkubelet_certificate_manager_{name} ")), "{metrics}");
    }
    let health = process::checked(curl.arg(format!("https://{}:{}/healthz", address.address, port.number)))?;
    ensure!(health == "ok", "{health}");

    // A restarted agent requests nothing, because the certificates and the kubeconfig exist.
    node.agent.terminate()?;
    let size = node.agent.log_size();
    node.agent.start()?;
    wait::until_true(wait::SOON, "the connection", || {
        node.agent.log_from(size).contains("connected to the apiserver")
    })?;
    ensure!(pending(&cluster, CLIENT)?.is_empty() && pending(&cluster, SERVING)?.is_empty(), "asked once more");

    // This is the state after a power cut between the certificate and the kubeconfig that names it.
    node.agent.terminate()?;
    fs::remove_file(&kubeconfig)?;
    node.agent.start()?;
    issue(node, &cluster, &wait_pending(&cluster, CLIENT)?, NEW)?;
    wait::until_true(wait::SOON, "the kubeconfig", || kubeconfig.exists())
}
