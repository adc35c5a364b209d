//! A control plane of one node as a stage of sets: with kubelet, and with CoreDNS as its name server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::files::{Set, kind_and_name};
use super::lookup::{self, Kind, Question};
use super::stage::{Service, ServicePort, Stage};
use crate::claim::Port;
use crate::cluster::kubelet_api::NodeAddress;
use crate::cluster::{self, Cluster, Exclusive, condition, wait_at};
use crate::containerd::Containerd;
use crate::kubelet::Kubelet;
use crate::process::{Daemon, tail};
use crate::{TestNode, tools, wait};

/// The name server that kubelet gives to pods. Nothing answers there: the harness asks CoreDNS itself.
const NAME_SERVER: &str = "10.96.0.10";
/// A host outside the cluster, as the name server of the other stage knows it.
const ELSEWHERE: &str = "192.0.2.7 db.example.com";
/// The label by which an EndpointSlice names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The cluster, its node and its name server.
#[derive(Debug)]
pub struct ControlPlane<'a> {
    node: &'a TestNode,
    cluster: Exclusive,
    kubelet: Kubelet,
    name_server: Daemon,
    port: Port,
    _address: NodeAddress,
}

impl<'a> ControlPlane<'a> {
    /// Starts all of it, on the containerd of the node, which needs the CRI plugin.
    pub fn start(node: &'a TestNode) -> Result<Self> {
        let program = tools::kubernetes("kubelet").context("no kubelet; run: cargo xtask kubelet")?;
        let (cluster, address) = (cluster::whole()?, NodeAddress::add()?);
        let mut kubelet = Kubelet::prepare(&program, node)?;
        kubelet.admit(&cluster, &address)?;
        kubelet.reconfigure(|it| {
            it["maxPods"] = json!(400);
            it["clusterDNS"] = json!([NAME_SERVER]);
            it["clusterDomain"] = json!("cluster.local");
            // Changes of mounted objects come with the next sync.
            it["syncFrequency"] = json!("2s");
        })?;
        kubelet.spawn()?;
        wait_at(&cluster, &format!("/api/v1/nodes/{}", kubelet.name()), "ready", |shown| {
            condition(shown, "Ready")["status"] == "True"
        })
        .with_context(|| tail(&kubelet.log(), 20))?;
        let (name_server, port) = name_server(node, &cluster)?;
        Ok(Self { node, cluster, kubelet, name_server, port, _address: address })
    }

    /// What helps to understand a failure.
    pub fn evidence(&self) -> String {
        format!("{}\n{}", tail(&self.kubelet.log(), 20), tail(&self.name_server.log(), 10))
    }

    /// A namespace, with the account that its pods have.
    fn add_namespace(&self, name: &str) -> Result<()> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.cluster.apply(&format!("/api/v1/namespaces/{name}"), &namespace)?;
        wait_at(&self.cluster, &format!("/api/v1/namespaces/{name}/serviceaccounts/default"), "there", |_| true)
            .map(drop)
    }

    /// Gives each claim that has none a volume, which is a directory of the node, in place of a provisioner.
    fn provide_volumes(&self, claims: &[Value]) -> Result<()> {
        for claim in claims.iter().filter(|claim| claim["spec"]["volumeName"].is_null()) {
            let text = |key: &str| claim["metadata"][key].as_str().unwrap_or_default();
            let name = format!("{}-{}", text("namespace"), text("name"));
            let directory = self.node.dir().join("volumes").join(&name);
            fs::create_dir_all(&directory)?;
            // kubelet leaves the owner of a hostPath as it is.
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
            let volume = json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
                "spec": {
                    "accessModes": claim["spec"]["accessModes"], "capacity": claim["spec"]["resources"]["requests"],
                    "hostPath": { "path": directory }, "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": { "namespace": text("namespace"), "name": text("name") },
                },
            });
            self.cluster.apply(&format!("/api/v1/persistentvolumes/{name}"), &volume)?;
        }
        Ok(())
    }
}

/// CoreDNS, which answers for the cluster on loopback.
fn name_server(node: &TestNode, cluster: &Cluster) -> Result<(Daemon, Port)> {
    let program = tools::coredns().context("no coredns; run: cargo xtask nightly control-plane")?;
    let port = Port::claim()?;
    let file = node.dir().join("Corefile");
    let kubeconfig = cluster.kubeconfig()?;
    let text = format!(
        ".:{} {{\n  bind 127.0.0.1\n  hosts {{\n    {ELSEWHERE}\n    fallthrough\n  }}\n  kubernetes cluster.local \
         {{\n    kubeconfig {}\n  }}\n}}\n",
        port.number,
        kubeconfig.display()
    );
    fs::write(&file, text)?;
    let log = node.dir().join("coredns.log");
    let daemon = Daemon::start(Command::new(program).arg("-conf").arg(&file), &log)?;
    let question = Question { name: "kubernetes.default.svc.cluster.local".to_owned(), kind: Kind::Address };
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number));
    wait::until_true(wait::SOON, "CoreDNS", || lookup::ask(server, &question).is_ok_and(|answers| answers.len() == 1))
        .with_context(|| daemon.log())?;
    Ok((daemon, port))
}

