//! kubelet's API on the network: TLS, callers by their certificates, the read-only port and the health port.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::manifest::{pod, shell};
use limpet_tests::{TestNode, case, process, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(callers_by_their_certificates).on(|node| node.agent = false),
        case!(ports_without_certificates).on(|node| node.agent = false),
    ])
}

/// An authority of client certificates, in a directory of its own.
struct Authority(PathBuf);

impl Authority {
    fn make(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority"]);
        process::checked(command.arg("-keyout").arg(dir.join("ca.key")).arg("-out").arg(dir.join("ca.crt")))?;
        Ok(Self(dir))
    }

    /// A key and a certificate of that subject, in one file.
    fn issue(&self, file: &str, subject: &str) -> Result<PathBuf> {
        let pair = self.0.join(file);
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", subject]);
        command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        command.arg("-CA").arg(self.0.join("ca.crt")).arg("-CAkey").arg(self.0.join("ca.key"));
        let certificate = pair.with_extension("crt");
        process::checked(command.arg("-keyout").arg(&pair).arg("-out").arg(&certificate))?;
        let both = [std::fs::read(&pair)?, std::fs::read(&certificate)?].concat();
        std::fs::write(&pair, both)?;
        Ok(pair)
    }
}

/// The status and the body of an answer; an error: there was none.
fn get(url: &str, pair: Option<&Path>) -> Result<(u16, String)> {
    let mut command = Command::new("curl");
    command.args(["-sS", "-k", "--max-time", "60", "-w", "\n%{http_code}", url]);
    if let Some(pair) = pair {
        command.arg("--cert").arg(pair);
    }
    let answer = process::checked(&mut command)?;
    let (body, status) = answer.rsplit_once('\n').unwrap_or_default();
    Ok((status.trim().parse()?, body.to_owned()))
}

fn callers_by_their_certificates(node: &mut TestNode) -> Result<()> {
    let (own, foreign) = (Authority::make(node.dir().join("own"))?, Authority::make(node.dir().join("foreign"))?);
    let apiserver = own.issue("apiserver", "/O=kubeadm:cluster-admins/CN=kube-apiserver-kubelet-client")?;
    let other_node = own.issue("node", "/O=system:nodes/CN=system:node:edge2")?;
    let stranger = foreign.issue("stranger", "/O=system:masters/CN=kube-apiserver-kubelet-client")?;
    let trusted = node.dir().join("clients.crt");
    std::fs::copy(own.0.join("ca.crt"), &trusted)?;

    let port = Port::claim()?;
    let key = format!(
        "address: 127.0.0.1\nport: {}\nauthentication: {{x509: {{clientCAFile: {}}}}}",
        port.number,
        trusted.display()
    );
    node.agent.reconfigure(|settings| {
        settings.kubelet.push(key);
        settings.limpet.push("serverAllowedNames: [kube-apiserver-kubelet-client]".to_owned());
    })?;
    node.agent.start()?;
    node.apply(&pod("web", json!({ "containers": [shell("main", "echo hello from inside; sleep 1000000")] })))?;
    let web = node.wait_running("web")?;
    let url = |path: &str| format!("https://127.0.0.1:{}{path}", port.number);

    let (status, pods) = wait::until(wait::SOON, "kubelet's API", || get(&url("/pods"), Some(&apiserver)).ok())?;
    let pods: Value = serde_json::from_str(&pods)?;
    ensure!(status == 200 && pods["items"][0]["metadata"]["uid"] == web["metadata"]["uid"], "{status}: {pods}");
    let logs = format!("/containerLogs/default/{}/main?tailLines=1", node.full_name("web"));
    let (status, text) = get(&url(&logs), Some(&apiserver))?;
    ensure!((status, &*text) == (200, "hello from inside\n"), "{status}: {text}");

    for path in ["/pods", &logs, "/metrics", "/healthz", "/none"] {
        let (status, body) = get(&url(path), None)?;
        ensure!(status == 401 && body.contains("a client certificate is needed"), "{path}: {status}: {body}");
        let (status, body) = get(&url(path), Some(&other_node))?;
        ensure!(status == 403 && body.contains("serverAllowedNames does not list it"), "{path}: {status}: {body}");
        ensure!(get(&url(path), Some(&stranger)).is_err(), "{path}: an unknown authority's certificate got an answer");
    }
    for own in ["/limpet/v1/pods", "/api/v1/pods"] {
        ensure!(get(&url(own), Some(&apiserver))?.0 == 404, "{own} is served on the network");
    }

    // The authority is replaced while the agent runs.
    std::fs::copy(foreign.0.join("ca.crt"), &trusted)?;
    ensure!(get(&url("/pods"), Some(&apiserver)).is_err(), "an authority that is not trusted any more");
    ensure!(get(&url("/pods"), Some(&stranger))?.0 == 200, "the authority that is trusted now");
    Ok(())
}

fn ports_without_certificates(node: &mut TestNode) -> Result<()> {
    let (read_only, health) = (Port::claim()?, Port::claim()?);
    let keys = format!("address: 127.0.0.1\nreadOnlyPort: {}\nhealthzPort: {}", read_only.number, health.number);
    node.agent.reconfigure(|settings| settings.kubelet.extend(keys.lines().map(str::to_owned)))?;
    node.agent.start()?;
    let status = |port: &Port, path: &str| get(&format!("http://127.0.0.1:{}{path}", port.number), None);
    wait::until(wait::SOON, "both ports", || status(&read_only, "/healthz").and(status(&health, "/healthz")).ok())?;
    let table = [
        (&read_only, "/pods", 200),
        (&read_only, "/metrics", 200),
        (&read_only, "/healthz", 200),
        (&read_only, "/configz", 404),
        (&read_only, "/containerLogs/default/web/main", 404),
        (&health, "/healthz", 200),
        (&health, "/pods", 404),
        (&health, "/metrics", 404),
    ];
    for (port, path, expected) in table {
        let (status, body) = status(port, path)?;
        ensure!(status == expected, "{path}: {status} instead of {expected}: {body}");
    }
    Ok(())
}
