//! ClusterTrustBundles in projected volumes: by name, by signer and labels, optional; and their changes.

use std::fs;

use anyhow::{Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, cluster, wait};
use serde_json::json;

use super::{create, wait_reported};

const BUNDLES: &str = "/apis/certificates.k8s.io/v1/clustertrustbundles";

pub(super) fn trust_bundles_are_files_that_follow_their_changes(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    cluster::join(node, &cluster, &[])?;
    let authority = fs::read_to_string(cluster.authority())?;
    let other = fs::read_to_string(cluster.authority().with_file_name("front-proxy-ca.crt"))?;
    let signer = format!("test.example.com/{}", node.name());
    let bundle = |name: &str, spec: serde_json::Value| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": { "name": name }, "spec": spec,
        })
    };
    let of_signer = |name: &str| format!("test.example.com:{}:{name}", node.name());
    let live = json!({ "live": "yes" });
    // There are two bundles of the same certificate, and one that the selector does not match yet.
    let bundles = [("live", &live, &authority), ("same", &live, &authority), ("next", &json!({}), &other)];
    for (name, labels, certificates) in bundles {
        let spec = json!({ "signerName": signer, "trustBundle": certificates });
        let labels = json!({ "metadata": { "labels": labels } });
        cluster.create(BUNDLES, &with(bundle(&of_signer(name), spec), labels))?;
    }

    let named = format!("ca-{}", node.name());
    let selector = json!({ "matchLabels": live });
    let sources = json!([
        { "clusterTrustBundle": { "name": named, "path": "named.pem" } },
        { "clusterTrustBundle": { "signerName": signer, "labelSelector": selector, "path": "signer.pem" } },
        { "clusterTrustBundle": { "name": "absent", "optional": true, "path": "absent.pem" } },
    ]);
    let mount = json!({ "volumeMounts": [{ "name": "trust", "mountPath": "/trust" }] });
    let spec = json!({
        "containers": [with(shell("main", IDLE), mount)],
        "volumes": [{ "name": "trust", "projected": { "sources": sources } }],
    });
    create(node, &cluster, &pod("web", spec))?;
    node.wait_event(&format!("clustertrustbundle \"{named}\" not found"))?;
    cluster.create(BUNDLES, &bundle(&named, json!({ "trustBundle": format!("{authority}{other}") })))?;
    let before = container_id(&wait_reported(node, &cluster, "web")?, "main")?;

    let count = |file: &str| -> Result<usize> {
        Ok(node.exec("web", "main", &["cat", &format!("/trust/{file}")])?.matches("BEGIN CERTIFICATE").count())
    };
    let counts = (count("named.pem")?, count("signer.pem")?, count("absent.pem")?);
    ensure!(counts == (2, 1, 0), "{counts:?}");
    // The selector matches this bundle from now on.
    cluster.patch(&format!("{BUNDLES}/{}", of_signer("next")), &json!({ "metadata": { "labels": live } }))?;
    wait::until_true(wait::SOON, "both bundles", || count("signer.pem").is_ok_and(|count| count == 2))?;
    for name in ["live", "same"] {
        cluster.delete(&format!("{BUNDLES}/{}", of_signer(name)))?;
    }
    wait::until_true(wait::SOON, "one bundle", || count("signer.pem").is_ok_and(|count| count == 1))?;
    ensure!(container_id(&wait_reported(node, &cluster, "web")?, "main")? == before, "the container restarted");
    Ok(())
}
