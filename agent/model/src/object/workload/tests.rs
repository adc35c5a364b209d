//! Tests of the decoding of workloads.

use serde_json::{Value, json};

use super::labels::TEMPLATE_HASH;
use super::*;
use crate::manifest::{self, Manifest};
use crate::object::{ObjectKind, ObjectRecord};

fn deployment(spec: Value) -> Value {
    let mut document = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "i:1"}]}},
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        document["spec"][field] = value.clone();
    }
    document
}

fn read(document: &Value) -> Manifest {
    manifest::read(document.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1")
}

fn faults(document: &Value) -> Vec<String> {
    read(document).faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect()
}

fn accepted(document: &Value) -> Arc<ObjectRecord> {
    let manifest = read(document);
    assert_eq!(manifest.faults, []);
    Arc::clone(&manifest.objects[0])
}

fn replicated(document: &Value) -> Replicated {
    match &accepted(document).workload.as_ref().unwrap().spec {
        WorkloadSpec::Replicated(spec) => spec.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_deployment_has_kubernetes_defaults() {
    let expected = Replicated {
        replicas: 1,
        update: Update::Rolling { surge: 1, unavailable: 0 },
        min_ready_seconds: 0,
        progress_deadline_seconds: Some(600),
        paused: false,
        history_limit: 10,
    };
    assert_eq!(replicated(&deployment(json!({}))), expected);
}

#[test]
fn amounts_of_a_rolling_update_are_resolved_as_kubernetes_rounds_them() {
    let update = |replicas: u32, surge: Value, unavailable: Value| {
        let rolling = json!({"maxSurge": surge, "maxUnavailable": unavailable});
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
        match replicated(&deployment(json!({"replicas": replicas, "strategy": strategy}))).update {
            Update::Rolling { surge, unavailable } => (surge, unavailable),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(update(10, json!("25%"), json!("25%")), (3, 2));
    assert_eq!(update(4, json!(2), json!("50%")), (2, 2));
    assert_eq!(update(3, json!("0%"), json!("10%")), (0, 1), "without a surge one pod may be missing");
    assert_eq!(update(0, json!("25%"), json!("25%")), (0, 1));
}

#[test]
fn a_daemon_set_is_one_pod() {
    let daemon = |strategy: Value| {
        let mut document = deployment(json!({"updateStrategy": strategy}));
        document["kind"] = json!("DaemonSet");
        replicated(&document)
    };
    assert_eq!((daemon(Value::Null).replicas, daemon(Value::Null).update), (1, Update::Recreate));
    assert_eq!(daemon(json!({"type": "OnDelete"})).update, Update::Manual);
    let surge = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    assert_eq!(daemon(surge).update, Update::Rolling { surge: 1, unavailable: 0 });
}

#[test]
fn faults_are_those_of_an_apiserver_at_their_places() {
    let container = json!({"name": "a", "image": "i:1", "livenesProbe": {}});
    let template = |spec: Value| json!({"metadata": {"labels": {"app": "web"}}, "spec": spec});
    for (spec, expected) in [
        (json!({"replica": 2}), "spec.replica: no such field"),
        (json!({"replicas": "2"}), "spec.replicas: has the wrong type"),
        (json!({"replicas": -1}), "spec.replicas: Invalid value: -1: must be at least 0"),
        (json!({"replicas": 100_000}), "spec.replicas: Invalid value: 100000: must be at most 1000 on one node"),
        (json!({"selector": null}), "spec.selector: required: it must select the template's pods"),
        (
            json!({"selector": {"matchLabels": {"app": "shop"}}}),
            "spec.template.metadata.labels: `selector` does not match template `labels`",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}),
            "spec.template.metadata.labels: `selector` does not match template `labels`",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Near"}]}}),
            "spec.selector.matchExpressions[0]: is no requirement",
        ),
        (
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ),
        (
            json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        (
            json!({"strategy": {"type": "Blue"}}),
            "spec.strategy.type: Unsupported value: \"Blue\": supported values: \"RollingUpdate\", \"Recreate\"",
        ),
        (
            json!({"progressDeadlineSeconds": 5, "minReadySeconds": 5}),
            "spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds",
        ),
        (json!({"template": null}), "spec.template: required"),
        (
            json!({"template": template(json!({"containers": [container]}))}),
            "spec.template.spec.containers[0].livenesProbe: no such field",
        ),
        (
            json!({"template": template(json!({"containers": []}))}),
            "spec.template.spec.containers: Required value: a Pod needs at least one container",
        ),
        (
            json!({"template": template(json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]}))}),
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ),
    ] {
        let faults_found = faults(&deployment(spec.clone()));
        assert_eq!(faults_found, [expected], "{spec}");
    }
}

#[test]
fn a_refused_workload_names_itself_alone() {
    let manifest = read(&deployment(json!({"replicas": -1})));
    let key = ObjectKey::new(ObjectKind::Deployment, "shop", "web");
    assert_eq!((manifest.refused_objects.into_iter().collect::<Vec<_>>(), manifest.objects.len()), (vec![key], 0));
    assert!(!manifest.unknown_pod_refused && manifest.refused.is_empty());
}

#[test]
fn another_api_version_is_refused_with_the_right_one() {
    let mut document = deployment(json!({}));
    document["apiVersion"] = json!("extensions/v1beta1");
    let manifest = read(&document);
    assert_eq!(manifest.faults[0].message, "extensions/v1beta1 has no Deployment");
    assert_eq!(manifest.faults[0].remedy, "apiVersion: apps/v1");
}

#[test]
fn a_workload_survives_the_store() {
    let record = accepted(&deployment(json!({"replicas": 2})));
    let value: Value = serde_json::from_slice(&record.manifest()).unwrap();
    let restored = crate::object::restore(&value, "web.yaml").unwrap().unwrap();
    assert_eq!(restored, *record);
    assert_eq!(restored.workload.unwrap().template, record.workload.as_ref().unwrap().template);
}

#[test]
fn the_selector_cannot_change() {
    let before = accepted(&deployment(json!({})));
    let next = deployment(json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}));
    let fault = before.forbids(&accepted(&next)).unwrap();
    assert_eq!(
        (fault.path.as_str(), before.forbids(&accepted(&deployment(json!({"replicas": 3}))))),
        ("spec.selector", None)
    );
}

