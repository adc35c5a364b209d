//! Reports the node's CSI drivers to the cluster, in the CSINode object and the Node's annotation and labels.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::link::Link;
use super::seen_node::NodeFromApiserver;
use limpet_apiserver_client::request::PatchType;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::csi_node::{CsiNodeChange, step};
use limpet_plugins::csi::CsiDrivers;

/// The most steps to update a CSINode: delete, create, remove an entry, add an entry.
const MAX_STEPS: usize = 6;

/// Keeps the CSINode and the Node's annotation up to date while the agent runs.
pub(super) async fn run(
    link: Link,
    node: String,
    drivers: Arc<CsiDrivers>,
    mut seen: watch::Receiver<NodeFromApiserver>,
) {
    let (mut changes, mut beginnings) = (drivers.subscribe(), link.beginnings());
    let mut failures = 0;
    loop {
        link.online().await;
        changes.borrow_and_update();
        beginnings.borrow_and_update();
        let uid = seen.borrow_and_update().node().map(|node| node.uid.clone());
        if let Some(uid) = &uid {
            match report_to(&link, &node, uid, &drivers, &seen).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    if failures == 1 && !error.is_conflict() {
                        tracing::warn!(%error, "reporting the node's CSI drivers failed");
                    }
                    link.pause(failures, error.retry_after()).await;
                    continue;
                }
            }
        }
        tokio::select! {
            Ok(_) = seen.wait_for(|seen| seen.node().map(|node| &node.uid) != uid.as_ref()) => {}
            Ok(()) = changes.changed() => {}
            Ok(()) = beginnings.changed() => {}
            else => return,
        }
    }
}

async fn report_to(
    link: &Link,
    name: &str,
    uid: &str,
    drivers: &CsiDrivers,
    seen: &watch::Receiver<NodeFromApiserver>,
) -> Result<(), RequestError> {
    let report = drivers.report();
    let (patch, hidden) = match seen.borrow().node() {
        Some(node) => report.metadata_patch(node.csi_node_ids.as_deref(), node.controller_attaches, &node.labels),
        None => return Ok(()),
    };
    for (driver, collision) in &hidden {
        tracing::error!(
            driver,
            collision,
            "the CSI driver is not reported to the cluster; remove the label from the Node"
        );
    }
    if let Some(patch) = patch {
        link.send(Request::patch(Resource::Node(name.to_owned()), PatchType::Merge, patch).metadata_only()).await?;
    }
    if !drivers.is_on() {
        // Disks of iSCSI targets need the annotation as well.
        return Ok(());
    }
    let object = || Resource::CsiNode(name.to_owned());
    let mut current = find(link, object()).await?;
    for _ in 0..MAX_STEPS {
        current = match step(name, uid, current.as_ref(), &report, &hidden) {
            CsiNodeChange::Done => break,
            CsiNodeChange::Create(document) => Some(link.send(Request::create(Resource::CsiNodes, document)).await?),
            CsiNodeChange::Patch(patch) => Some(link.send(Request::patch(object(), PatchType::Merge, patch)).await?),
            CsiNodeChange::Delete => {
                let owned =
                    current.as_ref().and_then(|current| current["metadata"]["uid"].as_str()).unwrap_or_default();
                link.send(Request::delete_now(object(), owned)).await?;
                None
            }
        };
    }
    Ok(())
}

async fn find(link: &Link, resource: Resource) -> Result<Option<Value>, RequestError> {
    match link.send(Request::get(resource)).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
