//! What the rules of several parts of a pod use: the spec with its valid volumes and claims, and all containers in
//! order.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};

use crate::pod::container_form::as_container;
use crate::pod::validate::field::items;

/// The parts of the pod that its containers are validated against.
pub(super) struct Pod<'a> {
    pub(super) spec: &'a PodSpec,
    /// The valid volumes by name.
    pub(super) volumes: BTreeMap<&'a str, &'a Volume>,
    /// The names of `spec.resourceClaims`.
    pub(super) claims: BTreeSet<&'a str>,
}

/// Every container with the name of its list and its index there, in Kubernetes' order.
pub(super) fn each_container(spec: &PodSpec) -> impl Iterator<Item = (&'static str, usize, Cow<'_, Container>)> {
    let inits =
        items(&spec.init_containers).map(|(index, container)| ("initContainers", index, Cow::Borrowed(container)));
    let mains =
        spec.containers.iter().enumerate().map(|(index, container)| ("containers", index, Cow::Borrowed(container)));
    let ephemeral = items(&spec.ephemeral_containers)
        .map(|(index, container)| ("ephemeralContainers", index, Cow::Owned(as_container(container))));
    inits.chain(mains).chain(ephemeral)
}
