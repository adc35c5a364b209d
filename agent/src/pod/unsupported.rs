//! The one table of fields limpet does not act on: a Pod that uses one is refused with the field's name, never run
//! without it. So is what only an apiserver has, unless the Pod comes from one. Fields that mean nothing on a node
//! without an apiserver are taken with a warning.

use serde_json::Value;

use super::{Fault, Reason};
use crate::source::SourceKind;

/// When a field counts as used. `null`, an empty text, list or map never does.
#[derive(Debug, Clone, Copy)]
enum Used {
    /// Whatever it says.
    Always,
    /// Unless it is `false`.
    True,
    /// Only when it is `false`.
    False,
    /// Unless it says one of these.
    Unless(&'static [&'static str]),
}

use Used::{Always, False, True, Unless};

/// Fields limpet does not act on yet. `C` stands for every container and init container.
const REFUSED: &[(&str, Used)] = &[
    // Life
    ("spec.C.livenessProbe", Always),
    ("spec.C.readinessProbe", Always),
    ("spec.C.startupProbe", Always),
    ("spec.C.lifecycle", Always),
    ("spec.initContainers[].restartPolicy", Always),
    ("spec.C.restartPolicy", Always),
    ("spec.C.restartPolicyRules", Always),
    ("spec.C.resizePolicy", Always),
    ("spec.C.stdin", True),
    ("spec.C.stdinOnce", True),
    ("spec.activeDeadlineSeconds", Always),
    ("spec.ephemeralContainers", Always),
    ("spec.readinessGates", Always),
    ("spec.schedulingGates", Always),
    ("spec.evictionResponders", Always),
    // Network and names
    ("spec.C.ports[].hostPort", Always),
    ("spec.setHostnameAsFQDN", True),
    // Environment
    ("spec.C.env[].valueFrom.fileKeyRef", Always),
    // Volumes; every kind but emptyDir, hostPath, configMap, secret, downwardAPI and projections of the last three
    ("spec.volumes[].awsElasticBlockStore", Always),
    ("spec.volumes[].azureDisk", Always),
    ("spec.volumes[].azureFile", Always),
    ("spec.volumes[].cephfs", Always),
    ("spec.volumes[].cinder", Always),
    ("spec.volumes[].csi", Always),
    ("spec.volumes[].fc", Always),
    ("spec.volumes[].flexVolume", Always),
    ("spec.volumes[].flocker", Always),
    ("spec.volumes[].gcePersistentDisk", Always),
    ("spec.volumes[].gitRepo", Always),
    ("spec.volumes[].glusterfs", Always),
    ("spec.volumes[].image", Always),
    ("spec.volumes[].iscsi", Always),
    ("spec.volumes[].nfs", Always),
    ("spec.volumes[].photonPersistentDisk", Always),
    ("spec.volumes[].portworxVolume", Always),
    ("spec.volumes[].quobyte", Always),
    ("spec.volumes[].rbd", Always),
    ("spec.volumes[].scaleIO", Always),
    ("spec.volumes[].storageos", Always),
    ("spec.volumes[].vsphereVolume", Always),
    ("spec.volumes[].configMap.defaultUser", Always),
    ("spec.volumes[].configMap.items[].user", Always),
    ("spec.volumes[].secret.defaultUser", Always),
    ("spec.volumes[].secret.items[].user", Always),
    ("spec.volumes[].downwardAPI.defaultUser", Always),
    ("spec.volumes[].downwardAPI.items[].user", Always),
    ("spec.volumes[].projected.defaultUser", Always),
    ("spec.volumes[].projected.sources[].configMap.items[].user", Always),
    ("spec.volumes[].projected.sources[].secret.items[].user", Always),
    ("spec.volumes[].projected.sources[].downwardAPI.items[].user", Always),
    ("spec.volumes[].emptyDir.medium", Unless(&["Memory"])),
    ("spec.C.volumeMounts[].subPathExpr", Always),
    ("spec.C.volumeMounts[].recursiveReadOnly", Unless(&["Disabled"])),
    ("spec.C.volumeMounts[].bindMountOptions", Always),
    ("spec.C.volumeDevices", Always),
    // Resources
    ("spec.C.resources.limits.ephemeral-storage", Always),
    ("spec.overhead", Always),
    // Security
    ("spec.shareProcessNamespace", True),
    ("spec.hostUsers", False),
    ("spec.runtimeClassName", Always),
    ("spec.os.name", Unless(&["linux"])),
    ("spec.securityContext.seLinuxOptions", Always),
    ("spec.securityContext.seLinuxChangePolicy", Always),
    ("spec.securityContext.windowsOptions", Always),
    ("spec.securityContext.appArmorProfile.type", Unless(&["Unconfined"])),
    ("spec.C.securityContext.seLinuxOptions", Always),
    ("spec.C.securityContext.windowsOptions", Always),
    ("spec.C.securityContext.appArmorProfile.type", Unless(&["Unconfined"])),
    ("spec.C.securityContext.procMount", Unless(&["Default"])),
];

