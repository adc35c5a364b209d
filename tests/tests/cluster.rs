//! A node in a cluster: its Node and lease, and the mirror pods of its static pods, with an apiserver that comes and goes.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use certificates::a_node_gets_its_certificates_and_renews_them;
use connections::a_server_that_closes_connections_is_never_lost;
use exec_credentials::a_node_has_its_credentials_of_a_program;
use idle::{a_node_that_reports_sees_what_others_change_meanwhile, an_idle_node_sends_renewals_alone};
use k3s::a_node_has_the_files_and_flags_of_a_k3s_agent;
use limpet_tests::claim::Port;
use limpet_tests::cluster::kubelet_api::{NodeAddress, join_with_api};
use limpet_tests::cluster::{self, Cluster, condition, join, joining, node_path, wait_at, wait_node};
use limpet_tests::image::{self, ImageBuilder};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};
use unauthorized::a_node_that_the_server_does_not_know_is_reported;
use unregistered::a_node_that_does_not_register_itself_waits_for_its_object;

#[path = "cluster/certificates.rs"]
mod certificates;
#[path = "cluster/connections.rs"]
mod connections;
#[path = "cluster/exec_credentials.rs"]
mod exec_credentials;
#[path = "cluster/idle.rs"]
mod idle;
#[path = "cluster/k3s.rs"]
mod k3s;
#[path = "cluster/unauthorized.rs"]
mod unauthorized;
#[path = "cluster/unregistered.rs"]
mod unregistered;

fn main() -> ExitCode {
    let code = suite::run([
        joining(case!(a_node_registers_and_renews_its_lease)),
        joining(case!(a_deleted_node_object_is_recreated)),
        joining(case!(a_static_pod_has_a_mirror_that_comes_back_and_is_put_right)),
        joining(case!(an_edited_manifest_replaces_the_mirror_and_a_removed_one_removes_it)),
        joining(case!(a_pod_that_the_apiserver_refuses_runs_and_is_reported)),
        joining(case!(a_mirror_is_made_once_its_namespace_is_there)),
        joining(case!(a_node_gets_its_certificates_and_renews_them)),
        joining(case!(a_node_has_its_credentials_of_a_program)),
        joining(case!(a_node_has_the_files_and_flags_of_a_k3s_agent)),
        joining(case!(a_node_that_does_not_register_itself_waits_for_its_object)),
        joining(case!(a_node_that_the_server_does_not_know_is_reported)),
        joining(case!(an_idle_node_sends_renewals_alone)),
        joining(case!(a_node_that_reports_sees_what_others_change_meanwhile))
            .on(|node| node.kubelet.push("nodeStatusReportFrequency: 1s".to_owned())),
        joining(case!(logs_and_commands_come_through_the_apiserver)),
        // These cases stop the apiserver, and wait until no other case needs it.
        joining(case!(a_node_that_starts_without_an_apiserver_joins_when_it_comes)),
        joining(case!(what_happened_without_an_apiserver_is_true_when_it_is_back)),
        joining(case!(a_server_that_closes_connections_is_never_lost)),
    ]);
    cluster::end();
    code
}

/// `kubectl logs` and `kubectl exec` request them like this: the apiserver calls the node's port, with its certificate.
fn logs_and_commands_come_through_the_apiserver(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::shared()?, NodeAddress::add()?, Port::claim()?);
    join_with_api(node, &cluster, &port, &address)?;
    let script = "echo hello from inside; trap 'exit 0' TERM; sleep 100000 & wait";
    node.apply(&pod("web", json!({ "containers": [shell("main", script)] })))?;
    wait_true(node, &cluster, "web")?;
    let log = cluster.text(&format!("{}/log?container=main", mirror_path(node, "web")))?;
    ensure!(log == "hello from inside\n", "{log}");
    let frames = cluster.exec(&node.full_name("web"), &["echo", "from", "outside"])?;
    ensure!(frames.contains("101 Switching Protocols") && frames.contains("from outside"), "{frames}");
    let mirror = cluster.get(&mirror_path(node, "web"))?.context("no mirror")?;
    let uid = uid(&mirror).as_str().context("no UID")?;
    let run = format!("{}/proxy/run/default/{}/{uid}/main?cmd=echo%20by%20uid", node_path(node), node.full_name("web"));
    ensure!(cluster.post(&run)? == "by uid\n", "the UID of the mirror");
    let summary = cluster.get(&format!("{}/proxy/stats/summary", node_path(node)))?.context("no summary")?;
    ensure!(summary["pods"][0]["podRef"]["name"] == node.full_name("web"), "{summary}");
    Ok(())
}

