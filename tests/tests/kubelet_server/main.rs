//! kubelet's own tests of its server (`pkg/kubelet/server` of 1.37.1), as far as they use HTTP, run against the agent: their
//! requests with what they expect. docs/testing.md says which of their tests are here, and which cannot be.
//!
//! The long form runs them against a real kubelet, which shows that the expectations are true.

mod authorization;
mod tables;

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::kubelet_api::{NodeAddress, join_with_api};
use limpet_tests::cluster::{self, joining};
use limpet_tests::contender::{self, Contender};
use limpet_tests::kubelet::Kubelet;
use limpet_tests::manifest::{IDLE, pod, shell};
use limpet_tests::node::NodeOptions;
use limpet_tests::suite::Case;
use limpet_tests::{TestNode, case, process, suite, tools, wait};
use serde_json::{Value, json};

use self::authorization::reviews_subresources;
use self::tables::{ALL_OFF, BUCKETS, DEBUGGING, METHODS, PARTS_OFF, POSTED, ROWS, STREAMS};

fn main() -> ExitCode {
    let mut cases = vec![
        case!(limpet_answers_as_kubelets_tests_expect).on(|node| node.agent = false),
        joining(case!(limpet_reviews_the_subresources_of_kubelets_tests)),
    ];
    if suite::is_long() {
        let with_cri = |node: &mut NodeOptions| (node.agent, node.cri, node.cni) = (false, true, true);
        cases.push(case!(kubelet_answers_as_its_tests_expect).on(with_cri));
        let joining_cri = |case: Case| joining(case).on(|node| node.cri = true);
        cases.push(joining_cri(case!(kubelet_reviews_the_subresources_of_its_tests)));
    }
    let code = suite::run(cases);
    cluster::end();
    code
}

/// Where a server answers, and the user of the requests.
struct Server {
    url: String,
    certificate: Option<PathBuf>,
}

/// An answer: its status, its head in lower case, and its body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

impl Server {
    fn curl(&self, method: &str, path: &str, headers: &[&str]) -> Command {
        let mut command = Command::new("curl");
        command.args(["-sS", "-k", "-i", "--http1.1", "--no-buffer", "--max-time", "60", "-X", method]);
        for header in headers {
            command.args(["-H", header]);
        }
        if let Some(pair) = &self.certificate {
            command.arg("--cert").arg(pair);
        }
        command.arg(format!("{}{path}", self.url));
        command
    }

    fn ask(&self, method: &str, path: &str, headers: &[&str]) -> Result<Answer> {
        // kubelet sends a path without its last slash on to the one with it.
        let said = process::checked(self.curl(method, path, headers).arg("--location"))?;
        let last = said.rfind("HTTP/1.1 ").map_or(&*said, |start| &said[start..]);
        let (head, body) = last.split_once("\r\n\r\n").with_context(|| said.clone())?;
        Ok(Answer { status: status(head)?, head: head.to_lowercase(), body: body.to_owned() })
    }

    /// The head of an answer that may be the beginning of a stream, which is ended.
    fn upgrade(&self, method: &str, path: &str, headers: &[&str]) -> Result<Answer> {
        // The head that curl writes goes there at once, unlike its output.
        let mut command = self.curl(method, path, headers);
        let mut child = command.arg("--verbose").stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stderr.take().context("no stderr")?).lines().map_while(Result::ok);
        let lines = lines.filter_map(|line| Some(line.strip_prefix("< ")?.trim().to_owned()));
        let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
        child.kill().and(child.wait().map(drop))?;
        let head = head.join("\n");
        Ok(Answer { status: status(&head)?, head: head.to_lowercase(), body: String::new() })
    }
}

fn status(head: &str) -> Result<u16> {
    let word = head.split_whitespace().nth(1).with_context(|| format!("no answer: {head}"))?;
    Ok(word.parse()?)
}

/// All differences from the expectations, so that one run shows everything.
#[derive(Default)]
struct Findings(String);

impl Findings {
    /// `test`: kubelet's name of the test.
    fn check(&mut self, test: &str, what: &str, answer: &Answer, holds: bool) {
        if !holds {
            let body: String = answer.body.chars().take(300).collect();
            // Writing to a String does not fail.
            let _ = writeln!(self.0, "{test}: {what}: {} {} {body}", answer.status, answer.head.replace('\n', " | "));
        }
    }

    fn end(self) -> Result<()> {
        ensure!(self.0.is_empty(), "not as expected:\n{}", self.0);
        Ok(())
    }
}

