//! Kinds that a node without an apiserver does not act on: those that are accepted, so that the output of `helm template`
//! can be used as it is, and those that are refused with what to use instead.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::pod::{Fault, Reason};

/// Kinds that need no warning, because pods run without them: a namespace exists as soon as an object is in it.
const ACCEPTED: [(&str, &str); 2] = [("", "Namespace"), ("", "ServiceAccount")];

/// Kinds that only an apiserver or a cluster's controllers act on, by group.
const NO_EFFECT: [(&str, &str); 8] = [
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("autoscaling", "HorizontalPodAutoscaler"),
    ("policy", "PodDisruptionBudget"),
    ("storage.k8s.io", "StorageClass"),
];

/// Kinds without which pods would not do what their author expects, and what to use instead.
const REFUSED: [(&str, &str, &str); 2] = [
    ("", "PersistentVolume", "use a PersistentVolumeClaim without volumeName, or a hostPath volume"),
    ("networking.k8s.io", "Ingress", "run an ingress controller as a pod, with a Service of type LoadBalancer"),
];

/// What happens to an object of a kind that a node does not run.
#[derive(Debug)]
pub(super) enum OtherKind {
    /// It is left out.
    Accepted,
    /// It is left out, with one warning for all of its kind.
    NoEffect(&'static str),
    /// It is an error.
    Refused(Fault),
}

/// What happens to the document; `None` if it is none of these kinds.
pub(super) fn classify(document: &Value) -> Option<OtherKind> {
    let (version, kind) = (document["apiVersion"].as_str()?, document["kind"].as_str()?);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    if ACCEPTED.contains(&(group, kind)) {
        return Some(OtherKind::Accepted);
    }
    if let Some((_, name)) = NO_EFFECT.iter().find(|known| **known == (group, kind)) {
        return Some(OtherKind::NoEffect(name));
    }
    let (.., remedy) = REFUSED.iter().find(|(known, name, _)| (*known, *name) == (group, kind))?;
    let fault =
        Fault::error("kind", format!("{kind} is not accepted: nothing on a node without an apiserver serves it"));
    Some(OtherKind::Refused(fault.with_remedy(*remedy)))
}

/// The kinds without effect in a manifest, with the position of the first object of each.
#[derive(Debug, Default)]
pub(super) struct WithoutEffect(BTreeMap<&'static str, (Fault, usize)>);

impl WithoutEffect {
    /// Counts an object of that kind; `locate` completes the warning.
    pub(super) fn add(&mut self, kind: &'static str, locate: impl FnOnce(&mut Fault)) {
        let (_, count) = self.0.entry(kind).or_insert_with(|| {
            let mut fault = Fault::warning("kind", "").because(Reason::NoEffect);
            locate(&mut fault);
            (fault, 0)
        });
        *count += 1;
    }

    /// One warning for each kind.
    pub(super) fn finish(self) -> impl Iterator<Item = Fault> {
        self.0.into_iter().map(|(kind, (fault, count))| {
            let objects = if count == 1 { String::new() } else { format!(" ({count} objects)") };
            Fault { message: format!("{kind} has no effect without an apiserver{objects}"), ..fault }
        })
    }
}