fn mirror_path(node: &TestNode, pod: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{}", node.full_name(pod))
}

fn wait_mirror(
    node: &TestNode,
    cluster: &Cluster,
    pod: &str,
    what: &str,
    accept: impl Fn(&Value) -> bool,
) -> Result<Value> {
    wait_at(cluster, &mirror_path(node, pod), what, accept)
}

/// The mirror of a pod whose container `main` is the one that runs on the node.
fn wait_true(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<Value> {
    wait_mirror(node, cluster, pod, "the status of the node's pod", |mirror| {
        let on_node = node.pod(pod).unwrap_or_default();
        let same = container_id(&on_node, "main").ok() == container_id(mirror, "main").ok();
        (same && mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] == *uid(&on_node))
            && mirror["status"]["phase"] == "Running"
            && condition(mirror, "Ready")["status"] == "True"
    })
}

fn wait_no_mirror(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<()> {
    let path = mirror_path(node, pod);
    wait::until_true(wait::SOON, &format!("the end of {path}"), || {
        cluster.get(&path).is_ok_and(|shown| shown.is_none())
    })
}

/// What `limpet status` says.
fn status_document(node: &TestNode) -> Result<Value> {
    Ok(serde_json::from_str(&node.agent.cli(&["status", "-o", "json"])?.stdout)?)
}

/// The value of the metric.
fn connected(metrics: &str) -> Option<&str> {
    let line = metrics.lines().find(|line| line.starts_with("limpet_apiserver_connected{"))?;
    line.rsplit_once(' ').map(|(_, value)| value)
}

fn uid(object: &Value) -> &Value {
    &object["metadata"]["uid"]
}

fn networked(name: &str, more: Value) -> Value {
    pod(name, json!({ "hostNetwork": false, "containers": [with(shell("main", IDLE), more)] }))
}

fn a_node_registers_and_renews_its_lease(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &["--node-labels=site=lab", "--register-with-taints=edge=1:NoSchedule"])?;
    let shown = cluster.get(&node_path(node))?.context("no node")?;
    let labels = &shown["metadata"]["labels"];
    ensure!(labels["kubernetes.io/hostname"] == node.name() && labels["site"] == "lab", "{labels}");
    let taints = shown["spec"]["taints"].as_array().cloned().unwrap_or_default();
    ensure!(taints.iter().any(|taint| taint["key"] == "edge" && taint["effect"] == "NoSchedule"), "{taints:?}");
    let status = &shown["status"];
    ensure!(
        status["addresses"][0] == json!({ "type": "InternalIP", "address": "192.0.2.10" }),
        "{}",
        status["addresses"]
    );
    ensure!(status["capacity"]["pods"] == "110" && status["capacity"]["cpu"].is_string(), "{}", status["capacity"]);
    for pressure in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        ensure!(condition(&shown, pressure)["status"] == "False", "{}", condition(&shown, pressure));
    }
    let runtime = status["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap_or_default();
    ensure!(runtime.starts_with("containerd://") && runtime.len() > "containerd://".len(), "{runtime}");
    for name in ["", "runc"] {
        let handlers = status["runtimeHandlers"].as_array().cloned().unwrap_or_default();
        let handler = handlers.iter().find(|handler| handler["name"] == name).context("no handler of the runtime")?;
        let features = &handler["features"];
        ensure!(features["recursiveReadOnlyMounts"] == true && features["userNamespaces"].is_boolean(), "{handler}");
    }
    ensure!(status["features"] == json!({ "supplementalGroupsPolicy": true }), "{}", status["features"]);
    // Without kubelet's API there are no WebSockets to declare.
    let declared = json!([
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ]);
    ensure!(status["declaredFeatures"] == declared, "{}", status["declaredFeatures"]);

    // The Node lists the images that were present, and then an imported one.
    let images = |shown: &Value| shown["status"]["images"].as_array().cloned().unwrap_or_default();
    let listed = images(&shown);
    ensure!(listed.iter().all(|image| image["sizeBytes"].as_u64() > Some(0)) && !listed.is_empty(), "{listed:?}");
    let more = ImageBuilder::new("registry.test/more:v1").file("more", "1", 0o644).build()?;
    let archive = node.dir().join("more.tar");
    image::write_docker_archive(&[&more], &archive)?;
    node.agent.cli(&["images", "import", &archive.to_string_lossy()])?.success()?;
    wait_node(node, &cluster, "with the image", |shown| {
        let named = |image: &Value| {
            let first = image["names"][0].as_str().unwrap_or_default();
            first.starts_with("registry.test/more@sha256:") && image["names"][1] == "registry.test/more:v1"
        };
        images(shown).iter().any(named)
    })?;

    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    let first = wait_at(&cluster, &lease, "there", |_| true)?;
    ensure!(first["spec"]["holderIdentity"] == node.name() && first["spec"]["leaseDurationSeconds"] == 4, "{first}");
    ensure!(first["metadata"]["ownerReferences"][0]["uid"] == *uid(&shown), "{first}");
    wait_at(&cluster, &lease, "renewed", |now| now["spec"]["renewTime"] != first["spec"]["renewTime"])?;
    cluster.delete(&lease)?;
    wait_at(&cluster, &lease, "made again", |now| uid(now) != uid(&first))?;

    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.lines().any(|line| line.starts_with("api") && line.contains("online")), "{sources}");
    let metrics = node.agent.metrics()?;
    ensure!(connected(&metrics) == Some("1"), "{metrics}");
    ensure!(
        metrics.contains("rest_client_requests_total{code=\"200\",method=\"PATCH\",resource=\"leases\"}"),
        "{metrics}"
    );

    let sizes = "rest_client_request_size_bytes_count{resource=\"leases\",verb=\"PATCH\"}";
    ensure!(metrics.contains(sizes) && metrics.contains("limpet_outbox_entries{kind=\"status\"} 0"), "{metrics}");
    let status = node.agent.cli(&["status"])?.success()?;
    ensure!(status.contains("Apiserver:        online since ") && !status.contains("Needs attention"), "{status}");
    let document = status_document(node)?;
    let client = &document["certificates"][0];
    ensure!(client["purpose"] == "client" && client["notAfter"].is_string(), "{document}");

    // Without containerd the node is not ready; with it, it is again.
    node.containerd.stop()?;
    wait_node(node, &cluster, "not ready", |shown| condition(shown, "Ready")["reason"] == "KubeletNotReady")?;
    let needs = node.agent.cli(&["--quiet", "status"])?;
    ensure!(needs.code == Some(1) && needs.stdout.starts_with("containerd is not connected"), "{needs:?}");
    node.containerd.start()?;
    wait_node(node, &cluster, "ready again", |shown| condition(shown, "Ready")["status"] == "True").map(drop)
}