/// Where the apiserver has objects of that kind.
fn path(document: &Value) -> Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
    let api = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let plural = match kind.to_lowercase() {
        kind if kind.ends_with("policy") => format!("{}ies", kind.trim_end_matches('y')),
        kind => format!("{kind}s"),
    };
    let metadata = &document["metadata"];
    ensure!(!kind.is_empty(), "a document without a kind: {document}");
    Ok(format!("{api}/namespaces/{}/{plural}/{}", text(&metadata["namespace"]), text(&metadata["name"])))
}

/// Whether what the document describes makes pods, and so needs the others.
fn makes_pods(document: &Value) -> bool {
    document["spec"]["template"].is_object() || ["Pod", "CronJob"].iter().any(|kind| document["kind"] == *kind)
}

impl Stage for ControlPlane<'_> {
    fn apply(&self, set: &Set, version: usize) -> Result<()> {
        let documents = &set.versions[version];
        if version == 0 {
            self.add_namespace(&set.name)?;
        } else {
            let is_there = |old: &&Value| documents.iter().any(|new| kind_and_name(new) == kind_and_name(old));
            let gone = set.versions[version - 1].iter().filter(|old| !is_there(old));
            gone.map(path).try_for_each(|path| self.cluster.delete(&path?))?;
        }
        let (last, first): (Vec<_>, Vec<_>) = documents.iter().partition(|document| makes_pods(document));
        let (services, last_of_all) = (first.iter().any(|it| it["kind"] == "Service"), last);
        first.into_iter().try_for_each(|document| self.cluster.apply(&path(document)?, document))?;
        if services {
            // kubelet gives a container the variables of the Services that it knows when it starts it.
            wait::pass(Duration::from_millis(300))?;
        }
        last_of_all.into_iter().try_for_each(|document| self.cluster.apply(&path(document)?, document))
    }

    fn pods(&self) -> Result<Vec<Value>> {
        self.cluster.list("/api/v1/pods")
    }

    fn services(&self) -> Result<Vec<Service>> {
        let slices = self.cluster.list("/apis/discovery.k8s.io/v1/endpointslices")?;
        let mut of_service: BTreeMap<(String, String), Vec<&Value>> = BTreeMap::new();
        for slice in &slices {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (text(&slice["metadata"]["namespace"]), text(&slice["metadata"]["labels"][SERVICE_LABEL]));
            of_service.entry(key).or_default().push(slice);
        }
        let all = self.cluster.list("/api/v1/services")?;
        Ok(all.iter().map(|object| service(object, &of_service)).collect())
    }

    fn claims(&self) -> Result<BTreeSet<String>> {
        let claims = self.cluster.list("/api/v1/persistentvolumeclaims")?;
        self.provide_volumes(&claims)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name =
            |claim: &Value| format!("{}/{}", text(&claim["metadata"]["namespace"]), text(&claim["metadata"]["name"]));
        Ok(claims.iter().map(name).collect())
    }

    fn events(&self) -> Result<Vec<Value>> {
        self.cluster.list("/api/v1/events")
    }

    fn ask(&self, questions: &[Question]) -> Result<Vec<Vec<String>>> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number));
        questions.iter().map(|question| lookup::ask(server, question)).collect()
    }

    fn watch(&self, file: &Path) -> Result<Daemon> {
        Daemon::start(&mut self.cluster.stream("/api/v1/pods?watch=1"), file)
    }

    fn containerd(&self) -> &Containerd {
        &self.node.containerd
    }

    fn logs(&self) -> PathBuf {
        self.kubelet.pod_logs()
    }

    fn aliases(&self) -> Vec<(String, String)> {
        vec![(NAME_SERVER.to_owned(), "NAME_SERVER".to_owned()), (self.kubelet.name().to_owned(), "NODE".to_owned())]
    }
}

fn service(object: &Value, slices: &BTreeMap<(String, String), Vec<&Value>>) -> Service {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    let key = (text(&metadata["namespace"]), text(&metadata["name"]));
    let slices = slices.get(&key).map_or(&[][..], Vec::as_slice);
    let port = |port: &Value| ServicePort {
        name: text(&port["name"]),
        protocol: text(&port["protocol"]),
        port: port["port"].as_u64().unwrap_or_default(),
        node_port: port["nodePort"].as_u64(),
        endpoints: slices.iter().flat_map(|slice| endpoints(slice, &text(&port["name"]))).collect(),
    };
    Service {
        namespace: key.0,
        name: key.1,
        kind: text(&spec["type"]),
        addresses: spec["clusterIPs"].as_array().into_iter().flatten().map(text).collect(),
        ports: spec["ports"].as_array().into_iter().flatten().map(port).collect(),
    }
}

/// The ready endpoints of a slice at the port of that name.
fn endpoints(slice: &Value, port: &str) -> Vec<String> {
    let items = |list: &str| slice[list].as_array().map_or(&[][..], Vec::as_slice).iter();
    let named = items("ports").find(|known| known["name"].as_str().unwrap_or_default() == port);
    let Some(number) = named.and_then(|port| port["port"].as_u64()) else { return Vec::new() };
    let ready = items("endpoints").filter(|endpoint| endpoint["conditions"]["ready"] == true);
    let addresses = ready.flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
    addresses.filter_map(|address| Some(format!("{}:{number}", address.as_str()?))).collect()
}
