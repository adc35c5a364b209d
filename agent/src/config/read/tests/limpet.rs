//! Keys of LimpetConfiguration that are checked: devices, runtime classes, the guard.

use super::*;
use limpet_store::KeyLocation;

#[test]
fn a_wrong_device_is_an_error_with_its_place() {
    let text = format!(
        "{LIMPET_HEAD}devices:\n  modem: {{paths: [/dev/a]}}\n  x.io/none: {{}}\n  x.io/text: a\n  x.io/out: {{paths: [/etc/passwd]}}\n  \
         x.io/up: {{paths: [/dev/../etc]}}\n  x.io/all: {{paths: [/dev/a], permissions: all}}\n  x.io/key: {{path: /dev/a}}\n  x.io/cdi: {{cdi: [gpu]}}\n"
    );
    let (config, _, _) = load_text(&text, &[]);
    let message = config.unwrap_err().join("\n");
    for part in [
        "devices.modem: is not an extended resource",
        "devices.x.io/none.paths: is missing",
        "devices.x.io/text: expected a map",
        "devices.x.io/out.paths: must be paths below /dev",
        "devices.x.io/up.paths: must be paths below /dev",
        "devices.x.io/all.permissions: \"all\" may contain only r, w and m",
        "devices.x.io/key.path: unknown key",
        "devices.x.io/cdi.cdi: \"gpu\" is not a CDI device; write vendor.com/class=name",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_wrong_runtime_class_is_an_error_with_its_place() {
    let text = format!(
        "{LIMPET_HEAD}runtimeClasses:\n  Bad Name: {{}}\n  plain:\n  text: x\n  a: {{binary: crun}}\n  b: {{binary: 3}}\n  \
         c: {{path: /x}}\n  d: {{config: /x}}\n  e: {{runtime: other, binary: /x}}\n  \
         f: {{noPivotRoot: 1, devices: [gpu]}}\n  g: {{devices: all}}\n  h: {{runtime: other, noNewKeyring: false}}\n  \
         i: {{platform: linux/arm64}}\n"
    );
    let (config, _, _) = load_text(&text, &[]);
    let message = config.unwrap_err().join("\n");
    for part in [
        "\"Bad Name\" is not the name of a runtime class",
        "runtimeClasses.text: expected a map, found text",
        "runtimeClasses.a.binary: \"crun\" is not an absolute path",
        "runtimeClasses.b.binary: expected text",
        "runtimeClasses.c.path: unknown key; a runtime class has runtime, binary, config, noPivotRoot",
        "runtimeClasses.d.config: io.containerd.runc.v2 has no configuration file",
        "runtimeClasses.e.binary: only io.containerd.runc.v2 takes it",
        "runtimeClasses.f.noPivotRoot: expected true or false",
        "runtimeClasses.f.devices: \"gpu\" is not a CDI device; write vendor.com/class=name",
        "runtimeClasses.g.devices: expected a list",
        "runtimeClasses.h.noNewKeyring: only io.containerd.runc.v2 takes it",
        "runtimeClasses.i.platform: expected wasi/wasm",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn an_invalid_guard_setting_is_an_error() {
    // In YAML, `off` and `on` are false and true.
    let text = format!("{LIMPET_HEAD}manifestGuard: off\n");
    assert_eq!(load_text(&text, &[]).0.unwrap().guard.mode, None);
    for mode in ["on", "everybody"] {
        let text = format!("{LIMPET_HEAD}manifestGuard: {mode}\n");
        let faults = load_text(&text, &[]).0.unwrap_err();
        assert!(faults[0].contains("use one of off, audit, containers, strict"), "{faults:?}");
    }
    let text = format!("{LIMPET_HEAD}manifestGuard: strict\nmanifestGuardCgroups: [system.slice]\n");
    let faults = load_text(&text, &[]).0.unwrap_err();
    assert!(faults[0].contains("not an absolute path"), "{faults:?}");
    // Lists without the mode that uses them cause a warning.
    let text = format!("{LIMPET_HEAD}manifestGuard: containers\nmanifestGuardExecutables: [/bin/a]\n");
    let (config, warnings, _) = load_text(&text, &["--pod-manifest-path=/m"]);
    assert_eq!(config.unwrap().guard.mode, Some(GuardMode::Containers));
    assert!(
        warnings.len() == 1 && warnings[0].contains("only have an effect with manifestGuard: strict"),
        "{warnings:?}"
    );
}

#[test]
fn the_key_of_secrets_is_a_file_or_a_credential() {
    let read = |value: &str| load_text(&format!("{LIMPET_HEAD}secretEncryptionKey: {value}\n"), &[]).0;
    assert_eq!(read("/etc/limpet/key").unwrap().secret_key, Some(KeyLocation::File("/etc/limpet/key".into())));
    assert_eq!(read("credential:edge").unwrap().secret_key, Some(KeyLocation::Credential("edge".to_owned())));
    let encrypted = read("systemd-creds:/etc/limpet/secret.cred").unwrap().secret_key;
    assert_eq!(encrypted, Some(KeyLocation::Encrypted("/etc/limpet/secret.cred".into())));
    for wrong in ["key", "systemd-creds:secret.cred", "'credential:'", "credential:a/b", "credential:..", "''"] {
        let faults = read(wrong).unwrap_err();
        assert!(faults[0].contains("secretEncryptionKey") && faults[0].contains("is not a key"), "{wrong}: {faults:?}");
    }
}

#[test]
fn a_wrong_source_or_value_of_field_validation_is_an_error_with_its_place() {
    let (config, _, _) =
        load_text(&format!("{LIMPET_HEAD}fieldValidation:\n  apiserver: warn\n  file: ignore\n  push: 1\n"), &[]);
    let message = config.unwrap_err().join("\n");
    for part in [
        "fieldValidation.apiserver: is not a source of manifests; use file, push, bundle, url",
        "fieldValidation.file: must be strict or warn",
        "fieldValidation.push: must be strict or warn",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_wrong_source_or_level_of_pod_security_is_an_error_with_its_place() {
    let (config, _, _) =
        load_text(&format!("{LIMPET_HEAD}podSecurity:\n  http: baseline\n  file: strict\n  push: 1\n"), &[]);
    let message = config.unwrap_err().join("\n");
    for part in [
        "podSecurity.http: is not a source; use file, push, bundle, url, apiserver",
        "podSecurity.file: is not a level; use privileged, baseline, restricted",
        "podSecurity.push: is not a level",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}
