//! Pods that an apiserver binds to a node: they run, with what they refer to, with the apiserver and without it.

use std::process::ExitCode;

use admission::{
    a_pod_beyond_the_nodes_number_fails_and_a_critical_one_gets_a_place,
    a_pod_that_does_not_fit_fails_and_a_critical_one_makes_room, a_pod_that_does_not_tolerate_the_node_is_refused,
    a_resize_of_a_guaranteed_pods_cpu_is_infeasible, a_resize_that_does_not_fit_is_deferred_until_there_is_room,
};
use anyhow::{Context as _, Result, ensure};
use claims::{
    claims_are_directories_of_the_node, claims_of_iscsi_are_attached_with_their_secret,
    claims_of_mode_block_are_devices_of_the_node, claims_of_nfs_are_mounted_with_their_options,
};
use cut_link::{
    a_successor_over_a_cut_link_waits_for_the_end_of_its_predecessor,
    a_watch_from_a_version_that_is_too_old_begins_with_a_list,
};
use limpet_tests::cluster::{self, Cluster, join, joining, wait_at};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, image, suite, wait};
use node_labels::a_container_knows_the_zone_of_its_node;
use objects::{a_pod_waits_for_what_it_refers_to_and_follows_its_edits, an_immutable_config_map_is_read_once};
use offline::pods_start_without_an_apiserver_as_they_were_known_last;
use overload::requests_that_an_overloaded_server_rejects_are_sent_again;
use pod_certificates::certificates_of_pods_are_issued_by_their_signer;
use pods_api::{the_pods_api_lists_and_watches_pods, the_pods_api_returns_what_the_apiserver_decodes};
use pull_secrets::{
    an_image_is_pulled_with_a_token_of_the_service_account, an_image_is_pulled_with_the_secret_of_the_service_account,
};
use restored::{
    a_cluster_with_another_authority_ends_nothing, a_recreated_cluster_ends_nothing,
    a_restored_cluster_is_noticed_and_ends_nothing,
};
use runtime_classes::a_runtime_class_is_a_handler_of_the_node;
use serde_json::{Value, json};
use shortage::{a_pod_beyond_its_limit_has_failed_for_good, a_pod_that_comes_while_the_disk_is_short_fails};
use trust_bundles::trust_bundles_are_files_that_follow_their_changes;
use unsent_events::events_of_a_time_without_an_apiserver_outlive_the_agent;

