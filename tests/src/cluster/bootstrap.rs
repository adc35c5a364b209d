//! A node that joins a cluster without its own certificate, by a bootstrap kubeconfig.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::kubelet_api::NodeAddress;
use super::{Cluster, cluster_role_binding};
use crate::claim::Port;
use crate::{TestNode, wait};

/// The group of the user in a bootstrap kubeconfig.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// The files of a node that requests its certificates.
#[derive(Debug)]
pub struct Bootstrap {
    /// The kubeconfig that the node writes.
    pub kubeconfig: PathBuf,
    /// The directory of its certificates.
    pub pki: PathBuf,
}

/// Makes `node` begin without a certificate at its next start. `user` has the credentials in its bootstrap
/// kubeconfig. Both of the node's certificates are requested, and every user may use kubelet's API.
pub fn begin(
    node: &mut TestNode,
    cluster: &Cluster,
    user: &Value,
    port: &Port,
    address: &NodeAddress,
) -> Result<Bootstrap> {
    bind_group(cluster, BOOTSTRAPPERS, "system:node-bootstrapper")?;
    wait_allowed(cluster)?;
    cluster.admit(node, &[&format!("--node-ip={}", address.address)])?;
    let mut config_path = PathBuf::new();
    let (kubeconfig, pki) = (node.dir().join("kubelet.conf"), node.agent.settings().root().join("pki"));
    let bootstrap = node.dir().join("bootstrap.conf");
    node.agent.reconfigure(|settings| {
        // The flag with the certificate that the node would have had.
        let flag = settings.flags.remove(0);
        config_path = PathBuf::from(flag.trim_start_matches("--kubeconfig="));
        settings.flags.push(format!("--kubeconfig={}", kubeconfig.display()));
        settings.flags.push(format!("--bootstrap-kubeconfig={}", bootstrap.display()));
        settings.kubelet.extend(["rotateCertificates: true".to_owned(), "serverTLSBootstrap: true".to_owned()]);
        settings.kubelet.push(format!("port: {}", port.number));
        settings.kubelet.push("authentication: {anonymous: {enabled: true}}".to_owned());
        settings.kubelet.push("authorization: {mode: AlwaysAllow}".to_owned());
    })?;
    let mut file: Value = serde_json::from_slice(&fs::read(&config_path)?)?;
    file["users"][0]["user"] = user.clone();
    fs::write(&bootstrap, serde_json::to_vec(&file)?)?;
    Ok(Bootstrap { kubeconfig, pki })
}

/// Gives the group a role in the whole cluster, unless it has it.
pub fn bind_group(cluster: &Cluster, group: &str, role: &str) -> Result<()> {
    let name = format!("{group}:{role}");
    if cluster.get(&format!("{BINDINGS}/{name}"))?.is_some() {
        return Ok(());
    }
    let group = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group });
    cluster.create(BINDINGS, &cluster_role_binding(&name, role, group))
}

/// Waits until the apiserver lets bootstrappers request certificates.
fn wait_allowed(cluster: &Cluster) -> Result<()> {
    let attributes =
        json!({ "verb": "create", "group": "certificates.k8s.io", "resource": "certificatesigningrequests" });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": { "user": "x", "groups": [BOOTSTRAPPERS], "resourceAttributes": attributes },
    });
    wait::until_true(wait::SOON, "the rule", || {
        let answer = cluster.ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review);
        answer.is_ok_and(|it| it["status"]["allowed"] == true)
    })
}
