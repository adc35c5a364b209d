//! Defaults of resources: requests follow limits, and the pod's follow its containers'.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::huge_pages::HUGE_PAGES;
use crate::pod::quantity::{self, Amount};
use crate::pod::requests::is_of_pods;
use crate::pod::totals::{Amounts, totals};

/// A limit without a request becomes the request.
pub(super) fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// If the pod has its own resources, those it does not specify are summed from its containers.
pub(super) fn of_pod(spec: &mut PodSpec) {
    let Some(of_pod) = &spec.resources else { return };
    let (mut limits, mut requests) =
        (of_pod.limits.clone().unwrap_or_default(), of_pod.requests.clone().unwrap_or_default());
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let of_limits = totals(spec, |resources| resources.limits.as_ref());
    for (name, sum) in of_limits.iter().filter(|(name, _)| name.starts_with(HUGE_PAGES)) {
        if !requests.contains_key(name) {
            keep_or(&mut limits, name, *sum);
        }
    }
    for (name, sum) in totals(spec, |resources| resources.requests.as_ref()) {
        if name == "cpu" || name == "memory" {
            keep_or(&mut requests, &name, sum);
        }
    }
    for (name, limit) in limits.iter().filter(|(name, _)| is_of_pods(name)) {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    limits_from_containers(spec, &of_limits, &requests, &mut limits);
    let filled = |amounts: Amounts| Some(amounts).filter(|amounts| !amounts.is_empty());
    if let Some(of_pod) = &mut spec.resources {
        (of_pod.limits, of_pod.requests) = (filled(limits), filled(requests));
    }
}

fn keep_or(amounts: &mut Amounts, name: &str, amount: Amount) {
    amounts.entry(name.to_owned()).or_insert_with(|| Quantity(amount.to_string()));
}

/// A pod whose containers all have limits is limited to their sum, or to what it requests.
fn limits_from_containers(
    spec: &PodSpec,
    of_limits: &BTreeMap<String, Amount>,
    requests: &Amounts,
    limits: &mut Amounts,
) {
    let resources = |requirements: Option<&ResourceRequirements>, name: &str| {
        requirements.and_then(|resources| resources.limits.as_ref()).is_some_and(|limits| limits.contains_key(name))
    };
    for (name, request) in requests.iter().filter(|(name, _)| is_of_pods(name)) {
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let mut each = containers.map(|container| container.resources.as_ref());
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| container.resources.as_ref());
        if !each.by_ref().chain(ephemeral).all(|requirements| resources(requirements, name)) {
            continue;
        }
        let (Some(sum), Ok(request)) = (of_limits.get(name), quantity::parse(&request.0)) else { continue };
        keep_or(limits, name, (*sum).max(request));
    }
}