#[path = "api_pods/admission.rs"]
mod admission;
#[path = "api_pods/claims.rs"]
mod claims;
#[path = "api_pods/cut_link.rs"]
mod cut_link;
#[path = "api_pods/node_labels.rs"]
mod node_labels;
#[path = "api_pods/objects.rs"]
mod objects;
#[path = "api_pods/offline.rs"]
mod offline;
#[path = "api_pods/overload.rs"]
mod overload;
#[path = "api_pods/pod_certificates.rs"]
mod pod_certificates;
#[path = "api_pods/pods_api.rs"]
mod pods_api;
#[path = "api_pods/pull_secrets.rs"]
mod pull_secrets;
#[path = "api_pods/restored.rs"]
mod restored;
#[path = "api_pods/runtime_classes.rs"]
mod runtime_classes;
#[path = "api_pods/shortage.rs"]
mod shortage;
#[path = "api_pods/trust_bundles.rs"]
mod trust_bundles;
#[path = "api_pods/unsent_events.rs"]
mod unsent_events;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn main() -> ExitCode {
    let code = suite::run([
        joining(case!(a_bound_pod_runs_and_is_deleted_once_it_has_ended)),
        joining(case!(a_pod_that_ended_unseen_is_deleted_all_the_same)),
        joining(case!(a_pod_waits_for_what_it_refers_to_and_follows_its_edits)),
        joining(case!(an_immutable_config_map_is_read_once)),
        joining(case!(the_pods_api_returns_what_the_apiserver_decodes)),
        case!(the_pods_api_lists_and_watches_pods),
        joining(case!(a_pod_has_a_token_that_the_apiserver_knows)),
        joining(case!(an_image_is_pulled_with_the_secret_of_the_service_account)),
        joining(case!(an_image_is_pulled_with_a_token_of_the_service_account)),
        joining(case!(trust_bundles_are_files_that_follow_their_changes)),
        joining(case!(certificates_of_pods_are_issued_by_their_signer)),
        joining(case!(a_runtime_class_is_a_handler_of_the_node)),
        joining(case!(containers_know_the_services_and_the_pod_itself_comes_first)),
        joining(case!(a_container_knows_the_zone_of_its_node)),
        joining(case!(claims_of_mode_block_are_devices_of_the_node)),
        joining(case!(claims_of_nfs_are_mounted_with_their_options)),
        joining(case!(claims_of_iscsi_are_attached_with_their_secret)),
        joining(case!(what_was_deleted_while_the_agent_was_away_ends)),
        joining(case!(a_successor_over_a_cut_link_waits_for_the_end_of_its_predecessor)),
        joining(case!(requests_that_an_overloaded_server_rejects_are_sent_again)),
        joining(case!(an_edited_image_restarts_one_container_and_a_finished_pod_stays_finished)),
        joining(case!(an_unsupported_pod_is_rejected_and_a_static_pod_takes_precedence)),
        joining(case!(a_pod_is_ready_once_its_readiness_gates_are_open)),
        joining(case!(a_pod_that_does_not_fit_fails_and_a_critical_one_makes_room)),
        joining(case!(a_pod_beyond_the_nodes_number_fails_and_a_critical_one_gets_a_place)),
        joining(case!(a_resize_that_does_not_fit_is_deferred_until_there_is_room)),
        joining(case!(a_resize_of_a_guaranteed_pods_cpu_is_infeasible)).on(|node| {
            let lines = ["cpuManagerPolicy: static".to_owned(), "reservedSystemCPUs: '0'".to_owned()];
            node.kubelet.extend(lines);
        }),
        joining(case!(a_pod_that_does_not_tolerate_the_node_is_refused)),
        joining(case!(a_pod_beyond_its_limit_has_failed_for_good))
            .on(|node| node.kubelet.push("volumeStatsAggPeriod: 1s".to_owned())),
        // By this threshold the disk is always too full.
        joining(case!(a_pod_that_comes_while_the_disk_is_short_fails))
            .on(|node| node.kubelet.push("evictionHard: {nodefs.available: 100Ti}".to_owned())),
        // These cases stop the apiserver, and wait until no other case needs it.
        joining(case!(events_of_a_time_without_an_apiserver_outlive_the_agent)),
        joining(case!(claims_are_directories_of_the_node)),
        joining(case!(pods_start_without_an_apiserver_as_they_were_known_last)),
        joining(case!(a_restored_cluster_is_noticed_and_ends_nothing)),
        joining(case!(a_recreated_cluster_ends_nothing)),
        joining(case!(a_cluster_with_another_authority_ends_nothing)),
        joining(case!(a_watch_from_a_version_that_is_too_old_begins_with_a_list)),
    ]);
    cluster::end();
    code
}

