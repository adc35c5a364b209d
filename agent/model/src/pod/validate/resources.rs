//! Validation of resource amounts: of containers, of the pod, overhead, and device claims.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::huge_pages::HUGE_PAGES;
use crate::pod::name::is_qualified_name;
use crate::pod::quantity::{self, Amount};
use crate::pod::totals::{Amounts, totals};
use crate::pod::validate::field::{At, Faults, items, text};

const OF_CONTAINERS: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const OF_PODS: [&str; 2] = ["cpu", "memory"];
/// A thousandth in billionths; finer amounts are not kept.
const MILLI: i128 = 1_000_000;
const UNIT: i128 = 1_000_000_000;

/// Validates a container's `resources`.
pub(super) fn of_container(at: &At<'_>, required: &ResourceRequirements, claims: &BTreeSet<&str>, faults: &mut Faults) {
    amounts(at, required, container_resource, faults);
    claim_names(&at.field("claims"), required.claims.as_deref().unwrap_or_default(), claims, faults);
}

/// Validates `overhead`, by the rules for limits.
pub(super) fn overhead(at: &At<'_>, overhead: &Amounts, faults: &mut Faults) {
    let required = ResourceRequirements { limits: Some(overhead.clone()), ..ResourceRequirements::default() };
    amounts(at, &required, container_resource, faults);
}

/// Validates the pod's own `resources`.
pub(super) fn of_pod(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let Some(required) = &spec.resources else { return };
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return faults.forbidden(at, "may not be set for a windows pod");
    }
    if required.claims.is_some() {
        faults.forbidden(&at.field("claims"), "claims may not be set for Resources at pod-level");
    }
    amounts(at, required, pod_resource, faults);
    covers_its_containers(spec, required, at, faults);
}

/// Whether a resource is Kubernetes' own, not an extended one.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}"))
}

/// Native resources except huge pages may be overcommitted.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with(HUGE_PAGES)
}

fn container_resource(at: &At<'_>, name: &str, faults: &mut Faults) {
    if !is_qualified_name(name) {
        faults.qualified_name(at, name);
    } else if !name.contains('/') && !OF_CONTAINERS.contains(&name) && !name.starts_with(HUGE_PAGES) {
        faults.malformed(
            at,
            name,
            "must be a standard resource for containers",
            "cpu, memory, ephemeral-storage, hugepages-<size>, or the name of a device with its domain",
        );
    } else if !is_native(name) && !is_extended(name) {
        faults.invalid(at, name, "doesn't follow extended resource name standard");
    }
}

fn pod_resource(at: &At<'_>, name: &str, faults: &mut Faults) {
    if !is_qualified_name(name) {
        faults.qualified_name(at, name);
    } else if !OF_PODS.contains(&name) && !name.starts_with(HUGE_PAGES) {
        faults.unsupported(at, name, &["cpu", "hugepages-", "memory"]);
    }
}

/// The amount at `at`, if it is valid.
pub(super) fn amount(at: &At<'_>, name: &str, value: &Quantity, faults: &mut Faults) -> Option<Amount> {
    let amount = match quantity::parse(&value.0) {
        Ok(amount) => amount,
        Err(error) => {
            faults.malformed(at, &value.0, &error.to_string(), "as in 500m, 1, 64Mi or 1Gi");
            return None;
        }
    };
    if amount.nanos() < 0 {
        faults.not_negative_amount(at, value);
    }
    if is_extended(name) && round_to_milli(amount) % UNIT != 0 {
        faults.invalid(at, &value.0, "must be an integer");
    }
    Some(amount)
}

/// Kubernetes keeps thousandths, rounded up.
fn round_to_milli(amount: Amount) -> i128 {
    i128::from(amount.milli()) * MILLI
}

impl Faults {
    /// An amount that must not be negative.
    #[cfg_attr(test, track_caller)]
    pub(super) fn not_negative_amount(&mut self, at: &At<'_>, value: &Quantity) {
        self.invalid(at, &value.0, "must be greater than or equal to 0");
    }
}

