#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use serde_json::{Value, json};

use limpet_model::object::ObjectKey;
use limpet_model::pod::quantity::Amount;

use super::super::tests::record;
use super::*;

pub(in crate::volume) fn objects(pod: &PodRecord, values: &[Value]) -> PodObjects {
    let decode = |value: &Value| {
        let kind = ObjectKind::from_name(value["kind"].as_str().unwrap()).unwrap();
        let (object, faults) = limpet_model::object::decode(value, kind, Arc::from("f.yaml"));
        Arc::new(object.unwrap_or_else(|| panic!("{faults:?}")))
    };
    let all: Vec<_> = values.iter().map(decode).collect();
    PodObjects::collect(pod, |key| all.iter().find(|object| object.key == *key).cloned())
}

/// `path mode text` of every file, and its owner if one is set.
fn files(volume: Value) -> Result<Vec<String>, String> {
    let mut volume = volume;
    volume["name"] = "v".into();
    let mut pod = record(json!({"volumes": [volume]}));
    pod.pod.metadata.labels = Some([("app".to_owned(), "a\"b\n".to_owned()), ("b".to_owned(), "ä".to_owned())].into());
    let limits = json!({"name": "c", "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}}});
    pod.pod.spec.as_mut().unwrap().containers = vec![serde_json::from_value(limits).unwrap()];
    let objects = objects(
        &pod,
        &[
            json!({"kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}, "binaryData": {"bin": "Yg=="}}),
            json!({"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "x", "a": "secret"}}),
        ],
    );
    let volume = pod.spec().volumes.as_ref().unwrap()[0].clone();
    let sources = Sources {
        pod: &pod,
        objects: &objects,
        node: NodeLimits {
            cpu: Amount::from_units(4),
            memory: Amount::from_units(1 << 30),
            ephemeral_storage: Amount::from_units(1 << 33),
        },
    };
    let text = |file: &PayloadFile| file.bytes.expose_text().unwrap().to_owned();
    let payload = payload(&volume, sources).map_err(|error| error.to_string())?.unwrap();
    let user = |file: &PayloadFile| file.user.map(|user| format!(" of {user}")).unwrap_or_default();
    Ok(payload.iter().map(|(path, file)| format!("{path} {:o} {}{}", file.mode, text(file), user(file))).collect())
}

#[test]
fn the_content_of_each_volume_kind() {
    let failed = "MountVolume.SetUp failed for volume \"v\" :";
    let table: Vec<(Value, Result<&[&str], String>)> = vec![
        (json!({"configMap": {"name": "m"}}), Ok(&["a 644 1", "b 644 2", "bin 644 b"])),
        (
            json!({"configMap": {"name": "m", "defaultMode": 0o400, "items": [
            {"key": "a", "path": "x/./y"}, {"key": "bin", "path": "z", "mode": 0o755}]}}),
            Ok(&["x/y 400 1", "z 755 b"]),
        ),
        (
            json!({"configMap": {"name": "m", "defaultUser": 7, "items": [
            {"key": "a", "path": "a"}, {"key": "b", "path": "b", "user": 8}]}}),
            Ok(&["a 644 1 of 7", "b 644 2 of 8"]),
        ),
        (
            json!({"projected": {"defaultUser": 7, "sources": [
            {"configMap": {"name": "m"}}, {"secret": {"name": "s", "items": [{"key": "k", "path": "k", "user": 0}]}}]}}),
            Ok(&["a 644 1 of 7", "b 644 2 of 7", "bin 644 b of 7", "k 644 x of 0"]),
        ),
        (json!({"configMap": {"name": "none"}}), Err(format!("{failed} configmap \"none\" not found"))),
        (json!({"configMap": {"name": "none", "optional": true}}), Ok(&[])),
        (
            json!({"configMap": {"name": "m", "items": [{"key": "q", "path": "q"}]}}),
            Err(format!("{failed} configmap references non-existent config key: q")),
        ),
        (
            json!({"configMap": {"name": "m", "optional": true, "items": [{"key": "q", "path": "q"}, {"key": "a", "path": "a"}]}}),
            Ok(&["a 644 1"]),
        ),
        (json!({"secret": {"secretName": "s", "defaultMode": 0o440}}), Ok(&["a 440 secret", "k 440 x"])),
        (json!({"secret": {"secretName": "m"}}), Err(format!("{failed} secret \"m\" not found"))),
        (
            json!({"secret": {"secretName": "s", "items": [{"key": "q", "path": "q"}]}}),
            Err(format!("{failed} references non-existent secret key: q")),
        ),
        (
            json!({"projected": {"defaultMode": 0o600, "sources": [
            {"configMap": {"name": "m"}}, {"secret": {"name": "s", "items": [{"key": "a", "path": "a"}]}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}),
            Ok(&["a 600 secret", "b 600 2", "bin 600 b", "name 600 web-node"]),
        ),
        (
            json!({"downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o400},
            {"path": "app", "fieldRef": {"fieldPath": "metadata.labels['b']"}},
            {"path": "none", "fieldRef": {"fieldPath": "metadata.annotations"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
            {"path": "mem", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}}]}}),
            Ok(&["app 644 ä", "cpu 644 4", "labels 400 app=\"a\\\"b\\n\"\nb=\"ä\"", "mem 644 64", "none 644 "]),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
            Err("volume \"v\": \"status.podIP\" is not available as a file".to_owned()),
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "ca", "path": "t", "optional": true}}]}}),
            Ok(&["t 644 "]),
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "ca", "path": "t"}}]}}),
            Err("MountVolume.SetUp failed for volume \"v\" : clustertrustbundle \"ca\" not found".to_owned()),
        ),
        (
            json!({"projected": {"sources": [{"podCertificate": {"keyType": "ED25519", "signerName": "k/s"}}]}}),
            Err("MountVolume.SetUp failed for volume \"v\" : pod certificate \"uid/v/0\" not found".to_owned()),
        ),
        (
            json!({"configMap": {"name": "m", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}]}}),
            Err("volume \"v\": \"x\" cannot be a file and a directory (\"x/y\")".to_owned()),
        ),
    ];
    for (volume, wanted) in table {
        let wanted = wanted.map(|list| list.iter().map(|&value| value.to_owned()).collect::<Vec<_>>());
        assert_eq!(files(volume.clone()), wanted, "{volume}");
    }
}

