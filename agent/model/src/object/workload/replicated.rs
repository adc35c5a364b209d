//! Deployments, ReplicaSets and DaemonSets: Kubernetes' rules (`pkg/apis/apps/validation`), their defaults, and what
//! a node adds to both.

use k8s_openapi::api::apps::v1::{DaemonSetSpec, DeploymentSpec, ReplicaSetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::MAX_REPLICAS;
use super::always_running::of_pods;
use super::amount::{natural, number, percent, scaled};
use super::selector;
use super::spec::{Replicated, Update};
use super::template::PodTemplate;
use crate::pod::{Fault, FaultList};

const DEFAULT_HISTORY: i32 = 10;
const DEFAULT_PROGRESS_DEADLINE: i32 = 600;
const QUARTER: &str = "25%";

/// The spec of one of them as authored, without its template.
#[derive(Debug)]
pub(super) enum Authored {
    Deployment(DeploymentSpec),
    ReplicaSet(ReplicaSetSpec),
    DaemonSet(DaemonSetSpec),
}

impl Authored {
    fn selector(&self) -> &LabelSelector {
        match self {
            Self::Deployment(spec) => &spec.selector,
            Self::ReplicaSet(spec) => &spec.selector,
            Self::DaemonSet(spec) => &spec.selector,
        }
    }

    /// Its numbers, each with the lowest and the highest value that it may have.
    fn numbers(&self) -> Vec<(&'static str, Option<i32>, i32, i32)> {
        match self {
            Self::Deployment(spec) => vec![
                ("spec.replicas", spec.replicas, 0, MAX_REPLICAS),
                ("spec.minReadySeconds", spec.min_ready_seconds, 0, i32::MAX),
                ("spec.revisionHistoryLimit", spec.revision_history_limit, 0, i32::MAX),
                ("spec.progressDeadlineSeconds", spec.progress_deadline_seconds, 0, i32::MAX),
            ],
            Self::ReplicaSet(spec) => vec![
                ("spec.replicas", spec.replicas, 0, MAX_REPLICAS),
                ("spec.minReadySeconds", spec.min_ready_seconds, 0, i32::MAX),
            ],
            Self::DaemonSet(spec) => vec![
                ("spec.minReadySeconds", spec.min_ready_seconds, 0, i32::MAX),
                ("spec.revisionHistoryLimit", spec.revision_history_limit, 0, i32::MAX),
            ],
        }
    }

    fn strategy(&self) -> Option<Strategy<'_>> {
        match self {
            Self::Deployment(spec) => spec.strategy.as_ref().map(|strategy| {
                let rolling = strategy.rolling_update.as_ref();
                Strategy {
                    path: "spec.strategy",
                    name: strategy.type_.as_deref(),
                    known: ["RollingUpdate", "Recreate"],
                    surge: rolling.and_then(|update| update.max_surge.as_ref()),
                    unavailable: rolling.and_then(|update| update.max_unavailable.as_ref()),
                }
            }),
            Self::DaemonSet(spec) => spec.update_strategy.as_ref().map(|strategy| {
                let rolling = strategy.rolling_update.as_ref();
                Strategy {
                    path: "spec.updateStrategy",
                    name: strategy.type_.as_deref(),
                    known: ["RollingUpdate", "OnDelete"],
                    surge: rolling.and_then(|update| update.max_surge.as_ref()),
                    unavailable: rolling.and_then(|update| update.max_unavailable.as_ref()),
                }
            }),
            Self::ReplicaSet(_) => None,
        }
    }
}

/// How pods are to be replaced, as authored.
struct Strategy<'a> {
    path: &'static str,
    name: Option<&'a str>,
    /// All types. The first is the rolling update, and only it has amounts.
    known: [&'static str; 2],
    surge: Option<&'a IntOrString>,
    unavailable: Option<&'a IntOrString>,
}

/// The faults of a workload apart from those of its template.
pub(super) fn check(spec: &Authored, template: &PodTemplate, template_path: &str) -> Vec<Fault> {
    let mut faults = FaultList::default();
    faults.extend(selector::check(spec.selector(), template, template_path));
    for (path, value, least, most) in spec.numbers() {
        let Some(value) = value.filter(|value| !(least..=most).contains(value)) else { continue };
        let bound = if value < least { format!("at least {least}") } else { format!("at most {most} on one node") };
        faults.push(Fault::error(path, format!("Invalid value: {value}: must be {bound}")));
    }
    if let Authored::Deployment(spec) = spec {
        let deadline = spec.progress_deadline_seconds.unwrap_or(DEFAULT_PROGRESS_DEADLINE);
        if spec.min_ready_seconds.is_some_and(|ready| ready >= 0 && ready >= deadline && deadline >= 0) {
            let message = format!("Invalid value: {deadline}: must be greater than minReadySeconds");
            faults.push(Fault::error("spec.progressDeadlineSeconds", message));
        }
    }
    faults.extend(spec.strategy().into_iter().flat_map(strategy));
    faults.extend(of_pods(template, template_path));
    faults.finish()
}

