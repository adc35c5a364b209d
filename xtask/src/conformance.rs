//! `cargo xtask conformance`: Kubernetes' conformance specs against limpet and against the real kubelet, and their comparison,
//! docs/conformance.md, docs/conformance-cpus.md and docs/conformance-cluster.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use limpet_tests::{agent, specs};
use serde_json::Value;

use crate::go_program::{COREDNS, ETCD};
use crate::{cargo, kubernetes};

/// Whether to run the specs.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run nothing, compare the reports of the last runs
    #[arg(long)]
    compare: bool,
    /// Run these alone
    #[arg(long, value_enum, value_name = "NAME")]
    specs: Option<Specs>,
    /// Run them against this agent alone, and compare nothing
    #[arg(long, value_enum, value_name = "NAME", conflicts_with = "compare")]
    agent: Option<Agent>,
}

/// Which specs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Specs {
    /// Of a node: `test/e2e_node`
    Node,
    /// Of kubelet's CPU manager, as far as two processors can run them: also `test/e2e_node`
    Cpus,
    /// Of a cluster, as far as one node can run them: `test/e2e`
    Cluster,
}

/// Against which agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Agent {
    Limpet,
    Kubelet,
}

impl Specs {
    /// The name of an agent's report, the page that compares both, and how that page begins.
    fn files(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Node => ("", "conformance.md", HEAD_OF_NODE),
            Self::Cpus => ("-cpus", "conformance-cpus.md", HEAD_OF_CPUS),
            Self::Cluster => ("-cluster", "conformance-cluster.md", HEAD_OF_CLUSTER),
        }
    }

    /// Builds what the specs need.
    fn prepare(self) -> Result<()> {
        kubernetes::control_plane()?;
        kubernetes::kubelet()?;
        match self {
            Self::Node | Self::Cpus => kubernetes::conformance_tests("e2e_node"),
            Self::Cluster => {
                kubernetes::conformance_tests("e2e")?;
                kubernetes::kubeadm()?;
                ETCD.ready().and_then(|_| COREDNS.ready()).map(drop)
            }
        }
    }

    /// The name of the test case that runs the specs.
    fn case(self, agent: Agent) -> String {
        let specs = match self {
            Self::Node => "node",
            Self::Cpus => "cpu",
            Self::Cluster => "cluster",
        };
        format!("{}_runs_the_{specs}_specs", agent.name())
    }
}

impl Agent {
    fn name(self) -> &'static str {
        match self {
            Self::Limpet => "limpet",
            Self::Kubelet => "kubelet",
        }
    }
}

/// Why a spec differs that removes a manifest and writes it again.
const REWRITTEN: &str = "a manifest that is back at once with the same content restarts nothing, on purpose";
/// Why specs fail, by a part of their names; the first that fits counts.
const REASONS: &[(&str, &str)] = &[
    (
        "when the runtime does not support recursive read-only mounts",
        "limpet makes these mounts itself, so every runtime of its node supports them",
    ),
    ("successfully recreate when file is removed", REWRITTEN),
    (
        "should not continue running liveness probes",
        "limpet probes and restarts other containers while one is stopped after a failed probe",
    ),
    ("Device Plugin Failures Pod Status", "asks containerd's CRI, which this containerd has only for kubelet"),
    ("ContainerLogPath", "the node's /var/log is not that of the specs on this machine"),
    ("should not write to root filesystem", "the shell of these images is bash, whose message is another"),
    ("Aggregator", "its image, a sample apiserver, is not built here"),
    ("at least two untainted nodes", "the cluster has one node"),
    ("rollback without unnecessary restarts", "the cluster has one node"),
    ("PLR guaranteed qos - 1 container", "this machine does not permit an oom_score_adj below zero"),
    ("PrivilegedPod", "this kernel has no dummy network devices"),
    ("/metrics/cadvisor", "limpet has the metrics of metrics.md; kubelet lacks some on cgroup v1"),
    ("Summary API", "values that cgroup v1 or this machine does not give; limpet has no PSI there"),
];

/// The result of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Passed,
    Failed,
    /// Its condition is not met here, or an earlier spec of an ordered group failed.
    Skipped,
}

/// Runs the specs against both, then compares.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let all = arguments.specs.map_or_else(|| vec![Specs::Node, Specs::Cpus, Specs::Cluster], |specs| vec![specs]);
    let agents = arguments.agent.map_or_else(|| vec![Agent::Limpet, Agent::Kubelet], |agent| vec![agent]);
    for specs in all {
        if arguments.compare && arguments.specs.is_none() && !report(specs, Agent::Limpet).exists() {
            continue;
        }
        if !arguments.compare {
            specs.prepare()?;
            // The agents run one after the other, because the specs require kubelet's own ports. Some specs fail, which
            // the comparison shows.
            for agent in &agents {
                if !specs::is_of_a_part() {
                    fs::remove_file(report(specs, *agent)).ok();
                }
                let test = ["xtask", "test", "-p", "limpet-tests", "--test", "conformance", "--", &specs.case(*agent)];
                cargo::status(&mut cargo::command(&test))?;
            }
        }
        if arguments.agent.is_none() {
            compare(specs)?;
        }
    }
    Ok(())
}

