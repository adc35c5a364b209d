//! The specs of a node, `test/e2e_node`, against a node of a cluster without anything else. They speak to the apiserver, to the pods, and
//! to the agent's ports 10250, 10255 and 10248. Some give the agent another configuration, which they read from `/configz` and
//! change, and restart it as a [unit of systemd](SystemdUnit).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::kubelet_api::NodeAddress;
use limpet_tests::cluster::{Cluster, cluster_role_binding, condition};
use limpet_tests::kubelet::Kubelet;
use limpet_tests::registry::Registry;
use limpet_tests::specs::{self, SUITE_TIMEOUT, Specs};
use limpet_tests::systemd_unit::{Request, SystemdUnit};
use limpet_tests::{TestNode, agent, tools, wait};
use serde_json::json;

/// The specs to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Selection {
    /// The specs that every node has to pass.
    Conformance,
    /// The specs of kubelet's CPU manager that two processors can run.
    CpuManager,
}

impl Selection {
    /// The filter of Kubernetes' labels that selects them.
    fn labels(self) -> &'static str {
        match self {
            Self::Conformance => "(NodeConformance || Conformance) && !Flaky",
            Self::CpuManager => "Feature: containsAny CPUManager",
        }
    }

    /// The name of an agent's report.
    fn report(self, agent: &str) -> String {
        match self {
            Self::Conformance => agent.to_owned(),
            Self::CpuManager => format!("{agent}-cpus"),
        }
    }

    /// The directory in which they read cgroups, if they do.
    fn cgroups(self) -> Option<&'static str> {
        let of_controller = "/sys/fs/cgroup/cpuset";
        let dir = if Path::new(of_controller).exists() { of_controller } else { "/sys/fs/cgroup" };
        (self == Self::CpuManager).then_some(dir)
    }

    /// The runs of the suite, each with one spec, or `None` for all.
    fn runs(self) -> Vec<Option<&'static str>> {
        match self {
            Self::Conformance => vec![None],
            Self::CpuManager => specs::CPU_MANAGER.iter().copied().map(Some).collect(),
        }
    }
}

pub(crate) fn limpet_runs_the_node_specs(node: &mut TestNode) -> Result<()> {
    limpet_runs(node, Selection::Conformance)
}

pub(crate) fn kubelet_runs_the_node_specs(node: &mut TestNode) -> Result<()> {
    kubelet_runs(node, Selection::Conformance)
}

pub(crate) fn limpet_runs_the_cpu_specs(node: &mut TestNode) -> Result<()> {
    limpet_runs(node, Selection::CpuManager)
}

pub(crate) fn kubelet_runs_the_cpu_specs(node: &mut TestNode) -> Result<()> {
    kubelet_runs(node, Selection::CpuManager)
}

fn limpet_runs(node: &mut TestNode, selection: Selection) -> Result<()> {
    let bench = Bench::prepare(node)?;
    bench.cluster.admit(node, &[&format!("--node-ip={}", bench.address.address)])?;
    node.agent.reconfigure(|settings| {
        // A flag sets the address.
        settings.limpet.retain(|line| !line.starts_with("nodeIP"));
        settings.kubelet.extend(kubelet_lines());
    })?;
    node.agent.start()?;
    bench.wait_ready(node.name())?;
    let settings = node.agent.settings();
    let places = Places {
        node: node.name().to_owned(),
        logs: settings.pod_logs(),
        root: settings.root(),
        plugins: settings.plugins(),
        // containerd's own socket has no pod of limpet.
        cri: match selection {
            Selection::Conformance => node.containerd.socket(),
            Selection::CpuManager => settings.run().join("cri.sock"),
        },
        cgroup: node.cgroup().to_owned(),
        cgroups: selection.cgroups(),
    };
    let report = selection.report("limpet");
    let ran = bench.run(selection, &report, &places, |request| {
        node.agent.kill();
        if request == Request::Kill {
            return Ok(());
        }
        let configuration = bench.configuration();
        node.agent.reconfigure(|settings| settings.kubelet_configuration = configuration)?;
        node.agent.start()
    });
    fs::write(agent::workspace_dir().join(format!("target/conformance/{report}-agent.log")), node.agent.log())?;
    ran
}

fn kubelet_runs(node: &mut TestNode, selection: Selection) -> Result<()> {
    let bench = Bench::prepare(node)?;
    let program = tools::kubernetes("kubelet").context("no kubelet here; run: cargo xtask kubelet")?;
    let mut kubelet = Kubelet::prepare(&program, node)?;
    kubelet.admit(&bench.cluster, &bench.address)?;
    kubelet.reconfigure(|configuration| {
        for line in kubelet_lines() {
            let (key, value) = line.split_once(": ").unwrap_or_default();
            configuration[key] = value.parse().unwrap_or_else(|_| json!(value));
        }
    })?;
    kubelet.spawn()?;
    bench.wait_ready(kubelet.name())?;
    let root = kubelet.root();
    let places = Places {
        node: kubelet.name().to_owned(),
        logs: kubelet.pod_logs(),
        plugins: root.clone(),
        root,
        cri: node.containerd.socket(),
        cgroup: format!("{}/kubelet", node.cgroup()),
        cgroups: selection.cgroups(),
    };
    let ran = bench.run(selection, &selection.report("kubelet"), &places, |request| {
        kubelet.stop()?;
        if request == Request::Kill {
            return Ok(());
        }
        if let Some(configuration) = bench.configuration() {
            kubelet.configure_by(&configuration)?;
        }
        kubelet.spawn()
    });
    kubelet.stop()?;
    ran
}

