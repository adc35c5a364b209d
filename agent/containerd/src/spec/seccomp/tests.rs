#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::spec::tests::Fixture;

/// Names allowed without conditions on arguments.
fn allowed(profile: &LinuxSeccomp) -> BTreeSet<&str> {
    let rules = profile.syscalls().iter().flatten();
    rules
        .filter(|rule| rule.action() == LinuxSeccompAction::ScmpActAllow && rule.args().is_none())
        .flat_map(|rule| rule.names().iter().map(String::as_str))
        .collect()
}

#[test]
fn the_default_allows_ordinary_calls_and_blocks_kernel_interfaces() {
    let profile = runtime_default(&Capabilities::new(), "x86_64").unwrap();
    assert_eq!(profile.default_action(), LinuxSeccompAction::ScmpActErrno);
    let allowed = allowed(&profile);
    for name in ["read", "openat2", "execve", "futex", "clone", "statx", "arch_prctl", "socket", "personality"] {
        let conditional = ["clone", "socket", "personality"].contains(&name);
        assert_eq!(allowed.contains(name), !conditional, "{name}");
    }
    for name in [
        "mount",
        "bpf",
        "unshare",
        "setns",
        "reboot",
        "kexec_load",
        "init_module",
        "keyctl",
        "io_uring_setup",
        "userfaultfd",
        "clock_settime",
        "swapon",
        "syslog",
        "chroot",
        "open_by_handle_at",
    ] {
        assert!(!allowed.contains(name), "{name}");
    }
}

#[test]
fn no_name_is_listed_twice() {
    let names: Vec<&str> = ALLOWED.iter().flat_map(|names| names.split_whitespace()).collect();
    assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
}

#[test]
fn capabilities_allow_their_calls() {
    let cases = [
        (Capability::SysChroot, "chroot"),
        (Capability::SysAdmin, "clone3"),
        (Capability::SysTime, "clock_settime"),
        (Capability::Bpf, "bpf"),
        (Capability::Syslog, "syslog"),
        (Capability::SysNice, "mbind"),
    ];
    for (capability, name) in cases {
        let profile = runtime_default(&Capabilities::from([capability]), "x86_64").unwrap();
        assert!(allowed(&profile).contains(name), "{name}");
    }
    let admin = runtime_default(&Capabilities::from([Capability::SysAdmin]), "x86_64").unwrap();
    assert!(allowed(&admin).contains("clone"));
}

#[test]
fn clone_creates_no_namespaces_without_sys_admin() {
    for (arch, index) in [("x86_64", 0), ("aarch64", 0), ("s390x", 1)] {
        let profile = serde_json::to_value(runtime_default(&Capabilities::new(), arch).unwrap()).unwrap();
        let rules = profile["syscalls"].as_array().unwrap();
        let rule = |name: &str| rules.iter().find(|rule| rule["names"] == json!([name])).unwrap().clone();
        let condition = json!({"index": index, "value": 0x7e02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"});
        assert_eq!(rule("clone")["args"], json!([condition]), "{arch}");
        assert_eq!(rule("clone3")["action"], "SCMP_ACT_ERRNO");
        assert_eq!(rule("clone3")["errnoRet"], 38);
    }
}

#[test]
fn the_profile_is_the_containers_the_pods_or_the_nodes() {
    let local = json!({"type": "Localhost", "localhostProfile": "p.json"});
    let runtime = json!({"type": "RuntimeDefault"});
    let unconfined = json!({"type": "Unconfined"});
    let null = Value::Null;
    let cases = [
        (&null, &null, false, Profile::Unconfined),
        (&null, &null, true, Profile::RuntimeDefault),
        (&unconfined, &null, true, Profile::Unconfined),
        (&null, &unconfined, true, Profile::Unconfined),
        (&null, &runtime, false, Profile::RuntimeDefault),
        (&local, &runtime, false, Profile::Localhost("p.json")),
        (&runtime, &local, false, Profile::RuntimeDefault),
    ];
    for (container, pod, node, wanted) in cases {
        let spec = json!({
            "containers": [{"name": "c", "securityContext": {"seccompProfile": container}}],
            "securityContext": {"seccompProfile": pod},
        });
        let mut fixture = Fixture::of_pod(spec, json!({}));
        fixture.node.seccomp_default = node;
        assert_eq!(profile_of(&fixture.input()), wanted, "{container} {pod} {node}");
    }
}