#[test]
fn a_pod_has_the_names_of_its_controller_and_gives_its_template_back() {
    let record = accepted(&deployment(json!({})));
    let template = &record.workload.as_ref().unwrap().template;
    let hash = template.hash();
    assert_eq!(hash, "mskjnddccs", "pinned: another one would restart every pod");
    let controller = format!("web-{hash}");
    let name = pod_name(&controller, &suffix("edge1", &record.key, &hash, 0));
    let added = Additions { labels: [(TEMPLATE_HASH, hash.clone())].into(), ..Additions::default() };
    let context = (&record.origin, SourceKind::File, "edge1");
    let pod = template.pod(&record.key, &name, &added, ("apps/v1", "ReplicaSet", &controller), context).unwrap();
    assert_eq!((pod.key.namespace(), pod.key.name()), ("shop", name.as_str()));
    assert_eq!(pod.pod.metadata.labels.as_ref().unwrap()[TEMPLATE_HASH], hash);
    assert_eq!(pod.pod.metadata.owner_references.as_ref().unwrap()[0].name, controller);
    assert_eq!(PodTemplate::of_pod(&pod).as_ref(), Some(template));
    let again = manifest::restore(&pod.manifest, "web.yaml", SourceKind::File, "edge1").unwrap();
    assert_eq!((again.key, again.uid, again.fingerprint), (pod.key, pod.uid, pod.fingerprint));
    let authored = manifest::read(&pod.manifest, "web.yaml", SourceKind::File, "edge1");
    assert!(authored.pods.is_empty(), "a manifest cannot pass for a controller's pod");
}

#[test]
fn long_names_become_host_names() {
    let name = pod_name(&"a".repeat(100), "bcdfg");
    assert_eq!((name.len(), name.ends_with("a-bcdfg")), (63, true));
    assert_eq!(pod_name(&format!("{}.b", "a".repeat(56)), "bcdfg"), format!("{}-bcdfg", "a".repeat(56)));
}

fn document(version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
}

fn job(spec: Value) -> Value {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i:1"}]}});
    let mut whole = json!({"template": template});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    document("batch/v1", "Job", whole)
}

#[test]
fn a_job_has_kubernetes_defaults() {
    let settled = |spec: Value| match &accepted(&job(spec)).workload.as_ref().unwrap().spec {
        WorkloadSpec::Job(job) => job::Job::clone(job),
        other => panic!("{other:?}"),
    };
    let plain = settled(json!({}));
    assert_eq!((plain.parallelism, plain.completions, plain.backoff_limit), (1, Some(1), 6));
    assert_eq!(settled(json!({"parallelism": 3})).completions, None);
    assert_eq!((plain.indexed, plain.suspend, plain.replaces_failed_only), (false, false, false));
    let per_index = json!({"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1});
    assert_eq!(settled(per_index).backoff_limit, i32::MAX.unsigned_abs());
    let rules = json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]);
    let policy = settled(json!({"podFailurePolicy": {"rules": rules}}));
    assert!(policy.replaces_failed_only);
    let condition = ("DisruptionTarget".to_owned(), "True".to_owned());
    assert_eq!(policy.failure_rules[0].requirement, job::Requirement::Conditions(vec![condition]));
}

