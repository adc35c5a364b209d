//! The JSON documents of `/limpet/v1/diff`: the body of its POST, and its response. Fields are only ever added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pods::{self, RejectionDocument};
use limpet_core::forecast::replacement::Replacement;
use limpet_core::forecast::{self, Effect, Forecast, ObjectForecast, PodForecast, ValueChange};
use limpet_core::source::Rejection;
use limpet_model::pod::Edit;

/// The query of a comparison with what the node has itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DiffQuery {
    /// The number of a generation; without it the sources' newest manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The source whose generation it is; by default the only one that has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Manifests to compare with the running pods.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DiffRequest {
    /// The source they would belong to; by default the source that defines their pods now, or the manifest directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether these are all manifests of the directory: pods that are not among them would be removed.
    #[serde(default)]
    pub whole: bool,
    /// The directory they were read from; if it is the manifest directory, they are all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    pub files: Vec<DiffFile>,
}

/// One manifest file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiffFile {
    /// The file name in the directory.
    pub name: String,
    pub text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DiffDocument {
    pub pods: Vec<PodDiffDocument>,
    /// ConfigMaps and Secrets that change.
    pub objects: Vec<ObjectDiffDocument>,
    /// Manifests that would be refused.
    pub rejected: Vec<RejectionDocument>,
    /// Further remarks for the user, one sentence each.
    pub remarks: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDiffDocument {
    pub namespace: String,
    /// Its name, with the node name.
    pub name: String,
    /// The source that would define it, or that defined it if it is removed.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// `starts`, `updates`, `recreates`, `stops`, or `loses` when another pod takes precedence.
    pub change: String,
    /// The fields that differ.
    pub fields: Vec<FieldDocument>,
    /// Containers that an update restarts.
    pub restarts: Vec<String>,
    /// Containers that an update resizes while they run.
    #[serde(default)]
    pub resizes: Vec<String>,
    /// Containers that keep running as they are.
    pub keeps: Vec<String>,
    /// Why it cannot be updated in place, one phrase each.
    pub why: Vec<String>,
    /// The grace period in seconds of the containers that stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
    /// The images of the containers that start.
    pub images: Vec<ImageDocument>,
    /// Conflicts over its name or UID, one sentence each.
    pub remarks: Vec<String>,
}

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldDocument {
    /// Its path: `spec.containers[web].image`.
    pub path: String,
    /// The current value; absent: not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// The new value; absent: not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
    /// Whether it can change without recreating the pod.
    pub in_place: bool,
}

/// The image of one container that starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageDocument {
    pub container: String,
    /// The image, as written in the manifest.
    pub image: String,
    /// `IfNotPresent`, `Always` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<String>,
    /// Whether it is present on this node; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectDiffDocument {
    /// `ConfigMap` or `Secret`.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// The source that defines it.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// `added`, `changed` or `removed`.
    pub change: String,
    /// The values that differ.
    pub values: Vec<ValueDocument>,
    /// Pods whose mounted files are updated at once, as `namespace/name`.
    pub files_of: Vec<String>,
    /// Pods that use the new values only when a container starts next.
    pub starts_of: Vec<String>,
    /// Containers that are restarted for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<ObjectRestartDocument>,
}

/// The containers of a pod that are restarted for an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRestartDocument {
    /// As `namespace/name`.
    pub pod: String,
    pub containers: Vec<String>,
}

/// One value that differs. The values of Secrets and binary values are not shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueDocument {
    pub key: String,
    /// `added`, `changed` or `removed`.
    pub change: String,
    /// The current value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The new value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

impl DiffDocument {
    /// Converts a forecast. `present` says which images are known to be present on this node.
    pub fn new(forecast: &Forecast, rejected: &[Rejection], present: &BTreeMap<String, bool>) -> Self {
        Self {
            pods: forecast.pods.iter().filter_map(|pod| PodDiffDocument::new(pod, present)).collect(),
            objects: forecast.objects.iter().filter_map(ObjectDiffDocument::new).collect(),
            rejected: rejected.iter().map(pods::rejection).collect(),
            remarks: Vec::new(),
        }
    }

    /// Whether anything would change.
    pub fn differs(&self) -> bool {
        !(self.pods.is_empty() && self.objects.is_empty())
    }
}

impl PodDiffDocument {
    fn new(pod: &PodForecast, present: &BTreeMap<String, bool>) -> Option<Self> {
        let record = pod.record()?;
        let (mut replacement, mut why, mut grace_seconds) = (Replacement::default(), Vec::new(), None);
        let change = match &pod.effect {
            Effect::Starts => "starts",
            Effect::Loses => "loses",
            Effect::InPlace(in_place) => {
                replacement.clone_from(in_place);
                "updates"
            }
            Effect::Recreates { why: reasons, grace } => {
                (why, grace_seconds) = (reasons.clone(), Some(grace.as_secs()));
                "recreates"
            }
            Effect::Stops { grace } => {
                grace_seconds = Some(grace.as_secs());
                "stops"
            }
        };
        let images = forecast::images(pod).into_iter().map(|(container, (image, pull_policy))| ImageDocument {
            present: present.get(&image).copied(),
            container,
            image,
            pull_policy,
        });
        Some(Self {
            namespace: record.key.namespace().to_owned(),
            name: record.key.name().to_owned(),
            source: record.source.to_string(),
            origin: record.origin.to_string(),
            change: change.to_owned(),
            fields: pod.edits.iter().map(field).collect(),
            restarts: replacement.restarts,
            resizes: replacement.resizes,
            keeps: replacement.keeps,
            why,
            grace_seconds,
            images: images.collect(),
            remarks: pod.remarks.clone(),
        })
    }
}

fn field(edit: &Edit) -> FieldDocument {
    FieldDocument { path: edit.path.clone(), old: edit.old.clone(), new: edit.new.clone(), in_place: edit.in_place }
}

impl ObjectDiffDocument {
    fn new(object: &ObjectForecast) -> Option<Self> {
        let record = object.record()?;
        let names = |keys: &[limpet_model::pod::PodKey]| keys.iter().map(ToString::to_string).collect();
        Some(Self {
            kind: record.key.kind.as_str().to_owned(),
            namespace: record.key.namespace.to_string(),
            name: record.key.name.to_string(),
            source: object.source.to_string(),
            origin: record.origin.to_string(),
            change: change(object.old.is_some(), object.new.is_some()),
            values: object.values.iter().map(value).collect(),
            files_of: names(&object.files_of),
            starts_of: names(&object.starts_of),
            restarts: object
                .restarts
                .iter()
                .map(|(pod, containers)| ObjectRestartDocument { pod: pod.to_string(), containers: containers.clone() })
                .collect(),
        })
    }
}

fn value(value: &ValueChange) -> ValueDocument {
    ValueDocument {
        key: value.key.clone(),
        change: change(value.old.is_some(), value.new.is_some()),
        old: value.old.clone().flatten(),
        new: value.new.clone().flatten(),
    }
}

fn change(was: bool, will: bool) -> String {
    match (was, will) {
        (false, _) => "added",
        (true, true) => "changed",
        (true, false) => "removed",
    }
    .to_owned()
}