fn a_static_pod_has_a_mirror_that_comes_back_and_is_put_right(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    node.apply(&with(networked("web", json!({})), json!({ "metadata": { "labels": { "app": "web" } } })))?;
    join(node, &cluster, &[])?;
    let mirror = wait_true(node, &cluster, "web")?;
    let on_node = node.wait_running("web")?;
    let id = container_id(&on_node, "main")?;
    let (shown, known) = (&mirror["status"], &on_node["status"]);
    ensure!(
        shown["podIP"] == known["podIP"] && shown["podIP"].is_string() && shown["hostIP"] == "192.0.2.10",
        "{shown}"
    );
    ensure!(shown["observedGeneration"].is_null(), "a pod of a manifest has no generation: {mirror}");
    let metadata = &mirror["metadata"];
    let annotation = |name: &str| metadata["annotations"][format!("kubernetes.io/config.{name}")].clone();
    ensure!(annotation("mirror") == *uid(&on_node) && annotation("hash").is_string(), "{metadata}");
    ensure!(annotation("source") == "file" && annotation("seen").is_string(), "{metadata}");
    let owner = &metadata["ownerReferences"][0];
    let of_node = cluster.get(&node_path(node))?.context("no node")?;
    ensure!(owner["kind"] == "Node" && owner["uid"] == *uid(&of_node) && owner["controller"] == true, "{owner}");
    wait::until_true(wait::SOON, "the pod's events", || {
        let path =
            format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={}", node.full_name("web"));
        let of_pod = |event: &Value| event["reason"] == "Started" && event["involvedObject"]["uid"] == *uid(&on_node);
        cluster.list(&path).is_ok_and(|events| events.iter().any(of_pod))
    })?;

    // A mirror that is deleted by hand comes back, and the container stays.
    cluster.delete(&mirror_path(node, "web"))?;
    let second = wait_mirror(node, &cluster, "web", "another one", |shown| uid(shown) != uid(&mirror))?;
    ensure!(container_id(&wait_true(node, &cluster, "web")?, "main")? == id, "restarted");
    // A mirror that is edited is put right, its labels and its spec.
    cluster.patch(&mirror_path(node, "web"), &json!({ "metadata": { "labels": { "app": "db" } } }))?;
    let third = wait_mirror(node, &cluster, "web", "its label again", |shown| {
        uid(shown) != uid(&second) && shown["metadata"]["labels"]["app"] == "web"
    })?;
    cluster.patch(&mirror_path(node, "web"), &json!({ "spec": { "activeDeadlineSeconds": 1 } }))?;
    wait_mirror(node, &cluster, "web", "without a deadline", |shown| {
        uid(shown) != uid(&third) && shown["spec"]["activeDeadlineSeconds"].is_null()
    })?;
    ensure!(container_id(&wait_true(node, &cluster, "web")?, "main")? == id, "restarted");
    // What other clients add stays.
    cluster.patch(&mirror_path(node, "web"), &json!({ "metadata": { "annotations": { "cni/address": "1" } } }))?;
    let kept = wait_mirror(node, &cluster, "web", "annotated", |shown| {
        shown["metadata"]["annotations"]["cni/address"] == "1"
    })?;

    // A restart of the agent leaves the mirror as it is.
    node.agent.terminate()?;
    node.agent.start()?;
    let lost = container(&node.wait_running("web")?, "main")["restartCount"] != 0;
    ensure!(!lost, "restarted");
    let requests = "resource=\"pods/status\"";
    wait::until_true(wait::SOON, "the status of this start", || {
        node.agent.metrics().is_ok_and(|page| page.contains(requests))
    })?;
    let now = wait_true(node, &cluster, "web")?;
    ensure!(uid(&now) == uid(&kept) && container_id(&now, "main")? == id, "made anew");
    Ok(())
}

