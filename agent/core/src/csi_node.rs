//! What a node reports about its CSI drivers: the CSINode object, and the Node's annotation and labels. Pure.
//!
//! As in kubelet, a driver is added when it registers, and removed when its socket goes. A driver that was there
//! before the agent started, and is not back yet, stays listed, so that a restart of the agent does not remove the
//! node from a scheduler's choice.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The annotation of a Node with its name at each driver, as JSON.
pub const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// The annotation of a Node whose volumes a controller attaches. Without it, none does.
pub const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// What a driver reports of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverInfo {
    /// The node's name for the driver.
    pub node_id: String,
    /// Where the node is, as labels.
    pub topology: BTreeMap<String, String>,
    /// How many of its volumes the node can have; 0 if unspecified.
    pub max_volumes: i64,
}

/// The drivers of the node since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverReport {
    /// Those that are registered, by name.
    pub registered: BTreeMap<String, DriverInfo>,
    /// The drivers that were registered and have gone.
    pub gone: BTreeSet<String>,
}

impl DriverReport {
    /// The merge patch of the Node's metadata that brings it up to date, given its annotations [`NODE_IDS`] and
    /// [`CONTROLLER_ATTACHES`], and its labels
    /// (`None`: it is), and the drivers that are not to be shown, with kubelet's message: the Node has another value already
    /// for one of their labels.
    pub fn metadata_patch(
        &self,
        annotation: Option<&str>,
        controller_attaches: bool,
        labels: &BTreeMap<String, String>,
    ) -> (Option<Value>, BTreeMap<String, String>) {
        // An unreadable annotation is replaced.
        let known: BTreeMap<String, String> =
            annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let (mut ids, mut added, mut collisions) = (known.clone(), BTreeMap::new(), BTreeMap::new());
        ids.retain(|name, _| !self.gone.contains(name));
        for (name, driver) in &self.registered {
            let other = |(key, value): &(&String, &String)| labels.get(*key).is_some_and(|known| known != *value);
            if let Some((key, value)) = driver.topology.iter().find(other) {
                let known = &labels[key];
                collisions.insert(
                    name.clone(),
                    format!(
                        "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                         {key:?}:{known:?}"
                    ),
                );
                continue;
            }
            ids.insert(name.clone(), driver.node_id.clone());
            added.extend(driver.topology.iter().filter(|(key, value)| labels.get(*key) != Some(value)));
        }
        let (mut metadata, mut annotations) = (Map::new(), Map::new());
        if ids != known {
            // A null removes the annotation.
            let text = (!ids.is_empty()).then(|| json!(ids).to_string());
            annotations.insert(NODE_IDS.to_owned(), json!(text));
        }
        if !controller_attaches {
            annotations.insert(CONTROLLER_ATTACHES.to_owned(), json!("true"));
        }
        if !annotations.is_empty() {
            metadata.insert("annotations".to_owned(), Value::Object(annotations));
        }
        if !added.is_empty() {
            metadata.insert("labels".to_owned(), json!(added));
        }
        ((!metadata.is_empty()).then(|| json!({ "metadata": metadata })), collisions)
    }
}

/// The next change of the CSINode object.
#[derive(Debug, Clone, PartialEq)]
pub enum CsiNodeChange {
    /// Nothing has to change.
    Done,
    /// Create this object.
    Create(Value),
    /// It belongs to an earlier Node of the same name.
    Delete,
    /// Apply this merge patch, then check again.
    Patch(Value),
}

