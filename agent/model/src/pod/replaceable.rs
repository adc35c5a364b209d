//! Which containers can be replaced alone when their image or resources change, unless they are resized in place.
//!
//! A container whose stop is not followed by a start cannot: an init container, or a regular one that its restart
//! policy may leave stopped. That depends only on the manifests and not on whether the container runs, has finished
//! or never started, so a restart of the agent in the middle of an edit leads to the same result, and a forecast is
//! right.

use std::fmt;

use k8s_openapi::api::core::v1::PodSpec;

use crate::pod::authored::Authored;
use crate::pod::resize::resizes_in_place;
use crate::pod::{PodRecord, Role};

/// Why a container cannot be replaced alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle<'a> {
    /// It is an init container, which does not run again in its sandbox.
    InitContainer(&'a str),
    /// Its restart policy, the second, may leave it stopped.
    Policy(&'a str, &'a str),
}

impl fmt::Display for Obstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InitContainer(name) => write!(f, "init container {name} runs again only in a new pod"),
            Self::Policy(name, policy) => {
                write!(f, "container {name} is not started again under restartPolicy {policy}")
            }
        }
    }
}

/// The containers whose image or resources differ between two versions, and which can be neither resized nor replaced
/// alone. A pod of the apiserver has none, because it keeps one UID for all its life: as in kubelet, its running
/// containers are replaced whatever their restart policy, and those that have finished stay so.
pub fn obstacles<'a>(old: &PodRecord, new: &'a PodRecord) -> Vec<Obstacle<'a>> {
    if new.source.traits().is_stored || old.fingerprint == new.fingerprint || !irreplaceable(new.spec()).any(|_| true) {
        return Vec::new();
    }
    let (before, after) = (Authored::parse(&old.manifest), Authored::parse(&new.manifest));
    let changed = |name: &str| match (before.container(name), after.container(name)) {
        (Some(before), Some(after)) => !(before.same_image(after) && before.same_resources(after)),
        _ => false,
    } && !resizes_in_place(old, new, name);
    irreplaceable(new.spec()).filter(|(name, _)| changed(name)).map(|(_, obstacle)| obstacle).collect()
}

fn irreplaceable(spec: &PodSpec) -> impl Iterator<Item = (&str, Obstacle<'_>)> {
    let of_pod = spec.restart_policy.as_deref().unwrap_or("Always");
    let policy_of =
        |name: &str| spec.containers.iter().find(|container| container.name == name)?.restart_policy.as_deref();
    Role::assign(spec).filter_map(move |(name, role)| match (role, policy_of(name).unwrap_or(of_pod)) {
        (Role::Init, _) => Some((name, Obstacle::InitContainer(name))),
        (Role::Main, policy) if policy != "Always" => Some((name, Obstacle::Policy(name, policy))),
        (Role::Main | Role::Sidecar | Role::Ephemeral, _) => None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::source::SourceKind;
    use serde_json::json;

    use super::*;
    use crate::manifest::restore;

    /// The images of an init container, a sidecar and a regular container.
    fn record(policy: Option<&str>, images: [&str; 3]) -> PodRecord {
        let manifest = json!({ "metadata": { "name": "web" }, "spec": {
            "restartPolicy": policy,
            "initContainers": [
                { "name": "i", "image": images[0] }, { "name": "s", "image": images[1], "restartPolicy": "Always" },
            ],
            "containers": [{ "name": "m", "image": images[2] }],
        }});
        restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap()
    }

    #[test]
    fn a_pod_of_the_apiserver_keeps_its_uid_and_is_never_recreated() {
        let of_api = |images| PodRecord { source: SourceKind::Api, ..record(Some("Never"), images) };
        let (old, new) = (of_api(["a", "a", "a"]), of_api(["b", "b", "b"]));
        assert!(obstacles(&old, &new).is_empty() && old.is_same_incarnation(&new));
    }

    #[test]
    fn an_init_container_and_what_may_stay_stopped_need_a_new_pod() {
        let cases: [(Option<&str>, [&str; 3], &str); 9] = [
            (None, ["a", "a", "b"], ""),
            (Some("Always"), ["a", "b", "b"], ""),
            (Some("Always"), ["b", "a", "a"], "init container i runs again only in a new pod"),
            (Some("Never"), ["a", "a", "b"], "container m is not started again under restartPolicy Never"),
            (Some("OnFailure"), ["a", "a", "b"], "container m is not started again under restartPolicy OnFailure"),
            (Some("Never"), ["a", "b", "a"], ""),
            (Some("Never"), ["b", "a", "a"], "init container i runs again only in a new pod"),
            (
                Some("OnFailure"),
                ["b", "b", "b"],
                "init container i runs again only in a new pod; container m is not started again under restartPolicy OnFailure",
            ),
            (Some("OnFailure"), ["a", "a", "a"], ""),
        ];
        for (policy, images, expected) in cases {
            let (old, new) = (record(policy, ["a", "a", "a"]), record(policy, images));
            let obstacles_found: Vec<String> = obstacles(&old, &new).iter().map(ToString::to_string).collect();
            assert_eq!(obstacles_found.join("; "), expected, "{policy:?} {images:?}");
            assert_eq!(old.is_same_incarnation(&new), expected.is_empty(), "{policy:?} {images:?}");
        }
    }
}
