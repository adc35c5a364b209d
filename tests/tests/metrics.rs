//! A real Prometheus reads a node as configured in `deploy/prometheus.yml`, and the dashboard of
//! `deploy/grafana-dashboard.json` has data.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::manifest::{IDLE, pod, shell};
use limpet_tests::process::{self, Daemon};
use limpet_tests::{TestNode, case, suite, tools, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(every_panel_of_the_dashboard_queries_existing_metrics).on(|node| (node.agent, node.cni) = (false, true)),
        case!(alerts_are_raised_for_the_faults_that_they_name)
            .on(|node| (node.agent, node.containerd) = (false, false)),
    ])
}

fn alerts_are_raised_for_the_faults_that_they_name(_: &mut TestNode) -> Result<()> {
    let promtool = tools::promtool().context("no promtool: cargo xtask test fetches it")?;
    process::checked(Command::new(&promtool).args(["test", "rules"]).arg(deploy("prometheus-rules-test.yml")))?;
    let rules = fs::read_to_string(deploy("prometheus-rules.yml"))?;
    let page = fs::read_to_string(deploy("../docs/metrics.md"))?;
    let words = rules.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let families: Vec<_> = words.filter(|word| word.starts_with("limpet_") || word.starts_with("kubelet_")).collect();
    ensure!(families.len() > 8, "{families:?}");
    for family in families {
        ensure!(page.contains(&format!("| `{family}` |")), "{family} is not in docs/metrics.md");
    }
    Ok(())
}

/// Expressions of which a node without a cluster, an image pull, a shortage or a fault has no data: how they begin, or what
/// they query.
const WITHOUT_DATA: [&str; 7] = [
    "limpet_apiserver_connected",
    "rest_client_requests_total",
    "kubelet_evictions",
    "kubelet_image_garbage_collected_total",
    "kubelet_image_pull_duration_seconds",
    "errors_total",
    "\"pull_image\"",
];

/// Metrics that only the kernel of a node with cgroup v2, or a container with a limit, has.
const PERHAPS: [&str; 2] = ["container_oom_events_total", "container_cpu_cfs_throttled_seconds_total"];

fn every_panel_of_the_dashboard_queries_existing_metrics(node: &mut TestNode) -> Result<()> {
    let program = tools::prometheus().context("no prometheus: cargo xtask test fetches it")?;
    let port = Port::claim()?;
    let keys = format!("address: 127.0.0.1\nreadOnlyPort: {}", port.number);
    node.agent.reconfigure(|settings| settings.kubelet.extend(keys.lines().map(str::to_owned)))?;
    node.agent.start()?;
    node.apply(&pod("web", json!({ "hostNetwork": false, "containers": [shell("main", IDLE)] })))?;
    node.apply(&pod("fails", json!({ "restartPolicy": "Never", "containers": [shell("main", "exit 3")] })))?;
    node.wait_running("web")?;
    node.wait_pod("fails", "it has failed", |pod| pod["status"]["phase"] == "Failed")?;

    let prometheus = Prometheus::start(&program, node.dir().join("prometheus"), port.number)?;
    wait::until_true(wait::SOON, "all pages", || prometheus.value("sum(up)").is_some_and(|up| up == 3.0))?;
    let dashboard = fs::read(deploy("grafana-dashboard.json"))?;
    let dashboard: Value = serde_json::from_slice(&dashboard)?;
    let targets = dashboard["panels"].as_array().into_iter().flatten().flat_map(|panel| panel["targets"].as_array());
    let expressions: Vec<&str> = targets.flatten().filter_map(|target| target["expr"].as_str()).collect();
    ensure!(expressions.len() > 20, "{expressions:?}");
    for expression in expressions {
        let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "30s");
        ensure!(!expression.contains('$'), "{expression} has a variable that nobody sets");
        let mentions = |names: &[&str]| names.iter().any(|name| expression.contains(name));
        if mentions(&WITHOUT_DATA) {
            ensure!(prometheus.ask(&expression)?.is_empty(), "{expression} has data here");
        } else if mentions(&PERHAPS) {
            prometheus.ask(&expression)?;
        } else {
            let what = format!("data of {expression}");
            wait::until(wait::SOON, &what, || prometheus.ask(&expression).ok().filter(|samples| !samples.is_empty()))
                .with_context(|| format!("{:?}", prometheus.ask(&expression)))?;
        }
    }
    let running = prometheus.value("sum(kubelet_running_pods)");
    ensure!(running == Some(1.0), "{running:?}");
    let failed = prometheus.value("sum(kubelet_terminated_containers_total{exit_code=\"3\",reason=\"Error\"})");
    ensure!(failed == Some(1.0), "{failed:?}");
    Ok(())
}

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

/// A Prometheus that reads the node each second.
struct Prometheus {
    port: Port,
    _daemon: Daemon,
}

impl Prometheus {
    fn start(program: &Path, dir: PathBuf, node: u16) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        let given = fs::read_to_string(deploy("prometheus.yml"))?;
        let config = given.replace("127.0.0.1:10255", &format!("127.0.0.1:{node}")).replace("30s", "1s");
        fs::write(dir.join("prometheus.yml"), config)?;
        fs::copy(deploy("prometheus-rules.yml"), dir.join("prometheus-rules.yml"))?;
        let port = Port::claim()?;
        let mut command = Command::new(program);
        command.arg(format!("--web.listen-address=127.0.0.1:{}", port.number));
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        let daemon = Daemon::start(&mut command, &dir.join("log"))?;
        Ok(Self { port, _daemon: daemon })
    }

    /// The series of an expression now.
    fn ask(&self, expression: &str) -> Result<Vec<Value>> {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "30", "-G", "--data-urlencode", &format!("query={expression}")]);
        command.arg(format!("http://127.0.0.1:{}/api/v1/query", self.port.number));
        let answer: Value = serde_json::from_str(&process::checked(&mut command)?)?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    fn value(&self, expression: &str) -> Option<f64> {
        self.ask(expression).ok()?.first()?["value"][1].as_str()?.parse().ok()
    }
}
