//! Who is admitted to kubelet's API: those whom the apiserver admits, and no other caller.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::{self, Cluster, cluster_role_binding, join, joining};
use limpet_tests::footprint::Footprint;
use limpet_tests::manifest::{IDLE, pod, shell};
use limpet_tests::process::Daemon;
use limpet_tests::{TestNode, case, process, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let code = suite::run([
        joining(case!(the_apiserver_decides_about_certificates_and_tokens)),
        joining(case!(hostile_clients_get_nothing_and_hold_up_nothing)),
        case!(the_nodes_own_logs_and_the_agents_own_pages),
    ]);
    cluster::end();
    code
}

/// The credential of a client.
#[derive(Debug, Clone, Copy)]
enum Credential<'a> {
    Nothing,
    Certificate(&'a Path),
    Token(&'a str),
}

/// The status and the body of an answer.
fn get(port: &Port, path: &str, credential: Credential<'_>) -> Result<(u16, String)> {
    let mut command = Command::new("curl");
    command.args(["-sS", "-k", "--path-as-is", "--max-time", "60", "-w", "\n%{http_code}"]);
    match credential {
        Credential::Nothing => {}
        Credential::Certificate(pair) => drop(command.arg("--cert").arg(pair)),
        Credential::Token(token) => drop(command.args(["--header", &format!("Authorization: Bearer {token}")])),
    }
    let answer = process::checked(command.arg(format!("https://127.0.0.1:{}{path}", port.number)))?;
    let (body, status) = answer.rsplit_once('\n').context("curl shows no status")?;
    Ok((status.trim().parse()?, body.to_owned()))
}

/// Joins with kubelet's API, for whose callers the apiserver decides.
fn join_with_api(node: &mut TestNode, cluster: &Cluster) -> Result<Port> {
    let port = Port::claim()?;
    node.agent.reconfigure(|settings| {
        let authority = cluster.authority();
        settings.kubelet.push(format!("address: 127.0.0.1\nport: {}", port.number));
        settings.kubelet.push(format!("authentication: {{x509: {{clientCAFile: {}}}}}", authority.display()));
    })?;
    join(node, cluster, &[])?;
    Ok(port)
}

/// A token of a service account of `default`, which is created if it does not exist.
fn token(cluster: &Cluster, account: &str, audience: Option<&str>) -> Result<String> {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    if cluster.get(&format!("{accounts}/{account}"))?.is_none() {
        cluster.create(accounts, &json!({ "metadata": { "name": account } }))?;
    }
    let spec = audience.map_or(json!({}), |audience| json!({ "audiences": [audience] }));
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
    let answer = cluster.ask(&format!("{accounts}/{account}/token"), &request)?;
    Ok(answer["status"]["token"].as_str().context("no token")?.to_owned())
}

/// Lets a service account of `default` read metrics of nodes, and nothing else.
fn admit_to_metrics(cluster: &Cluster, account: &str) -> Result<()> {
    let rules = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": account },
        "rules": [{ "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] }],
    });
    cluster.create(&format!("{rules}/clusterroles"), &role)?;
    let subject = json!({ "kind": "ServiceAccount", "name": account, "namespace": "default" });
    cluster.create(&format!("{rules}/clusterrolebindings"), &cluster_role_binding(account, account, subject))?;
    cluster.wait_allowed(&format!("system:serviceaccount:default:{account}"), "system:serviceaccounts", "metrics")
}

fn the_apiserver_decides_about_certificates_and_tokens(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    admit_to_metrics(&cluster, "scraper")?;
    let (scraper, other) = (token(&cluster, "scraper", None)?, token(&cluster, "other", None)?);
    let elsewhere = token(&cluster, "scraper", Some("elsewhere"))?;
    let apiserver: PathBuf =
        cluster.client("apiserver-client", "/O=kubeadm:cluster-admins/CN=kube-apiserver-kubelet-client", 2)?;
    let other_node = cluster.client("other-node", "/O=system:nodes/CN=system:node:edge2", 2)?;
    let port = join_with_api(node, &cluster)?;
    node.apply(&pod("web", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("web")?;
    let exec = format!("/exec/default/{}/main?command=id&stdout=true", node.full_name("web"));
    let ask = |path: &str, credential| get(&port, path, credential);
    wait::until(wait::SOON, "kubelet's API", || ask("/healthz", Credential::Nothing).ok())?;

    let (scraper, other, elsewhere) =
        (Credential::Token(&scraper), Credential::Token(&other), Credential::Token(&elsewhere));
    let (apiserver, other_node) = (Credential::Certificate(&apiserver), Credential::Certificate(&other_node));
    let (guess, nothing) = (Credential::Token("guess"), Credential::Nothing);
    let table = [
        ("/metrics/resource", [(scraper, 200), (other, 403), (elsewhere, 401), (guess, 401), (nothing, 401)]),
        ("/pods", [(scraper, 403), (other, 403), (elsewhere, 401), (apiserver, 200), (other_node, 403)]),
        ("/stats/summary", [(scraper, 403), (other, 403), (nothing, 401), (apiserver, 200), (other_node, 403)]),
        (&exec, [(scraper, 403), (other, 403), (nothing, 401), (apiserver, 400), (other_node, 403)]),
        ("/none", [(scraper, 403), (other, 403), (nothing, 401), (apiserver, 404), (other_node, 403)]),
    ];
    for (path, credentials) in table {
        for (credential, expected) in credentials {
            let (status, body) = ask(path, credential)?;
            ensure!(status == expected, "{path}: {credential:?}: {status} instead of {expected}: {body}");
        }
    }
    let (_, body) = ask("/pods", scraper)?;
    let said: Value = serde_json::from_str(&body)?;
    let user = "user=system:serviceaccount:default:scraper, verb=get, resource=nodes, subresource(s)=[pods proxy]";
    ensure!(said["message"] == format!("Forbidden ({user})"), "{body}");

    // Without the apiserver its recent answers hold, and no new user is admitted.
    let new = token(&cluster, "scraper", None)?;
    cluster.stop()?;
    let table = [
        ("/metrics/resource", scraper, 200),
        ("/pods", apiserver, 200),
        ("/metrics/resource", Credential::Token(&new), 401),
        ("/configz", apiserver, 500),
    ];
    for (path, credential, expected) in table {
        let (status, body) = ask(path, credential)?;
        ensure!(status == expected, "without an apiserver: {path}: {status} instead of {expected}: {body}");
    }
    node.apply(&pod("meanwhile", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("meanwhile")?;
    cluster.start()?;
    wait::until_true(wait::SOON, "the token that is new", || {
        ask("/metrics/resource", Credential::Token(&new)).is_ok_and(|(status, _)| status == 200)
    })
}

/// Paths of every kind, and tricks with them.
fn paths(node: &TestNode) -> Vec<String> {
    let web = node.full_name("web");
    let of_web =
        ["exec", "attach", "run", "containerLogs", "checkpoint"].map(|first| format!("/{first}/default/{web}/main"));
    let plain = [
        "/",
        "/pods",
        "/pods/",
        "/runningpods/",
        "/configz",
        "/statusz",
        "/flagz",
        "/healthz",
        "/healthz/log",
        "/livez",
        "/metrics",
        "/metrics/resource",
        "/stats/summary",
        "/logs",
        "/logs/",
        "/logs/syslog",
        "/debug/flags/v",
        "/debug/pprof/",
        "/debug/pprof/cmdline",
        "/none",
        "/limpet/v1/pods",
        "/api/v1/pods",
        "/api/v1/namespaces/default/pods/web",
    ];
    let tricks = [
        "//pods",
        "/./pods",
        "/pods/.",
        "/pods/..",
        "/pods/../configz",
        "/healthz/../pods",
        "/metrics/..%2fpods",
        "/%70ods",
        "/pods%2f",
        "/pods%00",
        "/pods.",
        "/pods;a=b",
        "/PODS",
        "/%2e%2e/pods",
        "/logs/../../etc/shadow",
        "/logs/%2e%2e/%2e%2e/etc/shadow",
        "/logs//etc/shadow",
        "/logs/..%2f..%2fetc%2fshadow",
        "/logs/?query=%2F..%2F..%2Fetc%2Fshadow",
        "/logs/?query=a%3Bid",
        "/healthz%2f..%2fpods",
        "/metrics/../exec/default/web/main",
        "/statusz/../pods",
        "/checkpoint/../pods",
        "/stats/%2e%2e/pods",
        "/?/pods",
        "/pods?/healthz",
        "/exec/default/../web/main",
    ];
    let all = plain.into_iter().chain(tricks).map(str::to_owned).chain(of_web.iter().cloned());
    all.chain(of_web.iter().map(|path| format!("{path}/../../../healthz"))).collect()
}

/// A file for curl that requests all the paths repeatedly, each time with another token. `options`: further lines for each.
fn requests(node: &TestNode, port: &Port, name: &str, times: usize, options: &str) -> Result<PathBuf> {
    let mut text = String::new();
    for time in 0..times {
        for path in paths(node) {
            text += &format!(
                "url = \"https://127.0.0.1:{}{path}\"\nheader = \"Authorization: Bearer {name}-{time}\"\n\
                 insecure\npath-as-is\ngloboff\nsilent\nno-progress-meter\nmax-time = 60\noutput = /dev/null\nwrite-out = \"%{{http_code}} %{{url}}\\n\"\n{options}next\n",
                port.number
            );
        }
    }
    let file = node.dir().join(format!("{name}.curl"));
    // No request follows the last one.
    std::fs::write(&file, text.trim_end_matches("next\n"))?;
    Ok(file)
}

/// The status of each path, requested with these arguments of curl; 0: there was no answer.
fn statuses(node: &TestNode, port: &Port, arguments: &[&str]) -> Result<Vec<(u16, String)>> {
    let mut command = Command::new("curl");
    command
        .args(["-s", "-k", "--globoff", "--path-as-is", "--max-time", "60", "--parallel", "--parallel-max", "8"])
        .args(["-w", "%{http_code} %{url}\n"])
        .args(arguments);
    for path in paths(node) {
        command.args(["-o", "/dev/null"]).arg(format!("https://127.0.0.1:{}{path}", port.number));
    }
    // At the end curl complains that some connections were refused.
    let output = process::run(&mut command, b"")?;
    let text = String::from_utf8(output.stdout)?;
    let line = |line: &str| -> Result<(u16, String)> {
        let (status, url) = line.split_once(' ').context("no status")?;
        Ok((status.parse()?, url.to_owned()))
    };
    text.lines().map(line).collect()
}

/// How much private memory a flood may leave the agent with, beyond what it had before: the buffers of the connections
/// that are open at once, and what is remembered of tokens. Measured: 3.3 MiB.
const FLOOD_KIB: u64 = 8 << 10;
/// 10 KiB of certificates; a handshake has at most 16.
const MAX_CHAIN_PEM: usize = 14 << 10;
/// The beginning of a TLS handshake message, which is never complete, however many records follow.
const BEGUN_HANDSHAKE: [u8; 9] = [0x16, 3, 1, 0x3c, 0, 1, 0, 0xff, 0xfe];
const RECORD: usize = 5 + 0x3c00;

fn hostile_clients_get_nothing_and_hold_up_nothing(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    let of_a_pod = token(&cluster, "default", None)?;
    let node_subject = "/O=system:nodes/CN=system:node:edge2";
    let other_node = cluster.client("another-node", node_subject, 2)?;
    let expired = cluster.client("expired", "/O=system:masters/CN=kube-apiserver-kubelet-client", -1)?;
    let apiserver = cluster.client("asking", "/O=kubeadm:cluster-admins/CN=kube-apiserver-kubelet-client", 2)?;
    let foreign = node.dir().join("foreign.pem");
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/O=system:masters/CN=admin",
    ]);
    process::checked(openssl.arg("-keyout").arg(&foreign).arg("-out").arg(foreign.with_extension("crt")))?;
    // This is a long chain, of which nothing may stay in memory.
    let certificate = std::fs::read_to_string(foreign.with_extension("crt"))?;
    let chain = certificate.repeat(MAX_CHAIN_PEM / certificate.len());
    std::fs::write(&foreign, std::fs::read_to_string(&foreign)? + &chain)?;

    let port = join_with_api(node, &cluster)?;
    node.apply(&pod("web", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("web")?;
    wait::until(wait::SOON, "kubelet's API", || get(&port, "/pods", Credential::Certificate(&apiserver)).ok())?;

    let text = |path: &Path| path.display().to_string();
    let (other_node, expired, foreign) = (text(&other_node), text(&expired), text(&foreign));
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let (of_a_pod, guess) = (bearer(&of_a_pod), bearer("guess"));
    let websocket = [
        "--http1.1",
        "-H",
        "Connection: Upgrade",
        "-H",
        "Upgrade: websocket",
        "-H",
        "Sec-WebSocket-Version: 13",
        "-H",
        "Sec-WebSocket-Key: bGltcGV0LWxpbXBldC1saQ==",
        "-H",
        "Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.Z3Vlc3M",
    ];
    let spdy = ["--http1.1", "-X", "POST", "-H", "Connection: Upgrade", "-H", "Upgrade: SPDY/3.1", "-H", &of_a_pod];
    let body = ["-X", "PUT", "-d", "10", "-H", &of_a_pod];
    let table: [(&str, &[&str], &[u16]); 9] = [
        ("no credentials", &[], &[401]),
        ("a certificate of another authority", &["--cert", &foreign], &[401]),
        ("one that has expired", &["--cert", &expired], &[401]),
        ("another node", &["--cert", &other_node], &[403]),
        ("a pod's token", &["-H", &of_a_pod], &[403]),
        ("a guess", &["-H", &guess], &[401]),
        ("a WebSocket with a guess", &websocket, &[401]),
        ("SPDY with a pod's token", &spdy, &[403]),
        ("a body with a pod's token", &body, &[403]),
    ];
    for (who, arguments, allowed) in table {
        let answers = statuses(node, &port, arguments)?;
        ensure!(answers.len() == paths(node).len(), "{who}: {} answers", answers.len());
        let wrong = answers.iter().find(|(status, _)| !allowed.contains(status));
        ensure!(wrong.is_none(), "{who}: {wrong:?} instead of {allowed:?}");
    }

    // These come all at once, but fewer than one address may open: silent connections, endless handshakes, half
    // requests, floods of invalid tokens, and of long chains.
    let pid = node.agent.pid().context("no agent")?;
    // The BPF programs are loaded soon after a container runs, which takes 18 MiB for a moment.
    wait::until_true(wait::SOON, "the BPF programs", || node.agent.log().contains("\"program\":\"oom_victim\""))?;
    let before = Footprint::measure(pid).private;
    let silent: Vec<_> =
        (0..32).map(|_| std::net::TcpStream::connect(("127.0.0.1", port.number))).collect::<Result<_, _>>()?;
    let mut record = BEGUN_HANDSHAKE.to_vec();
    record.resize(RECORD, 0);
    let mut begun = Vec::new();
    for connection in 0..256 {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port.number))?;
        // An eighth of them stay below the limit and open; the others are closed, some before they have sent
        // everything.
        let records = if connection % 8 == 0 { 1 } else { 4 };
        (0..records).try_for_each(|_| stream.write_all(&record)).ok();
        begun.push(stream);
    }
    let mut clients = Vec::new();
    let chain = format!("cert = \"{foreign}\"\nheader = \"Connection: close\"\n");
    for (name, times, options) in [("one", 2, ""), ("two", 2, ""), ("three", 2, ""), ("four", 4, &*chain)] {
        let file = requests(node, &port, name, times, options)?;
        let mut curl = Command::new("curl");
        curl.args(["--parallel", "--parallel-max", "25", "--config"]).arg(&file);
        clients.push(Daemon::start(&mut curl, &node.dir().join(format!("{name}.answers")))?);
    }
    let half = node.dir().join("half");
    std::fs::write(&half, "POST /run/default/web/main HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n")?;
    for _ in 0..8 {
        let mut openssl = Command::new("sh");
        let connect = format!(
            "(cat {}; sleep 1000) | openssl s_client -quiet -connect 127.0.0.1:{}",
            half.display(),
            port.number
        );
        clients.push(Daemon::start(openssl.args(["-c", &connect]), &node.dir().join("half.answers"))?);
    }
    node.apply(&pod("meanwhile", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("meanwhile")?;
    let (status, _) = get(&port, "/pods", Credential::Certificate(&apiserver))?;
    ensure!(status == 200, "whoever may is kept out: {status}");
    let mut answers = Vec::new();
    for mut client in clients.drain(..4) {
        client.wait(wait::SOON)?;
        // Connections that were closed at once have no answer, which curl reports.
        let log = client.log();
        let tried = log.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        ensure!(tried.clone().count() > 0, "a client has tried nothing: {log}");
        answers.extend(tried.filter(|line| !line.starts_with("000 ")).map(str::to_owned));
    }
    let wrong = answers.iter().find(|line| !line.starts_with("401 "));
    ensure!(wrong.is_none() && !answers.is_empty(), "a guess gets {wrong:?}, of {} answers", answers.len());
    let after = Footprint::measure(pid).private;
    ensure!(after < before + FLOOD_KIB, "private memory: {before} KiB before, {after} KiB after");
    drop((clients, silent, begun));
    ensure!(get(&port, "/pods", Credential::Certificate(&apiserver))?.0 == 200, "kubelet's API after the flood");
    Ok(())
}

/// The routes for diagnosing the node, as root has them on the socket.
fn the_nodes_own_logs_and_the_agents_own_pages(node: &mut TestNode) -> Result<()> {
    node.apply(&pod("web", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("web")?;
    let ask = |method: &str, path: &str, body: &str| -> Result<(u16, String)> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", "-w", "\n%{http_code}", "-X", method, "--unix-socket"])
            .arg(node.agent.settings().socket());
        if !body.is_empty() {
            curl.args(["-d", body]);
        }
        let answer = process::checked(curl.arg(format!("http://limpet{path}")))?;
        let (body, status) = answer.rsplit_once('\n').context("curl shows no status")?;
        Ok((status.trim().parse()?, body.to_owned()))
    };
    let web = node.full_name("web");
    let (status, output) = ask("POST", &format!("/run/default/{web}/main?cmd=echo+out+of+run"), "")?;
    ensure!((status, &*output) == (200, "out of run\n"), "{status}: {output}");
    let (status, output) = ask("POST", &format!("/run/default/{web}/main?cmd=false"), "")?;
    ensure!(status == 500 && output.contains("exit code 1"), "{status}: {output}");
    let uid = node.pod("web").context("no pod")?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let (status, output) = ask("POST", &format!("/run/default/{web}/{uid}/main?cmd=echo+by+uid"), "")?;
    ensure!((status, &*output) == (200, "by uid\n"), "{status}: {output}");
    ensure!(ask("POST", &format!("/run/default/{web}/other/main?cmd=true"), "")?.0 == 404, "another pod's UID");

    let log = Path::new("/var/log").join(format!("{web}.log"));
    std::fs::write(&log, "a line of the node\n")?;
    let shown = ask("GET", &format!("/logs/{web}.log"), "");
    let queried = ask("GET", &format!("/logs/?query={web}"), "");
    std::fs::remove_file(&log)?;
    let (shown, queried) = (shown?, queried?);
    ensure!(shown.1 == "a line of the node\n" && queried.1 == "a line of the node\n", "{shown:?} {queried:?}");
    ensure!(ask("GET", "/logs/", "")?.1.contains("<pre>"), "no page");

    let before = node.agent.log_size();
    ensure!(ask("PUT", "/debug/flags/v", "4")?.0 == 200 && ask("PUT", "/debug/flags/v", "high")?.0 == 400, "verbosity");
    ensure!(ask("GET", "/statusz", "")?.1.contains("Binary version: limpet"), "statusz");
    ensure!(node.agent.log_from(before).contains("log verbosity changed"), "not logged");
    ensure!(ask("GET", "/flagz", "")?.1.contains("\nconfig=/"), "flagz");
    ensure!(ask("GET", "/debug/pprof/threadcreate", "")?.1.contains("limpet"), "threads");
    ensure!(ask("GET", "/debug/pprof/heap", "")?.0 == 501, "heap");
    let (status, why) = ask("POST", &format!("/checkpoint/default/{web}/main"), "")?;
    ensure!(status == 500 && why.contains("does not checkpoint"), "{status}: {why}");
    Ok(())
}
