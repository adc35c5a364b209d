#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn document() -> DescribeDocument {
    serde_json::from_value(json!({
        "entry": {
            "source": "file", "origin": "web.yaml", "manifestName": "web", "fingerprint": "07ab",
            "note": "next try in 20s",
            "pod": {
                "metadata": {
                    "name": "web-edge1", "namespace": "default", "uid": "u1",
                    "labels": {"app": "web", "tier": "front"},
                },
                "spec": {
                    "nodeName": "edge1", "restartPolicy": "Always", "hostNetwork": true,
                    "initContainers": [{"name": "prepare", "image": "busybox:1"}],
                    "containers": [{
                        "name": "web", "image": "web:1", "command": ["/bin/web", "--listen\u{1b}[31m"],
                        "ports": [{"containerPort": 80}],
                        "livenessProbe": {"exec": {"command": ["cat", "/ok"]}, "initialDelaySeconds": 3, "timeoutSeconds": 1,
                            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "web", "scheme": "HTTPS"},
                            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                        "env": [
                            {"name": "MODE", "value": "fast"},
                            {"name": "A_VARIABLE_WITH_A_LONG_NAME", "value": "1"},
                            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                        ],
                        "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": true}],
                    }],
                    "volumes": [
                        {"name": "data", "hostPath": {"path": "/srv", "type": "Directory"}},
                        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                    ],
                },
                "status": {
                    "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z",
                    "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady",
                                    "lastTransitionTime": "2026-01-01T00:00:30Z"}],
                    "initContainerStatuses": [{
                        "name": "prepare", "ready": true, "restartCount": 0, "image": "", "imageID": "",
                        "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
                    }],
                    "containerStatuses": [{
                        "name": "web", "ready": false, "restartCount": 2, "image": "web:1", "imageID": "sha256:1",
                        "containerID": "containerd://c1",
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
                        "lastState": {"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled",
                            "startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:00:30.5Z"}},
                    }],
                },
            },
        },
        "containers": {"web": {"id": "c1", "pid": 42, "logPath": "/var/log/pods/x/web"}},
        "rejected": [{
            "origin": "web.yaml", "kept": ["default/web-edge1"],
            "faults": [{"severity": "error", "path": "", "message": "", "remedy": "",
                        "text": "web.yaml:7:3: spec.containers: required"}],
        }],
        "events": [{
            "metadata": {}, "involvedObject": {}, "type": "Warning", "reason": "BackOff", "count": 3,
            "message": "Back-off restarting", "lastTimestamp": "2026-01-01T00:01:00Z",
        }],
    }))
    .unwrap()
}

#[test]
fn a_pod_is_described_with_its_containers_and_events() {
    let text = render(&document(), &Screen { color: false, quiet: false }, "2026-01-01T00:01:30Z".parse().unwrap());
    let expected = include_str!("golden.txt");
    assert!(text == expected, "described as:\n{text}");
}

#[test]
fn a_kind_may_be_a_word_or_stand_before_a_slash() {
    let of_words = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        subject(&words).map(|subject| format!("{subject:?}")).map_err(|error| error.to_string())
    };
    for (words, expected) in [
        (&["web"][..], "Pod(\"web\")"),
        (&["shop/web"], "Pod(\"shop/web\")"),
        (&["pod", "web"], "Pod(\"web\")"),
        (&["pod/web"], "Pod(\"web\")"),
        (&["deployment/web"], "Object(Deployment, \"web\")"),
        (&["sts", "db"], "Object(StatefulSet, \"db\")"),
        (&["pvc/data"], "Object(PersistentVolumeClaim, \"data\")"),
        (&["svc/web"], "Object(Service, \"web\")"),
    ] {
        assert_eq!(of_words(words).as_deref(), Ok(expected), "{words:?}");
    }
    assert!(of_words(&["secret/key"]).unwrap_err().contains("no page"));
    assert!(of_words(&["thing", "web"]).unwrap_err().contains("no kind that can be described"));
    assert!(of_words(&["deploy/"]).is_err());
}
