//! The most resources that a pod's containers take together at one time, and the pod's own request, which follows
//! from it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::qos::{amount, request};
use crate::pod::quantity::{self, Amount};

/// Amounts of resources as in a manifest.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// The sums of `amounts_in`, which selects limits or requests: of all main containers and sidecars, or of one init container
/// with the sidecars before it, whichever is more. An invalid quantity counts as absent.
pub(super) fn totals(
    spec: &PodSpec,
    amounts_in: impl Fn(&ResourceRequirements) -> Option<&Amounts>,
) -> BTreeMap<String, Amount> {
    let amounts_of = |container: &Container| -> BTreeMap<String, Amount> {
        let amounts = container.resources.as_ref().and_then(&amounts_in).into_iter().flatten();
        amounts.filter_map(|(name, value)| Some((name.clone(), quantity::parse(&value.0).ok()?))).collect()
    };
    let mut running = BTreeMap::new();
    spec.containers.iter().for_each(|container| add(&mut running, &amounts_of(container)));
    let (mut sidecars, mut most) = (BTreeMap::new(), BTreeMap::<String, Amount>::new());
    for container in spec.init_containers.iter().flatten() {
        let mut now = amounts_of(container);
        if is_sidecar(container) {
            add(&mut running, &now);
            add(&mut sidecars, &now);
            now.clone_from(&sidecars);
        } else {
            add(&mut now, &sidecars);
        }
        for (name, amount) in now {
            raise(&mut most, name, amount);
        }
    }
    for (name, amount) in most {
        raise(&mut running, name, amount);
    }
    running
}

fn add(into: &mut BTreeMap<String, Amount>, other: &BTreeMap<String, Amount>) {
    for (name, amount) in other {
        let sum = into.entry(name.clone()).or_default();
        *sum = *sum + *amount;
    }
}

fn raise(into: &mut BTreeMap<String, Amount>, name: String, amount: Amount) {
    let entry = into.entry(name).or_default();
    *entry = (*entry).max(amount);
}

/// The most that the pod requests of a resource at one time, with its overhead.
pub fn pod_request(spec: &PodSpec, name: &str) -> Amount {
    let of_pod = spec.resources.as_ref().map(|resources| request(resources, name)).unwrap_or_default();
    let needed = if of_pod.is_zero() { together(spec, |resources| request(resources, name)) } else { of_pod };
    needed + amount(spec.overhead.as_ref(), name)
}

/// The peak need of the containers. Init containers run one by one, each together with the sidecars before it.
pub(super) fn together(spec: &PodSpec, amount_in: impl Fn(&ResourceRequirements) -> Amount) -> Amount {
    let need = |container: &Container| container.resources.as_ref().map(&amount_in).unwrap_or_default();
    let (mut sidecars, mut peak) = (Amount::ZERO, Amount::ZERO);
    for container in spec.init_containers.iter().flatten() {
        if is_sidecar(container) {
            sidecars = sidecars + need(container);
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars + need(container));
        }
    }
    peak.max(sidecars + spec.containers.iter().map(need).sum())
}

/// Whether an init container keeps running beside the containers after it.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use crate::pod::totals::*;

    #[test]
    fn an_init_container_runs_together_with_the_sidecars_before_it() {
        let container = |policy: Option<&str>, cpu: &str| json!({"name": "a", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        let spec: PodSpec = serde_json::from_value(json!({
            "initContainers": [container(Some("Always"), "1"), container(None, "5"), container(Some("Always"), "1"), container(None, "3")],
            "containers": [container(None, "1"), container(None, "500m")]
        }))
        .unwrap();
        let sums = totals(&spec, |resources| resources.requests.as_ref());
        assert_eq!(sums["cpu"], quantity::parse("6").unwrap(), "1 + 5 while the first init container runs");
        let spec = PodSpec { init_containers: spec.init_containers.map(|list| list[..1].to_vec()), ..spec };
        assert_eq!(totals(&spec, |resources| resources.requests.as_ref())["cpu"], quantity::parse("2.5").unwrap());
    }
}
