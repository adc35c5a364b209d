use limpet_model::object::workload::PodTemplate;
use limpet_model::object::workload::labels::TEMPLATE_HASH;
use serde_json::json;

use super::*;

const NOW: Timestamp = Timestamp::constant(1_767_225_690, 0);

fn document(object: Value, pods: Value) -> ObjectDocument {
    serde_json::from_value(json!({
        "source": "file", "origin": "web.yaml", "object": object, "pods": pods,
        "events": [{
            "metadata": {}, "involvedObject": {}, "type": "Warning", "reason": "ProgressDeadlineExceeded",
            "message": "it does not get ready", "lastTimestamp": "2026-01-01T00:01:00Z",
        }],
    }))
    .unwrap()
}

fn page(kind: ObjectKind, document: &ObjectDocument, service: Option<&ServiceDocument>) -> String {
    render((kind, document), service, &Screen { color: false, quiet: false }, NOW)
}

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "containers": [{"name": "main", "image": "web:1", "ports": [{"containerPort": 80}]}],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    })
}

fn pod(name: &str, label: (&str, &str), phase: &str, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    let metadata = json!({"name": name, "namespace": "default", "labels": {(label.0): label.1}});
    json!({
        "source": "file", "origin": "web.yaml", "manifestName": name, "fingerprint": "f",
        "pod": {
            "metadata": metadata,
            "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            "status": {
                "phase": phase, "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:30Z"}],
            },
        },
    })
}

#[test]
fn a_deployment_is_shown_with_its_pods() {
    let hash = PodTemplate::new(&template()).hash();
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]},
            "strategy": {"rollingUpdate": {"maxSurge": 1}}, "template": template(),
        },
    });
    let pods = json!([
        pod("web-new-1", (TEMPLATE_HASH, &hash), "Running", true),
        pod("web-old-1", (TEMPLATE_HASH, "old"), "Running", true),
        pod("web-old-2", (TEMPLATE_HASH, "old"), "Failed", false),
    ]);
    let text = page(ObjectKind::Deployment, &document(object, pods), None);
    let expected = include_str!("deployment.txt");
    assert!(text == expected, "described as:\n{text}");
}

#[test]
fn the_kinds_have_their_own_lines() {
    let set = json!({"metadata": {"name": "db"}, "spec": {
        "serviceName": "db", "template": template(), "minReadySeconds": 5,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
    }});
    let job = json!({"metadata": {"name": "j"}, "spec": {"completions": 3, "parallelism": 2, "template": template()},
    "status": {
        "active": 1, "succeeded": 2, "failed": 4, "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T00:01:00Z", "completedIndexes": "0,1",
        "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}],
    }});
    let cron = json!({"metadata": {"name": "c"}, "spec": {
        "schedule": "*/5 * * * *", "suspend": true, "jobTemplate": {"spec": {"template": template()}}},
        "status": {"active": [{"kind": "Job", "name": "c-29"}], "lastScheduleTime": "2026-01-01T00:00:00Z"}});
    let daemon = json!({"metadata": {"name": "d"}, "spec": {"template": template()}});
    let cases: [(ObjectKind, Value, &[&str]); 4] = [
        (
            ObjectKind::StatefulSet,
            set,
            &[
                "Replicas:         1 desired | 0 total | 0 updated | 0 available\n",
                "Strategy:         RollingUpdate, partition 0\n",
                "Pod Management:   OrderedReady\n",
                "Service Name:     db\n",
                "Min Ready:        5s\n",
                "Volume Claims:\n  data: 1Gi, ReadWriteOnce\n",
            ],
        ),
        (
            ObjectKind::Job,
            job,
            &[
                "Completions:      3\n",
                "Duration:         60s\n",
                "Pods Statuses:    1 Active / 2 Succeeded / 4 Failed\n",
                "Completed Indexes: 0,1\n",
                "Failed:           BackoffLimitExceeded: too often\n",
            ],
        ),
        (
            ObjectKind::CronJob,
            cron,
            &[
                "Schedule:         */5 * * * *\n",
                "Suspend:          True\n",
                "Active Jobs:      c-29\n",
                "      Image:            web:1\n",
            ],
        ),
        (ObjectKind::DaemonSet, daemon, &["Strategy:         RollingUpdate, 1 max unavailable, 0 max surge\n"]),
    ];
    for (kind, object, lines) in cases {
        let text = page(kind, &document(object, json!([])), None);
        for line in lines {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(text.contains("Pods:\n  <none>\n"), "{text}");
    }
}

#[test]
fn a_claim_is_shown_with_its_directory_and_pods() {
    let object = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let mut claim = document(object, json!([pod("web", ("app", "web"), "Running", true)]));
    claim.directory = Some("/claims/file/default/data/data".into());
    let text = page(ObjectKind::PersistentVolumeClaim, &claim, None);
    for line in [
        "StorageClass:     local-path\n",
        "Status:           Bound\n",
        "Directory:        /claims/file/default/data/data\n",
        "Capacity:         1Gi\n",
        "Used By:\n  NAME ",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    claim.ending = true;
    assert!(page(ObjectKind::PersistentVolumeClaim, &claim, None).contains("Status:           Terminating"));
}

#[test]
fn a_service_is_shown_with_its_endpoints_and_its_fault() {
    let object = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {
        "selector": {"app": "web"}, "type": "NodePort",
        "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "dns", "port": 53, "protocol": "UDP"}]}});
    let served: ServiceDocument = serde_json::from_value(json!({
        "namespace": "default", "name": "web", "source": "file", "origin": "web.yaml", "type": "NodePort",
        "clusterIPs": ["10.43.0.9"], "pods": ["default/a"], "fault": "no address",
        "ports": [
            {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "endpoints": ["10.1.0.2:8080"]},
            {"name": "dns", "protocol": "UDP", "port": 53, "endpoints": []},
        ],
    }))
    .unwrap();
    let text = page(ObjectKind::Service, &document(object, json!([])), Some(&served));
    for line in [
        "Selector:         app=web\n",
        "IPs:              10.43.0.9\n",
        "Port:             http 80/TCP\n",
        "  Target:           web/TCP\n",
        "  Node Port:        30080/TCP\n",
        "  Endpoints:        10.1.0.2:8080\n",
        "  Target:           53/UDP\n",
        "  Endpoints:        <none>\n",
        "Not Served:       no address\n",
        "Pods:\n  default/a\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