fn object(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

/// The pod as a scheduler has bound it, under a name by which the node's tests find it.
fn bound(node: &TestNode, pod: &Value) -> Value {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    with(pod.clone(), json!({ "metadata": { "name": node.full_name(name) }, "spec": { "nodeName": node.name() } }))
}

fn path(node: &TestNode, pod: &str) -> String {
    format!("{PODS}/{}", node.full_name(pod))
}

fn create(node: &TestNode, cluster: &Cluster, pod: &Value) -> Result<()> {
    cluster.create(PODS, &bound(node, pod))
}

/// This happens after the loss of the node's disk, or if a backup has a pod again that was about to be deleted.
fn a_pod_that_ended_unseen_is_deleted_all_the_same(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    wait_at(&cluster, &format!("/api/v1/nodes/{}", node.name()), "registered", |_| true)?;
    node.agent.kill();
    create(node, &cluster, &simple("web", IDLE))?;
    let path = path(node, "web");
    cluster.delete(&path)?;
    let ended = json!({ "status": { "phase": "Succeeded" } });
    cluster.patch(&format!("{path}/status"), &ended)?;
    let left = cluster.get(&path)?.context("it is gone without its node")?;
    ensure!(left["metadata"]["deletionTimestamp"].is_string(), "{left}");
    node.agent.start()?;
    wait_deleted(node, &cluster, "web")?;
    ensure!(node.containerd.tasks()?.is_empty(), "it has run");
    Ok(())
}

/// The pod once its newest container is reported as running.
fn wait_reported(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<Value> {
    cluster.wait_reported(node, &path(node, pod), pod)
}

fn wait_deleted(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<()> {
    let path = path(node, pod);
    wait::until_true(wait::SOON, &format!("the end of {path}"), || {
        cluster.get(&path).is_ok_and(|shown| shown.is_none())
    })
    .with_context(|| format!("{:?}", cluster.get(&path)))
}

fn a_bound_pod_runs_and_is_deleted_once_it_has_ended(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let script = "trap 'echo ending; sleep 1; echo ended; exit 0' TERM; echo started; while :; do sleep 0.1; done";
    let containers = json!([shell("main", script)]);
    let spec = json!({ "hostNetwork": false, "terminationGracePeriodSeconds": 30, "containers": containers });
    create(node, &cluster, &pod("web", spec))?;
    let shown = wait_reported(node, &cluster, "web")?;
    let on_node = node.wait_running("web")?;
    ensure!(on_node["metadata"]["uid"] == shown["metadata"]["uid"], "{on_node}");
    let status = &shown["status"];
    ensure!(status["podIP"] == on_node["status"]["podIP"] && status["podIP"].is_string(), "{status}");
    ensure!(status["observedGeneration"] == shown["metadata"]["generation"], "{shown}");
    node.wait_logged("web", "main", "started")?;
    let log = node.agent.settings().pod_logs().join(format!(
        "default_{}_{}/main/0.log",
        node.full_name("web"),
        shown["metadata"]["uid"].as_str().unwrap_or_default()
    ));
    // The log gets a second name, because it is removed with the pod.
    let kept = node.dir().join("web.log");
    std::fs::hard_link(&log, &kept).or_else(|_| std::fs::copy(&log, &kept).map(drop))?;
    cluster.delete(&path(node, "web"))?;
    wait_at(&cluster, &path(node, "web"), "its deletion requested", |shown| {
        shown["metadata"]["deletionTimestamp"].is_string()
    })?;
    wait_deleted(node, &cluster, "web")?;
    ensure!(node.pod("web").is_none(), "deleted while it was still there");
    let log = std::fs::read_to_string(&kept)?;
    ensure!(log.contains("ending") && log.contains("ended"), "{log}");
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.lines().filter(|line| line.starts_with("api")).count() == 1, "{sources}");
    Ok(())
}

fn a_pod_has_a_token_that_the_apiserver_knows(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    create(node, &cluster, &simple("web", IDLE))?;
    let shown = wait_reported(node, &cluster, "web")?;
    let directory = "/var/run/secrets/kubernetes.io/serviceaccount";
    let token = node.exec("web", "main", &["cat", &format!("{directory}/token")])?;
    let review = cluster.ask(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        &json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token } }),
    )?;
    let user = &review["status"]["user"];
    ensure!(user["username"] == "system:serviceaccount:default:default", "{review}");
    let of_pod = &user["extra"]["authentication.kubernetes.io/pod-uid"][0];
    ensure!(*of_pod == shown["metadata"]["uid"], "{review}");
    let files = node.exec("web", "main", &["ls", directory])?;
    ensure!(["ca.crt", "namespace", "token"].iter().all(|name| files.contains(name)), "{files}");
    ensure!(!node.agent.log().contains(token.trim()), "the token is in the log");
    Ok(())
}

