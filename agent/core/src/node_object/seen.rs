//! The Node object as the apiserver has it: what of it the node's own reports depend on.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{NodeDescription, PROVIDED_ADDRESS, own_labels};
use crate::csi_node::{CONTROLLER_ATTACHES, NODE_IDS};

/// A Node object as the apiserver has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenNode {
    /// Its UID.
    pub uid: String,
    /// Whether its deletion was requested, and waits for a finalizer.
    pub deleting: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints; one of a form that this version does not know is left out.
    pub taints: Vec<Taint>,
    /// Which boot of the node it is of; empty: not known.
    pub(super) boot_id: String,
    /// When each condition changed last, and what it is: by type.
    pub(super) conditions: BTreeMap<String, (String, Option<Timestamp>)>,
    /// Somebody has decided its addresses.
    pub(super) has_addresses: bool,
    /// The address that it names to a cloud controller.
    pub(super) provided_address: Option<String>,
    /// The annotation [`NODE_IDS`].
    pub csi_node_ids: Option<String>,
    /// It has the annotation [`CONTROLLER_ATTACHES`].
    pub controller_attaches: bool,
    /// `volumesInUse`, as it was reported last.
    pub volumes_in_use: BTreeSet<String>,
    /// `volumesAttached`: what a controller has attached to it.
    pub volumes_attached: BTreeSet<String>,
}

impl SeenNode {
    /// Reads a Node.
    pub fn read(node: &Value) -> Option<Self> {
        let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
        Some(Self {
            volumes_in_use: all(&node["status"]["volumesInUse"]).iter().filter_map(text).collect(),
            volumes_attached: all(&node["status"]["volumesAttached"])
                .iter()
                .filter_map(|one| text(&one["name"]))
                .collect(),
            uid: text(&node["metadata"]["uid"])?,
            deleting: node["metadata"]["deletionTimestamp"].is_string(),
            boot_id: text(&node["status"]["nodeInfo"]["bootID"]).unwrap_or_default(),
            taints: all(&node["spec"]["taints"]).iter().filter_map(|taint| Taint::deserialize(taint).ok()).collect(),
            labels: labels.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect(),
            has_addresses: node["status"]["addresses"].as_array().is_some_and(|all| !all.is_empty()),
            provided_address: text(&node["metadata"]["annotations"][PROVIDED_ADDRESS]),
            csi_node_ids: text(&node["metadata"]["annotations"][NODE_IDS]),
            controller_attaches: node["metadata"]["annotations"][CONTROLLER_ATTACHES] == "true",
            conditions: conditions
                .filter_map(|one| {
                    let changed = one["lastTransitionTime"].as_str().and_then(|time| time.parse().ok());
                    Some((text(&one["type"])?, (text(&one["status"])?, changed)))
                })
                .collect(),
        })
    }

    /// The merge patch that corrects the labels which every node has, and the annotation for a cloud controller, where they differ.
    pub fn metadata_patch(&self, node: &NodeDescription) -> Option<Value> {
        let wrong = own_labels(&node.name, node.architecture)
            .into_iter()
            .filter(|(name, value)| self.labels.get(*name) != Some(value));
        let wrong: BTreeMap<_, _> = wrong.collect();
        let mut metadata = json!({});
        if !wrong.is_empty() {
            metadata["labels"] = json!(wrong);
        }
        let provided = node.provided_address();
        if provided != self.provided_address {
            // A null removes it.
            metadata["annotations"] = json!({ PROVIDED_ADDRESS: provided });
        }
        (metadata != json!({})).then(|| json!({ "metadata": metadata }))
    }
}
