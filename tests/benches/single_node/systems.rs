//! What runs the apps: each is started, killed as by a power cut, and booted again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use limpet_tests::cluster::kube_proxy::KubeProxy;
use limpet_tests::cluster::kubelet_api::NodeAddress;
use limpet_tests::cluster::{Cluster, condition, wait_at};
use limpet_tests::contender::{Contender, Stage, processes};
use limpet_tests::kubelet::Kubelet;
use limpet_tests::manifest::{self, pod, shell};
use limpet_tests::own_network::NODE;
use limpet_tests::{process, tools, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::APPS;

/// A system that runs the apps on the node of a stage.
pub(crate) trait System {
    /// Its name in the results.
    fn name(&self) -> &'static str;
    /// Starts it and gives it the apps.
    fn begin(&mut self, stage: &mut Stage) -> Result<()>;
    /// Where each app answers, also after a boot.
    fn addresses(&self, stage: &Stage) -> Result<Vec<SocketAddr>>;
    /// The processes that it needs, by kind.
    fn processes(&mut self, stage: &Stage) -> Result<Vec<(&'static str, Vec<u32>)>>;
    /// Ends everything at once.
    fn lose_power(&mut self, stage: &mut Stage) -> Result<()>;
    /// Starts everything that starts with a machine.
    fn boot(&mut self, stage: &mut Stage) -> Result<()>;
    /// Removes what is left, so that the next one can begin.
    fn end(&mut self, stage: &mut Stage) -> Result<()>;
    /// What helps to understand a failure.
    fn evidence(&self) -> String {
        String::new()
    }
}

/// What the container of an app runs: a server at that port.
fn server(port: usize) -> Value {
    shell("main", &format!("trap 'exit 0' TERM; httpd -p {port} -h /tmp; sleep 100000 & wait"))
}

fn name(number: usize) -> String {
    format!("app-{number}")
}

/// A Deployment and its Service.
fn app(number: usize) -> [Value; 2] {
    let labels = json!({ "app": name(number) });
    let template = json!({
        "metadata": { "labels": labels },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [server(8080)] },
    });
    let metadata = json!({ "name": name(number), "namespace": "default" });
    let spec = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": template });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec });
    let spec = json!({ "selector": labels, "ports": [{ "port": 80, "targetPort": 8080 }] });
    [deployment, json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })]
}

/// The address of a Service as text, and its port.
fn at(address: &Value) -> Result<SocketAddr> {
    let address: IpAddr = address.as_str().context("no address")?.parse()?;
    Ok((address, 80).into())
}

/// limpet without anything else.
#[derive(Debug, Default)]
pub(crate) struct Alone {}

impl System for Alone {
    fn name(&self) -> &'static str {
        "limpet"
    }

    fn begin(&mut self, stage: &mut Stage) -> Result<()> {
        let agent = &mut stage.node.agent;
        agent.reconfigure(|settings| settings.limpet.push(format!("nodeIP: {NODE}")))?;
        for number in 0..APPS {
            let text = app(number).map(|document| document.to_string()).join("\n---\n");
            manifest::put(&agent.settings().manifests(), &format!("{}.yaml", name(number)), &text)?;
        }
        agent.start()
    }

    fn addresses(&self, stage: &Stage) -> Result<Vec<SocketAddr>> {
        let ask = || -> Result<Vec<SocketAddr>> {
            let document: Value = serde_json::from_slice(&stage.node.agent.get("/limpet/v1/services")?)?;
            document["services"].as_array().into_iter().flatten().map(|service| at(&service["clusterIPs"][0])).collect()
        };
        wait::until(wait::SOON, "the addresses of all Services", || ask().ok().filter(|all| all.len() == APPS))
    }

    fn processes(&mut self, stage: &Stage) -> Result<Vec<(&'static str, Vec<u32>)>> {
        processes(&stage.node.agent, &stage.node.containerd, stage.node.dir())
    }

    fn lose_power(&mut self, stage: &mut Stage) -> Result<()> {
        stage.node.lose_power()?;
        forget_rules()
    }

    fn boot(&mut self, stage: &mut Stage) -> Result<()> {
        stage.node.containerd.start()?;
        stage.node.agent.spawn()
    }

    fn end(&mut self, stage: &mut Stage) -> Result<()> {
        let manifests = stage.node.agent.settings().manifests();
        (0..APPS).try_for_each(|number| std::fs::remove_file(manifests.join(format!("{}.yaml", name(number)))))?;
        stage.node.lose_power()?;
        forget_rules()?;
        stage.node.containerd.start()
    }
}

/// Removes the rules of the kernel, which a power cut takes, too. The network is the bench's own.
fn forget_rules() -> Result<()> {
    process::output("nft", &["flush", "ruleset"]).map(drop)
}

/// Kubernetes' own programs.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    cluster: Cluster,
    kubelet: Kubelet,
    proxy: KubeProxy,
    _address: NodeAddress,
}

