//! Containers that end, and pods that never work.

use std::net::TcpListener;

use anyhow::Result;
use limpet_tests::TestNode;
use limpet_tests::manifest::shell;
use serde_json::{Value, json};

use crate::stage::{End, Update, container_with, spec_with, try_all};

fn container(name: &'static str, fields: Value, why: &'static str) -> Update {
    Update { name, text: container_with(fields), end: End::Undone(why) }
}

fn spec(name: &'static str, fields: Value, why: &'static str) -> Update {
    Update { name, text: spec_with(fields), end: End::Undone(why) }
}

fn script(name: &'static str, script: &str, why: &'static str) -> Update {
    container(name, json!({ "command": ["/bin/sh", "-c", script] }), why)
}

fn failing_probe() -> Value {
    json!({ "exec": { "command": ["/bin/false"] }, "periodSeconds": 1, "failureThreshold": 1 })
}

pub(crate) fn containers_that_end(node: &mut TestNode) -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    let hook = json!({ "lifecycle": { "postStart": { "exec": { "command": ["/bin/false"] } } } });
    let hungry = json!({ "command": ["/bin/sh", "-c", "exec tail /dev/zero"],
        "resources": { "limits": { "memory": "16Mi" } } });
    try_all(
        node,
        vec![
            script("crash loop", "exit 3", "container main ended with 3, Error"),
            script("a program that ends", "exit 0", "container main ended with 0, Completed"),
            script(
                "a port that is taken",
                &format!("exec httpd -f -p 127.0.0.1:{port}"),
                "container main ended with 1",
            ),
            container("too much memory", hungry, "container main ended with 137, OOMKilled"),
            container("a liveness probe", json!({ "livenessProbe": failing_probe() }), "was restarted 1 times"),
            container("a startup probe", json!({ "startupProbe": failing_probe() }), "was restarted 1 times"),
            container("a hook", hook, "was restarted 1 times"),
            spec(
                "a container beside it",
                json!({ "containers": [shell("main", "sleep 1000"), shell("aside", "exit 4")] }),
                "container aside ended with 4",
            ),
        ],
    )
}

pub(crate) fn pods_that_never_work(node: &mut TestNode) -> Result<()> {
    let missing_file = json!({ "volumes": [{ "name": "file", "hostPath": { "path": "/none/such", "type": "File" } }] });
    let missing_secret = json!({ "volumes": [{ "name": "token", "secret": { "secretName": "none" } }] });
    let missing_key =
        json!({ "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "none" } } }] });
    try_all(
        node,
        vec![
            container("a readiness probe", json!({ "readinessProbe": failing_probe() }), "is not ready"),
            container("a program that is missing", json!({ "command": ["/none/such"] }), "pod default/web-"),
            container(
                "a user that is not allowed",
                json!({ "securityContext": { "runAsNonRoot": true } }),
                "runAsNonRoot",
            ),
            container("a key that is missing", missing_key, "CreateContainerConfigError"),
            spec("a Secret that is missing", missing_secret, "is not ready"),
            spec("a file that is missing", missing_file, "is not ready"),
            spec("an init container", json!({ "initContainers": [shell("init", "exit 5")] }), "pod default/web-"),
            spec("a node that is another one", json!({ "nodeSelector": { "place": "elsewhere" } }), "NodeAffinity"),
            spec("a deadline that passes", json!({ "activeDeadlineSeconds": 1 }), "DeadlineExceeded"),
            container(
                "more memory than there is",
                json!({ "resources": { "requests": { "memory": "1Pi" } } }),
                "OutOfmemory",
            ),
        ],
    )
}
