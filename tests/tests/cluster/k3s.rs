//! A node with the files and flags that an agent of k3s has for its kubelet: a directory of drop-ins in place of a
//! configuration file, certificates of k3s' own, a directory of manifests, and a cloud provider that has to initialize
//! the node.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::kubelet_api::NodeAddress;
use limpet_tests::cluster::{self, Cluster, condition, wait_node};
use limpet_tests::manifest::{pod, shell};
use limpet_tests::{TestNode, process, registry};
use serde_json::json;

use crate::{mirror_path, wait_true};

/// What k3s writes for its kubelet, with `DIR` for `/var/lib/rancher/k3s`, and the node's containerd and resolver.
const DEFAULTS: &str = "\
address: 0.0.0.0
allowedUnsafeSysctls: [net.ipv4.ip_forward, net.ipv6.conf.all.forwarding]
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 2m0s, enabled: true}
  x509: {clientCAFile: DIR/agent/client-ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 5m0s, cacheUnauthorizedTTL: 30s}
cgroupDriver: DRIVER
clusterDNS: [10.43.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://ENDPOINT
cpuManagerReconcilePeriod: 10s
crashLoopBackOff: {}
evictionHard: {imagefs.available: 1Mi, nodefs.available: 1Mi}
evictionMinimumReclaim: {imagefs.available: 1Mi, nodefs.available: 1Mi}
evictionPressureTransitionPeriod: 5m0s
failSwapOn: false
fileCheckFrequency: 20s
healthzBindAddress: 127.0.0.1
healthzPort: 0
httpCheckFrequency: 20s
imageMaximumGCAge: 0s
imageMinimumGCAge: 2m0s
kind: KubeletConfiguration
logging:
  flushFrequency: 5000000000
  format: text
  options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 5m0s
nodeStatusUpdateFrequency: 10s
registerWithTaints: [{effect: NoSchedule, key: edge, value: '1'}]
resolvConf: RESOLVER
runtimeRequestTimeout: 2m0s
serializeImagePulls: false
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: DIR/agent/pod-manifests
streamingConnectionIdleTimeout: 4h0m0s
syncFrequency: 1m0s
tlsCertFile: DIR/agent/serving-kubelet.crt
tlsPrivateKeyFile: DIR/agent/serving-kubelet.key
volumeStatsAggPeriod: 1m0s
";

pub(crate) fn a_node_has_the_files_and_flags_of_a_k3s_agent(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::shared()?, NodeAddress::add()?, Port::claim()?);
    let dir = lay_out(node, &cluster, &port)?;
    let agent = dir.join("agent");
    let flags = [
        format!("--config-dir={}/etc/kubelet.conf.d", agent.display()),
        format!("--kubeconfig={}/kubelet.kubeconfig", agent.display()),
        format!("--node-ip={}", address.address),
        "--read-only-port=0".to_owned(),
        "--cloud-provider=external".to_owned(),
        "--runtime-cgroups=/k3s".to_owned(),
        "--node-labels=site=lab".to_owned(),
    ];
    node.agent.reconfigure(|settings| settings.flags = flags.to_vec())?;
    keep_own_settings_alone(node)?;
    node.agent.start()?;

    let shown = wait_node(node, &cluster, "ready", |shown| {
        condition(shown, "Ready")["status"] == "True"
            && shown["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port.number
    })?;
    let taints = shown["spec"]["taints"].as_array().cloned().unwrap_or_default();
    for key in ["edge", "node.cloudprovider.kubernetes.io/uninitialized"] {
        ensure!(taints.iter().any(|taint| taint["key"] == key), "no {key}: {taints:?}");
    }
    let annotations = &shown["metadata"]["annotations"];
    let provided = annotations["alpha.kubernetes.io/provided-node-ip"] == address.address.to_string();
    ensure!(provided && shown["metadata"]["labels"]["site"] == "lab", "{}", shown["metadata"]);

    let web =
        pod("web", json!({ "containers": [shell("main", "echo hello; trap 'exit 0' TERM; sleep 100000 & wait")] }));
    fs::write(agent.join("pod-manifests/web.yaml"), web.to_string())?;
    wait_true(node, &cluster, "web")?;
    let log = cluster.text(&format!("{}/log?container=main", mirror_path(node, "web")))?;
    ensure!(log == "hello\n", "{log}");
    served_certificate_is(&format!("{}:{}", address.address, port.number), &agent.join("serving-kubelet.crt"))
}

/// Leaves a LimpetConfiguration in the file that `--config` names.
fn keep_own_settings_alone(node: &TestNode) -> Result<()> {
    let file = node.agent.settings().config();
    let text = fs::read_to_string(&file)?;
    let (_, kubeconfig) = text.split_once("---\n").context("one document alone")?;
    fs::write(&file, kubeconfig).with_context(|| format!("{}", file.display()))
}

/// Writes what k3s has in `/var/lib/rancher/k3s`.
fn lay_out(node: &TestNode, cluster: &Cluster, port: &Port) -> Result<PathBuf> {
    let dir = node.dir().join("k3s");
    let agent = dir.join("agent");
    for name in ["etc/kubelet.conf.d", "pod-manifests"] {
        fs::create_dir_all(agent.join(name))?;
    }
    cluster.node_credentials(node.name())?;
    let of_node = |end: &str| cluster.authority().with_file_name(format!("{}.{end}", node.name()));
    for (from, name) in [
        (cluster.authority(), "client-ca.crt"),
        (cluster.authority(), "server-ca.crt"),
        (of_node("crt"), "client-kubelet.crt"),
        (of_node("key"), "client-kubelet.key"),
    ] {
        fs::copy(&from, agent.join(name)).with_context(|| format!("{}", from.display()))?;
    }
    registry::self_signed(&agent.join("serving-kubelet.key"), &agent.join("serving-kubelet.crt"))?;
    let settings = node.agent.settings();
    let defaults = DEFAULTS
        .replace("DIR", &dir.display().to_string())
        .replace("DRIVER", &limpet_tests::agent::cgroup_driver())
        .replace("ENDPOINT", &settings.endpoint.display().to_string())
        .replace("RESOLVER", &settings.resolv_conf().display().to_string());
    let drop_ins = agent.join("etc/kubelet.conf.d");
    fs::write(drop_ins.join("00-k3s-defaults.conf"), defaults)?;
    // These settings separate the test's node from others on this machine.
    let drop_in = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: {}\ncgroupRoot: {}\npodLogsDir: {}\n\
         imageGCHighThresholdPercent: 100\n",
        port.number,
        settings.cgroup,
        settings.pod_logs().display(),
    );
    fs::write(drop_ins.join("50-own.conf"), drop_in)?;
    fs::write(agent.join("kubelet.kubeconfig"), kubeconfig(&agent, &cluster.address()))?;
    Ok(dir)
}

fn kubeconfig(agent: &Path, server: &str) -> String {
    let file = |name: &str| agent.join(name).display().to_string();
    format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    server: {server}\n    certificate-authority: {}\n  name: local\ncontexts:\n\
         - context:\n    cluster: local\n    namespace: default\n    user: user\n  name: Default\ncurrent-context: Default\n\
         kind: Config\npreferences: {{}}\nusers:\n- name: user\n  user:\n    client-certificate: {}\n    client-key: {}\n",
        file("server-ca.crt"),
        file("client-kubelet.crt"),
        file("client-kubelet.key"),
    )
}

fn served_certificate_is(address: &str, certificate: &Path) -> Result<()> {
    let script =
        format!("openssl s_client -connect {address} < /dev/null 2> /dev/null | openssl x509 -noout -fingerprint");
    let served = process::output("sh", &["-c", &script])?;
    let file = certificate.display().to_string();
    let fingerprint = process::output("openssl", &["x509", "-noout", "-fingerprint", "-in", &file])?;
    ensure!(served == fingerprint, "{served} is not {fingerprint}");
    Ok(())
}
