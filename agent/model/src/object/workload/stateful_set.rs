//! A StatefulSet: pods with ordinals, one after the other.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSetSpec;
use serde_json::Value;

use super::always_running::of_pods;
use super::amount::{natural, number, percent, scaled};
use super::template::{PodTemplate, claim_name};
use super::{MAX_REPLICAS, selector};
use crate::object::local_claim;
use crate::pod::{Fault, FaultList, is_dns_label};

const DEFAULT_HISTORY: i32 = 10;

/// What a StatefulSet's controller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatefulSet {
    /// The desired number of pods.
    pub replicas: u32,
    pub start: u32,
    /// Whether pods begin and end regardless of each other.
    pub parallel: bool,
    /// How pods get a new template; `None` if only new pods get it.
    pub rolling: Option<Rolling>,
    /// How long a pod must be ready before it counts as available, in seconds.
    pub min_ready_seconds: u32,
    /// How many templates without pods are remembered.
    pub history_limit: u32,
    /// The Service that the pods' host names are below.
    pub service_name: Option<String>,
    /// What each pod's own claims are made of.
    pub claims: Vec<ClaimTemplate>,
    /// A claim is deleted when its set is (`whenDeleted`).
    pub claims_end_with_set: bool,
    /// A claim is deleted when its pod is no longer among the replicas (`whenScaled`).
    pub claims_end_with_replica: bool,
}

impl StatefulSet {
    /// Whether the pod of that ordinal is among the replicas.
    pub fn is_replica(&self, ordinal: u32) -> bool {
        (self.start..self.start.saturating_add(self.replicas)).contains(&ordinal)
    }
}

/// What a claim of each pod is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTemplate {
    /// Its name, which the pods' volume has too.
    pub name: String,
    /// The claim as JSON.
    pub claim: Value,
}

impl ClaimTemplate {
    /// The name of the claim of that pod.
    pub fn claim_name(&self, pod: &str) -> String {
        claim_name(&self.name, pod)
    }
}

/// How pods get a new template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rolling {
    /// How many pods, from the lowest ordinal on, keep their template.
    pub partition: u32,
    /// How many pods may be unavailable.
    pub unavailable: u32,
}

/// The faults of a StatefulSet apart from those of its template.
pub(super) fn check(name: &str, spec: &StatefulSetSpec, template: &PodTemplate, template_path: &str) -> Vec<Fault> {
    let mut faults = FaultList::default();
    faults.extend(selector::check(&spec.selector, template, template_path));
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    let numbers = [
        ("spec.replicas", spec.replicas, MAX_REPLICAS),
        ("spec.minReadySeconds", spec.min_ready_seconds, i32::MAX),
        ("spec.revisionHistoryLimit", spec.revision_history_limit, i32::MAX),
        ("spec.ordinals.start", start, i32::MAX - MAX_REPLICAS),
    ];
    for (path, value, most) in numbers {
        let Some(value) = value.filter(|value| !(0..=most).contains(value)) else { continue };
        let bound = if value < 0 { "at least 0".to_owned() } else { format!("at most {most} on one node") };
        faults.push(Fault::error(path, format!("Invalid value: {value}: must be {bound}")));
    }
    let policy = spec.pod_management_policy.as_deref().unwrap_or("OrderedReady");
    if !["OrderedReady", "Parallel"].contains(&policy) {
        let message = format!("Invalid value: {policy:?}: must be 'OrderedReady' or 'Parallel'");
        faults.push(Fault::error("spec.podManagementPolicy", message));
    }
    strategy(spec, &mut faults);
    let last = i64::from(start.unwrap_or(0)) + i64::from(spec.replicas.unwrap_or(1)) - 1;
    let host_name = format!("{name}-{}", last.max(0));
    if !is_dns_label(&host_name) {
        let message = format!("Invalid value: the pod's host name would be {host_name}");
        faults.push(Fault::error("metadata.name", message).with_remedy("a shorter name without dots"));
    }
    claims(spec, &mut faults);
    retention(spec, &mut faults);
    faults.extend(of_pods(template, template_path));
    faults.finish()
}

