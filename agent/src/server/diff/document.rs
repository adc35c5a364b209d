//! The document of `/limpet/v1/diff`, and what is asked with a POST there. Fields are only ever added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::server::document::RejectionDocument;
use crate::server::view;
use limpet_core::forecast::{self, Effect, Forecast, ObjectForecast, PodForecast, ValueChange};
use limpet_core::source::Rejection;
use limpet_model::pod::Edit;

/// Manifests to compare with what runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DiffRequest {
    /// The source they would come by; otherwise the one their pods come from now, or the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// They are all that the manifest directory holds: what is not among them is gone.
    #[serde(default)]
    pub whole: bool,
    /// The directory they are all manifests of; the manifest directory stands for itself whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The manifests.
    pub files: Vec<DiffFile>,
}

/// One manifest file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiffFile {
    /// Its name in the directory.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// What would change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DiffDocument {
    /// Pods that change.
    pub pods: Vec<PodDiffDocument>,
    /// ConfigMaps and Secrets that change.
    pub objects: Vec<ObjectDiffDocument>,
    /// Manifests that would be refused.
    pub rejected: Vec<RejectionDocument>,
    /// What else people should know, a sentence each.
    pub remarks: Vec<String>,
}

/// What becomes of one pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDiffDocument {
    /// Its namespace.
    pub namespace: String,
    /// Its name, the node's included.
    pub name: String,
    /// The source it would come from, or came from when it goes.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// `starts`, `updates`, `recreates`, `stops`, or `loses` when another pod comes first.
    pub change: String,
    /// The fields that differ.
    pub fields: Vec<FieldDocument>,
    /// Containers that an update restarts.
    pub restarts: Vec<String>,
    /// Containers that run on.
    pub keeps: Vec<String>,
    /// Why it cannot be updated, a phrase each.
    pub why: Vec<String>,
    /// Seconds what runs has to end in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
    /// The images of the containers that start.
    pub images: Vec<ImageDocument>,
    /// Other claims to its name or its UID, a sentence each.
    pub remarks: Vec<String>,
}

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldDocument {
    /// Its path: `spec.containers[web].image`.
    pub path: String,
    /// As it is; absent: not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// As it would be; absent: not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
    /// Whether the pod goes on with it.
    pub in_place: bool,
}

/// The image of one container that starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageDocument {
    /// The container.
    pub container: String,
    /// The image, as the manifest has it.
    pub image: String,
    /// `IfNotPresent`, `Always` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<String>,
    /// Whether it is on this node; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// What becomes of one ConfigMap or Secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectDiffDocument {
    /// `ConfigMap` or `Secret`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The source it is of.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// `added`, `changed` or `removed`.
    pub change: String,
    /// The values that differ.
    pub values: Vec<ValueDocument>,
    /// Pods whose files follow at once, as `namespace/name`.
    pub files_of: Vec<String>,
    /// Pods that take it at the next start of a container.
    pub starts_of: Vec<String>,
}

/// One value that differs. A Secret's is not told, nor one that is no text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueDocument {
    /// Its key.
    pub key: String,
    /// `added`, `changed` or `removed`.
    pub change: String,
    /// As it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// As it would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

impl DiffDocument {
    /// The forecast as a document. `present`: what is known of images on this node.
    pub fn of(forecast: &Forecast, rejected: &[Rejection], present: &BTreeMap<String, bool>) -> Self {
        Self {
            pods: forecast.pods.iter().filter_map(|pod| PodDiffDocument::of(pod, present)).collect(),
            objects: forecast.objects.iter().filter_map(ObjectDiffDocument::of).collect(),
            rejected: rejected.iter().map(view::rejection).collect(),
            remarks: Vec::new(),
        }
    }

    /// Whether anything would change.
    pub fn differs(&self) -> bool {
        !(self.pods.is_empty() && self.objects.is_empty())
    }
}

impl PodDiffDocument {
    fn of(pod: &PodForecast, present: &BTreeMap<String, bool>) -> Option<Self> {
        let record = pod.record()?;
        let (mut restarts, mut keeps, mut why, mut grace_seconds) = (Vec::new(), Vec::new(), Vec::new(), None);
        let change = match &pod.effect {
            Effect::Starts => "starts",
            Effect::Loses => "loses",
            Effect::InPlace(replacement) => {
                (restarts, keeps) = (replacement.restarts.clone(), replacement.keeps.clone());
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
            restarts,
            keeps,
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
    fn of(object: &ObjectForecast) -> Option<Self> {
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
