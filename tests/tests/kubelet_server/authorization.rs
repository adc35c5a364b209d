//! Which rights kubelet's server requires: each path with each method, by a user who has none, and the two rights that are
//! enough for one path.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use limpet_tests::{TestNode, cluster, process, wait};
use serde_json::json;

use super::Server;
use super::tables::{METHODS, SUBRESOURCES};

/// A user without any right is refused with a message that names the reviewed access: `TestAuthFilters`,
/// `TestGetRequestAttributes`, and, since the list is that of `AuthzTestCases`, `TestAuthzCoverage`.
fn every_path_and_method(server: &Server, dir: &Path) -> Result<()> {
    let mut requests = String::new();
    let all = || SUBRESOURCES.iter().flat_map(|row| METHODS.map(|method| (row, method)));
    let pair = server.certificate.as_deref().unwrap_or(dir);
    for (number, ((path, _), (method, _))) in all().enumerate() {
        let out = dir.join(format!("answer-{number}"));
        // Writing to a String does not fail.
        let _ = writeln!(
            requests,
            "{}url = \"{}{path}\"\nrequest = {method}\noutput = \"{}\"\ninsecure\nsilent\nshow-error\n\
             max-time = 60\ncert = \"{}\"\nwrite-out = \"%{{http_code}}\\n\"",
            if number == 0 { "" } else { "next\n" },
            server.url,
            out.display(),
            pair.display()
        );
    }
    let file = dir.join("requests");
    std::fs::write(&file, requests)?;
    let statuses = process::checked(Command::new("curl").arg("--config").arg(&file))?;
    let mut wrong = String::new();
    for (number, (((path, subresources), (method, verb)), status)) in all().zip(statuses.lines()).enumerate() {
        let body = std::fs::read_to_string(dir.join(format!("answer-{number}"))).unwrap_or_default();
        let said = format!("Forbidden (user=phibby, verb={verb}, resource=nodes, subresource(s)=[{subresources}])");
        if status != "403" || !body.contains(&said) {
            // Writing to a String does not fail.
            let _ = writeln!(wrong, "{method} {path}: {status} {body}");
        }
    }
    let count = statuses.lines().count();
    ensure!(wrong.is_empty() && count == all().count(), "{count} answers; not as expected:\n{wrong}");
    Ok(())
}

/// `TestFineGrainedAuthz`: either right is enough; none is not, as every path has shown.
fn fine_grained(server: &Server, cluster: &cluster::Cluster, user: &str) -> Result<()> {
    let rules = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": user },
        "rules": [{ "apiGroups": [""], "resources": [format!("nodes/{user}")], "verbs": ["get"] }],
    });
    let subject = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user });
    cluster.create(&format!("{rules}/clusterroles"), &role)?;
    let binding = cluster::cluster_role_binding(user, user, subject);
    cluster.create(&format!("{rules}/clusterrolebindings"), &binding)?;
    cluster.wait_allowed(user, "system:authenticated", user)?;
    let answer = server.ask("GET", "/configz", &[])?;
    ensure!(answer.status == 200, "/configz with nodes/{user}: {answer:?}");
    Ok(())
}

pub(crate) fn reviews_subresources(url: &str, cluster: &cluster::Cluster, node: &TestNode) -> Result<()> {
    let as_user = |name: &str| -> Result<Server> {
        let file = format!("{name}-{}", node.name());
        let certificate = Some(cluster.client(&file, &format!("/CN={name}"), 2)?);
        Ok(Server { url: url.to_owned(), certificate })
    };
    let phibby = as_user("phibby")?;
    wait::until(wait::SOON, "the server", || phibby.ask("GET", "/healthz", &[]).ok())?;
    every_path_and_method(&phibby, node.dir())?;
    for subresource in ["configz", "proxy"] {
        let rights = cluster.get(&format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{subresource}"))?;
        if rights.is_none() {
            fine_grained(&as_user(subresource)?, cluster, subresource)?;
        }
    }
    Ok(())
}
