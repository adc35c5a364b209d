//! Documents as builders and registries write them.

use super::*;
use serde_json::json;

fn descriptor(size: u64) -> serde_json::Value {
    json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": size, "digest": sha256(&size.to_le_bytes())})
}

#[test]
fn chain_ids_follow_the_specification() {
    let (a, b, c) = (sha256(b"a"), sha256(b"b"), sha256(b"c"));
    let ab = sha256(format!("{a} {b}").as_bytes());
    let abc = sha256(format!("{ab} {c}").as_bytes());
    assert_eq!(chain_ids(&[a.clone(), b, c]), [a, ab, abc]);
    assert!(chain_ids(&[]).is_empty());
    assert_eq!(sha256(b""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

#[test]
fn documents_are_distinguished_by_their_members() {
    let manifest = json!({"schemaVersion": 2, "config": descriptor(1), "layers": [descriptor(2)]});
    let index = json!({"schemaVersion": 2, "manifests": [descriptor(3)]});
    let parse = |value: &serde_json::Value| Document::parse(value.to_string().as_bytes());
    assert!(matches!(parse(&manifest), Ok(Document::Manifest(_))));
    assert!(matches!(parse(&index), Ok(Document::Index(_))));
    let mut both = manifest.clone();
    both["manifests"] = json!([]);
    let many: Vec<_> = (0..200).map(descriptor).collect();
    let table = [
        (both, "ambiguous"),
        (json!({"schemaVersion": 1, "fsLayers": []}), "schema 1"),
        (json!({}), "neither"),
        (json!([]), "not JSON"),
        (json!("text"), "not JSON"),
        (json!({"schemaVersion": 2, "config": "text", "layers": []}), "not JSON"),
        (json!({"schemaVersion": 2, "config": descriptor(1), "layers": {}}), "not JSON"),
        (json!({"schemaVersion": 2, "layers": [descriptor(1)]}), "manifest: "),
        (json!({"schemaVersion": 2, "config": descriptor(1), "layers": [null]}), "manifest: "),
        (json!({"schemaVersion": 2, "config": descriptor(1), "layers": many}), "200 layers"),
        (json!({"schemaVersion": 2, "config": descriptor(5 << 20), "layers": []}), "too large"),
        (json!({"schemaVersion": 2, "config": descriptor(1), "layers": [descriptor(1 << 50)]}), "claims"),
        (json!({"schemaVersion": 2, "manifests": [{"mediaType": "a", "size": 1, "digest": "../../etc"}]}), "index"),
    ];
    for (value, expected) in table {
        let error = parse(&value).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let deep = "[".repeat(100_000);
    assert!(Document::parse(deep.as_bytes()).is_err());
    let deep = format!("{{\"manifests\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(Document::parse(deep.as_bytes()).is_err());
}

/// Checks that `is_read` accepts `base` without each member, with null and in capitals, unless the member is `needed`,
/// and with the values in `odd`.
fn odd_members(base: &Value, needed: &[&str], odd: &[(&str, Value)], is_read: impl Fn(&Value) -> Result<(), String>) {
    is_read(base).unwrap();
    let members: Vec<String> = base.as_object().unwrap().keys().cloned().collect();
    for member in &members {
        let mut absent = base.clone();
        absent.as_object_mut().unwrap().remove(member);
        let mut null = base.clone();
        null[member] = Value::Null;
        for changed in [absent, null] {
            let result = is_read(&changed);
            assert_eq!(result.is_ok(), !needed.contains(&member.as_str()), "{member}: {result:?}: {changed}");
        }
        let mut in_capitals = base.clone();
        let value = in_capitals.as_object_mut().unwrap().remove(member).unwrap();
        in_capitals[member.to_uppercase()] = value;
        is_read(&in_capitals).unwrap_or_else(|error| panic!("{member} in capitals: {error}"));
    }
    for (member, value) in odd {
        let mut changed = base.clone();
        changed[*member] = value.clone();
        is_read(&changed).unwrap_or_else(|error| panic!("{member}: {value}: {error}"));
    }
}

#[test]
fn a_manifest_is_read_as_by_go() {
    let base = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "a/b", "config": descriptor(1), "layers": [descriptor(2)], "subject": descriptor(4),
        "annotations": {"a": "b"}});
    let mut bare = descriptor(2);
    for member in ["urls", "annotations", "platform", "artifactType", "data"] {
        bare[member] = Value::Null;
    }
    let odd = [
        ("schemaVersion", json!("two")),
        ("annotations", json!({"a": null, "b": 5})),
        ("subject", json!(5)),
        ("layers", json!([bare])),
        ("unknown", json!({"a": [1, null]})),
        ("config", json!({"mediaType": null, "size": 1, "digest": sha256(b"x"), "annotations": {"a": null}})),
    ];
    odd_members(&base, &["config"], &odd, |value| match Document::parse(value.to_string().as_bytes())? {
        Document::Manifest(manifest) if manifest.config().size() == 1 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let twice = format!("{{\"config\": {}, \"config\": {}, \"layers\": []}}", descriptor(9), descriptor(1));
    assert!(
        matches!(Document::parse(twice.as_bytes()), Ok(Document::Manifest(manifest)) if manifest.config().size() == 1)
    );
}

#[test]
fn an_index_is_read_as_by_go() {
    let mut entry = descriptor(3);
    entry["platform"] = json!({"os": "linux", "architecture": "amd64"});
    let base = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry], "annotations": {}, "subject": null, "artifactType": ""});
    let with = |member: &str, value: Value| {
        let mut changed = entry.clone();
        changed[member] = value;
        json!([changed])
    };
    let odd = [
        ("manifests", with("platform", Value::Null)),
        ("manifests", with("platform", json!({}))),
        ("manifests", with("platform", json!({"os": null, "architecture": null, "variant": null}))),
        (
            "manifests",
            with("platform", json!({"os": "linux", "architecture": "x", "os.features": null, "features": 1})),
        ),
        ("manifests", with("annotations", json!({"io.containerd.image.name": null}))),
        ("manifests", with("data", json!(5))),
        // Entries that only other clients use.
        ("manifests", json!([{"mediaType": "a", "size": 1, "digest": "sha512:00"}, descriptor(3), null])),
    ];
    odd_members(&base, &["manifests"], &odd, |value| match Document::parse(value.to_string().as_bytes())? {
        Document::Index(index) if index.manifests().len() == 1 => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn a_configuration_is_read_as_by_go() {
    let manifest = json!({"schemaVersion": 2, "config": descriptor(1), "layers": [descriptor(2)]});
    let manifest: ImageManifest = serde_json::from_value(manifest).unwrap();
    let read = |value: &Value| parse_config(value.to_string().as_bytes(), &manifest);
    let base = json!({"created": "2026-01-01T00:00:00Z", "author": "me", "architecture": "amd64", "os": "linux",
        "os.version": "1", "os.features": ["a"], "variant": "v1", "config": {"Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(b"x")]}, "history": [{"created_by": "x"}],
        "container": "c", "docker_version": "1", "container_config": {"Cmd": null}});
    let odd = [
        ("created", json!("")),
        ("created", json!(5)),
        ("architecture", json!("x86_64")),
        ("history", json!([null, {"created": null, "empty_layer": "no"}])),
        ("os.features", json!("none")),
        ("rootfs", json!({"diff_ids": [sha256(b"x")]})),
        ("rootfs", json!({"Type": null, "Diff_IDs": [sha256(b"x")]})),
    ];
    odd_members(&base, &["rootfs"], &odd, |value| read(value).map(drop));

    let inner = json!({"User": "u", "ExposedPorts": {"80/tcp": {}}, "Env": ["A=b"], "Entrypoint": ["e"], "Cmd": ["c"],
        "Volumes": {"/d": {}}, "WorkingDir": "/w", "Labels": {"l": "m"}, "StopSignal": "SIGINT", "ArgsEscaped": true,
        "Healthcheck": {"Test": ["NONE"]}, "OnBuild": ["x"], "Shell": ["sh"], "Memory": 0});
    let odd = [
        ("Volumes", json!({"/d": null})),
        ("ExposedPorts", json!({"80/tcp": null})),
        ("Labels", json!({"l": null})),
        ("Env", json!([null, "A=b"])),
        ("ArgsEscaped", json!("true")),
        ("Healthcheck", json!("none")),
    ];
    odd_members(&inner, &[], &odd, |value| {
        let mut whole = base.clone();
        whole["config"] = value.clone();
        read(&whole).map(drop)
    });
    let mut whole = base.clone();
    whole["config"] = json!({"env": ["A=b"], "VOLUMES": {"/d": null}, "cmd": [null], "workingdir": null});
    let read = read(&whole).unwrap();
    let config = read.config().clone().unwrap();
    assert_eq!(config.env().as_deref(), Some(&["A=b".to_owned()][..]));
    assert_eq!(config.volumes().as_deref(), Some(&["/d".to_owned()][..]));
    assert_eq!(config.cmd().as_deref(), Some(&[String::new()][..]));
    assert_eq!(config.working_dir(), &None);
}

#[test]
fn a_configuration_must_match_its_manifest() {
    let manifest = json!({"schemaVersion": 2, "config": descriptor(1), "layers": [descriptor(2)]});
    let manifest: ImageManifest = serde_json::from_value(manifest).unwrap();
    let config = |ids: serde_json::Value| {
        let json = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids},
            "config": {"Entrypoint": null, "Cmd": ["sh"], "Env": null, "Volumes": null, "ExposedPorts": null}});
        parse_config(json.to_string().as_bytes(), &manifest)
    };
    assert!(config(json!([sha256(b"x")])).is_ok(), "{:?}", config(json!([sha256(b"x")])));
    assert!(config(json!([])).unwrap_err().contains("configuration 0"));
    assert!(config(json!(["sha256:../x"])).unwrap_err().contains("layer id"));
}
