//! A cluster on loopback, secured as by kubeadm: etcd and a kube-apiserver with certificates, RBAC, the node
//! authorizer, NodeRestriction and the aggregation layer; if requested, also with its controllers and its scheduler.

pub mod audit;
mod backup;
pub mod bootstrap;
mod certificates;
mod controllers;
pub mod kube_proxy;
mod kubectl;
pub mod kubelet_api;
pub mod metrics_server;
mod reported;
mod requests;

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use self::certificates::Certificates;
pub use self::controllers::CERTIFICATE_LIFE;
use self::controllers::Controller;
use crate::apiserver::{Etcd, FIRST_START, etcd};
use crate::claim::Port;
use crate::process::{self, Daemon, tail};
use crate::suite::Case;
use crate::sweep::CLUSTER;
use crate::{TestNode, tools, wait};

/// The cluster of this process's tests.
static RUNNING: RwLock<Option<Cluster>> = RwLock::new(None);

/// The running cluster, shared with other tests.
#[derive(Debug)]
pub struct Shared(RwLockReadGuard<'static, Option<Cluster>>);

/// The running cluster, while no other test uses it, so that it may be stopped.
#[derive(Debug)]
pub struct Exclusive(RwLockWriteGuard<'static, Option<Cluster>>);

impl Deref for Shared {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        // `shared_with` has put it there, and it stays while this guard is held.
        self.0.as_ref().unwrap_or_else(|| unreachable!("a cluster that is shared is there"))
    }
}

impl Deref for Exclusive {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        // `exclusive_with` has put it there, and it stays while this guard is held.
        self.0.as_ref().unwrap_or_else(|| unreachable!("an exclusive cluster is there"))
    }
}

impl DerefMut for Exclusive {
    fn deref_mut(&mut self) -> &mut Cluster {
        self.0.as_mut().unwrap_or_else(|| unreachable!("an exclusive cluster is there"))
    }
}

/// The cluster of this process, running; created by the first test that needs it.
pub fn shared() -> Result<Shared> {
    shared_with(&[])
}

/// The same with further flags of the apiserver, if it does not run yet.
pub fn shared_with(flags: &[&str]) -> Result<Shared> {
    let running = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    if running.as_ref().is_some_and(|cluster| cluster.apiserver.is_some()) {
        return Ok(Shared(running));
    }
    drop(running);
    let Exclusive(started) = exclusive_with(flags)?;
    Ok(Shared(RwLockWriteGuard::downgrade(started)))
}

/// The cluster for a test that stops it, or that others would disturb. Waits until no other test uses it.
pub fn exclusive() -> Result<Exclusive> {
    exclusive_with(&[])
}

/// The same with further flags of the apiserver, if it does not run yet.
pub fn exclusive_with(flags: &[&str]) -> Result<Exclusive> {
    let mut cluster = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
    if cluster.is_none() {
        *cluster = Some(Cluster::prepare()?);
    }
    let mut cluster = Exclusive(cluster);
    if cluster.apiserver.is_none() {
        cluster.start_with(flags)?;
    }
    Ok(cluster)
}

/// The same with controllers and scheduler, which act on every node.
pub fn whole() -> Result<Exclusive> {
    let mut cluster = exclusive()?;
    if cluster.controllers.is_empty() {
        cluster.start_controllers(&[])?;
    }
    Ok(cluster)
}

/// Ends the cluster of this process and removes what it has stored.
pub fn end() {
    *RUNNING.write().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The apiserver's flags that name files of the certificates.
const FILES: [(&str, &str); 13] = [
    ("tls-cert-file", "apiserver.crt"),
    ("tls-private-key-file", "apiserver.key"),
    ("client-ca-file", "ca.crt"),
    ("service-account-key-file", "sa.pub"),
    ("service-account-signing-key-file", "sa.key"),
    ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
    ("kubelet-client-key", "apiserver-kubelet-client.key"),
    ("requestheader-client-ca-file", "front-proxy-ca.crt"),
    ("proxy-client-cert-file", "front-proxy-client.crt"),
    ("proxy-client-key-file", "front-proxy-client.key"),
    ("etcd-cafile", "etcd/ca.crt"),
    ("etcd-certfile", "apiserver-etcd-client.crt"),
    ("etcd-keyfile", "apiserver-etcd-client.key"),
];

/// curl's options that name files of the administrator's certificates.
const CURL_FILES: [(&str, &str); 3] = [("cacert", "ca.crt"), ("cert", "super-admin.crt"), ("key", "super-admin.key")];

/// The user in the apiserver's certificate for requests to a node.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// The address of every node.
pub const NODE_ADDRESS: &str = "192.0.2.10";

/// etcd, and an apiserver that can be stopped and started.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    certificates: Certificates,
    port: Port,
    store: String,
    controllers: Vec<Controller>,
    apiserver: Option<Daemon>,
    etcd: Etcd,
}

impl Cluster {
    /// Starts a cluster for this process, with its apiserver.
    pub fn boot() -> Result<Self> {
        Self::boot_with(&[])
    }