#[test]
fn faults_of_jobs_are_those_of_an_apiserver() {
    let rule = |rule: Value| json!({"podFailurePolicy": {"rules": [rule]}});
    let codes = |codes: Value| rule(json!({"action": "FailJob", "onExitCodes": codes}));
    let success =
        |rules: Value| json!({"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": rules}});
    for (spec, expected) in [
        (json!({"completions": -1}), "spec.completions: Invalid value: -1: must be greater than or equal to 0"),
        (json!({"parallelism": 5_000}), "spec.parallelism: Invalid value: 5000: must be at most 1000 on one node"),
        (json!({"completionMode": "Indexed"}), "spec.completions: Required value: when completion mode is Indexed"),
        (
            json!({"backoffLimitPerIndex": 1}),
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
        ),
        (
            json!({"completionMode": "Indexed", "completions": 1, "backoffLimitPerIndex": 1, "maxFailedIndexes": 2}),
            "spec.maxFailedIndexes: Invalid value: 2: must be less than or equal to completions",
        ),
        (
            json!({"podReplacementPolicy": "Never"}),
            "spec.podReplacementPolicy: Unsupported value: \"Never\": supported values: \"Failed\", \"TerminatingOrFailed\"",
        ),
        (
            rule(json!({"action": "FailIndex", "onPodConditions": [{"type": "A"}]})),
            "spec.podFailurePolicy.rules[0].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
        ),
        (
            rule(json!({"action": "Ignore"})),
            "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
        ),
        (
            codes(json!({"operator": "In", "values": [0]})),
            "spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
        ),
        (
            codes(json!({"operator": "In", "values": [3, 1]})),
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: must be ordered",
        ),
        (
            codes(json!({"operator": "In", "values": [1], "containerName": "b"})),
            "spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: \"b\": must be one of the container or \
             initContainer names in the pod template",
        ),
        (
            success(json!([{"succeededCount": 4}])),
            "spec.successPolicy.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of \
             specified completions)",
        ),
        (
            success(json!([{"succeededIndexes": "0-3"}])),
            "spec.successPolicy.rules[0].succeededIndexes: Invalid value: \"0-3\": error parsing succeededIndexes: too large \
             index: \"3\"",
        ),
        (
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            "spec.selector: Invalid value: `selector` not auto-generated",
        ),
        (
            json!({"template": {"spec": {"containers": [{"name": "a", "image": "i:1"}]}}}),
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ),
        (
            json!({"managedBy": "example.com/other"}),
            "spec.managedBy: has no effect on a node: its own controller runs the Job",
        ),
    ] {
        assert_eq!(faults(&job(spec.clone())), [expected], "{spec}");
    }
}

#[test]
fn a_jobs_template_cannot_change_and_the_completions_of_an_elastic_one_can() {
    let before = accepted(&job(json!({"parallelism": 2})));
    let mut next = job(json!({"parallelism": 3}));
    assert_eq!(before.forbids(&accepted(&next)), None);
    next["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert_eq!(before.forbids(&accepted(&next)).unwrap().path, "spec.template");
    let indexed = |completions: u32, parallelism: u32| {
        accepted(&job(json!({"completionMode": "Indexed", "completions": completions, "parallelism": parallelism})))
    };
    assert_eq!(indexed(2, 2).forbids(&indexed(3, 3)), None);
    assert_eq!(indexed(2, 2).forbids(&indexed(3, 2)).unwrap().path, "spec.completions");
}

#[test]
fn faults_of_cron_jobs_have_their_own_places() {
    let cron = |spec: Value| {
        let mut whole = json!({"schedule": "* * * * *", "jobTemplate": {"spec": job(json!({}))["spec"]}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        document("batch/v1", "CronJob", whole)
    };
    assert!(accepted(&cron(json!({"timeZone": "Europe/Berlin"}))).workload.is_some());
    let always = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "imagee": "i:1"}]}}}});
    for (spec, expected) in [
        (json!({"schedule": ""}), vec!["spec.schedule: Required value"]),
        (
            json!({"schedule": "* * * *"}),
            vec!["spec.schedule: Invalid value: \"* * * *\": expected exactly 5 fields, found 4: [* * * *]"],
        ),
        (
            json!({"schedule": "TZ=UTC * * * * *"}),
            vec![
                "spec.schedule: Invalid value: \"TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field \
                 instead",
            ],
        ),
        (json!({"timeZone": "a//b"}), vec!["spec.timeZone: Invalid value: \"a//b\": unknown time zone a//b"]),
        (
            json!({"concurrencyPolicy": "Queue"}),
            vec![
                "spec.concurrencyPolicy: Unsupported value: \"Queue\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
            ],
        ),
        (
            json!({"jobTemplate": always}),
            vec![
                "spec.jobTemplate.spec.template.spec.containers[0].imagee: no such field",
                "spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ],
        ),
    ] {
        let faults_found = faults(&cron(spec.clone()));
        assert!(
            expected.iter().all(|message| faults_found.iter().any(|fault| fault == message)),
            "{spec}: {faults_found:?}"
        );
    }
}