/// A pod with a container that has written and ended, and one that runs.
fn the_pod() -> Value {
    let writes = "echo out1; sleep 0.2; echo err1 >&2; sleep 0.2; echo out2";
    let spec = json!({ "restartPolicy": "Never", "containers": [shell("baz", writes), shell("runs", IDLE)] });
    pod("table", spec)
}

/// Waits until both containers are in these states. Returns the pod's name and UID.
fn wait_ready(contender: &dyn Contender) -> Result<(String, String)> {
    contender::apply(contender, &the_pod())?;
    let pod = wait::until(wait::SOON, "the pod of the table", || {
        let pods = contender.pods().ok()?;
        let state = |pod: &Value, name: &str| {
            let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            all.into_iter().find(|status| status["name"] == name).unwrap_or_default()["state"].clone()
        };
        let ended = |pod: &&Value| state(pod, "baz")["terminated"].is_object();
        pods.iter().find(|pod| ended(pod) && state(pod, "runs")["running"].is_object()).cloned()
    })?;
    let text = |key: &str| pod["metadata"][key].as_str().map(str::to_owned).context("no name or UID");
    Ok((text("name")?, text("uid")?))
}

fn limpet_answers_as_kubelets_tests_expect(node: &mut TestNode) -> Result<()> {
    let port = Port::claim()?;
    let (authority, key) = (node.dir().join("ca.crt"), node.dir().join("ca.key"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority"]);
    process::checked(command.arg("-keyout").arg(key).arg("-out").arg(&authority))?;
    let of_port = format!(
        "address: 127.0.0.1\nport: {}\nauthorization: {{mode: AlwaysAllow}}\n\
         authentication: {{anonymous: {{enabled: true}}, x509: {{clientCAFile: {}}}}}",
        port.number,
        authority.display()
    );
    node.agent.reconfigure(|settings| settings.kubelet.push(of_port))?;
    let server = Server { url: format!("https://127.0.0.1:{}", port.number), certificate: None };
    let mut findings = Findings::default();
    node.agent.start()?;
    wait_answers(&server)?;
    let (name, uid) = wait_ready(&node.agent)?;
    with_everything_on(&server, &name, &uid, &mut findings)?;
    for (handlers, check) in [(PARTS_OFF, parts_off as Check), (ALL_OFF, all_off)] {
        node.agent.terminate()?;
        node.agent.reconfigure(|settings| {
            settings.kubelet.retain(|line| !line.starts_with("enable"));
            settings.kubelet.extend(handlers.iter().map(|(key, value)| format!("{key}: {value}")));
        })?;
        node.agent.start()?;
        wait_answers(&server)?;
        check(&server, &mut findings)?;
    }
    node.agent.terminate()?;
    node.agent.start()?;
    node.remove("table")?;
    findings.end()
}

fn kubelet_answers_as_its_tests_expect(node: &mut TestNode) -> Result<()> {
    let program = tools::kubernetes("kubelet").context("no kubelet; run: cargo xtask kubelet")?;
    let mut kubelet = Kubelet::prepare(&program, node)?;
    let server = Server { url: format!("https://127.0.0.1:{}", kubelet.port()), certificate: None };
    let mut findings = Findings::default();
    // kubelet's test of this feature turns it on.
    kubelet.reconfigure(|it| it["featureGates"] = json!({ "PodLogsQuerySplitStreams": true }))?;
    kubelet.spawn()?;
    wait_answers(&server)?;
    let (name, uid) = wait_ready(&kubelet)?;
    with_everything_on(&server, &name, &uid, &mut findings)?;
    for (handlers, check) in [(PARTS_OFF, parts_off as Check), (ALL_OFF, all_off)] {
        kubelet.stop()?;
        kubelet.reconfigure(|configuration| {
            for (key, value) in handlers {
                configuration[*key] = json!(value);
            }
        })?;
        kubelet.spawn()?;
        wait_answers(&server)?;
        check(&server, &mut findings)?;
    }
    findings.end()
}

fn wait_answers(server: &Server) -> Result<()> {
    wait::until(wait::SOON, "the server", || server.ask("GET", "/healthz", &[]).ok().filter(|it| it.status == 200))
        .map(drop)
}

type Check = fn(&Server, &mut Findings) -> Result<()>;

fn with_everything_on(server: &Server, name: &str, uid: &str, findings: &mut Findings) -> Result<()> {
    let filled = |text: &str| text.replace("POD", name).replace("UID", uid);
    for (test, method, path, expected, part) in ROWS {
        let headers: &[&str] = if path == "/stats/summary" { &["Content-Type: invalid/content/type"] } else { &[] };
        let answer = server.ask(method, &filled(path), headers).with_context(|| format!("{method} {path}"))?;
        // JSON may be indented.
        let body = if part.starts_with('"') { answer.body.replace(": ", ":") } else { answer.body.clone() };
        let holds = answer.status == expected && body.contains(&filled(part));
        findings.check(test, &format!("{method} {path}"), &answer, holds);
    }
    for (query, expected) in STREAMS {
        let answer = server.ask("GET", &format!("/containerLogs/default/{name}/baz{query}"), &[])?;
        findings.check("TestContainerLogsWithSeparateStream", query, &answer, answer.body == expected);
    }
    for path in POSTED {
        let answer = server.ask("POST", path, &[])?;
        let holds = answer.status == 405 && answer.header("allow") == Some("get");
        findings.check("TestGETOnlyEndpointsRejectPostWithAllowHeader", path, &answer, holds);
    }
    let answer = server.ask("GET", "/statusz", &["Accept: text/plain"])?;
    let paths = answer.body.trim_end().rsplit_once("Paths").map(|(_, paths)| paths.trim_matches([':', '=', ' ', '\t']));
    let holds = answer.status == 200 && paths == Some("/configz /debug /flagz /healthz /metrics");
    findings.check("TestStatusz", "the paths", &answer, holds);
    streams(server, name, uid, findings)?;
    buckets(server, findings)
}

const WEBSOCKET: [&str; 4] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: bGltcGV0LWxpbXBldC1saQ==",
];

fn streams(server: &Server, name: &str, uid: &str, findings: &mut Findings) -> Result<()> {
    let spdy = |protocol| ["Connection: Upgrade", "Upgrade: SPDY/3.1", protocol];
    let remote = spdy("X-Stream-Protocol-Version: v4.channel.k8s.io");
    let both =
        [("exec", "TestServeExecInContainer", "&command=ls&command=-a"), ("attach", "TestServeAttachContainer", "")];
    for (verb, test, command) in both {
        let of_pod = format!("/{verb}/default/{name}/runs?ignore=1{command}");
        let answer = server.upgrade("POST", &of_pod, &remote)?;
        findings.check(test, "no input or output", &answer, answer.status == 400);
        for query in ["&output=1", "&error=1", "&output=1&error=1", "&input=1", "&input=1&output=1&error=1"] {
            let answer = server.upgrade("POST", &format!("{of_pod}{query}"), &remote)?;
            findings.check(test, &format!("{verb}{query}"), &answer, answer.status == 101);
        }
        let with_uid = format!("/{verb}/default/{name}/{uid}/runs?ignore=1{command}&input=1&output=1&error=1");
        let answer = server.upgrade("POST", &with_uid, &remote)?;
        findings.check(test, "with UID", &answer, answer.status == 101);
    }
    for path in [format!("/portForward/default/{name}"), format!("/portForward/default/{name}/{uid}")] {
        let answer = server.upgrade("POST", &path, &spdy("X-Stream-Protocol-Version: portforward.k8s.io"))?;
        findings.check("TestServePortForward", "the upgrade", &answer, answer.status == 101);
    }
    let exec = format!("/exec/default/{name}/runs?command=echo&output=1");
    let attach = format!("/attach/default/{name}/runs?output=1");
    let forward = format!("/portForward/default/{name}");
    for (test, path, protocol) in [
        ("TestGetExecWebSocketHandlerSelection", &exec, "v5.channel.k8s.io"),
        ("TestGetExecWebSocketHandlerSelection", &exec, "v4.channel.k8s.io"),
        ("TestGetAttachWebSocketHandlerSelection", &attach, "v5.channel.k8s.io"),
        ("TestGetAttachWebSocketHandlerSelection", &attach, "v4.channel.k8s.io"),
        ("TestGetPortForwardWebSocketHandlerSelection", &forward, "SPDY/3.1+portforward.k8s.io"),
    ] {
        let protocols = format!("Sec-WebSocket-Protocol: {protocol}");
        let headers: Vec<_> = WEBSOCKET.into_iter().chain([protocols.as_str()]).collect();
        let answer = server.upgrade("GET", path, &headers)?;
        let chosen = answer.header("sec-websocket-protocol");
        let holds = answer.status == 101 && chosen == Some(&protocol.to_lowercase());
        findings.check(test, protocol, &answer, holds);
    }
    let page = server.ask("GET", "/metrics", &[])?;
    for (test, subresource) in [("Exec", "exec"), ("Attach", "attach"), ("PortForward", "portforward")] {
        let series = format!("kubelet_websocket_streaming_requests_total{{subresource=\"{subresource}\"}} 1");
        let shown = Answer { body: String::new(), ..page_of(&page) };
        findings.check(
            &format!("TestGet{test}WebSocketHandlerSelection"),
            &series,
            &shown,
            page.body.contains(&series),
        );
    }
    Ok(())
}

fn page_of(answer: &Answer) -> Answer {
    Answer { status: answer.status, head: String::new(), body: String::new() }
}

fn buckets(server: &Server, findings: &mut Findings) -> Result<()> {
    let count = |page: &Answer, label: &str| {
        let lines = page.body.lines().filter(|line| line.starts_with("kubelet_http_requests_total{"));
        let counted =
            lines.filter(|line| line.contains(label)).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        counted.sum::<f64>()
    };
    for (path, bucket) in BUCKETS {
        let label = format!("path=\"{bucket}\"");
        let before = server.ask("GET", "/metrics", &[])?;
        server.ask("GET", path, &[])?;
        let after = server.ask("GET", "/metrics", &[])?;
        let shown = page_of(&after);
        findings.check("TestMetricBuckets", path, &shown, count(&after, &label) > count(&before, &label));
    }
    let page = server.ask("GET", "/metrics", &[])?;
    let shown = page_of(&page);
    let odd = count(&page, "method=\"other\"") > 0.0 && count(&page, "WEIRD") == 0.0;
    findings.check("TestMetricMethodBuckets", "WEIRD", &shown, odd);
    let mut sums = page.body.lines().filter(|line| line.starts_with("kubelet_http_requests_duration_seconds_sum{"));
    let timed = sums.any(|line| line.contains("path=\"pods\"") && !line.ends_with(" 0"));
    findings.check("TestServeHTTPRequestDurationMetric", "pods", &shown, timed);
    Ok(())
}

fn is_off(server: &Server, test: &str, method: &str, path: &str, why: &str, findings: &mut Findings) -> Result<()> {
    let answer = server.ask(method, path, &[])?;
    let holds = answer.status == 405 && answer.body == format!("{why}\n");
    findings.check(test, &format!("{method} {path}"), &answer, holds);
    Ok(())
}

fn parts_off(server: &Server, findings: &mut Findings) -> Result<()> {
    for (path, part) in
        [("/logs/kubelet.log", "logs"), ("/debug/pprof/profile?seconds=2", "profiling"), ("/debug/flags/v", "flags")]
    {
        for method in ["GET", "POST"] {
            let why = format!("{part} endpoint is disabled.");
            is_off(server, "TestDisablingLogAndProfilingHandler", method, path, &why, findings)?;
        }
    }
    Ok(())
}

fn all_off(server: &Server, findings: &mut Findings) -> Result<()> {
    const WHY: &str = "Debug endpoints are disabled.";
    let roots = ["/run", "/exec", "/attach", "/portForward", "/containerLogs", "/runningpods"];
    let below = ["/run/xxx", "/exec/xxx", "/attach/xxx", "/debug/pprof/profile", "/logs/kubelet.log"];
    for path in roots.into_iter().chain(below) {
        for method in ["GET", "POST"] {
            is_off(server, "TestDebuggingDisabledHandlers", method, path, WHY, findings)?;
        }
    }
    for path in DEBUGGING {
        for method in METHODS.map(|(method, _)| method) {
            is_off(server, "TestInstallAuthNotRequiredHandlers", method, path, WHY, findings)?;
        }
    }
    Ok(())
}

fn limpet_reviews_the_subresources_of_kubelets_tests(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::shared()?, NodeAddress::add()?, Port::claim()?);
    join_with_api(node, &cluster, &port, &address)?;
    reviews_subresources(&format!("https://{}:{}", address.address, port.number), &cluster, node)
}

fn kubelet_reviews_the_subresources_of_its_tests(node: &mut TestNode) -> Result<()> {
    let (cluster, address) = (cluster::shared()?, NodeAddress::add()?);
    let program = tools::kubernetes("kubelet").context("no kubelet; run: cargo xtask kubelet")?;
    let mut kubelet = Kubelet::prepare(&program, node)?;
    kubelet.admit(&cluster, &address)?;
    kubelet.spawn()?;
    let asked = reviews_subresources(&format!("https://{}:{}", address.address, kubelet.port()), &cluster, node);
    if let Err(error) = asked {
        bail!("{error:#}\n{}", process::tail(&kubelet.log(), 10));
    }
    Ok(())
}