fn compare(specs: Specs) -> Result<()> {
    let (limpet, kubelet) = (outcomes(&report(specs, Agent::Limpet))?, outcomes(&report(specs, Agent::Kubelet))?);
    let (_, page, head) = specs.files();
    let page = agent::workspace_dir().join("docs").join(page);
    let mut text = compared(head, &limpet, &kubelet);
    match specs {
        Specs::Node => text.push_str(&not_run()),
        Specs::Cpus => text.push_str(&listed(&limpet, &kubelet)),
        Specs::Cluster => {}
    }
    fs::write(&page, text)?;
    println!("{}", page.display());
    Ok(())
}

fn report(specs: Specs, agent: Agent) -> PathBuf {
    agent::workspace_dir().join(format!("target/conformance/{}{}.json", agent.name(), specs.files().0))
}

/// The specs of ginkgo's report, by their names.
fn outcomes(path: &Path) -> Result<BTreeMap<String, Outcome>> {
    let read = || anyhow::Ok(serde_json::from_slice::<Value>(&fs::read(path)?)?);
    let suites = read().with_context(|| format!("{}; run: cargo xtask conformance", path.display()))?;
    let specs = suites[0]["SpecReports"].as_array().into_iter().flatten();
    Ok(by_name(specs.filter(|spec| spec["LeafNodeType"] == "It")))
}

/// Outcomes by name. Two specs may differ only in their labels. Of these the one that ran counts, and a failed one
/// before a passed one.
fn by_name<'a>(specs: impl Iterator<Item = &'a Value>) -> BTreeMap<String, Outcome> {
    let mut outcomes = BTreeMap::new();
    for spec in specs {
        let (name, outcome) = (name(spec), outcome(spec));
        let known = outcomes.entry(name).or_insert(outcome);
        if *known == Outcome::Skipped || outcome == Outcome::Failed {
            *known = outcome;
        }
    }
    outcomes
}

/// A spec's name without its labels, which are in brackets.
fn name(spec: &Value) -> String {
    let texts = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().chain([&spec["LeafNodeText"]]);
    let words = texts.filter_map(Value::as_str).flat_map(str::split_whitespace);
    words.filter(|word| !word.starts_with('[')).collect::<Vec<_>>().join(" ")
}

fn outcome(spec: &Value) -> Outcome {
    match spec["State"].as_str() {
        Some("passed") => Outcome::Passed,
        Some("skipped" | "pending") => Outcome::Skipped,
        _ => Outcome::Failed,
    }
}

/// The page that compares both agents.
fn compared(head: &str, limpet: &BTreeMap<String, Outcome>, kubelet: &BTreeMap<String, Outcome>) -> String {
    let pairs = || {
        limpet
            .iter()
            .map(|(name, outcome)| (name.as_str(), *outcome, kubelet.get(name).copied().unwrap_or(Outcome::Skipped)))
    };
    let names = |of_limpet, of_kubelet| -> Vec<&str> {
        pairs().filter(|pair| (pair.1, pair.2) == (of_limpet, of_kubelet)).map(|pair| pair.0).collect()
    };
    let mut page = String::from(head);
    page.push_str("| limpet | kubelet | specs |\n|---|---|---|\n");
    let all = [Outcome::Passed, Outcome::Failed, Outcome::Skipped];
    for (left, other) in all.into_iter().flat_map(|left| all.map(|other| (left, other))) {
        let count = names(left, other).len();
        if count > 0 && (left, other) != (Outcome::Skipped, Outcome::Skipped) {
            let _ = writeln!(page, "| {} | {} | {count} |", word(left), word(other));
        }
    }
    for (title, list) in [
        ("kubelet alone passes", names(Outcome::Failed, Outcome::Passed)),
        ("Both fail", names(Outcome::Failed, Outcome::Failed)),
        ("limpet alone fails, kubelet skips", names(Outcome::Failed, Outcome::Skipped)),
        ("kubelet passes, limpet skips", names(Outcome::Skipped, Outcome::Passed)),
    ] {
        if list.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {title}\n\n| spec | why |\n|---|---|\n");
        for name in list {
            let why = REASONS.iter().find(|(part, _)| name.contains(part)).map_or("not known", |(_, why)| why);
            let _ = writeln!(page, "| {name} | {why} |");
        }
    }
    let list = names(Outcome::Passed, Outcome::Failed);
    if !list.is_empty() {
        let _ = write!(page, "\n## limpet alone passes\n\n");
        for name in list {
            let _ = writeln!(page, "- {name}");
        }
    }
    page
}

/// The section about specs that cannot run on this machine.
fn not_run() -> String {
    let mut section = String::from("\n## Cannot run here\n\n| specs | why |\n|---|---|\n");
    for (name, why) in specs::CANNOT_RUN {
        let _ = writeln!(section, "| {name} | {why} |");
    }
    section
}