    /// The same with further flags of the apiserver.
    pub fn boot_with(flags: &[&str]) -> Result<Self> {
        let mut cluster = Self::prepare()?;
        cluster.start_with(flags)?;
        Ok(cluster)
    }

    /// Makes the certificates and starts etcd.
    fn prepare() -> Result<Self> {
        let dir = PathBuf::from(format!("/var/tmp/{CLUSTER}{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        let made = Certificates::make(&dir.join("pki"))
            .and_then(|certificates| Ok((etcd(&dir, Some(&dir.join("pki/etcd")))?, Port::claim()?, certificates)));
        let ((etcd, store), port, certificates) = made.inspect_err(|_| drop(fs::remove_dir_all(&dir)))?;
        Ok(Self { dir, certificates, port, store, controllers: Vec::new(), apiserver: None, etcd })
    }

    /// Where the apiserver answers.
    pub fn address(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.number)
    }

    /// Starts the apiserver and waits until it answers.
    pub fn start(&mut self) -> Result<()> {
        self.start_with(&[])
    }

    /// The same with further flags.
    pub fn start_with(&mut self, flags: &[&str]) -> Result<()> {
        let program = tools::kube_apiserver().context("no kube-apiserver here; run: cargo xtask apiserver")?;
        let mut command = Command::new(program);
        command
            .args([format!("--etcd-servers={}", self.store), format!("--secure-port={}", self.port.number)])
            .args(["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none", "--profiling=false"])
            .args(["--service-account-issuer=https://kubernetes.default.svc.cluster.local"])
            .args(["--service-cluster-ip-range=10.96.0.0/24", "--authorization-mode=Node,RBAC"])
            .args(["--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true"])
            .args(["--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname"])
            .args(["--requestheader-allowed-names=front-proxy-client", "--requestheader-group-headers=X-Remote-Group"])
            .args(["--requestheader-username-headers=X-Remote-User"])
            .args(["--requestheader-extra-headers-prefix=X-Remote-Extra-", "--enable-aggregator-routing=true"])
            // It is stopped while nodes watch, and their requests have to fail at once then.
            .arg("--shutdown-delay-duration=0s");
        for (flag, file) in FILES {
            command.arg(format!("--{flag}={}", self.certificates.file(file).display()));
        }
        // Of two values of one flag the later one counts.
        command.args(flags);
        let mut daemon = Daemon::start(&mut command, &self.dir.join("apiserver.log"))?;
        let mut ended = false;
        let waited = wait::until_true(FIRST_START, "the apiserver's readiness", || {
            ended = daemon.ended().is_ok_and(|status| status.is_some());
            ended || self.request("GET", "/readyz", None).is_ok_and(|(code, _)| code == 200)
        });
        let said = || format!("its log ends with:\n{}", tail(&daemon.log(), 20));
        waited.with_context(said)?;
        ensure!(!ended, "the apiserver ended at once; {}", said());
        self.apiserver = Some(daemon);
        // Its controller makes the namespaces after that.
        wait::until_true(FIRST_START, "the namespaces", || {
            ["default", "kube-node-lease"]
                .iter()
                .all(|name| self.get(&format!("/api/v1/namespaces/{name}")).is_ok_and(|namespace| namespace.is_some()))
        })?;
        self.admit_itself()
    }

    /// Lets the apiserver's own certificate use the nodes' API, as kubeadm does.
    fn admit_itself(&self) -> Result<()> {
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        if self.get(&format!("{path}/kubeadm:cluster-admins"))?.is_some() {
            return Ok(());
        }
        let group =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "kubeadm:cluster-admins" });
        self.create(path, &cluster_role_binding("kubeadm:cluster-admins", "cluster-admin", group))?;
        self.wait_allowed(KUBELET_CLIENT, "kubeadm:cluster-admins", "proxy")
    }

    /// Waits until the apiserver applies a rule: the user may `get` that subresource of nodes.
    pub fn wait_allowed(&self, user: &str, group: &str, subresource: &str) -> Result<()> {
        let attributes = json!({ "verb": "get", "resource": "nodes", "subresource": subresource });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": { "user": user, "groups": [group], "resourceAttributes": attributes },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        wait::until_true(wait::SOON, "the rule", || {
            self.ask(path, &review).is_ok_and(|it| it["status"]["allowed"] == true)
        })
    }

    /// A certificate and a key of the cluster's authority, in one file, for a client of nodes. It is valid for so
    /// many days from now on.
    pub fn client(&self, name: &str, subject: &str, days: i32) -> Result<PathBuf> {
        self.certificates.client(name, subject, days)?;
        let [certificate, key] = ["crt", "key"].map(|end| fs::read(self.certificates.file(&format!("{name}.{end}"))));
        let pair = self.dir.join(format!("{name}.pem"));
        fs::write(&pair, [key?, certificate?].concat())?;
        Ok(pair)
    }

    /// The port where the apiserver answers.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Sends the apiserver a signal, while it runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(apiserver) = &self.apiserver {
            apiserver.signal(signal);
        }
    }

    /// Ends the apiserver with SIGTERM; what it has stored stays.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut apiserver) = self.apiserver.take() else { return Ok(()) };
        apiserver.signal(Signal::TERM);
        apiserver.wait(FIRST_START).map(drop)
    }

    /// Kills the apiserver, like a power cut; what it has stored stays.
    pub fn kill(&mut self) {
        self.apiserver.take().iter_mut().for_each(Daemon::kill);
    }

    /// Makes `node`'s agent join at its next start, with its own certificate and the flags.
    pub fn admit(&self, node: &mut TestNode, flags: &[&str]) -> Result<()> {
        let path = self.node_credentials(node.name())?;
        node.agent.reconfigure(|settings| {
            settings.flags = vec![format!("--kubeconfig={}", path.display())];
            settings.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
            // Renewals happen every second, and the address needs no route.
            settings.kubelet.push("nodeLeaseDurationSeconds: 4".to_owned());
            settings.limpet.push(format!("nodeIP: {NODE_ADDRESS}"));
        })
    }

    /// The kubeconfig of a node of that name.
    pub fn node_credentials(&self, name: &str) -> Result<PathBuf> {
        self.credentials(name, &format!("/O=system:nodes/CN=system:node:{name}"))
    }

    /// The same with another address of the apiserver.
    pub fn node_credentials_at(&self, address: &str, name: &str) -> Result<PathBuf> {
        self.node_credentials(name)?;
        self.certificates.kubeconfig(address, name)
    }

    /// Replaces the certificate of the node of that name by one that is valid until then.
    pub fn shorten_credentials(&self, name: &str, until: SystemTime) -> Result<()> {
        self.certificates.shorten(name, until)
    }

    /// A kubeconfig with all rights.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig_at(&self.address())
    }

    /// The same with another address.
    pub fn kubeconfig_at(&self, address: &str) -> Result<PathBuf> {
        self.certificates.kubeconfig(address, "super-admin")
    }

    /// The certificate of the cluster's authority.
    pub fn authority(&self) -> PathBuf {
        self.certificates.file("ca.crt")
    }

    /// What a command in a container writes, through the WebSocket that `kubectl exec` opens, as raw frames.
    pub fn exec(&self, pod: &str, command: &[&str]) -> Result<String> {
        let words: String = command.iter().map(|word| format!("&command={word}")).collect();
        let path = format!("/api/v1/namespaces/default/pods/{pod}/exec?container=main&stdout=true{words}");
        let upgrade = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: bGltcGV0LWxpbXBldC1saQ==",
            "Sec-WebSocket-Protocol: v5.channel.k8s.io",
        ];
        let mut curl = self.curl(&path);
        curl.args(["--http1.1", "--no-buffer", "--include"]);
        for header in upgrade {
            curl.args(["--header", header]);
        }
        // The server closes the WebSocket when the command has ended, which curl may report as an error.
        let output = process::run(&mut curl, b"")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Creates what controllers would create in the namespace `default`: its service account and the authority's
    /// certificate.
    pub fn add_account(&self) -> Result<()> {
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "kube-root-ca.crt" },
            "data": { "ca.crt": fs::read_to_string(self.authority())? },
        });
        for (kind, object) in [("serviceaccounts", account), ("configmaps", map)] {
            let name = object["metadata"]["name"].as_str().context("no name")?;
            // Another test may create it at the same time.
            self.apply(&format!("/api/v1/namespaces/default/{kind}/{name}"), &object)?;
        }
        Ok(())
    }
}

