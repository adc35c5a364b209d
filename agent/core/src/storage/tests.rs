#![allow(clippy::unwrap_used)]
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::fixtures::{READY, instance, now, ready, version};
use crate::outcome::{self, Outcome};
use crate::plan::{Action, Step, plan};
use crate::state::PodState;

const MI: u64 = 1 << 20;

fn spec(volumes: Value, containers: Value) -> PodSpec {
    serde_json::from_value(json!({ "volumes": volumes, "containers": containers })).unwrap()
}

/// A pod of a file with that spec.
fn record(spec: &PodSpec) -> PodRecord {
    let pod = k8s_openapi::api::core::v1::Pod { spec: Some(spec.clone()), ..Default::default() };
    (*version(pod)).clone()
}

fn limited(name: &str, limit: &str) -> Value {
    json!({ "name": name, "resources": { "limits": { "ephemeral-storage": limit } } })
}

fn usage(volumes: &[(&str, u64)], containers: &[(&str, u64)]) -> StorageUsage {
    let by_name = |list: &[(&str, u64)]| list.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
    StorageUsage { volumes: by_name(volumes), containers: by_name(containers), files: 0 }
}

#[test]
fn only_what_has_a_limit_is_measured() {
    let memory = json!([{ "name": "m", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }]);
    let plain = json!([{ "name": "a", "emptyDir": {} }, { "name": "b", "emptyDir": { "sizeLimit": "1Mi" } }]);
    let bare = json!([{ "name": "c" }]);
    assert_eq!(measured(&spec(memory, bare.clone())), None);
    assert_eq!(measured(&spec(plain.clone(), bare.clone())), Some((vec!["b"], false)));
    assert_eq!(measured(&spec(plain, json!([limited("c", "1Mi")]))), Some((vec!["a", "b"], true)));
    assert_eq!(measured(&spec(json!([{ "name": "z", "emptyDir": { "sizeLimit": "0" } }]), bare)), None);
}

#[test]
fn too_much_is_reported_in_kubelets_words_and_order() {
    let volumes = json!([{ "name": "v", "emptyDir": { "sizeLimit": "2Mi" } }, { "name": "w", "emptyDir": {} }]);
    let two = spec(volumes.clone(), json!([limited("a", "1Mi"), limited("b", "3Mi")]));
    let cases = [
        (usage(&[("v", 2 * MI), ("w", MI)], &[("a", MI), ("b", 0)]), None),
        (
            usage(&[("v", 2 * MI + 1)], &[("a", 9 * MI)]),
            Some("Usage of EmptyDir volume \"v\" exceeds the limit \"2Mi\". "),
        ),
        (
            usage(&[("w", 4 * MI)], &[("a", MI + 1)]),
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "),
        ),
        (
            StorageUsage { files: 4 * MI, ..usage(&[], &[("a", 1)]) },
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "),
        ),
        (
            usage(&[], &[("a", MI + 1), ("b", MI)]),
            Some("Container a exceeded its local ephemeral storage limit \"1Mi\". "),
        ),
    ];
    for (usage, wanted) in cases {
        let verdict = excess(&record(&two), &usage);
        assert_eq!(verdict.as_ref().map(|verdict| verdict.message.as_str()), wanted, "{usage:?}");
        assert!(verdict.is_none_or(|verdict| verdict.is_final() && verdict.grace() == Some(Duration::from_secs(1))));
    }
    let mut alone = spec(json!([]), json!([limited("a", "1Mi")]));
    alone.init_containers = Some(vec![serde_json::from_value(limited("i", "8Mi")).unwrap()]);
    assert_eq!(excess(&record(&alone), &usage(&[], &[("i", 7 * MI)])), None, "an init container may need more");
    alone.init_containers.as_mut().unwrap()[0].restart_policy = Some("Always".to_owned());
    let sidecar = excess(&record(&alone), &usage(&[], &[("i", 8 * MI + 1)])).unwrap();
    assert_eq!(sidecar.message, "Container i exceeded its local ephemeral storage limit \"8Mi\". ");
    alone.priority_class_name = Some("system-node-critical".to_owned());
    assert_eq!(excess(&record(&alone), &usage(&[], &[("i", 10 * MI)])), None, "kubelet ends no critical pod");
}

#[test]
fn a_pod_is_measured_while_it_runs_and_ends_when_it_takes_too_much() {
    let spec =
        spec(json!([{ "name": "v", "emptyDir": { "sizeLimit": "1Mi" } }]), json!([{ "name": "c", "image": "app:1" }]));
    let pod = k8s_openapi::api::core::v1::Pod { spec: Some(spec), ..Default::default() };
    let now = now();
    let mut pod = PodState::new(version(pod), now.wall);
    let measures = |pod: &PodState, at| matches!(plan(pod, READY, at), Step::Do(actions) if actions.contains(&Action::MeasureStorage));
    assert!(!measures(&pod, now.mono), "nothing runs");
    pod = ready(pod);
    pod.containers[0].instance = Some(instance(&pod.containers[0], 0));
    assert!(measures(&pod, now.mono));
    outcome::begin(&mut pod, &Action::MeasureStorage);
    assert!(!measures(&pod, now.mono));
    let again = Duration::from_secs(60);
    outcome::apply(&mut pod, Outcome::StorageMeasured { usage: usage(&[("v", MI)], &[]), again }, now);
    assert!(!measures(&pod, now.mono + again - Duration::from_millis(1)));
    assert!(measures(&pod, now.mono + again));
    let mut ending = pod.clone();
    ending.end(Duration::from_secs(1), now);
    for pod in [&mut pod, &mut ending] {
        outcome::apply(pod, Outcome::StorageMeasured { usage: usage(&[("v", MI + 1)], &[]), again }, now);
    }
    assert!(pod.is_failed() && !ending.is_failed(), "one that ends already does so as it was told");
    let Step::Do(actions) = plan(&pod, READY, now.mono) else { panic!("its container is stopped") };
    assert!(matches!(actions[..], [Action::Stop(0, ..)]), "{actions:?}");
}