/// The next step towards the CSINode of the Node `name` with that UID. `current` is what there is; drivers in
/// `hidden` are left out.
pub fn step(
    name: &str,
    node_uid: &str,
    current: Option<&Value>,
    report: &DriverReport,
    hidden: &BTreeMap<String, String>,
) -> CsiNodeChange {
    let shown = || report.registered.iter().filter(|(name, _)| !hidden.contains_key(*name));
    let Some(current) = current else {
        return CsiNodeChange::Create(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {
                "name": name,
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid }],
            },
            "spec": { "drivers": shown().map(|(name, driver)| entry(name, driver)).collect::<Vec<_>>() },
        }));
    };
    let owners = current["metadata"]["ownerReferences"].as_array();
    if !owners.is_some_and(|owners| owners.iter().any(|owner| owner["kind"] == "Node" && owner["uid"] == node_uid)) {
        return CsiNodeChange::Delete;
    }
    let drivers = current["spec"]["drivers"].as_array().cloned().unwrap_or_default();
    let named = |driver: &Value| driver["name"].as_str().unwrap_or_default().to_owned();
    let outdated = |driver: &Value| {
        let name = named(driver);
        let now = report.registered.get(&name).filter(|_| !hidden.contains_key(&name));
        report.gone.contains(&name) && now.is_none() || now.is_some_and(|now| !says(driver, now))
    };
    // An entry cannot be changed, so it is removed first and then added again.
    let kept: Vec<Value> = drivers.iter().filter(|driver| !outdated(driver)).cloned().collect();
    let all = match kept.len() < drivers.len() {
        true => kept,
        false => {
            let is_missing = |(name, _): &(&String, &DriverInfo)| !kept.iter().any(|driver| named(driver) == **name);
            let added: Vec<Value> = shown().filter(is_missing).map(|(name, driver)| entry(name, driver)).collect();
            if added.is_empty() {
                return CsiNodeChange::Done;
            }
            kept.into_iter().chain(added).collect()
        }
    };
    // Another client's change in between is not undone.
    let version = &current["metadata"]["resourceVersion"];
    CsiNodeChange::Patch(json!({ "metadata": { "resourceVersion": version }, "spec": { "drivers": all } }))
}

/// A driver in the form of CSINode.
fn entry(name: &str, driver: &DriverInfo) -> Value {
    let keys: Vec<&String> = driver.topology.keys().collect();
    let mut entry = json!({ "name": name, "nodeID": driver.node_id, "topologyKeys": keys });
    if let Some(count) = count(driver) {
        entry["allocatable"] = json!({ "count": count });
    }
    entry
}