/// Checks limits and requests, each alone and against the other.
fn amounts(
    at: &At<'_>,
    required: &ResourceRequirements,
    check_name: fn(&At<'_>, &str, &mut Faults),
    faults: &mut Faults,
) {
    let mut compute = false;
    let mut huge = false;
    let mut read = |kind: &str, amounts: Option<&Amounts>, faults: &mut Faults| {
        let list = at.field(kind);
        let mut read = BTreeMap::new();
        for (name, value) in amounts.into_iter().flatten() {
            let at = list.key(name);
            check_name(&at, name, faults);
            compute |= OF_PODS.contains(&name.as_str());
            huge |= name.starts_with(HUGE_PAGES);
            let Some(amount) = amount(&at, name, value, faults) else { continue };
            if name.starts_with(HUGE_PAGES) && !is_whole_pages(name, amount) {
                faults.invalid(&at, &value.0, &format!("{} is not positive integer multiple of {name}", value.0));
            }
            read.insert(name.clone(), (amount, value.0.clone()));
        }
        read
    };
    let limits = read("limits", required.limits.as_ref(), faults);
    let requests = read("requests", required.requests.as_ref(), faults);
    for (name, (request, request_text)) in &requests {
        let at_requests = at.field("requests");
        match limits.get(name) {
            Some((limit, text)) if request != limit && !may_overcommit(name) => {
                faults.invalid(&at_requests, request_text, &format!("must be equal to {name} limit of {text}"));
            }
            Some((limit, text)) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {text}");
                faults.invalid(&at_requests, request_text, &detail);
            }
            None if !may_overcommit(name)
                && !required.limits.as_ref().is_some_and(|limits| limits.contains_key(name)) =>
            {
                faults.required(&at.field("limits"), "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    if huge && !compute {
        faults.forbidden(at, "HugePages require cpu or memory");
    }
}

fn is_whole_pages(name: &str, amount: Amount) -> bool {
    let size = name.strip_prefix(HUGE_PAGES).and_then(|size| quantity::parse(size).ok());
    size.is_some_and(|size| size.nanos() > 0 && size.nanos() % UNIT == 0 && amount.units() % size.units() == 0)
}

/// A container's claims refer to the pod's, each device once.
fn claim_names(at: &At<'_>, claims: &[ResourceClaim], of_pod: &BTreeSet<&str>, faults: &mut Faults) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (index, claim) in claims.iter().enumerate() {
        let item = at.index(index);
        let (name, request) = (claim.name.as_str(), text(&claim.request));
        if name.is_empty() {
            faults.required(&item, "");
            continue;
        }
        if !request.is_empty() && !seen.contains(&(name, "")) {
            faults.dns_label(&item.field("request"), request);
        }
        // The whole claim and a part of it exclude each other.
        let known = seen.contains(&(name, "")) || seen.contains(&(name, request));
        if known || (request.is_empty() && seen.iter().any(|(other, _)| *other == name)) {
            faults.duplicate(&item, name);
        }
        seen.insert((name, request));
        if !of_pod.contains(name) {
            faults.not_found(&item, name, "must be one of the names in spec.resourceClaims");
        }
    }
}

/// Validates `spec.resourceClaims` and returns their names.
pub(super) fn claims<'a>(spec: &'a PodSpec, at: &At<'_>, faults: &mut Faults) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (index, claim) in items(&spec.resource_claims) {
        let item = at.index(index);
        match claim.name.as_str() {
            "" => faults.required(&item.field("name"), ""),
            name if !names.insert(name) => faults.duplicate(&item.field("name"), name),
            name => faults.dns_label(&item.field("name"), name),
        }
        let (direct, template) = (&claim.resource_claim_name, &claim.resource_claim_template_name);
        match (direct, template) {
            (Some(_), Some(_)) => {
                let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                faults.invalid(&item, &claim.name, detail);
            }
            (None, None) => {
                let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                faults.invalid(&item, &claim.name, detail);
            }
            _ => {}
        }
        for (field, name) in [("resourceClaimName", direct), ("resourceClaimTemplateName", template)] {
            if let Some(name) = name {
                faults.dns_subdomain(&item.field(field), name);
            }
        }
    }
    names
}

/// Checks that the pod's requests cover the sum of its containers' requests, and its limits each container's limit.
fn covers_its_containers(spec: &PodSpec, required: &ResourceRequirements, at: &At<'_>, faults: &mut Faults) {
    let parsed = |amounts: &Option<Amounts>, name: &str| {
        let value = amounts.as_ref()?.get(name)?;
        Some((quantity::parse(&value.0).ok()?, value.0.clone()))
    };
    let (at_requests, at_limits) = (at.field("requests"), at.field("limits"));
    for (name, sum) in totals(spec, |resources| resources.requests.as_ref()) {
        if let Some((_, text)) = parsed(&required.requests, &name).filter(|(amount, _)| sum > *amount) {
            let detail = format!("must be greater than or equal to aggregate container requests of {}", sum);
            faults.invalid(&at_requests.key(&name), text, &detail);
        }
    }
    for (name, sum) in totals(spec, |resources| resources.limits.as_ref()) {
        let too_small =
            parsed(&required.limits, &name).filter(|(too_small, _)| name.starts_with(HUGE_PAGES) && sum > *too_small);
        if let Some((_, text)) = too_small {
            let detail = format!("must be greater than or equal to aggregate container limits of {}", sum);
            faults.invalid(&at_limits.key(&name), text, &detail);
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        for (name, value) in limits.into_iter().flatten() {
            let (Ok(limit), Some((of_pod, text))) = (quantity::parse(&value.0), parsed(&required.limits, name)) else {
                continue;
            };
            if limit > of_pod {
                let spec = At::Root("spec");
                let list = spec.field("containers");
                let (item, kind) = (list.index(index), "limits");
                let resources = item.field("resources");
                let detail = format!("must be less than or equal to pod limits of {text}");
                faults.invalid(&resources.field(kind).key(name), &value.0, &detail);
            }
        }
    }
}