fn containers_know_the_services_and_the_pod_itself_comes_first(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let service = format!("db-{}", node.name());
    let document = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": service },
        "spec": { "ports": [{ "port": 5432 }], "selector": { "app": "db" } },
    });
    let services = "/api/v1/namespaces/default/services";
    cluster.create(services, &document)?;
    let variable = |end: &str| format!("{}_{end}", service.replace('-', "_").to_uppercase());
    let env = json!({ "env": [
        { "name": "WHERE", "value": format!("db at $({})", variable("SERVICE_HOST")) },
        { "name": variable("SERVICE_PORT"), "value": "1" },
    ] });
    create(node, &cluster, &pod("web", json!({ "containers": [with(shell("main", IDLE), env)] })))?;
    let shown = wait_reported(node, &cluster, "web")?;
    let made = cluster.get(&format!("{services}/{service}"))?.context("no service")?;
    let address = made["spec"]["clusterIP"].as_str().context("no address")?;
    let all = node.exec("web", "main", &["env"])?;
    for line in [
        format!("WHERE=db at {address}"),
        format!("{}={address}", variable("SERVICE_HOST")),
        format!("{}=1", variable("SERVICE_PORT")),
        "KUBERNETES_SERVICE_HOST=10.96.0.1".to_owned(),
        "KUBERNETES_SERVICE_PORT_HTTPS=443".to_owned(),
    ] {
        ensure!(all.lines().any(|variable| variable == line), "{line} in:\n{all}");
    }
    // The deletion of a Service restarts no pod.
    cluster.delete(&format!("{services}/{service}"))?;
    create(node, &cluster, &simple("later", IDLE))?;
    wait_reported(node, &cluster, "later")?;
    let now = wait_reported(node, &cluster, "web")?;
    ensure!(container_id(&now, "main")? == container_id(&shown, "main")?, "restarted");
    Ok(())
}

fn what_was_deleted_while_the_agent_was_away_ends(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    for name in ["kept", "deleted", "forced"] {
        create(node, &cluster, &simple(name, IDLE))?;
    }
    let kept = wait_reported(node, &cluster, "kept")?;
    for name in ["deleted", "forced"] {
        wait_reported(node, &cluster, name)?;
    }
    node.agent.kill();
    // The node never had this pod.
    create(node, &cluster, &simple("missed", IDLE))?;
    cluster.delete(&path(node, "missed"))?;
    cluster.delete(&path(node, "deleted"))?;
    cluster.delete(&format!("{}?gracePeriodSeconds=0", path(node, "forced")))?;
    ensure!(cluster.get(&path(node, "forced"))?.is_none() && cluster.get(&path(node, "deleted"))?.is_some());
    node.agent.start()?;
    wait_deleted(node, &cluster, "deleted")?;
    wait_deleted(node, &cluster, "missed")?;
    node.wait_gone("deleted")?;
    node.wait_gone("forced")?;
    let now = wait_reported(node, &cluster, "kept")?;
    ensure!(container_id(&now, "main")? == container_id(&kept, "main")?, "restarted");
    Ok(())
}

fn an_edited_image_restarts_one_container_and_a_finished_pod_stays_finished(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let spec = json!({ "restartPolicy": "Never", "containers": [shell("main", "echo done once; exit 3")] });
    create(node, &cluster, &pod("job", spec))?;
    create(node, &cluster, &simple("web", IDLE))?;
    let failed = wait_at(&cluster, &path(node, "job"), "failed", |shown| shown["status"]["phase"] == "Failed")?;
    ensure!(container(&failed, "main")["state"]["terminated"]["exitCode"] == 3, "{failed}");
    let before = wait_reported(node, &cluster, "web")?;
    node.agent.kill();
    node.agent.start()?;
    wait_reported(node, &cluster, "web")?;
    let log = node.logs("job", "main")?;
    ensure!(log.matches("done once").count() == 1, "{log}");

    let patch = json!({ "spec": { "containers": [{ "name": "main", "image": image::V2 }] } });
    cluster.patch_items(&path(node, "web"), &patch)?;
    let after = wait_at(&cluster, &path(node, "web"), "restarted with the image", |shown| {
        container(shown, "main")["restartCount"] == 1 && shown["status"]["phase"] == "Running"
    })?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "{after}");
    let log = node.logs("job", "main")?;
    ensure!(log.matches("done once").count() == 1, "{log}");
    Ok(())
}