fn strategy(Strategy { path, name, known, surge, unavailable }: Strategy<'_>) -> Vec<Fault> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or(known[0]);
    if !known.contains(&name) {
        let message = format!(
            "Unsupported value: {name:?}: supported values: {}",
            known.map(|name| format!("{name:?}")).join(", ")
        );
        return vec![Fault::error(format!("{path}.type"), message)];
    }
    let given = surge.is_some() || unavailable.is_some();
    if name != known[0] {
        let message = format!("Forbidden: may not be specified when strategy `type` is '{name}'");
        return given.then(|| Fault::error(format!("{path}.rollingUpdate"), message)).into_iter().collect();
    }
    let mut faults = Vec::new();
    for (field, amount) in [("maxSurge", surge), ("maxUnavailable", unavailable)] {
        let is_percentage =
            field == "maxSurge" || amount.is_none_or(|value| percent(value).is_none_or(|share| share <= 100));
        if amount.is_some_and(|value| number(value).is_none() && percent(value).is_none()) || !is_percentage {
            let message = "Invalid value: must be a number, or a percentage (e.g. '1%' or '93%')";
            faults.push(Fault::error(format!("{path}.rollingUpdate.{field}"), message));
        }
    }
    let is_zero = |amount: Option<&IntOrString>| {
        amount.is_some_and(|value| number(value) == Some(0) || percent(value) == Some(0))
    };
    let daemon = known[1] == "OnDelete";
    let both_zero = match daemon {
        // maxSurge defaults to 0, maxUnavailable to 1.
        true => is_zero(unavailable) && (surge.is_none() || is_zero(surge)),
        false => is_zero(unavailable) && is_zero(surge),
    };
    if both_zero {
        let message = "Invalid value: 0: may not be 0 when `maxSurge` is 0";
        faults.push(Fault::error(format!("{path}.rollingUpdate.maxUnavailable"), message));
    }
    if daemon && surge.is_some_and(|_| !is_zero(surge)) && (unavailable.is_none() || !is_zero(unavailable)) {
        let message = "Invalid value: may not be set when maxUnavailable is non-zero";
        faults.push(Fault::error(format!("{path}.rollingUpdate.maxSurge"), message).with_remedy("maxUnavailable: 0"));
    }
    faults
}

/// What the controller has to do, with defaults.
pub(super) fn settle(spec: Authored) -> Replicated {
    match spec {
        Authored::Deployment(spec) => {
            let replicas = natural(spec.replicas, 1);
            let strategy = spec.strategy.unwrap_or_default();
            let update = match strategy.type_.as_deref() {
                Some("Recreate") => Update::Recreate,
                _ => {
                    let rolling = strategy.rolling_update.unwrap_or_default();
                    let quarter = || IntOrString::String(QUARTER.to_owned());
                    let surge = scaled(&rolling.max_surge.unwrap_or_else(quarter), replicas, u64::div_ceil);
                    let unavailable = rolling.max_unavailable.unwrap_or_else(quarter);
                    let unavailable = scaled(&unavailable, replicas, |value, by| value / by);
                    // If both round to 0, one pod may be missing (`ResolveFenceposts`).
                    Update::Rolling { surge, unavailable: if surge == 0 { unavailable.max(1) } else { unavailable } }
                }
            };
            let deadline = natural(spec.progress_deadline_seconds, DEFAULT_PROGRESS_DEADLINE);
            Replicated {
                replicas,
                update,
                min_ready_seconds: natural(spec.min_ready_seconds, 0),
                progress_deadline_seconds: (deadline != i32::MAX.unsigned_abs()).then_some(deadline),
                paused: spec.paused.unwrap_or(false),
                history_limit: natural(spec.revision_history_limit, DEFAULT_HISTORY),
            }
        }
        Authored::ReplicaSet(spec) => Replicated {
            replicas: natural(spec.replicas, 1),
            update: Update::Manual,
            min_ready_seconds: natural(spec.min_ready_seconds, 0),
            progress_deadline_seconds: None,
            paused: false,
            history_limit: 0,
        },
        Authored::DaemonSet(spec) => {
            let strategy = spec.update_strategy.unwrap_or_default();
            let surge = strategy.rolling_update.and_then(|rolling| rolling.max_surge);
            let surges = surge.is_some_and(|surge| scaled(&surge, 1, u64::div_ceil) > 0);
            let update = match strategy.type_.as_deref() {
                Some("OnDelete") => Update::Manual,
                _ if surges => Update::Rolling { surge: 1, unavailable: 0 },
                // A node has only one such pod, which ends before the next one starts.
                _ => Update::Recreate,
            };
            Replicated {
                replicas: 1,
                update,
                min_ready_seconds: natural(spec.min_ready_seconds, 0),
                progress_deadline_seconds: None,
                paused: false,
                history_limit: natural(spec.revision_history_limit, DEFAULT_HISTORY),
            }
        }
    }
}
