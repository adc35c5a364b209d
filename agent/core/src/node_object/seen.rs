//! The Node object at the apiserver: the parts on which the node's own reports depend.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{NodeDescription, PROVIDED_ADDRESS, own_labels};
use crate::csi_node::{CONTROLLER_ATTACHES, NODE_IDS};
use limpet_model::pod::huge_pages;
use limpet_model::pod::quantity::{self, Amount};

/// The fields of a status that only the node's agent writes and that rarely change.
const OF_AGENT: [&str; 5] = ["daemonEndpoints", "declaredFeatures", "features", "nodeInfo", "runtimeHandlers"];
/// The fields of a status that have amounts.
const AMOUNT_FIELDS: [&str; 2] = ["capacity", "allocatable"];
/// Labels that `--node-labels` may set and that kubelet corrects on an existing Node.
const CORRECTED_LABELS: [&str; 6] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];

/// Which labels of a Node an agent corrects, as kubelet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelCorrection {
    /// None: the agent does not register the Node.
    None,
    /// Those that every node has.
    OfEveryNode,
    /// Those, and the labels of its place and kind with which it is registered; at an agent's first report.
    WithPlace,
}

/// A Node object as the apiserver has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenNode {
    pub uid: String,
    /// Whether its deletion was requested, and waits for a finalizer.
    pub deleting: bool,
    /// Whether it is cordoned, so that no new pods are scheduled to it.
    pub unschedulable: bool,
    pub labels: BTreeMap<String, String>,
    /// Its taints; one of an unknown form is left out.
    pub taints: Vec<Taint>,
    /// The id of the node's boot that it shows; empty if not known.
    pub(super) boot_id: String,
    /// Each condition's status and when it last changed, by type.
    pub(super) conditions: BTreeMap<String, (String, Option<Timestamp>)>,
    /// The digests of the conditions' reasons and messages, by type.
    pub(super) explanations: BTreeMap<String, u64>,
    /// Its addresses with their types.
    pub(super) addresses: Vec<(String, String)>,
    /// Its capacity and its allocatable amounts, by resource.
    pub(super) amounts: [BTreeMap<String, Amount>; 2],
    /// The digest of the fields [`OF_AGENT`].
    pub(super) of_agent: u64,
    /// The digest of its images, which are most of its bytes.
    pub(super) images: u64,
    /// The address that it reports to a cloud controller.
    pub(super) provided_address: Option<String>,
    /// The annotation [`NODE_IDS`].
    pub csi_node_ids: Option<String>,
    /// Whether it has the annotation [`CONTROLLER_ATTACHES`].
    pub controller_attaches: bool,
    /// `volumesInUse`, as it was last reported.
    pub volumes_in_use: BTreeSet<String>,
    /// `volumesAttached`: what a controller has attached to it.
    pub volumes_attached: BTreeSet<String>,
}