fn a_pod_is_ready_once_its_readiness_gates_are_open(node: &mut TestNode) -> Result<()> {
    const GATE: &str = "example.com/registered";
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let gates = json!({ "spec": { "readinessGates": [{ "conditionType": GATE }] } });
    create(node, &cluster, &with(simple("gated", IDLE), gates.clone()))?;
    let is = |status: &'static str, reason: &'static str| {
        move |shown: &Value| {
            let ready = cluster::condition(shown, "Ready");
            ready["status"] == status
                && ready["reason"].as_str().unwrap_or_default() == reason
                && cluster::condition(shown, "ContainersReady")["status"] == "True"
        }
    };
    let path = path(node, "gated");
    let shut = wait_at(&cluster, &path, "not ready", is("False", "ReadinessGatesNotReady"))?;
    let message = &cluster::condition(&shut, "Ready")["message"];
    ensure!(message == &format!("corresponding condition of pod readiness gate {GATE:?} does not exist."), "{message}");
    let id = container_id(&node.wait_running("gated")?, "main")?;
    for (status, ready, reason) in [("True", "True", ""), ("False", "False", "ReadinessGatesNotReady")] {
        let patch = json!({ "status": { "conditions": [{ "type": GATE, "status": status }] } });
        cluster.patch_items(&format!("{path}/status"), &patch)?;
        let shown = wait_at(&cluster, &path, "as its gate", is(ready, reason))?;
        ensure!(cluster::condition(&shown, GATE)["status"] == status, "{}", shown["status"]);
    }
    ensure!(container_id(&node.wait_running("gated")?, "main")? == id, "restarted");
    cluster.delete(&path)?;
    wait_deleted(node, &cluster, "gated")?;

    // Nobody can open the gates of a manifest's pod.
    node.apply(&with(simple("own", IDLE), gates))?;
    node.wait_pod("own", "never ready", is("False", "ReadinessGatesNotReady")).map(drop)
}

fn an_unsupported_pod_is_rejected_and_a_static_pod_takes_precedence(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let volumes = json!([{ "name": "data", "rbd": { "image": "data", "monitors": ["192.0.2.1"] } }]);
    create(node, &cluster, &with(simple("data", IDLE), json!({ "spec": { "volumes": volumes } })))?;
    let refused =
        wait_at(&cluster, &path(node, "data"), "refused", |shown| shown["status"]["reason"] == "UnsupportedPodSpec")?;
    let message = refused["status"]["message"].as_str().unwrap_or_default();
    ensure!(refused["status"]["phase"] == "Pending" && message.contains("spec.volumes[0].rbd"), "{refused}");
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.contains("spec.volumes[0].rbd"), "{sources}");
    cluster.delete(&path(node, "data"))?;
    wait_deleted(node, &cluster, "data")?;

    create(node, &cluster, &simple("both", IDLE))?;
    let of_api = container_id(&wait_reported(node, &cluster, "both")?, "main")?;
    node.apply(&simple("both", IDLE))?;
    let on_node = node.wait_pod("both", "the static one", |pod| {
        pod["metadata"]["annotations"]["kubernetes.io/config.source"] == "file"
            && container_id(pod, "main").is_ok_and(|id| id != of_api)
    })?;
    ensure!(on_node["metadata"]["uid"].is_string(), "{on_node}");
    // It was reported as ended, so it does not run again; its controller would have made another.
    let ended = wait_at(&cluster, &path(node, "both"), "ended", |shown| {
        ["Failed", "Succeeded"].iter().any(|phase| shown["status"]["phase"] == *phase)
    })?;
    cluster.delete(&path(node, "both"))?;
    // The static pod then gets its mirror, which has the same name.
    wait_at(&cluster, &path(node, "both"), "the mirror", |shown| shown["metadata"]["uid"] != ended["metadata"]["uid"])?;
    let now = node.wait_running("both")?;
    ensure!(container_id(&now, "main")? == container_id(&on_node, "main")?, "restarted");
    Ok(())
}
