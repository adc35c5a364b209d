use std::fs;

use oci_spec::runtime::Spec;
use serde_json::{Value, json};

use super::files::{find, parse, read};
use super::*;

/// The edits of a file's text with one device `a`, whose edits these are.
fn edits(edits: Value) -> Result<ContainerEdits, String> {
    let text =
        json!({ "cdiVersion": "0.6.0", "kind": "x.io/a", "devices": [{ "name": "a", "containerEdits": edits }] });
    parse(&text.to_string()).map(|document| document.devices[0].container_edits.clone())
}

fn spec() -> Spec {
    serde_json::from_value(json!({
        "ociVersion": "1.0.2",
        "process": { "user": { "uid": 7, "gid": 8, "additionalGids": [9] }, "cwd": "/", "env": ["PATH=/bin", "A=1"] },
        "mounts": [{ "destination": "/proc", "type": "proc" }, { "destination": "/a/b/c", "type": "bind" }],
        "linux": { "resources": { "devices": [{ "allow": false, "access": "rwm" }] } },
    }))
    .unwrap()
}

#[test]
fn edits_are_applied_to_the_spec() {
    let cases = [
        (json!({ "env": ["A=2", "B=3"] }), "/process/env", json!(["PATH=/bin", "A=2", "B=3"])),
        (json!({ "additionalGids": [0, 9, 44] }), "/process/user/additionalGids", json!([9, 44])),
        (
            json!({ "deviceNodes": [{ "path": "/dev/x", "type": "c", "major": 4, "minor": 1, "permissions": "rw" }] }),
            "/linux/devices",
            json!([{ "path": "/dev/x", "type": "c", "major": 4, "minor": 1, "uid": 7, "gid": 8 }]),
        ),
        (
            json!({ "deviceNodes": [{ "path": "/dev/x", "type": "b", "major": 4, "minor": 1, "uid": 1, "fileMode": 384 }] }),
            "/linux/resources/devices/1",
            json!({ "allow": true, "type": "b", "major": 4, "minor": 1, "access": "rwm" }),
        ),
        (
            json!({ "mounts": [{ "hostPath": "/lib/x", "containerPath": "/usr/lib/x", "options": ["ro", "bind"] }] }),
            "/mounts/2",
            json!({ "destination": "/usr/lib/x", "source": "/lib/x", "type": "bind", "options": ["ro", "bind"] }),
        ),
        (
            json!({ "mounts": [{ "hostPath": "tmpfs", "containerPath": "/proc", "type": "tmpfs" }] }),
            "/mounts/0/type",
            json!("tmpfs"),
        ),
        (
            json!({ "hooks": [{ "hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "x"], "timeout": 3 }] }),
            "/hooks/createContainer",
            json!([{ "path": "/bin/hook", "args": ["hook", "x"], "timeout": 3 }]),
        ),
        (json!({ "hooks": [{ "hookName": "prestart", "path": "/p" }] }), "/hooks/prestart", json!([{ "path": "/p" }])),
    ];
    for (given, at, wanted) in cases {
        let mut spec = spec();
        apply(&mut spec, &[edits(given.clone()).unwrap()]);
        assert_eq!(serde_json::to_value(&spec).unwrap().pointer(at), Some(&wanted), "{given}");
    }
}

#[test]
fn a_file_that_asks_for_what_limpet_does_not_do_is_refused() {
    let cases = [
        (json!({ "intelRdt": { "closID": "a" } }), "intelRdt is not supported"),
        (json!({ "netDevices": [] }), "netDevices is not supported"),
        (json!({ "env": ["A"] }), "is not NAME=value"),
        (json!({ "deviceNodes": [{ "path": "dev" }] }), "not an absolute path"),
        (json!({ "deviceNodes": [{ "path": "/d", "type": "x" }] }), "is not b, c, u or p"),
        (json!({ "deviceNodes": [{ "path": "/d", "permissions": "x" }] }), "is not made of r, w and m"),
        (json!({ "hooks": [{ "hookName": "other", "path": "/h" }] }), "unknown variant"),
        (json!({ "other": 1 }), "unknown field"),
    ];
    for (given, why) in cases {
        let refused = edits(given.clone()).unwrap_err();
        assert!(refused.contains(why), "{given}: {refused}");
    }
    for (version, good) in
        [("0.2.0", false), ("0.3.0", true), ("1.0.0", true), ("1.1.0", true), ("2.0.0", false), ("", false)]
    {
        let text = json!({ "cdiVersion": version, "kind": "x.io/a", "devices": [] }).to_string();
        assert_eq!(parse(&text).is_ok(), good, "{version}");
    }
}

#[test]
fn a_device_brings_its_files_edits_once_and_a_later_directory_precedes() {
    let directory = tempfile::tempdir().unwrap();
    let (early, late) = (directory.path().join("etc"), directory.path().join("run"));
    let file = |text: &str, value: &str| {
        format!("cdiVersion: 0.5.0\nkind: x.io/card\ncontainerEdits: {{env: [ALL={value}]}}\ndevices:\n{text}")
    };
    let device =
        |name: &str, value: &str| format!("- name: '{name}'\n  containerEdits: {{env: [\"{name}={value}\"]}}\n");
    for (path, text) in [
        (early.join("a.yaml"), file(&(device("one", "etc") + &device("two", "etc")), "etc")),
        (late.join("b.yaml"), file(&device("one", "run"), "run")),
        (
            late.join("c.json"),
            r#"{"cdiVersion":"0.5.0","kind":"x.io/other","devices":[{"name":"one","containerEdits":{}}]}"#.into(),
        ),
        (late.join("bad.json"), "{".into()),
        (late.join("ignored.txt"), "{".into()),
    ] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let files = read(&[early.clone(), late.clone()]);
    let env = |names: &[&str]| {
        find(&files, names).map(|edits| edits.iter().flat_map(|edit| edit.env.clone()).collect::<Vec<_>>().join(" "))
    };
    let table = [
        (&["x.io/card=one"][..], "ALL=run one=run"),
        (&["x.io/card=two", "x.io/card=two"], "ALL=etc two=etc two=etc"),
        (&["x.io/other=one"], ""),
    ];
    for (names, wanted) in table {
        assert_eq!(env(names).as_deref(), Ok(wanted), "{names:?}");
    }
    let missing = env(&["x.io/card=three"]).unwrap_err();
    assert!(missing.contains("unresolvable CDI device x.io/card=three") && missing.contains("bad.json"), "{missing}");
    assert!(env(&["one"]).unwrap_err().contains("vendor.com/class=name"));
    fs::write(late.join("d.yaml"), file(&device("one", "too"), "too")).unwrap();
    let twice = find(&read(&[early, late]), &["x.io/card=one"]).unwrap_err();
    assert!(twice.contains("is in both"), "{twice}");
}
