//! `cargo xtask nightly`: the tests that take too long for every change, one part after the other. It takes hours.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use limpet_tests::suite;

use crate::go_program::{COREDNS, COSIGN, ETCD, METRICS_SERVER};
use crate::{cargo, kubernetes, setup};

/// Which parts to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only these.
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
}

/// The suites that show what an OCI runtime makes of a container.
const CRUN: [&str; 24] = [
    "test",
    "--runtime",
    "crun",
    "-p",
    "limpet-tests",
    "--no-fail-fast",
    "--test",
    "attach",
    "--test",
    "devices",
    "--test",
    "hooks",
    "--test",
    "lifecycle",
    "--test",
    "logs",
    "--test",
    "pods",
    "--test",
    "restarts",
    "--test",
    "security",
    "--test",
    "shim",
];

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    /// BPF programs and watch backends in every stock kernel.
    Kernels,
    /// The emulated machine with the executable for nodes: every power cut three times, suites inside.
    Machine,
    /// A gateway with one core and 256 MiB of memory: the deb, a pull, a reboot, power cuts, the year 2040.
    #[value(name = "gateway-x86-64")]
    GatewayX86,
    /// The same with 64-bit ARM processors.
    #[value(name = "gateway-aarch64")]
    GatewayAarch64,
    /// The same with 32-bit ARM processors.
    #[value(name = "gateway-armv7")]
    GatewayArmv7,
    /// Every test but those above with containerd 2.
    #[value(name = "containerd-2")]
    ContainerdTwo,
    /// Every suite with containerd's shim and loggers.
    #[value(name = "shim-runc-v2")]
    ContainerdsShim,
    /// The suites of a pod's life with crun.
    Crun,
    /// A fault at every request.
    Faults,
    /// 500 pods and an hour of work leave nothing behind.
    Leaks,
    /// A real kubelet gives the answers that the suite of kubelet's own tests expects of limpet.
    KubeletServer,
    /// A whole cluster with metrics-server: a Deployment, kubectl top, an autoscaler.
    MetricsServer,
    /// The controllers of a whole cluster: StatefulSets with volumes, DaemonSets, Jobs; cordon, drain and taint.
    Workloads,
    /// A line to the apiserver that swallows packets, flaps and is slow: nothing restarts, and nothing is lost.
    Link,
    /// kubectl of 1.30 and of the newest release, by every protocol that an apiserver has for nodes.
    Kubectl,
    /// The specs of Kubernetes' node tests for a kubelet without an apiserver.
    Standalone,
    /// The specs of kubelet's CPU manager that two processors can run.
    CpuSpecs,
    /// kubeadm sets up a cluster whose control plane and nodes limpet runs.
    Kubeadm,
    /// 1 GiB each way through exec and port-forward, 200 streams at once, and clients that are gone without a word.
    Streams,
    /// A real kubelet runs the pods of tests/views: their findings and reports are recorded again.
    Views,
    /// etcd, apiserver, controllers, scheduler, kubelet and CoreDNS run the manifests of tests/sets: what they make of them is
    /// recorded again.
    ControlPlane,
    /// The same of tests/views/cluster: the statuses of pods that an apiserver binds to its node.
    States,
    /// kubelet's sample device plugin and its client of PodResources, through a restart of the agent.
    DevicePlugin,
    /// The packages of every architecture: what the distributions' checkers say, the executables under emulation, and that
    /// a build in another directory gives the same bytes.
    Release,
    /// The pages as a site: every link in it leads somewhere.
    Site,
    /// What the program cosign has signed runs, in both of its forms.
    Cosign,
    /// The attach/detach controller of a whole cluster, for a volume of a CSI driver.
    Csi,
}

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The arguments of `cargo xtask`.
    fn task(self) -> &'static [&'static str] {
        match self {
            Self::Kernels => &["test-kernels"],
            Self::Machine => &["test-vm", "--all"],
            Self::GatewayX86 => &["test-vm", "--gateway", "x86_64", "--dist"],
            Self::GatewayAarch64 => &["test-vm", "--gateway", "aarch64", "--dist"],
            Self::GatewayArmv7 => &["test-vm", "--gateway", "armv7", "--dist"],
            Self::ContainerdTwo => &["test", "--containerd", "2", "--workspace", "--tests", "--no-fail-fast"],
            Self::Faults => &["test", "-p", "limpet-tests", "--test", "faults"],
            Self::ContainerdsShim => &["test", "--shim", "runc-v2", "--workspace", "--tests", "--no-fail-fast"],
            Self::Crun => &CRUN,
            // The cases run one after the other, because an idle agent is measured.
            Self::Leaks => &["test", "-p", "limpet-tests", "--test", "leaks", "--", "--test-threads=1"],
            Self::KubeletServer => &["test", "-p", "limpet-tests", "--test", "kubelet_server"],
            Self::MetricsServer => &["test", "-p", "limpet-tests", "--test", "metrics_server"],
            Self::Workloads => &["test", "-p", "limpet-tests", "--test", "workloads"],
            Self::Link => &["test", "-p", "limpet-tests", "--test", "link"],
            Self::Kubectl => &["test", "-p", "limpet-tests", "--test", "kubectl"],
            Self::Standalone => &["test", "-p", "limpet-tests", "--test", "standalone"],
            Self::CpuSpecs => {
                &["test", "-p", "limpet-tests", "--test", "conformance", "--", "limpet_runs_the_cpu_specs"]
            }
            Self::Views => &["test", "-p", "limpet-tests", "--test", "views"],
            Self::States => &["test", "-p", "limpet-tests", "--test", "states"],
            Self::ControlPlane => &["test", "-p", "limpet-tests", "--test", "control_plane"],
            Self::Kubeadm => &["test", "-p", "limpet-tests", "--test", "kubeadm"],
            Self::DevicePlugin => &["test", "-p", "limpet-tests", "--test", "devices", "--", "kubelets_sample_plugin"],
            Self::Release => &["release", "--check", "--reproduce"],
            Self::Site => &["site"],
            Self::Csi => &["test", "-p", "limpet-tests", "--test", "csi", "--", "a_clusters_own_controller"],
            Self::Cosign => &["test", "-p", "limpet-tests", "--test", "image_policy", "--", "what_cosign_has_signed"],
            // The cases run one after the other, because the agent's memory is measured.
            Self::Streams => &["test", "-p", "limpet-tests", "--test", "streams", "--", "--test-threads=1"],
        }
    }

    /// Builds what only this part needs.
    fn prepare(self) -> Result<()> {
        match self {
            Self::Link => kubernetes::apiserver().and_then(|_| setup::for_clocks()),
            Self::Kubectl => kubernetes::apiserver().and_then(|_| kubernetes::kubectls()).map(drop),
            Self::MetricsServer => kubernetes::control_plane().and_then(|()| METRICS_SERVER.ready()).map(drop),
            Self::Workloads | Self::Csi => kubernetes::control_plane(),
            Self::Standalone => kubernetes::apiserver().and_then(|_| kubernetes::node_tests()).map(drop),
            Self::CpuSpecs => kubernetes::control_plane().and_then(|()| kubernetes::conformance_tests("e2e_node")),
            Self::Kubeadm => kubernetes::kubeadm().and_then(|()| ETCD.ready()).and_then(|_| COREDNS.ready()).map(drop),
            Self::Cosign => COSIGN.ready().map(drop),
            Self::DevicePlugin => kubernetes::device_programs().map(drop),
            Self::KubeletServer => kubernetes::apiserver().and_then(|_| kubernetes::kubelet()).map(drop),
            Self::States => setup::with_containerd_2()
                .and_then(|_| kubernetes::apiserver())
                .and_then(|_| kubernetes::kubelet())
                .map(drop),
            Self::Views => setup::with_containerd_2().and_then(|_| kubernetes::kubelet()).map(drop),
            Self::ControlPlane => {
                kubernetes::control_plane().and_then(|()| kubernetes::kubelet()).and_then(|_| COREDNS.ready()).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn command(self) -> Command {
        let mut command = cargo::command(&["xtask"]);
        command.args(self.task());
        if matches!(self, Self::Leaks | Self::Streams) {
            // Every mount on the machine makes an agent check its watch; those of other processes are not seen in this
            // namespace.
            command = cargo::in_own_mount_namespace(&command);
        }
        let has_long_form = matches!(
            self,
            Self::Faults
                | Self::Leaks
                | Self::KubeletServer
                | Self::Kubectl
                | Self::Streams
                | Self::DevicePlugin
                | Self::Csi
                | Self::Views
                | Self::States
                | Self::ControlPlane
        );
        if has_long_form {
            command.env(suite::LONG_VARIABLE, "1");
        }
        command
    }
}

/// Runs all parts, whatever fails, and lists at the end what failed.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut parts = arguments.parts.clone();
    if parts.is_empty() {
        parts.extend(Part::value_variants());
    }
    let mut ended = Vec::new();
    for part in parts {
        println!("==> {}: cargo xtask {}", part.name(), part.task().join(" "));
        let start = Instant::now();
        let passed = match part.prepare() {
            Ok(()) => cargo::status(&mut part.command())?.success(),
            Err(error) => {
                eprintln!("{}: {error:#}", part.name());
                false
            }
        };
        ended.push((part.name(), start.elapsed(), passed));
    }
    println!("==> results of the night");
    for (name, took, passed) in &ended {
        println!("{}", line(name, *took, *passed));
    }
    let failed: Vec<_> = ended.iter().filter(|(.., passed)| !passed).map(|(name, ..)| name.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {}; to repeat one part: cargo xtask nightly {}", failed.join(", "), failed[0]);
    Ok(())
}

fn line(name: &str, took: Duration, passed: bool) -> String {
    let minutes = took.as_secs().div_ceil(60);
    format!("{name:<15} {minutes:>4} min  {}", if passed { "passed" } else { "FAILED" })
}