/// The settings that the suite expects: kubelet's own ports, open to every caller.
fn kubelet_lines() -> Vec<String> {
    [
        r#"address: 0.0.0.0"#,
        r#"port: 10250"#,
        r#"readOnlyPort: 10255"#,
        r#"healthzPort: 10248"#,
        r#"authentication: {"anonymous": {"enabled": true}, "webhook": {"enabled": false}}"#,
        r#"authorization: {"mode": "AlwaysAllow"}"#,
        r#"enableDebuggingHandlers: true"#,
    ]
    .map(str::to_owned)
    .to_vec()
}

/// A cluster for one node, with what the suite needs.
struct Bench {
    cluster: Cluster,
    address: NodeAddress,
    token: String,
    _registry: Registry,
    /// The node's directory.
    dir: PathBuf,
}

/// The names and paths of an agent that the specs need.
struct Places {
    /// The name of its node.
    node: String,
    logs: PathBuf,
    root: PathBuf,
    plugins: PathBuf,
    /// The socket by which it finds containers.
    cri: PathBuf,
    /// The root of its pods' cgroups.
    cgroup: String,
    /// The directory in which the specs read cgroups, if they do. They expect the root of the pods there.
    cgroups: Option<&'static str>,
}

impl Bench {
    fn prepare(node: &TestNode) -> Result<Self> {
        // The suite creates pods before their namespace has its service account. One spec replaces the authority of the
        // node's clients, so the apiserver has no client certificate for nodes, as in Kubernetes' own runs of the
        // suite.
        let without_certificate = ["--kubelet-client-certificate=", "--kubelet-client-key="];
        let mut cluster =
            Cluster::boot_with(&[&["--disable-admission-plugins=ServiceAccount"], &without_certificate[..]].concat())?;
        cluster.start_controllers(&[])?;
        let token = token(&cluster)?;
        let images = specs::images(node.dir())?;
        node.import(&images.iter().collect::<Vec<_>>())?;
        // What is to be pulled always comes from here.
        let registry = Registry::start(&node.dir().join("registry"))?;
        specs::serve(&images, &registry, &node.containerd.certs_d())?;
        Ok(Self { cluster, address: NodeAddress::add()?, token, _registry: registry, dir: node.dir().to_owned() })
    }

    fn wait_ready(&self, name: &str) -> Result<()> {
        let path = format!("/api/v1/nodes/{name}");
        wait::until_true(Duration::from_secs(120), "the node", || {
            let node = self.cluster.get(&path).ok().flatten();
            node.is_some_and(|node| condition(&node, "Ready")["status"] == "True")
        })
    }

    /// The configuration that the specs have written for the agent's next start.
    fn configuration(&self) -> Option<PathBuf> {
        let file = specs::directory(&self.dir).join("kubelet-config");
        file.exists().then_some(file)
    }

    /// Runs the specs, also those after one that fails; `carry_out` stops and starts the agent.
    fn run(
        &self,
        selection: Selection,
        report: &str,
        places: &Places,
        mut carry_out: impl FnMut(Request) -> Result<()>,
    ) -> Result<()> {
        let system = self.dir.join("system.yaml");
        fs::write(&system, "os: Linux\n")?;
        let unit = SystemdUnit::new(&self.dir.join("unit"))?;
        let arguments = [
            "--start-services=false".to_owned(),
            "--stop-services=false".to_owned(),
            "--prepull-images=false".to_owned(),
            format!("--system-spec-file={}", system.display()),
            format!("--host={}", self.cluster.address()),
            format!("--bearer-token={}", self.token),
            format!("--node-name={}", places.node),
            format!("--container-runtime-endpoint=unix://{}", places.cri.display()),
        ];
        let mut failed = Vec::new();
        for alone in selection.runs() {
            let specs = Specs {
                program: "e2e_node",
                report,
                labels: selection.labels(),
                alone,
                left_out: specs::CANNOT_RUN,
                arguments: &arguments,
            };
            let starter = places.starter(&unit)?;
            let ran = specs.run(starter, &self.dir, |specs| unit.serve(specs, SUITE_TIMEOUT, &mut carry_out));
            failed.extend(ran.err().map(|error| format!("{}: {error:#}", alone.unwrap_or("specs"))));
        }
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    }
}

impl Places {
    /// The command that runs the suite's program, in an environment where it finds everything in kubelet's places.
    fn starter(&self, unit: &SystemdUnit) -> Result<Command> {
        let script = "mkdir -p /var/log/pods /var/lib/kubelet && mount --bind \"$LOGS\" /var/log/pods && \
                      mkdir -p \"$ROOT/device-plugins\" && mount --rbind \"$ROOT\" /var/lib/kubelet && \
                      mount --bind \"$PLUGINS\" /var/lib/kubelet/device-plugins && \
                      { [ -z \"$CGROUPS\" ] || mount --bind \"$CGROUPS/$CGROUP\" \"$CGROUPS\"; } && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).env("PATH", unit.search_path()?);
        command.env("LOGS", &self.logs).env("ROOT", &self.root);
        command.env("PLUGINS", self.plugins.join("device-plugins"));
        command.env("CGROUPS", self.cgroups.unwrap_or_default()).env("CGROUP", &self.cgroup);
        Ok(command)
    }
}

/// A token of a user with all rights.
fn token(cluster: &Cluster) -> Result<String> {
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    cluster.create(accounts, &json!({ "metadata": { "name": "conformance" } }))?;
    let subject = json!({ "kind": "ServiceAccount", "namespace": "kube-system", "name": "conformance" });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    cluster.create(path, &cluster_role_binding("conformance", "cluster-admin", subject))?;
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": { "expirationSeconds": 86_400 },
    });
    let answer = cluster.ask(&format!("{accounts}/conformance/token"), &request)?;
    answer["status"]["token"].as_str().map(str::to_owned).context("no token")
}