/// Whether an entry of a CSINode is what the driver reports. An apiserver shows an empty list as null.
fn says(entry: &Value, driver: &DriverInfo) -> bool {
    let keys: BTreeSet<&str> =
        entry["topologyKeys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    entry["nodeID"] == driver.node_id.as_str()
        && keys == driver.topology.keys().map(String::as_str).collect()
        && entry["allocatable"]["count"].as_i64() == count(driver).map(i64::from)
}

/// How many of its volumes the node can have, if the driver limits them.
fn count(driver: &DriverInfo) -> Option<i32> {
    (driver.max_volumes > 0).then(|| i32::try_from(driver.max_volumes).unwrap_or(i32::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn report(id: &str, zone: Option<&str>) -> DriverReport {
        let topology = zone.map(|zone| ("topology.d/zone".to_owned(), zone.to_owned())).into_iter().collect();
        let driver = DriverInfo { node_id: id.to_owned(), topology, max_volumes: 7 };
        DriverReport { registered: [("d".to_owned(), driver)].into(), gone: BTreeSet::new() }
    }

    fn gone() -> DriverReport {
        DriverReport { gone: ["d".to_owned()].into(), ..DriverReport::default() }
    }

    #[test]
    fn the_node_names_its_ids_and_labels_of_other_values_are_a_collision() {
        let labels = |zone: &str| BTreeMap::from([("topology.d/zone".to_owned(), zone.to_owned())]);
        let (patch, collisions) =
            report("n1", Some("a")).metadata_patch(Some(r#"{"other":"x"}"#), true, &BTreeMap::new());
        let wanted = json!({"metadata": {"annotations": {NODE_IDS: r#"{"d":"n1","other":"x"}"#},
            "labels": {"topology.d/zone": "a"}}});
        assert_eq!((patch, collisions.len()), (Some(wanted), 0));
        let (patch, _) = report("n1", Some("a")).metadata_patch(Some(r#"{"d":"n1"}"#), true, &labels("a"));
        assert_eq!(patch, None);
        let (patch, collisions) = report("n1", Some("a")).metadata_patch(None, true, &labels("b"));
        assert_eq!(patch, None);
        assert!(collisions["d"].ends_with(r#"existing label is "topology.d/zone":"b""#), "{collisions:?}");
        let (patch, _) = DriverReport::default().metadata_patch(None, false, &BTreeMap::new());
        assert_eq!(patch.unwrap()["metadata"]["annotations"], json!({CONTROLLER_ATTACHES: "true"}));
        // Until it is back after a restart it stays listed; once its socket has gone it does not.
        assert_eq!(DriverReport::default().metadata_patch(Some(r#"{"d":"n1"}"#), true, &BTreeMap::new()).0, None);
        let (patch, _) = gone().metadata_patch(Some(r#"{"d":"n1"}"#), true, &BTreeMap::new());
        assert_eq!(patch.unwrap()["metadata"]["annotations"], json!({NODE_IDS: null}));
        assert_eq!(
            report("n1", None).metadata_patch(Some("{"), true, &BTreeMap::new()).0.unwrap()["metadata"]["annotations"],
            json!({NODE_IDS: r#"{"d":"n1"}"#})
        );
    }

    #[test]
    fn a_csi_node_is_made_corrected_and_replaced() {
        let none = BTreeMap::new();
        let CsiNodeChange::Create(made) = step("n", "u1", None, &report("n1", Some("a")), &none) else {
            panic!("not made")
        };
        let entry =
            json!({"name": "d", "nodeID": "n1", "topologyKeys": ["topology.d/zone"], "allocatable": {"count": 7}});
        assert_eq!(made["spec"]["drivers"], json!([entry]));
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u1");
        let current = |drivers: Value| {
            let mut current = made.clone();
            current["metadata"]["resourceVersion"] = json!("5");
            current["spec"]["drivers"] = drivers;
            current
        };
        let next = |drivers: Value, report: &DriverReport| step("n", "u1", Some(&current(drivers)), report, &none);
        let patch = |drivers: Value| {
            CsiNodeChange::Patch(json!({"metadata": {"resourceVersion": "5"}, "spec": {"drivers": drivers}}))
        };
        let other = json!({"name": "other", "nodeID": "x"});
        assert_eq!(next(json!([entry]), &report("n1", Some("a"))), CsiNodeChange::Done);
        assert_eq!(next(json!([entry, other]), &DriverReport::default()), CsiNodeChange::Done);
        assert_eq!(next(json!([other]), &report("n1", Some("a"))), patch(json!([other, entry])));
        assert_eq!(next(json!([entry, other]), &gone()), patch(json!([other])));
        // Its entry cannot change, so it is removed, and the next step adds it.
        assert_eq!(next(json!([entry]), &report("n2", None)), patch(json!([])));
        assert_eq!(
            next(json!([]), &report("n2", None)),
            patch(json!([{"name": "d", "nodeID": "n2", "topologyKeys": [], "allocatable": {"count": 7}}]))
        );
        let shown = json!([{"name": "d", "nodeID": "n2", "topologyKeys": null, "allocatable": {"count": 7}}]);
        assert_eq!(next(shown, &report("n2", None)), CsiNodeChange::Done);
        assert_eq!(step("n", "u2", Some(&current(json!([entry]))), &gone(), &none), CsiNodeChange::Delete);
        let hidden = BTreeMap::from([("d".to_owned(), "collision".to_owned())]);
        assert_eq!(step("n", "u1", Some(&current(json!([]))), &report("n1", None), &hidden), CsiNodeChange::Done);
    }
}
