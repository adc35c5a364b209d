//! Labels of the node in its pods: an apiserver copies those of the topology to a pod that is bound, and a container reads them.

use anyhow::{Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::{TestNode, cluster};
use serde_json::json;

use super::{create, wait_reported};

pub(super) fn a_container_knows_the_zone_of_its_node(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    cluster::join(
        node,
        &cluster,
        &["--node-labels=topology.kubernetes.io/zone=north,topology.kubernetes.io/region=sea"],
    )?;
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": format!("metadata.labels['{path}']") } } });
    let env = json!([field("ZONE", "topology.kubernetes.io/zone"), field("REGION", "topology.kubernetes.io/region")]);
    let mounts = json!([{ "name": "own", "mountPath": "/own" }]);
    let main = with(shell("main", IDLE), json!({ "env": env, "volumeMounts": mounts }));
    let items = json!([{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }]);
    let volumes = json!([{ "name": "own", "downwardAPI": { "items": items } }]);
    create(node, &cluster, &pod("web", json!({ "containers": [main], "volumes": volumes })))?;
    wait_reported(node, &cluster, "web")?;
    let seen = node.exec("web", "main", &["sh", "-c", "echo $ZONE in $REGION; cat /own/labels"])?;
    ensure!(seen.starts_with("north in sea\n") && seen.contains("topology.kubernetes.io/zone=\"north\""), "{seen}");
    Ok(())
}