fn claims(spec: &StatefulSetSpec, faults: &mut FaultList) {
    let mut names = BTreeSet::new();
    for (index, template) in spec.volume_claim_templates.iter().flatten().enumerate() {
        let path = format!("spec.volumeClaimTemplates[{index}]");
        let name = template.metadata.name.as_deref().unwrap_or_default();
        if !is_dns_label(name) {
            let message = format!("Invalid value: {name:?}: pods have a volume of this name");
            let fault = Fault::error(format!("{path}.metadata.name"), message);
            faults.push(fault.with_remedy("lower-case letters, digits and -, at most 63 characters"));
        }
        if !names.insert(name) {
            faults.push(Fault::error(format!("{path}.metadata.name"), format!("Duplicate value: {name:?}")));
        }
        match &template.spec {
            Some(claim) => faults.absorb(local_claim::check(&format!("{path}.spec"), claim)),
            None => faults.push(Fault::error(format!("{path}.spec"), "required")),
        }
    }
}

fn retention(spec: &StatefulSetSpec, faults: &mut FaultList) {
    let Some(policy) = &spec.persistent_volume_claim_retention_policy else { return };
    for (field, value) in [("whenDeleted", &policy.when_deleted), ("whenScaled", &policy.when_scaled)] {
        let Some(value) = value.as_deref().filter(|value| !["Retain", "Delete"].contains(value)) else { continue };
        let message = format!("Invalid value: {value:?}: must be 'Retain' or 'Delete'");
        faults.push(Fault::error(format!("spec.persistentVolumeClaimRetentionPolicy.{field}"), message));
    }
}

fn strategy(spec: &StatefulSetSpec, faults: &mut FaultList) {
    let Some(strategy) = &spec.update_strategy else { return };
    let rolling = strategy.rolling_update.as_ref();
    match strategy.type_.as_deref().unwrap_or("RollingUpdate") {
        "RollingUpdate" | "" => {}
        "OnDelete" if rolling.is_none() => {}
        "OnDelete" => {
            let message = "Invalid value: only allowed for updateStrategy 'RollingUpdate'";
            faults.push(Fault::error("spec.updateStrategy.rollingUpdate", message));
        }
        other => {
            let message = format!("Invalid value: {other:?}: must be 'RollingUpdate' or 'OnDelete'");
            faults.push(Fault::error("spec.updateStrategy", message));
        }
    }
    let Some(rolling) = rolling else { return };
    if let Some(partition) = rolling.partition.filter(|partition| *partition < 0) {
        let message = format!("Invalid value: {partition}: must be greater than or equal to 0");
        faults.push(Fault::error("spec.updateStrategy.rollingUpdate.partition", message));
    }
    let path = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    if let Some(amount) = &rolling.max_unavailable {
        if number(amount) == Some(0) || percent(amount) == Some(0) {
            faults.push(Fault::error(path, "Invalid value: 0: cannot be 0"));
        } else if number(amount).is_none() && percent(amount).is_none_or(|percent| percent > 100) {
            let message = "Invalid value: must be a number, or a percentage (e.g. '1%' or '93%')";
            faults.push(Fault::error(path, message));
        }
    }
}

/// What the controller has to do, with defaults.
pub(super) fn settle(spec: StatefulSetSpec) -> StatefulSet {
    let replicas = natural(spec.replicas, 1);
    let strategy = spec.update_strategy.unwrap_or_default();
    let rolling = strategy.rolling_update.unwrap_or_default();
    let unavailable = rolling.max_unavailable.map_or(1, |amount| scaled(&amount, replicas, |value, by| value / by));
    let retention = spec.persistent_volume_claim_retention_policy.unwrap_or_default();
    let claims = spec.volume_claim_templates.unwrap_or_default().into_iter().filter_map(|template| {
        let name = template.metadata.name.clone()?;
        Some(ClaimTemplate { name, claim: serde_json::to_value(template).ok()? })
    });
    let is_rolling = strategy.type_.as_deref() != Some("OnDelete");
    StatefulSet {
        replicas,
        start: natural(spec.ordinals.and_then(|ordinals| ordinals.start), 0),
        parallel: spec.pod_management_policy.as_deref() == Some("Parallel"),
        rolling: is_rolling
            .then(|| Rolling { partition: natural(rolling.partition, 0), unavailable: unavailable.max(1) }),
        min_ready_seconds: natural(spec.min_ready_seconds, 0),
        history_limit: natural(spec.revision_history_limit, DEFAULT_HISTORY),
        service_name: spec.service_name.filter(|name| !name.is_empty()),
        claims: claims.collect(),
        claims_end_with_set: retention.when_deleted.as_deref() == Some("Delete"),
        claims_end_with_replica: retention.when_scaled.as_deref() == Some("Delete"),
    }
}