/// What only an apiserver can serve, and what that is.
const NEEDS_APISERVER: &[(&str, &str)] = &[
    ("spec.serviceAccountName", "a service account's token"),
    ("spec.serviceAccount", "a service account's token"),
    ("spec.volumes[].persistentVolumeClaim", "a claim on a PersistentVolume"),
    ("spec.volumes[].ephemeral", "a claim on a PersistentVolume"),
    ("spec.volumes[].projected.sources[].serviceAccountToken", "a service account's token"),
    ("spec.volumes[].projected.sources[].clusterTrustBundle", "a bundle of the cluster's certificates"),
    ("spec.volumes[].projected.sources[].podCertificate", "a certificate from the cluster"),
    ("spec.resourceClaims", "a ResourceClaim"),
    ("spec.C.resources.claims", "a ResourceClaim"),
];

/// The same fields when the Pod does come from an apiserver: not acted on yet.
const APISERVER_NOT_YET: &[&str] = &[
    "spec.serviceAccountName",
    "spec.serviceAccount",
    "spec.volumes[].persistentVolumeClaim",
    "spec.volumes[].ephemeral",
    "spec.volumes[].projected.sources[].serviceAccountToken",
    "spec.volumes[].projected.sources[].clusterTrustBundle",
    "spec.volumes[].projected.sources[].podCertificate",
    "spec.resourceClaims",
    "spec.C.resources.claims",
];

/// Fields that mean nothing on a node without an apiserver, or without a scheduler.
const NO_EFFECT: &[&str] = &[
    "metadata.finalizers",
    "metadata.generateName",
    "metadata.ownerReferences",
    "spec.affinity",
    "spec.automountServiceAccountToken",
    "spec.nodeSelector",
    "spec.preemptionPolicy",
    "spec.priority",
    "spec.priorityClassName",
    "spec.schedulerName",
    "spec.schedulingGroup",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
];

/// Every field of `manifest` that is refused or has no effect for a pod of `source`.
pub(super) fn check(manifest: &Value, source: SourceKind) -> Vec<Fault> {
    let local = source != SourceKind::Api;
    let used = |pattern: &'static str, used: Used| {
        select(manifest, pattern).into_iter().filter(move |(_, value)| is_used(value, used)).map(|(path, _)| path)
    };
    let lacking = NEEDS_APISERVER.iter().filter(|_| local);
    let lacking = lacking.flat_map(|(pattern, what)| used(pattern, Always).map(|path| needs_apiserver(path, what)));
    let not_yet = APISERVER_NOT_YET.iter().filter(|_| !local).flat_map(|pattern| used(pattern, Always).map(refuse));
    let refused = REFUSED.iter().flat_map(|(pattern, when)| used(pattern, *when).map(refuse));
    let huge = select(manifest, "spec.C.resources.limits").into_iter().flat_map(huge_pages);
    let disk = select(manifest, "spec.volumes[].emptyDir").into_iter().filter_map(unenforced_size);
    let silent = NO_EFFECT.iter().filter(|_| local).flat_map(|pattern| used(pattern, Always).map(no_effect));
    let mut faults: Vec<Fault> = lacking.chain(not_yet).chain(refused).chain(huge).chain(disk).chain(silent).collect();
    faults.dedup_by(|a, b| a.path == b.path);
    faults
}

fn no_effect(path: String) -> Fault {
    Fault::warning(path, "has no effect on a node without an apiserver").because(Reason::NoEffect)
}

fn needs_apiserver(path: String, what: &str) -> Fault {
    Fault::error(path, format!("needs {what}, which only an apiserver has; this Pod comes from none"))
        .with_remedy("remove the field, or create this Pod through an apiserver")
        .because(Reason::NeedsApiserver)
}

