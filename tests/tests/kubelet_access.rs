//! Who gets in at kubelet's API: by the apiserver's decision, and nobody else.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::{self, Cluster, cluster_role_binding, join, joining};
use limpet_tests::manifest::{IDLE, pod, shell};
use limpet_tests::{TestNode, case, process, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let code = suite::run([joining(case!(the_apiserver_decides_about_certificates_and_tokens))]);
    cluster::end();
    code
}

/// What a client brings.
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

/// Joins with kubelet's API, whose callers the apiserver decides about.
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

/// A token of a service account of `default`, which is made if it is not there.
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
    let mut cluster = cluster::shared()?;
    admit_to_metrics(&cluster, "scraper")?;
    let (scraper, other) = (token(&cluster, "scraper", None)?, token(&cluster, "other", None)?);
    let elsewhere = token(&cluster, "scraper", Some("elsewhere"))?;
    let apiserver: PathBuf =
        cluster.client("apiserver-client", "/O=kubeadm:cluster-admins/CN=kube-apiserver-kubelet-client")?;
    let other_node = cluster.client("other-node", "/O=system:nodes/CN=system:node:edge2")?;
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

    // Without the apiserver: what it said a moment ago, and nobody new.
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