#[test]
fn what_a_pod_has_by_its_index_or_ordinal_is_none_of_its_template() {
    let template = PodTemplate::new(&json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "a", "image": "i:1"}, {"name": "b", "image": "i:1", "env": [{"name": "A", "value": "1"}]},
        ]},
    }));
    let added = Additions {
        labels: [(labels::INDEX, "3".to_owned()), (labels::NAMES[0], "web".to_owned())].into(),
        annotations: [labels::INDEX, labels::INDEX_FAILURES, labels::INDEX_IGNORED_FAILURES]
            .map(|annotation| (annotation, "3".to_owned()))
            .into(),
        host_name: Some("web-3".to_owned()),
        index_variable: true,
        ..Additions::default()
    };
    let key = ObjectKey::new(ObjectKind::Job, "shop", "web");
    let context = (&Arc::from("web.yaml"), SourceKind::File, "edge1");
    let pod = template.pod(&key, "web-3-bcdfg", &added, ("batch/v1", "Job", "web"), context).unwrap();
    let spec = pod.spec();
    assert_eq!(spec.hostname.as_deref(), Some("web-3"));
    let names: Vec<Vec<&str>> = spec
        .containers
        .iter()
        .map(|container| container.env.iter().flatten().map(|entry| entry.name.as_str()).collect())
        .collect();
    assert_eq!(names, [vec![labels::INDEX_VARIABLE], vec!["A", labels::INDEX_VARIABLE]]);
    assert_eq!(PodTemplate::of_pod(&pod), Some(template.clone()));
    let added = Additions {
        labels: [(labels::POD_NAME, "web-0".to_owned()), (labels::POD_INDEX, "0".to_owned())].into(),
        host_name: Some("web-0".to_owned()),
        subdomain: Some("peers".to_owned()),
        uid: Some(incarnation_uid("edge1", SourceKind::File, ("shop", "web-0"), "h", 1)),
        ..Additions::default()
    };
    let pod = template.pod(&key, "web-0", &added, ("apps/v1", "StatefulSet", "web"), context).unwrap();
    assert_eq!((pod.spec().subdomain.as_deref(), Some(pod.uid.as_str())), (Some("peers"), added.uid.as_deref()));
    assert_eq!(PodTemplate::of_pod(&pod), Some(template));
}

#[test]
fn a_stateful_set_has_kubernetes_defaults_and_faults() {
    let set = |spec: Value| {
        let mut whole = deployment(json!({}))["spec"].clone();
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        document("apps/v1", "StatefulSet", whole)
    };
    let settled = |spec: Value| match &accepted(&set(spec)).workload.as_ref().unwrap().spec {
        WorkloadSpec::StatefulSet(set) => set.clone(),
        other => panic!("{other:?}"),
    };
    let plain = settled(json!({}));
    assert_eq!((plain.replicas, plain.start, plain.parallel), (1, 0, false));
    assert_eq!(plain.rolling, Some(stateful_set::Rolling { partition: 0, unavailable: 1 }));
    let rolling = json!({"rollingUpdate": {"partition": 2, "maxUnavailable": "50%"}});
    let expected = Some(stateful_set::Rolling { partition: 2, unavailable: 2 });
    assert_eq!(settled(json!({"replicas": 5, "updateStrategy": rolling})).rolling, expected);
    assert_eq!(settled(json!({"updateStrategy": {"type": "OnDelete"}})).rolling, None);
    for (spec, expected) in [
        (
            json!({"podManagementPolicy": "Random"}),
            "spec.podManagementPolicy: Invalid value: \"Random\": must be 'OrderedReady' or 'Parallel'",
        ),
        (
            json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0",
        ),
        (json!({"ordinals": {"start": -1}}), "spec.ordinals.start: Invalid value: -1: must be at least 0"),
        (
            json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}),
            "spec.volumeClaimTemplates[0].spec: required",
        ),
    ] {
        assert_eq!(faults(&set(spec.clone())), [expected], "{spec}");
    }
    let next = accepted(&set(json!({"podManagementPolicy": "Parallel"})));
    assert_eq!(accepted(&set(json!({}))).forbids(&next).unwrap().path, "spec.podManagementPolicy");
}
