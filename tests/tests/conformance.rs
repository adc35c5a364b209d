//! Kubernetes' own node conformance specs (`test/e2e_node` of 1.37.1), unchanged, against a node of a whole cluster: limpet, or
//! the real kubelet on the same containerd.
//!
//! The specs speak to the apiserver, to the pods, and to the agent's ports 10250, 10255 and 10248. Their images are made here of
//! busybox and of Kubernetes' own agnhost, under the names the specs ask for. ginkgo's
//! reports go to `target/conformance`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::kubelet_api::NodeAddress;
use limpet_tests::cluster::{self, Cluster, cluster_role_binding, condition};
use limpet_tests::image::{Image, ImageBuilder};
use limpet_tests::kubelet::Kubelet;
use limpet_tests::process::{self, Daemon};
use limpet_tests::registry::{Registry, allow_plain_http, self_signed};
use limpet_tests::{TestNode, agent, case, suite, tools, wait};
use serde_json::{Value, json};

/// Names the specs to run, by a regular expression; all without it.
const FOCUS_VARIABLE: &str = "LIMPET_CONFORMANCE_FOCUS";
/// Names the specs that are left out, by a regular expression.
const SKIP_VARIABLE: &str = "LIMPET_CONFORMANCE_SKIP";
/// Which of Kubernetes' labels the specs carry that count. Those that want the node for themselves restart the agent by systemd,
/// with a configuration of their own.
const LABELS: &str = "(NodeConformance || Conformance) && !Flaky && !Serial && !Disruptive";
/// What the specs use of an applet that Debian's busybox lacks: the time of the day with milliseconds.
const NMETER: &str = r#"#!/bin/sh
set -- $(adjtimex | sed -n 's/.*tv_u*sec: *//p')
printf '%s.%03d\n' "$(date -u -d "@$1" +%T)" "$(($2 / 1000))"
"#;
/// What they use of curl.
const CURL: &str = r#"#!/bin/sh
for url; do :; done
address=${url#http://}
path=/${address#*/}
address=${address%%/*}
printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$path" "$address" | nc "${address%:*}" "${address##*:}" | sed '1,/^\r*$/d'
"#;
/// What they use of bash.
const BASH: &str = "#!/bin/sh\nexec sh \"$@\"\n";
/// Most of its time a spec waits.
const PROCESSES: &str = "--procs=8";
/// After that long what is left of the specs is not run: `4h`.
const LIMIT_VARIABLE: &str = "LIMPET_CONFORMANCE_LIMIT";
/// The longest that all specs together may take.
const NIGHT: Duration = Duration::from_secs(4 * 3600);

fn main() -> ExitCode {
    let joining = |case: suite::Case| cluster::joining(case);
    let code = suite::run([
        joining(case!(limpet_runs_the_specs)),
        joining(case!(kubelet_runs_the_specs)).on(|node| node.cri = true),
    ]);
    cluster::end();
    code
}

fn limpet_runs_the_specs(node: &mut TestNode) -> Result<()> {
    let bench = Bench::prepare(node)?;
    bench.cluster.admit(node, &[&format!("--node-ip={}", bench.address.address)])?;
    node.agent.reconfigure(|settings| {
        // The address is given by the flag.
        settings.limpet.retain(|line| !line.starts_with("nodeIP"));
        settings.kubelet.extend(kubelet_lines());
    })?;
    node.agent.start()?;
    let name = node.name().to_owned();
    bench.wait_ready(&name)?;
    let ran = bench.run("limpet", node, &name, &node.agent.settings().pod_logs(), &node.agent.settings().root());
    fs::write(agent::workspace_dir().join("target/conformance/limpet-agent.log"), node.agent.log())?;
    ran
}

fn kubelet_runs_the_specs(node: &mut TestNode) -> Result<()> {
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
    let name = kubelet.name().to_owned();
    bench.wait_ready(&name)?;
    let dir = node.dir().join("kubelet");
    let ran = bench.run("kubelet", node, &name, &dir.join("logs"), &dir.join("root"));
    kubelet.stop()?;
    ran
}

/// What the suite expects of the agent: kubelet's own ports, open to everybody.
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
    program: PathBuf,
    token: String,
    _registry: Registry,
}

impl Bench {
    fn prepare(node: &TestNode) -> Result<Self> {
        let program = tools::kubernetes("e2e_node").context("no e2e_node here; run: cargo xtask conformance")?;
        // The suite makes pods before their namespace has its service account.
        let mut cluster = Cluster::boot_with(&["--disable-admission-plugins=ServiceAccount"])?;
        cluster.start_controllers(&[])?;
        let token = token(&cluster)?;
        let images = images(node.dir())?;
        node.import(&images.iter().collect::<Vec<_>>())?;
        // What is to be pulled always comes from here.
        let registry = Registry::start(&node.dir().join("registry"))?;
        for image in &images {
            let (repository, tag) = image.name.rsplit_once(':').context("an image without a tag")?;
            registry.add(image, repository.trim_start_matches("registry.k8s.io/"), tag)?;
        }
        allow_plain_http(&node.containerd.certs_d(), "registry.k8s.io", registry.address())?;
        Ok(Self { cluster, address: NodeAddress::add()?, program, token, _registry: registry })
    }

    fn wait_ready(&self, name: &str) -> Result<()> {
        let path = format!("/api/v1/nodes/{name}");
        wait::until_true(Duration::from_secs(120), "the node", || {
            let node = self.cluster.get(&path).ok().flatten();
            node.is_some_and(|node| condition(&node, "Ready")["status"] == "True")
        })
    }

    /// Runs the specs; the report of ginkgo goes to `target/conformance`.
    fn run(&self, agent: &str, node: &TestNode, name: &str, logs: &Path, root: &Path) -> Result<()> {
        let dir = node.dir().join("suite");
        fs::create_dir_all(&dir)?;
        // ginkgo runs a program of that name, where it lies.
        fs::hard_link(&self.program, dir.join("e2e_node.test"))
            .or_else(|_| fs::copy(&self.program, dir.join("e2e_node.test")).map(drop))?;
        fs::write(dir.join("system.yaml"), "os: Linux\n")?;
        let reports = agent::workspace_dir().join("target/conformance");
        fs::create_dir_all(&reports)?;
        let report = format!("{agent}.json");
        let ginkgo = tools::kubernetes("ginkgo").context("no ginkgo here; run: cargo xtask conformance")?;
        let script = "mkdir -p /var/log/pods /var/lib/kubelet && mount --bind \"$LOGS\" /var/log/pods && \
                      mkdir -p \"$ROOT/device-plugins\" && mount --rbind \"$ROOT\" /var/lib/kubelet && \
                      mount --bind \"$PLUGINS\" /var/lib/kubelet/device-plugins && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(ginkgo);
        command.args([PROCESSES, "--no-color", "--keep-going", &format!("--label-filter={LABELS}")]);
        command.arg(format!("--json-report={report}")).arg(format!("--output-dir={}", reports.display()));
        let limit = std::env::var(LIMIT_VARIABLE).unwrap_or_else(|_| "4h".to_owned());
        command.arg(format!("--timeout={limit}"));
        if let Ok(focus) = std::env::var(FOCUS_VARIABLE) {
            command.arg(format!("--focus={focus}"));
        }
        if let Ok(skip) = std::env::var(SKIP_VARIABLE) {
            command.arg(format!("--skip={skip}"));
        }
        command.args(["e2e_node.test", "--", "--start-services=false", "--stop-services=false"]);
        command.args(["--prepull-images=false", "--system-spec-file=system.yaml"]);
        command.args([format!("--host={}", self.cluster.address()), format!("--bearer-token={}", self.token)]);
        command.arg(format!("--node-name={name}"));
        command.arg(format!("--container-runtime-endpoint=unix://{}", node.containerd.socket().display()));
        let plugins = if agent == "limpet" { node.agent.settings().plugins() } else { root.to_owned() };
        command.env("LOGS", logs).env("ROOT", root).env("PLUGINS", plugins.join("device-plugins")).current_dir(&dir);
        let log = reports.join(format!("{agent}.log"));
        fs::remove_file(&log).ok();
        let mut suite = Daemon::start(&mut command, &log)?;
        suite.wait(NIGHT)?;
        let report: Value = serde_json::from_slice(&fs::read(reports.join(&report))?)?;
        let failed = report[0]["SpecReports"].as_array().map_or(0, |all| {
            all.iter().filter(|spec| spec["State"] == "failed" || spec["State"] == "timedout").count()
        });
        ensure!(failed == 0, "{failed} specs failed:\n{}", process::tail(&fs::read_to_string(&log)?, 60));
        Ok(())
    }
}

/// A token of somebody who may do everything.
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

/// What the specs run, of busybox and agnhost.
fn images(dir: &Path) -> Result<Vec<Image>> {
    let program = |name: &str| {
        let path = tools::kubernetes(name).with_context(|| format!("no {name} here; run: cargo xtask conformance"))?;
        fs::read(&path).with_context(|| format!("{}", path.display()))
    };
    let agnhost = program("agnhost")?;
    let (key, certificate) = (dir.join("localhost.key"), dir.join("localhost.crt"));
    self_signed(&key, &certificate)?;
    let (key, certificate) = (fs::read(key)?, fs::read(certificate)?);
    let path = json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
    let image = |name: &str| ImageBuilder::new(&format!("registry.k8s.io/{name}")).config("Env", path.clone());
    let passwd = "root:x:0:0::/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/tmp:/bin/sh\n";
    let group = "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n";
    let with_agnhost = |name: &str, arguments: &[&str]| {
        image(name)
            .file("agnhost", agnhost.clone(), 0o755)
            .symlink("agnhost-2", "agnhost")
            .file("etc/passwd", passwd, 0o644)
            .file("etc/group", group, 0o644)
            .file("localhost.crt", certificate.clone(), 0o644)
            .file("localhost.key", key.clone(), 0o644)
            .file("bin/nmeter", NMETER, 0o755)
            .file("bin/curl", CURL, 0o755)
            .file("bin/bash", BASH, 0o755)
            .config("Entrypoint", json!(["/agnhost"]))
            .config("Cmd", json!(arguments))
            .build()
    };
    Ok(vec![
        with_agnhost("e2e-test-images/agnhost:2.66.1", &["pause"])?,
        with_agnhost("e2e-test-images/agnhost:2.55", &["pause"])?,
        with_agnhost("pause:3.10.2", &["pause"])?,
        with_agnhost("e2e-test-images/nginx:1.27.0-2", &["netexec", "--http-port=80"])?,
        with_agnhost("e2e-test-images/nginx:1.28.0-2", &["netexec", "--http-port=80"])?,
        image("e2e-test-images/busybox:1.37.0-2")
            .file("bin/nmeter", NMETER, 0o755)
            .file("bin/bash", BASH, 0o755)
            .build()?,
        image("e2e-test-images/ipc-utils:1.4").build()?,
        image("e2e-test-images/glibc-dns-testing:2.1.1").build()?,
        image("e2e-test-images/kitten:1.8").file("kitten.jpg", "kitten", 0o644).build()?,
        image("e2e-test-images/nonroot:1.5").config("User", json!("1234")).build()?,
        image("e2e-test-images/nonewprivs:1.4")
            .file("usr/local/bin/nnp", program("nonewprivs")?, 0o4755)
            .config("Cmd", json!(["nnp"]))
            .build()?,
    ])
}