impl ControlPlane {
    /// Starts the cluster, without its node.
    pub(crate) fn prepare(stage: &Stage) -> Result<Self> {
        let program = tools::kubernetes("kubelet").context("no kubelet; run: cargo xtask kubelet")?;
        let (mut cluster, address) = (Cluster::boot()?, NodeAddress::add()?);
        cluster.start_controllers(&[])?;
        let mut kubelet = Kubelet::prepare(&program, &stage.node)?;
        kubelet.admit(&cluster, &address)?;
        let proxy = KubeProxy::prepare(&cluster, kubelet.name(), stage.node.dir())?;
        Ok(Self { cluster, kubelet, proxy, _address: address })
    }
}

impl System for ControlPlane {
    fn name(&self) -> &'static str {
        "control plane"
    }

    fn begin(&mut self, _stage: &mut Stage) -> Result<()> {
        self.kubelet.spawn()?;
        wait_at(&self.cluster, &format!("/api/v1/nodes/{}", self.kubelet.name()), "ready", |shown| {
            condition(shown, "Ready")["status"] == "True"
        })?;
        for number in 0..APPS {
            let [deployment, service] = app(number);
            self.cluster.create("/apis/apps/v1/namespaces/default/deployments", &deployment)?;
            self.cluster.create("/api/v1/namespaces/default/services", &service)?;
        }
        self.proxy.start()
    }

    fn addresses(&self, _stage: &Stage) -> Result<Vec<SocketAddr>> {
        let services = self.cluster.list("/api/v1/namespaces/default/services")?;
        let apps = services.iter().filter(|service| service["metadata"]["name"] != "kubernetes");
        apps.map(|service| at(&service["spec"]["clusterIP"])).collect()
    }

    fn processes(&mut self, stage: &Stage) -> Result<Vec<(&'static str, Vec<u32>)>> {
        let mut all = processes(&self.kubelet, &stage.node.containerd, stage.node.dir())?;
        // An agent of this name is limpet's elsewhere in the table.
        all.iter_mut().filter(|(kind, _)| *kind == "agent").for_each(|(kind, _)| *kind = "kubelet");
        all.extend(self.cluster.processes().into_iter().map(|(kind, pid)| (kind, vec![pid])));
        all.push(("kube-proxy", self.proxy.pid().into_iter().collect()));
        Ok(all)
    }

    fn lose_power(&mut self, stage: &mut Stage) -> Result<()> {
        self.cluster.lose_power();
        self.proxy.stop()?;
        stage.node.lose_power()?;
        self.kubelet.recover(&stage.node)
    }

    fn boot(&mut self, stage: &mut Stage) -> Result<()> {
        stage.node.containerd.start()?;
        self.kubelet.spawn()?;
        self.cluster.boot_again()?;
        // It ends if there is no apiserver, and the service manager starts it again.
        self.proxy.spawn()
    }

    fn end(&mut self, stage: &mut Stage) -> Result<()> {
        self.lose_power(stage)?;
        stage.node.containerd.start()
    }

    fn evidence(&self) -> String {
        format!("{}\n{}", self.proxy.evidence(), process::tail(&self.kubelet.log(), 20))
    }
}

/// Podman, whose pods are at ports of the node.
#[derive(Debug)]
pub(crate) struct PodmanPods;

/// The first port of the apps.
const FIRST_PORT: usize = 18_080;

impl PodmanPods {
    fn apply(stage: &Stage) -> Result<()> {
        let podman = stage.podman().context("no Podman")?;
        (0..APPS).try_for_each(|number| {
            podman.apply(&pod(&name(number), json!({ "containers": [server(FIRST_PORT + number)] })))
        })
    }
}

impl System for PodmanPods {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn begin(&mut self, stage: &mut Stage) -> Result<()> {
        Self::apply(stage)
    }

    fn addresses(&self, _stage: &Stage) -> Result<Vec<SocketAddr>> {
        Ok((0..APPS).map(|number| (Ipv4Addr::LOCALHOST, (FIRST_PORT + number) as u16).into()).collect())
    }

    fn processes(&mut self, stage: &Stage) -> Result<Vec<(&'static str, Vec<u32>)>> {
        Ok(stage.podman().context("no Podman")?.keepers())
    }

    fn lose_power(&mut self, stage: &mut Stage) -> Result<()> {
        let contained = stage.podman().context("no Podman")?.contained();
        stage.node.lose_power()?;
        contained.into_iter().for_each(|pid| process::signal_pid(pid, Signal::KILL));
        stage.podman().context("no Podman")?.forget_boot()
    }

    /// As the unit of a `.kube` file does: a pod of the last boot is replaced.
    fn boot(&mut self, stage: &mut Stage) -> Result<()> {
        Self::apply(stage)
    }

    fn end(&mut self, stage: &mut Stage) -> Result<()> {
        self.lose_power(stage)?;
        stage.node.containerd.start()
    }
}