/// The path of ClusterRoleBindings.
pub fn cluster_role_binding(name: &str, role: &str, subject: Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [subject],
    })
}

/// A case whose node does not join the cluster before the test does it.
pub fn joining(case: Case) -> Case {
    case.on(|node| (node.cluster, node.agent, node.cni) = (true, false, true))
}

/// Joins, and waits until the node is ready.
pub fn join(node: &mut TestNode, cluster: &Cluster, flags: &[&str]) -> Result<()> {
    cluster.admit(node, flags)?;
    node.agent.start()?;
    wait_node(node, cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True").map(drop)
}

/// The path of the node at the apiserver.
pub fn node_path(node: &TestNode) -> String {
    format!("/api/v1/nodes/{}", node.name())
}

/// Waits until the object at `path` is as `accept` requires.
pub fn wait_at(cluster: &Cluster, path: &str, what: &str, accept: impl Fn(&Value) -> bool) -> Result<Value> {
    let look = || cluster.get(path).ok().flatten().filter(|shown| accept(shown));
    wait::until(wait::SOON, &format!("{path}: {what}"), look).with_context(|| match cluster.get(path) {
        Ok(Some(shown)) => format!("it is now: {shown}"),
        other => format!("{other:?}"),
    })
}

/// Waits until the Node is as `accept` requires.
pub fn wait_node(node: &TestNode, cluster: &Cluster, what: &str, accept: impl Fn(&Value) -> bool) -> Result<Value> {
    wait_at(cluster, &node_path(node), what, accept)
}

/// The condition of that type in the object's status.
pub fn condition<'a>(object: &'a Value, name: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|condition| condition["type"] == name).unwrap_or(&Value::Null)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.controllers.clear();
        self.apiserver = None;
        self.etcd.daemon().kill();
        fs::remove_dir_all(&self.dir).ok();
    }
}