fn an_edited_manifest_replaces_the_mirror_and_a_removed_one_removes_it(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    node.apply(&networked("web", json!({})))?;
    join(node, &cluster, &[])?;
    let first = wait_true(node, &cluster, "web")?;
    let id = container_id(&first, "main")?;

    // A label changes in place: pod and container stay, and the mirror has it.
    node.apply(&with(networked("web", json!({})), json!({ "metadata": { "labels": { "app": "web" } } })))?;
    wait_mirror(node, &cluster, "web", "the label", |shown| shown["metadata"]["labels"]["app"] == "web")?;
    let second = wait_true(node, &cluster, "web")?;
    ensure!(container_id(&second, "main")? == id && uid(&second) != uid(&first), "{second}");
    // `kubeadm upgrade` waits for another hash.
    let hash = |shown: &Value| shown["metadata"]["annotations"]["kubernetes.io/config.hash"].clone();
    ensure!(hash(&second) != hash(&first), "{second}");

    // Any other edit makes another pod.
    node.apply(&networked("web", json!({ "env": [{ "name": "MODE", "value": "edge" }] })))?;
    let third = wait_mirror(node, &cluster, "web", "the variable", |shown| {
        shown["spec"]["containers"][0]["env"][0]["value"] == "edge"
    })?;
    let mark = |shown: &Value| shown["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone();
    ensure!(mark(&third) != mark(&second), "{third}");
    ensure!(container_id(&wait_true(node, &cluster, "web")?, "main")? != id);

    node.remove("web")?;
    node.wait_gone("web")?;
    wait_no_mirror(node, &cluster, "web")?;

    // This pod's manifest is removed while the agent is stopped.
    node.apply(&networked("late", json!({})))?;
    wait_true(node, &cluster, "late")?;
    node.agent.kill();
    node.remove("late")?;
    node.agent.start()?;
    node.wait_gone("late")?;
    wait_no_mirror(node, &cluster, "late")
}

fn a_pod_that_the_apiserver_refuses_runs_and_is_reported(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    let secret =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "token" }, "stringData": { "a": "1" } });
    let env = json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "token", "key": "a" } } }] });
    node.drop_text("web.yaml", &format!("{secret}\n---\n{}", networked("web", env)))?;
    node.wait_running("web")?;
    node.wait_event("FailedMirrorPod")?;
    node.wait_running("web")?;
    let note = "The apiserver does not show the pod";
    let pods = node.agent.cli(&["describe", &node.full_name("web")])?.success()?;
    ensure!(pods.contains(note), "{pods}");
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.contains(note), "{sources}");
    // Without the Secret the mirror is permitted, and the refusal is no longer reported.
    node.apply(&networked("web", json!({})))?;
    wait_true(node, &cluster, "web")?;
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(!sources.contains(note), "{sources}");
    Ok(())
}

