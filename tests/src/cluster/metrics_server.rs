//! metrics-server beside a cluster: a process on the machine that the apiserver finds by the aggregation layer.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use serde_json::{Value, json};

use super::Cluster;
use super::kubelet_api::NodeAddress;
use crate::apiserver::FIRST_START;
use crate::claim::Port;
use crate::process::{Daemon, tail};
use crate::{tools, wait};

const NAME: &str = "metrics-server";
const NAMESPACE: &str = "kube-system";

/// A running metrics-server. It reads each node every 10 s, the shortest interval that it accepts.
#[derive(Debug)]
pub struct MetricsServer {
    daemon: Daemon,
    _port: Port,
    _address: NodeAddress,
}

impl MetricsServer {
    /// Starts one with the service account and the rights of its own manifests, as the API `metrics.k8s.io`. It may
    /// have no figures yet.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let program = tools::metrics_server().context("no metrics-server; run: cargo xtask nightly metrics-server")?;
        // The address of an endpoint must not be a loopback address.
        let (address, port) = (NodeAddress::add()?, Port::claim()?);
        cluster.run_kubectl(&["apply", "-f", &program.with_file_name("rbac.yaml").display().to_string()])?;
        cluster.certificates.service(NAME, NAME, NAMESPACE)?;
        register(cluster, &address, &port)?;
        let kubeconfig = kubeconfig(cluster)?;
        let file = |name: &str| cluster.certificates.file(name).display().to_string();
        let mut command = Command::new(program);
        for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            command.arg(format!("--{flag}={}", kubeconfig.display()));
        }
        command
            .args([format!("--bind-address={}", address.address), format!("--secure-port={}", port.number)])
            .arg(format!("--tls-cert-file={}", file(&format!("{NAME}.crt"))))
            .arg(format!("--tls-private-key-file={}", file(&format!("{NAME}.key"))))
            .args(["--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port"])
            // Nodes have self-signed certificates, as kubeadm's have.
            .args(["--kubelet-insecure-tls", "--metric-resolution=10s", "--kubelet-request-timeout=5s"]);
        let daemon = Daemon::start(&mut command, &cluster.dir.join("metrics-server.log"))?;
        let mut server = Self { daemon, _port: port, _address: address };
        wait::until_true(FIRST_START, "the API of metrics", || {
            server.daemon.ended().is_ok_and(|status| status.is_some())
                || cluster.get("/apis/metrics.k8s.io/v1beta1").is_ok_and(|group| group.is_some())
        })
        .with_context(|| tail(&server.daemon.log(), 20))?;
        ensure!(server.daemon.ended()?.is_none(), "metrics-server ended:\n{}", server.log());
        Ok(server)
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        tail(&self.daemon.log(), 20)
    }
}

/// Creates its Service and APIService, with that address. Those of an earlier one are replaced.
fn register(cluster: &Cluster, address: &NodeAddress, port: &Port) -> Result<()> {
    let authority = base64::engine::general_purpose::STANDARD.encode(fs::read(cluster.authority())?);
    let metadata = json!({ "name": NAME, "namespace": NAMESPACE });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {
        "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": port.number }],
    } });
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": NAME } },
        "addressType": "IPv4",
        "ports": [{ "name": "https", "port": port.number, "protocol": "TCP" }],
        "endpoints": [{ "addresses": [address.address], "conditions": { "ready": true } }],
    });
    let api = json!({ "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": "v1beta1.metrics.k8s.io" },
        "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1", "caBundle": authority,
            "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "name": NAME, "namespace": NAMESPACE, "port": 443 },
        },
    });
    let of_namespace = format!("namespaces/{NAMESPACE}");
    for (path, object) in [
        (format!("/api/v1/{of_namespace}/services"), service),
        (format!("/apis/discovery.k8s.io/v1/{of_namespace}/endpointslices"), slice),
        ("/apis/apiregistration.k8s.io/v1/apiservices".to_owned(), api),
    ] {
        let named = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        if cluster.get(&named)?.is_some() {
            cluster.delete(&named)?;
        }
        cluster.create(&path, &object)?;
    }
    Ok(())
}

/// A kubeconfig with a token of its service account.
fn kubeconfig(cluster: &Cluster) -> Result<PathBuf> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token");
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let token = &cluster.ask(&path, &request)?["status"]["token"];
    let user = json!({ "name": NAME, "user": { "token": token } });
    let file = cluster.certificates.kubeconfig(&cluster.address(), "super-admin")?;
    let mut kubeconfig: Value = serde_json::from_slice(&fs::read(&file)?)?;
    kubeconfig["users"] = json!([user]);
    kubeconfig["contexts"][0]["context"]["user"] = json!(NAME);
    let path = cluster.certificates.file("metrics-server.conf");
    fs::write(&path, serde_json::to_vec(&kubeconfig)?).with_context(|| format!("{}", path.display()))?;
    Ok(path)
}
