//! A node whose kubeconfig names a program that prints its credentials, as in clouds.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, Cluster, cluster_role_binding, condition, wait_node};
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
/// Prints the credential that is next to it, and counts its runs. It fails while there is none, and may be slow: two runs
/// then take longer than any other file may.
const PROGRAM: &str = "#!/bin/sh
cd \"${0%/*}\" || exit 2
echo run >> runs
case $KUBERNETES_EXEC_INFO in *'\"server\":\"https://'*) ;; *) exit 3 ;; esac
[ \"$1\" = get-token ] && [ \"$ANSWER\" = credential.json ] || exit 4
[ -f \"$ANSWER\" ] || { printf hidden-word; echo 'no login today' >&2; exit 1; }
[ -f slow ] && sleep 6
cat \"$ANSWER\"
";

/// Writes the credential of the node's service account, which may do what nodes do.
fn write_credential(node: &TestNode, cluster: &Cluster, dir: &Path) -> Result<String> {
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let answer = cluster.ask(&format!("{ACCOUNTS}/{}/token", node.name()), &request)?;
    let status = &answer["status"];
    let token = status["token"].as_str().context("no token")?.to_owned();
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": { "token": token, "expirationTimestamp": status["expirationTimestamp"] },
    });
    fs::write(dir.join("partial"), credential.to_string())?;
    fs::rename(dir.join("partial"), dir.join("credential.json"))?;
    Ok(token)
}

fn make_account(node: &TestNode, cluster: &Cluster) -> Result<()> {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": node.name() } });
    cluster.create(ACCOUNTS, &account)
}

fn runs(dir: &Path) -> usize {
    fs::read_to_string(dir.join("runs")).map_or(0, |text| text.lines().count())
}

pub(super) fn a_node_has_its_credentials_of_a_program(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    let dir = node.dir().join("login");
    fs::create_dir(&dir)?;
    fs::write(dir.join("login.sh"), PROGRAM)?;
    fs::set_permissions(dir.join("login.sh"), fs::Permissions::from_mode(0o755))?;
    make_account(node, &cluster)?;
    let subject = json!({ "kind": "ServiceAccount", "namespace": "default", "name": node.name() });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    cluster.create(bindings, &cluster_role_binding(node.name(), "system:node", subject))?;

    cluster.admit(node, &[])?;
    let flag = node.agent.settings().flags.first().context("no flags")?.clone();
    let mut file: Value = serde_json::from_slice(&fs::read(flag.trim_start_matches("--kubeconfig="))?)?;
    // The program is beside the kubeconfig, which names it by a relative path.
    file["users"][0]["user"] = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "./login.sh", "args": ["get-token"],
        "env": [{ "name": "ANSWER", "value": "credential.json" }], "interactiveMode": "Never", "provideClusterInfo": true,
    } });
    fs::write(dir.join("kubeconfig"), serde_json::to_vec(&file)?)?;
    node.agent
        .reconfigure(|settings| settings.flags[0] = format!("--kubeconfig={}", dir.join("kubeconfig").display()))?;
    node.apply(&simple("kept", IDLE))?;
    node.agent.start()?;
    let before = node.wait_running("kept")?;
    let offline = |why: &str| {
        let said = || node.agent.cli(&["status"]).is_ok_and(|said| said.stdout.contains(why));
        wait::until_true(wait::SOON, why, said).with_context(|| format!("{:?}", node.agent.cli(&["status"])))
    };
    offline("credentials: the program of users[].user.exec failed, exit status: 1: no login today")?;

    fs::write(dir.join("slow"), "")?;
    let first = write_credential(node, &cluster, &dir)?;
    let ready = |shown: &Value| condition(shown, "Ready")["status"] == "True";
    wait_node(node, &cluster, "ready", ready)?;
    fs::remove_file(dir.join("slow"))?;
    let asked = runs(&dir);
    // When the cluster no longer accepts the token, the program is run again.
    cluster.delete(&format!("{ACCOUNTS}/{}", node.name()))?;
    fs::remove_file(dir.join("credential.json"))?;
    offline("no login today")?;
    make_account(node, &cluster)?;
    let second = write_credential(node, &cluster, &dir)?;
    wait::until_true(wait::SOON, "the connection", || {
        node.agent.cli(&["sources"]).is_ok_and(|said| said.stdout.contains("online"))
    })?;
    ensure!(runs(&dir) > asked, "the program was not asked again");
    ensure!(container_id(&node.wait_running("kept")?, "main")? == container_id(&before, "main")?, "restarted");
    for secret in [first.as_str(), &second, "hidden-word"] {
        ensure!(!node.agent.log().contains(secret), "a secret is in the log");
    }
    Ok(())
}