/// The section of the specs that were run, each with both outcomes.
fn listed(limpet: &BTreeMap<String, Outcome>, kubelet: &BTreeMap<String, Outcome>) -> String {
    let mut section = String::from("\n## Specs\n\n| spec | limpet | kubelet |\n|---|---|---|\n");
    for (name, outcome) in limpet {
        let other = kubelet.get(name).copied().unwrap_or(Outcome::Skipped);
        if (*outcome, other) != (Outcome::Skipped, Outcome::Skipped) {
            let _ = writeln!(section, "| {name} | {} | {} |", word(*outcome), word(other));
        }
    }
    section
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passes",
        Outcome::Failed => "fails",
        Outcome::Skipped => "skips",
    }
}

/// The beginning of the page about a node's specs: how they were run.
const HEAD_OF_NODE: &str = "\
# Kubernetes' node conformance specs

Generated by `cargo xtask conformance`: the specs of `test/e2e_node` of Kubernetes 1.37.1 that are labelled `NodeConformance` or `Conformance`,
unchanged, against limpet and against the real kubelet, each as the node of a whole cluster, on the same machine. Those labelled `Flaky` are
left out, and [those that cannot run here](#cannot-run-here); [testing.md](testing.md) says how the specs are run, and with which images. A
spec that is skipped asks for what that node, or the version of its runtime, does not have, or follows one that failed. One that both skip
is not counted. Those of kubelet's CPU manager are in [conformance-cpus.md](conformance-cpus.md).

";

/// The beginning of the page about the CPU manager's specs.
const HEAD_OF_CPUS: &str = "\
# Kubernetes' specs of kubelet's CPU manager

Generated by `cargo xtask conformance --specs cpus`: the specs of `test/e2e_node` of Kubernetes 1.37.1 that are labelled `CPUManager` and
that two processors can run, unchanged, against limpet and against the real kubelet, each as the node of a whole cluster. Each spec is run
alone: after another one too few processors are allocatable. The others skip themselves on such a machine: they ask for more processors, for
two threads of a core, for cgroup v2 or for several NUMA nodes. [testing.md](testing.md) says how the specs are run.

";

/// The beginning of the page about a cluster's specs.
const HEAD_OF_CLUSTER: &str = "\
# Kubernetes' conformance specs on a cluster of one node

Generated by `cargo xtask conformance --specs cluster`: the specs of `test/e2e` of Kubernetes 1.37.1 that are labelled `Conformance`,
unchanged. kubeadm sets up the cluster; limpet, and then the real kubelet, is the agent of its one node, with kube-proxy, CoreDNS and the
control plane as its pods. [testing.md](testing.md) says how the specs are run, and with which images. A spec that is skipped asks for more
nodes or for what the cluster does not have. One that both skip is not counted.

";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_spec_is_named_without_its_labels_and_stands_where_the_agents_differ() {
        let spec = json!({
            "ContainerHierarchyTexts": ["[sig-node] MirrorPod", "when changed"], "LeafNodeText": "should run [NodeConformance]",
            "State": "timedout",
        });
        assert_eq!((name(&spec).as_str(), outcome(&spec)), ("MirrorPod when changed should run", Outcome::Failed));
        let labelled =
            |label: &str, state: &str| json!({ "LeafNodeText": format!("DNS works {label}"), "State": state });
        let two = [labelled("[Conformance]", "passed"), labelled("[Provider:GCE]", "skipped")];
        assert_eq!(by_name(two.iter()), BTreeMap::from([("DNS works".to_owned(), Outcome::Passed)]));
        let results = |outcome| BTreeMap::from([("spec".to_owned(), outcome)]);
        let page = compared("", &results(Outcome::Failed), &results(Outcome::Passed));
        assert!(page.contains("| fails | passes | 1 |") && page.contains("| spec | not known |"), "{page}");
        assert!(!compared("", &results(Outcome::Skipped), &results(Outcome::Skipped)).contains("skips | skips"));
    }

    /// The page of the specs of controllers is written by hand.
    #[test]
    fn each_counterpart_of_a_spec_of_controllers_exists() {
        let root = agent::workspace_dir();
        let page = fs::read_to_string(root.join("docs/conformance-apps.md")).unwrap();
        let names: Vec<(&str, &str)> = page.split('`').filter_map(|code| code.split_once("::")).collect();
        let names: Vec<_> = names.into_iter().filter(|(_, name)| *name != "…").collect();
        assert!(names.len() > 30, "{names:?}");
        for (file, name) in names {
            let sources = match file {
                "kinds" => vec![root.join("tests/tests/kinds.rs")],
                table => {
                    ["tests.rs", "properties.rs"].map(|end| root.join("agent/kinds/src").join(table).join(end)).into()
                }
            };
            let is_there = |source: &std::path::PathBuf| {
                fs::read_to_string(source).is_ok_and(|text| text.contains(&format!("fn {name}(")))
            };
            assert!(sources.iter().any(is_there), "{file}::{name}");
        }
    }
}