fn a_mirror_is_made_once_its_namespace_is_there(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    let namespace = format!("lab-{}", node.name());
    node.apply(&with(simple("web", IDLE), json!({ "metadata": { "namespace": namespace } })))?;
    join(node, &cluster, &[])?;
    node.wait_running("web")?;
    node.wait_event("FailedMirrorPod")?;
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    cluster.create("/api/v1/namespaces", &object)?;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{}", node.full_name("web"));
    wait_at(&cluster, &path, "running", |mirror| mirror["status"]["phase"] == "Running").map(drop)
}

fn a_node_that_starts_without_an_apiserver_joins_when_it_comes(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.stop()?;
    cluster.admit(node, &[])?;
    node.apply(&networked("web", json!({})))?;
    node.agent.start()?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    wait::until_true(wait::SOON, "the reason among the sources", || {
        node.agent
            .cli(&["sources"])
            .ok()
            .and_then(|said| said.success().ok())
            .is_some_and(|said| said.contains("unreachable"))
    })?;
    let metrics = node.agent.metrics()?;
    ensure!(connected(&metrics) == Some("0"), "{metrics}");
    ensure!(node.agent.log().matches("no connection to the apiserver").count() == 1, "one line for one change");
    let status = node.agent.cli(&["status"])?;
    ensure!(status.code == Some(1) && status.stdout.contains("Apiserver:        offline since "), "{status:?}");
    let apiserver = &status_document(node)?["apiserver"];
    ensure!(apiserver["cause"] == "unreachable" && apiserver["lastSync"].is_null(), "{apiserver}");
    ensure!(apiserver["unsent"]["mirrors"] == 1 && apiserver["unsent"]["events"] != 0, "{apiserver}");

    cluster.start()?;
    let mirror = wait_true(node, &cluster, "web")?;
    ensure!(container_id(&mirror, "main")? == id, "restarted");
    wait::until_true(wait::SOON, "nothing unsent", || {
        let nothing = json!({ "statuses": 0, "mirrors": 0, "events": 0 });
        status_document(node).is_ok_and(|document| document["apiserver"]["unsent"] == nothing)
    })?;
    wait_node(node, &cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True").map(drop)
}

fn what_happened_without_an_apiserver_is_true_when_it_is_back(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    for name in ["kept", "edited", "removed"] {
        node.apply(&networked(name, json!({})))?;
    }
    join(node, &cluster, &[])?;
    let kept = wait_true(node, &cluster, "kept")?;
    let edited = container_id(&wait_true(node, &cluster, "edited")?, "main")?;
    wait_true(node, &cluster, "removed")?;

    cluster.stop()?;
    node.apply(&networked("edited", json!({ "env": [{ "name": "MODE", "value": "edge" }] })))?;
    node.remove("removed")?;
    node.apply(&networked("new", json!({})))?;
    node.wait_gone("removed")?;
    node.wait_running("new")?;
    node.wait_pod("edited", "another container", |pod| {
        container_id(pod, "main").is_ok_and(|id| id != edited) && pod["status"]["phase"] == "Running"
    })?;

    cluster.start()?;
    wait_true(node, &cluster, "new")?;
    let shown = wait_true(node, &cluster, "edited")?;
    ensure!(shown["spec"]["containers"][0]["env"][0]["value"] == "edge", "{shown}");
    wait_no_mirror(node, &cluster, "removed")?;
    let now = wait_true(node, &cluster, "kept")?;
    ensure!(uid(&now) == uid(&kept), "its mirror was made anew");
    ensure!(container_id(&now, "main")? == container_id(&kept, "main")?, "restarted");
    Ok(())
}

/// The node waits for the controller, and leaves alone what it has decided.
fn left_to_a_cloud_controller(node: &mut TestNode, cluster: &Cluster, shown: &Value) -> Result<()> {
    let taints = shown["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let key = "node.cloudprovider.kubernetes.io/uninitialized";
    ensure!(taints.iter().any(|taint| taint["key"] == key && taint["effect"] == "NoSchedule"), "{taints:?}");
    let given = &shown["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"];
    ensure!(*given == "192.0.2.10", "{shown}");
    let decided = json!([{ "type": "ExternalIP", "address": "198.51.100.1" }]);
    cluster.patch(&format!("{}/status", node_path(node)), &json!({ "status": { "addresses": decided } }))?;
    // The node sends another status after the controller's decision.
    node.containerd.stop()?;
    let after = wait_node(node, cluster, "not ready", |shown| condition(shown, "Ready")["status"] == "False")?;
    ensure!(after["status"]["addresses"] == decided, "{after}");
    node.containerd.start()?;
    wait_node(node, cluster, "ready again", |shown| condition(shown, "Ready")["status"] == "True").map(drop)
}

fn a_deleted_node_object_is_recreated(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    node.apply(&networked("web", json!({})))?;
    join(node, &cluster, &["--cloud-provider=external"])?;
    let id = container_id(&wait_true(node, &cluster, "web")?, "main")?;
    let first = cluster.get(&node_path(node))?.context("no node")?;
    left_to_a_cloud_controller(node, &cluster, &first)?;
    cluster.delete(&node_path(node))?;
    let second = wait_node(node, &cluster, "another one, ready", |shown| {
        uid(shown) != uid(&first) && condition(shown, "Ready")["status"] == "True"
    })?;
    wait_mirror(node, &cluster, "web", "the new node's", |mirror| {
        mirror["metadata"]["ownerReferences"][0]["uid"] == *uid(&second)
    })?;
    ensure!(container_id(&wait_true(node, &cluster, "web")?, "main")? == id, "restarted");
    Ok(())
}
