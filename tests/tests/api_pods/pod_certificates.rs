//! Certificates of pods in projected volumes: issued by a signer, which is this test; kept by a restart; denied.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, cluster, process, wait};
use serde_json::{Value, json};

use super::{create, wait_reported};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests";

pub(super) fn certificates_of_pods_are_issued_by_their_signer(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    cluster::join(node, &cluster, &[])?;
    let signer = format!("test.example.com/{}", node.name());
    create(node, &cluster, &asking("web", &signer))?;
    let request = wait_request(&cluster, &signer, &node.full_name("web"))?;
    let spec = &request["spec"];
    ensure!(spec["nodeName"] == node.name() && spec["serviceAccountName"] == "default", "{spec}");
    ensure!(spec["unverifiedUserAnnotations"] == json!({ "example.com/path": "web" }), "{spec}");
    sign(node, &cluster, &request)?;
    let before = container_id(&wait_reported(node, &cluster, "web")?, "main")?;

    let (key, chain, bundle) = (read(node, "key.pem")?, read(node, "chain.pem")?, read(node, "bundle.pem")?);
    ensure!(bundle == format!("{key}{chain}"), "the bundle is not both");
    let dir = node.dir().to_owned();
    fs::write(dir.join("key.pem"), &key)?;
    fs::write(dir.join("chain.pem"), &chain)?;
    let public = |arguments: &[&str], file: &str| {
        let path = dir.join(file);
        process::output("openssl", &[arguments, &["-in", &path.to_string_lossy()]].concat())
    };
    let of_key = public(&["pkey", "-pubout"], "key.pem")?;
    ensure!(of_key == public(&["x509", "-noout", "-pubkey"], "chain.pem")?, "the certificate is of another key");

    // The key is on disk, encrypted, so an agent that starts again needs no other.
    node.agent.kill();
    node.agent.start()?;
    ensure!(container_id(&wait_reported(node, &cluster, "web")?, "main")? == before, "the container restarted");
    ensure!(read(node, "key.pem")? == key, "another key");

    create(node, &cluster, &asking("denied", &signer))?;
    let request = wait_request(&cluster, &signer, &node.full_name("denied"))?;
    let denied = json!({ "type": "Denied", "status": "True", "reason": "Policy", "message": "not this one",
        "lastTransitionTime": request["metadata"]["creationTimestamp"] });
    answer(&cluster, &request, json!({ "conditions": [denied] }))?;
    node.wait_event("PodCertificateRequest was permanently denied: reason=\"Policy\" message=\"not this one\"")?;
    ensure!(requests(&cluster, &signer)?.len() == 2, "a request was made again");
    Ok(())
}

fn read(node: &TestNode, file: &str) -> Result<String> {
    node.exec("web", "main", &["cat", &format!("/ids/{file}")])
}

/// A pod that requests a certificate from the signer.
fn asking(name: &str, signer: &str) -> Value {
    let certificate = json!({
        "signerName": signer, "keyType": "ECDSAP256", "userAnnotations": { "example.com/path": name },
        "credentialBundlePath": "bundle.pem", "keyPath": "key.pem", "certificateChainPath": "chain.pem",
    });
    let mount = json!({ "volumeMounts": [{ "name": "ids", "mountPath": "/ids" }] });
    let volume = json!({ "name": "ids", "projected": { "sources": [{ "podCertificate": certificate }] } });
    pod(name, json!({ "containers": [with(shell("main", IDLE), mount)], "volumes": [volume] }))
}

fn requests(cluster: &Cluster, signer: &str) -> Result<Vec<Value>> {
    let all = cluster.list(REQUESTS)?;
    Ok(all.into_iter().filter(|request| request["spec"]["signerName"] == *signer).collect())
}

fn wait_request(cluster: &Cluster, signer: &str, pod: &str) -> Result<Value> {
    wait::until(wait::SOON, &format!("the request of {pod}"), || {
        let of_pod = |request: &Value| request["spec"]["podName"] == *pod;
        requests(cluster, signer).ok()?.into_iter().find(of_pod)
    })
}

/// Signs the request with an authority of the cluster.
fn sign(node: &TestNode, cluster: &Cluster, request: &Value) -> Result<()> {
    use base64::Engine as _;

    let proof = request["spec"]["stubPKCS10Request"].as_str().context("no proof")?;
    let proof = base64::engine::general_purpose::STANDARD.decode(proof)?;
    let [file, leaf, names] = ["request.der", "leaf.pem", "names.cnf"].map(|name| node.dir().join(name));
    fs::write(&file, proof)?;
    fs::write(&names, "subjectAltName=critical,URI:spiffe://test/web\n")?;
    let [authority, key] =
        ["front-proxy-ca.crt", "front-proxy-ca.key"].map(|name| cluster.authority().with_file_name(name));
    let paths = [&file, &authority, &key, &names, &leaf].map(|path| path.to_string_lossy().into_owned());
    let [file, authority, key, names, leaf] = paths.each_ref().map(String::as_str);
    process::output(
        "openssl",
        &[
            "x509",
            "-req",
            "-inform",
            "DER",
            "-in",
            file,
            "-CA",
            authority,
            "-CAkey",
            key,
            "-days",
            "1",
            "-subj",
            "/",
            "-set_serial",
            "1",
            "-extfile",
            names,
            "-out",
            leaf,
        ],
    )?;
    let dates = process::output("openssl", &["x509", "-noout", "-dates", "-dateopt", "iso_8601", "-in", leaf])?;
    let date = |name: &str| {
        let line = dates.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.map(|date| date.replace(' ', "T")).with_context(|| format!("no {name} in {dates}"))
    };
    let (begin, end) = (date("notBefore")?, date("notAfter")?);
    let refresh = process::output("date", &["--utc", "--date", "12 hours", "+%Y-%m-%dT%H:%M:%SZ"])?;
    let issued = json!({ "type": "Issued", "status": "True", "reason": "Signed", "message": "signed",
        "lastTransitionTime": request["metadata"]["creationTimestamp"] });
    let status = json!({
        "conditions": [issued], "certificateChain": fs::read_to_string(leaf)?, "notBefore": begin, "notAfter": end,
        "beginRefreshAt": refresh.trim(),
    });
    answer(cluster, request, status)
}

fn answer(cluster: &Cluster, request: &Value, status: Value) -> Result<()> {
    let name = request["metadata"]["name"].as_str().context("no name")?;
    cluster.patch(&format!("{REQUESTS}/{name}/status"), &json!({ "status": status })).map(drop)
}