#[test]
fn paths_outside_the_volume_are_rejected() {
    for path in ["", ".", "/a", "../a", "a/../b", "..data", "..a", "./..a", &"a".repeat(256)] {
        let volume = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": path}]}});
        assert!(files(volume).unwrap_err().contains("no path inside"), "{path}");
    }
    for path in ["a", "a..b", "a/..b", ".a"] {
        let volume = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": path}]}});
        assert!(files(volume).is_ok(), "{path}");
    }
}

#[test]
fn a_token_is_for_the_volumes_group_where_there_is_one() {
    let file = |security: Value, given: bool| {
        let sources =
            json!([{"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}]);
        let volumes = json!([{"name": "v", "projected": {"sources": sources}}]);
        let containers = json!([{"name": "c"}]);
        let pod = record(json!({
            "volumes": volumes, "serviceAccountName": "builder", "securityContext": security, "containers": containers,
        }));
        let name = format!("builder/{}/600/vault", pod.uid);
        let key = ObjectKey::new(ObjectKind::ServiceAccountToken, pod.key.namespace(), name);
        let issued = jiff::Timestamp::UNIX_EPOCH;
        let token = Arc::new(token::record(key, "apiserver", "secret".to_owned(), issued, issued));
        let objects = PodObjects::collect(&pod, |key| (given && *key == token.key).then(|| Arc::clone(&token)));
        let sources = Sources {
            pod: &pod,
            objects: &objects,
            node: NodeLimits {
                cpu: Amount::from_units(4),
                memory: Amount::from_units(1 << 30),
                ephemeral_storage: Amount::from_units(1 << 33),
            },
        };
        let payload = payload(&pod.spec().volumes.as_ref().unwrap()[0], sources).map_err(|error| error.to_string())?;
        let file = &payload.unwrap()["token"];
        let owner = file.user.map(|user| format!(" of {user}")).unwrap_or_default();
        Ok::<_, String>(format!("{:o} {}{owner}", file.mode, file.bytes.expose_text().unwrap()))
    };
    assert_eq!(file(json!({}), true).unwrap(), "644 secret");
    assert_eq!(file(json!({"fsGroup": 7}), true).unwrap(), "600 secret");
    assert_eq!(file(json!({"runAsUser": 1000}), true).unwrap(), "600 secret of 1000");
    assert!(file(json!({}), false).unwrap_err().contains("service account token"));
}

#[test]
fn files_belong_to_the_user_that_all_containers_have() {
    let user = |pod: &Value, containers: [&Value; 2]| {
        let [init, main] = containers.map(|context| json!([{"name": "c", "securityContext": context}]));
        common_user(&record(json!({"securityContext": pod, "initContainers": init, "containers": main})))
    };
    let (none, first, two) = (json!({}), json!({"runAsUser": 1}), json!({"runAsUser": 2}));
    let table = [
        (&first, [&none, &none], Some(1)),
        (&none, [&two, &two], Some(2)),
        (&first, [&two, &two], Some(2)),
        (&first, [&none, &two], None),
        (&none, [&two, &none], None),
        (&none, [&none, &two], None),
    ];
    for (pod, containers, expected) in table {
        assert_eq!(user(pod, containers), expected, "{pod} {containers:?}");
    }
}

#[test]
fn a_certificate_is_in_the_files_that_are_asked_for_and_a_refused_one_in_none() {
    let source = json!({"podCertificate": {"keyType": "ED25519", "signerName": "k/s", "credentialBundlePath": "b",
        "keyPath": "k", "certificateChainPath": "c"}});
    let volume = json!({"name": "v", "projected": {"sources": [source]}});
    let files = |security: Value, issued: bool| {
        let pod = record(json!({"volumes": [volume], "securityContext": security}));
        let key = ObjectKey::new(ObjectKind::PodCertificate, pod.key.namespace(), "uid/v/0");
        let (at, texts) = (jiff::Timestamp::UNIX_EPOCH, ["key\n".to_owned(), "chain\n".to_owned()]);
        let [private, chain] = texts;
        let object = match issued {
            true => pod_certificate::record(key, "apiserver", private, chain, at, at),
            false => pod_certificate::refusal(key, "apiserver", "denied".to_owned()),
        };
        let object = Arc::new(object);
        let objects = PodObjects::collect(&pod, |wanted| (object.key == *wanted).then(|| Arc::clone(&object)));
        let node = NodeLimits {
            cpu: Amount::from_units(4),
            memory: Amount::from_units(1 << 30),
            ephemeral_storage: Amount::from_units(1 << 33),
        };
        let sources = Sources { pod: &pod, objects: &objects, node };
        let payload = payload(&pod.spec().volumes.as_ref().unwrap()[0], sources).map_err(|error| error.to_string())?;
        let shown = |(path, file): (&String, &PayloadFile)| {
            format!("{path} {:o} {}", file.mode, file.bytes.expose_text().unwrap())
        };
        Ok::<Vec<String>, String>(payload.unwrap().iter().map(shown).collect())
    };
    assert_eq!(files(json!({}), true).unwrap(), ["b 644 key\nchain\n", "c 644 chain\n", "k 644 key\n"]);
    assert_eq!(files(json!({"fsGroup": 7}), true).unwrap(), ["b 600 key\nchain\n", "c 600 chain\n", "k 600 key\n"]);
    assert_eq!(files(json!({}), false), Err("volume \"v\": denied".to_owned()));
}