fn refuse(path: String) -> Fault {
    Fault::error(path, "is not supported yet; limpet does not run a Pod without what it asks for")
        .with_remedy("remove the field, or keep this Pod on a node that supports it")
        .because(Reason::Unsupported)
}

/// Huge pages and devices: no resource but these is limited.
fn huge_pages((path, limits): (String, &Value)) -> Vec<Fault> {
    let known = ["cpu", "memory", "ephemeral-storage"];
    let names = limits.as_object().into_iter().flatten().map(|(name, _)| name);
    names.filter(|name| !known.contains(&name.as_str())).map(|name| refuse(super::yaml::join(&path, name))).collect()
}

/// A limit on a disk directory that nothing enforces.
fn unenforced_size((path, empty_dir): (String, &Value)) -> Option<Fault> {
    let on_disk = empty_dir["medium"].as_str().unwrap_or_default().is_empty();
    (on_disk && is_used(&empty_dir["sizeLimit"], Always)).then(|| {
        Fault::error(format!("{path}.sizeLimit"), "is not supported yet on the default medium")
            .with_remedy("use medium: Memory, whose limit the kernel keeps, or remove the limit")
            .because(Reason::Unsupported)
    })
}

fn is_used(value: &Value, used: Used) -> bool {
    let empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) => false,
    };
    !empty
        && match used {
            Always => true,
            True => value != &Value::Bool(false),
            False => value == &Value::Bool(false),
            Unless(texts) => !value.as_str().is_some_and(|text| texts.contains(&text)),
        }
}

/// Every value that `pattern` leads to, with its path.
fn select<'a>(value: &'a Value, pattern: &str) -> Vec<(String, &'a Value)> {
    pattern.split('.').fold(vec![(String::new(), value)], |found, part| {
        found.into_iter().flat_map(|(path, value)| step(&path, value, part)).collect()
    })
}