impl SeenNode {
    /// Its addresses, each after its type; they include names.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, &str)> {
        self.addresses.iter().map(|(kind, address)| (kind.as_str(), address.as_str()))
    }

    /// Reads a Node.
    pub fn read(node: &Value) -> Option<Self> {
        let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
        let conditions = || node["status"]["conditions"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
        Some(Self {
            unschedulable: node["spec"]["unschedulable"] == true,
            of_agent: digest(&node["status"], &OF_AGENT),
            images: digest(&node["status"], &["images"]),
            volumes_in_use: all(&node["status"]["volumesInUse"]).iter().filter_map(text).collect(),
            volumes_attached: all(&node["status"]["volumesAttached"])
                .iter()
                .filter_map(|volume| text(&volume["name"]))
                .collect(),
            uid: text(&node["metadata"]["uid"])?,
            deleting: node["metadata"]["deletionTimestamp"].is_string(),
            boot_id: text(&node["status"]["nodeInfo"]["bootID"]).unwrap_or_default(),
            taints: all(&node["spec"]["taints"]).iter().filter_map(|taint| Taint::deserialize(taint).ok()).collect(),
            labels: labels.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect(),
            addresses: addresses(&node["status"]),
            amounts: AMOUNT_FIELDS.map(|field| amounts(&node["status"][field])),
            provided_address: text(&node["metadata"]["annotations"][PROVIDED_ADDRESS]),
            csi_node_ids: text(&node["metadata"]["annotations"][NODE_IDS]),
            controller_attaches: node["metadata"]["annotations"][CONTROLLER_ATTACHES] == "true",
            explanations: conditions().filter_map(explanation).collect(),
            conditions: conditions()
                .filter_map(|condition| {
                    let changed = condition["lastTransitionTime"].as_str().and_then(|time| time.parse().ok());
                    Some((text(&condition["type"])?, (text(&condition["status"])?, changed)))
                })
                .collect(),
        })
    }

    /// Whether it has the contents of `status`: conditions, amounts, addresses and volumes. What other clients add is
    /// ignored, and so is what changes only with a boot.
    pub(super) fn matches(&self, status: &Value) -> bool {
        let conditions = status["conditions"].as_array().into_iter().flatten().all(|condition| {
            let known = condition["type"].as_str().and_then(|name| self.conditions.get(name));
            known.is_some_and(|(known, _)| condition["status"] == known.as_str())
        });
        let reported = AMOUNT_FIELDS.map(|field| amounts(&status[field]));
        let has_all = |(reported, known): (&BTreeMap<String, Amount>, &BTreeMap<String, Amount>)| {
            reported.iter().all(|(name, amount)| known.get(name) == Some(amount))
        };
        let volumes: BTreeSet<_> =
            status["volumesInUse"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        conditions
            && reported.iter().zip(&self.amounts).all(has_all)
            && self.sizes_of_huge_pages().all(|name| reported[0].contains_key(name))
            && (status["addresses"].is_null() || addresses(status) == self.addresses)
            && volumes.into_iter().eq(self.volumes_in_use.iter().map(String::as_str))
    }

    /// Whether it has the images of `status`.
    pub(super) fn has_images(&self, status: &Value) -> bool {
        self.images == digest(status, &["images"])
    }

    /// Whether `status` has nothing new except times of conditions.
    pub(super) fn has_all(&self, status: &Value) -> bool {
        let mut reported = status["conditions"].as_array().into_iter().flatten().filter_map(explanation);
        self.matches(status)
            && reported.all(|(name, explanation)| self.explanations.get(&name) == Some(&explanation))
            && self.has_images(status)
            && self.of_agent == digest(status, &OF_AGENT)
    }

    /// The resources among its amounts that are huge pages.
    pub(super) fn sizes_of_huge_pages(&self) -> impl Iterator<Item = &str> {
        self.amounts[0].keys().map(String::as_str).filter(|name| name.starts_with(huge_pages::HUGE_PAGES))
    }

    /// The merge patch that corrects labels, and the annotation for a cloud controller, if they differ.
    pub fn metadata_patch(&self, node: &NodeDescription, correction: LabelCorrection) -> Option<Value> {
        let of_every_node = own_labels(&node.name, node.architecture, &node.labels);
        let of_every_node = of_every_node.into_iter().filter(|_| correction != LabelCorrection::None);
        let of_place = |name: &str| correction == LabelCorrection::WithPlace && CORRECTED_LABELS.contains(&name);
        let given = node.labels.iter().filter(|(name, _)| of_place(name));
        let labels = of_every_node.chain(given.map(|(name, value)| (name.as_str(), value.clone())));
        let wrong: BTreeMap<_, _> = labels.filter(|(name, value)| self.labels.get(*name) != Some(value)).collect();
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

/// A condition's type, and the digest of its reason and message.
fn explanation(condition: &Value) -> Option<(String, u64)> {
    Some((condition["type"].as_str()?.to_owned(), digest(condition, &["reason", "message"])))
}

fn digest(status: &Value, fields: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    fields.iter().for_each(|field| status[field].to_string().hash(&mut hasher));
    hasher.finish()
}

fn addresses(status: &Value) -> Vec<(String, String)> {
    let all = status["addresses"].as_array().into_iter().flatten();
    all.filter_map(|address| Some((address["type"].as_str()?.to_owned(), address["address"].as_str()?.to_owned())))
        .collect()
}

fn amounts(list: &Value) -> BTreeMap<String, Amount> {
    let all = list.as_object().into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), quantity::parse(amount.as_str()?).ok()?))).collect()
}