fn step<'a>(path: &str, value: &'a Value, part: &str) -> Vec<(String, &'a Value)> {
    if part == "C" {
        return ["containers[]", "initContainers[]"].iter().flat_map(|list| step(path, value, list)).collect();
    }
    let (name, each) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
    let path = super::yaml::join(path, name);
    match value.get(name) {
        Some(Value::Array(items)) if each => {
            items.iter().enumerate().map(|(index, item)| (format!("{path}[{index}]"), item)).collect()
        }
        Some(inner) if !each => vec![(path, inner)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::{Severity, fields};

    fn refused(spec: Value) -> Vec<String> {
        let faults = check(&json!({"spec": spec}), SourceKind::File);
        faults.into_iter().filter(|fault| fault.severity == Severity::Error).map(|fault| fault.path).collect()
    }

    #[test]
    fn what_is_not_acted_on_is_refused_by_name() {
        let spec = json!({
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
            "containers": [
                {"name": "a", "livenessProbe": {"exec": {"command": ["true"]}}, "stdin": true},
                {"name": "b", "ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 3}],
                 "env": [{"name": "X", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}],
                 "resources": {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1", "example.com/gpu": 1}}}
            ],
            "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}, {"serviceAccountToken": {}}]}}, {"name": "e", "emptyDir": {"sizeLimit": "1Mi"}}]
        });
        let mut refused = refused(spec);
        refused.sort();
        assert_eq!(
            refused,
            [
                "spec.containers[0].livenessProbe",
                "spec.containers[0].stdin",
                "spec.containers[1].env[0].valueFrom.fileKeyRef",
                "spec.containers[1].ports[1].hostPort",
                "spec.containers[1].resources.limits.hugepages-2Mi",
                "spec.containers[1].resources.limits[example.com/gpu]",
                "spec.initContainers[0].restartPolicy",
                "spec.volumes[0].projected.sources[1].serviceAccountToken",
                "spec.volumes[1].emptyDir.sizeLimit",
            ]
        );
    }

    #[test]
    fn a_field_that_says_nothing_is_not_used() {
        let spec = json!({
            "containers": [{"name": "a", "stdin": false, "livenessProbe": null, "envFrom": [],
                "securityContext": {"procMount": "Default"}}],
            "hostUsers": true, "shareProcessNamespace": false, "os": {"name": "linux"}, "serviceAccountName": "",
            "volumes": [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
        });
        assert_eq!(refused(spec), Vec::<String>::new());
    }

    #[test]
    fn what_only_a_scheduler_reads_is_a_warning() {
        let manifest = json!({"spec": {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}}});
        assert!(check(&manifest, SourceKind::Api).is_empty(), "a Pod of an apiserver was scheduled by them");
        let faults = check(&manifest, SourceKind::File);
        let told: Vec<(Severity, &str)> = faults.iter().map(|fault| (fault.severity, fault.path.as_str())).collect();
        assert_eq!(told, [(Severity::Warning, "spec.nodeSelector"), (Severity::Warning, "spec.tolerations")]);
    }

    #[test]
    fn what_only_an_apiserver_has_is_refused_with_the_reason() {
        let token = json!({"sources": [{"serviceAccountToken": {"path": "t"}}]});
        let manifest = json!({"spec": {
            "serviceAccountName": "s",
            "volumes": [{"name": "p", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "t", "projected": token}]
        }});
        let of = |source, reason| -> Vec<String> {
            let faults = check(&manifest, source).into_iter().filter(|fault| fault.reason == reason);
            faults.map(|fault| fault.path).collect()
        };
        assert_eq!(
            of(SourceKind::Push, Reason::NeedsApiserver),
            [
                "spec.serviceAccountName",
                "spec.volumes[0].persistentVolumeClaim",
                "spec.volumes[1].projected.sources[0].serviceAccountToken",
            ]
        );
        assert_eq!(of(SourceKind::Api, Reason::NeedsApiserver), Vec::<String>::new());
        assert!(of(SourceKind::Api, Reason::Unsupported).contains(&"spec.serviceAccountName".to_owned()));
    }

    /// Every field of the Pod API's central objects is acted on, refused, or known to have no effect.
    #[test]
    fn every_field_is_in_one_of_the_tables() {
        const ACTED_ON: &[&str] = &[
            "spec.containers",
            "spec.initContainers",
            "spec.volumes",
            "spec.dnsConfig",
            "spec.imagePullSecrets",
            "spec.dnsPolicy",
            "spec.enableServiceLinks",
            "spec.hostAliases",
            "spec.hostIPC",
            "spec.hostNetwork",
            "spec.hostPID",
            "spec.hostname",
            "spec.hostnameOverride",
            "spec.nodeName",
            "spec.resources",
            "spec.restartPolicy",
            "spec.securityContext",
            "spec.subdomain",
            "spec.terminationGracePeriodSeconds",
            "spec.os",
            "spec.volumes[].configMap",
            "spec.volumes[].downwardAPI",
            "spec.volumes[].emptyDir",
            "spec.volumes[].hostPath",
            "spec.volumes[].name",
            "spec.volumes[].projected",
            "spec.volumes[].secret",
            "spec.C.args",
            "spec.C.command",
            "spec.C.env",
            "spec.C.envFrom",
            "spec.C.image",
            "spec.C.imagePullPolicy",
            "spec.C.name",
            "spec.C.ports",
            "spec.C.resources",
            "spec.C.securityContext",
            "spec.C.terminationMessagePath",
            "spec.C.terminationMessagePolicy",
            "spec.C.tty",
            "spec.C.volumeMounts",
            "spec.C.workingDir",
        ];
        let fields_of = |place: &str| fields::fields_at(&fields::steps(place));
        let fields = fields_of("spec").iter().map(|field| format!("spec.{field}"));
        let fields = fields.chain(fields_of("spec.containers[0]").iter().map(|field| format!("spec.C.{field}")));
        let volumes = fields_of("spec.volumes[0]").iter().map(|field| format!("spec.volumes[].{field}"));
        let fields: Vec<String> = fields.chain(volumes).collect();
        assert!(fields.len() > 90, "{fields:?}");
        let covers = |pattern: &str, field: &str| {
            pattern == field || pattern.starts_with(&format!("{field}.")) || pattern.starts_with(&format!("{field}[]"))
        };
        for field in fields {
            let acted_on = ACTED_ON.contains(&field.as_str());
            let refused = REFUSED.iter().any(|(pattern, _)| covers(pattern, &field));
            let silent = NO_EFFECT.iter().any(|pattern| covers(pattern, &field));
            let lacking = NEEDS_APISERVER.iter().any(|(pattern, _)| covers(pattern, &field));
            assert!(acted_on || refused || lacking || silent, "{field} is in no table");
        }
    }
}
