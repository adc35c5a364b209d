//! Linux capabilities of a container.

use k8s_openapi::api::core::v1::SecurityContext;
use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities};

use super::SpecError;

/// containerd's capabilities for a container that configures none.
const DEFAULT_CAPABILITIES: [Capability; 14] = [
    Capability::AuditWrite,
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Mknod,
    Capability::NetBindService,
    Capability::NetRaw,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// Capabilities by number, as in `/proc/<pid>/status`.
const CAPABILITIES: [Capability; 41] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setpcap,
    Capability::LinuxImmutable,
    Capability::NetBindService,
    Capability::NetBroadcast,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::IpcLock,
    Capability::IpcOwner,
    Capability::SysModule,
    Capability::SysRawio,
    Capability::SysChroot,
    Capability::SysPtrace,
    Capability::SysPacct,
    Capability::SysAdmin,
    Capability::SysBoot,
    Capability::SysNice,
    Capability::SysResource,
    Capability::SysTime,
    Capability::SysTtyConfig,
    Capability::Mknod,
    Capability::Lease,
    Capability::AuditWrite,
    Capability::AuditControl,
    Capability::Setfcap,
    Capability::MacOverride,
    Capability::MacAdmin,
    Capability::Syslog,
    Capability::WakeAlarm,
    Capability::BlockSuspend,
    Capability::AuditRead,
    Capability::Perfmon,
    Capability::Bpf,
    Capability::CheckpointRestore,
];

/// The capabilities in a `CapEff` mask; bits of a newer kernel are ignored.
pub(super) fn from_mask(mask: u64) -> Capabilities {
    CAPABILITIES.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, capability)| *capability).collect()
}

/// Whether a container gets all capabilities, before some may be dropped.
pub(super) fn asks_for_all(context: Option<&SecurityContext>) -> bool {
    context.is_some_and(|context| {
        let add = context.capabilities.as_ref().and_then(|wanted| wanted.add.as_deref()).unwrap_or_default();
        context.privileged == Some(true) || add.iter().any(|name| is_all(name))
    })
}

/// A container's capabilities. `all` is the set for `ALL` and `privileged`: as many as containerd itself has.
///
/// # Errors
///
/// A capability to add is unknown.
pub(super) fn granted(context: Option<&SecurityContext>, all: &Capabilities) -> Result<Capabilities, SpecError> {
    let Some(context) = context else { return Ok(Capabilities::from(DEFAULT_CAPABILITIES)) };
    if context.privileged == Some(true) {
        return Ok(all.clone());
    }
    let Some(wanted) = &context.capabilities else { return Ok(Capabilities::from(DEFAULT_CAPABILITIES)) };
    let (add, drop) = (wanted.add.as_deref().unwrap_or_default(), wanted.drop.as_deref().unwrap_or_default());
    let names_all = |list: &[String]| list.iter().any(|name| is_all(name));
    // `ALL` comes first, so that single names still add to or remove from it.
    let mut set = match (names_all(add), names_all(drop)) {
        (_, true) => Capabilities::new(),
        (true, false) => all.clone(),
        (false, false) => Capabilities::from(DEFAULT_CAPABILITIES),
    };
    for name in add.iter().filter(|name| !is_all(name)) {
        set.insert(parse(name).ok_or_else(|| SpecError::Capability(name.clone()))?);
    }
    for name in drop.iter().filter(|name| !is_all(name)) {
        // An unknown capability was not granted either.
        parse(name).map(|capability| set.remove(&capability));
    }
    Ok(set)
}

/// The capability sets of the process. None is inheritable or ambient, so a program run by another user gets none of
/// them.
pub(super) fn process_sets(set: Capabilities) -> LinuxCapabilities {
    let mut sets = LinuxCapabilities::default();
    sets.set_bounding(Some(set.clone()))
        .set_effective(Some(set.clone()))
        .set_permitted(Some(set))
        .set_inheritable(None)
        .set_ambient(None);
    sets
}

fn is_all(name: &str) -> bool {
    name.eq_ignore_ascii_case("ALL")
}

/// A name with or without `CAP_`, in any case.
fn parse(name: &str) -> Option<Capability> {
    let upper = name.to_ascii_uppercase();
    upper.strip_prefix("CAP_").unwrap_or(&upper).parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn context(json: serde_json::Value) -> SecurityContext {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn lists_add_and_drop() {
        let all = Capabilities::from([Capability::SysAdmin, Capability::Chown, Capability::Bpf]);
        let default = Capabilities::from(DEFAULT_CAPABILITIES);
        let with = |extra| default.iter().copied().chain([extra]).collect::<Capabilities>();
        let without =
            |dropped| default.iter().copied().filter(|capability| *capability != dropped).collect::<Capabilities>();
        let cases = [
            (serde_json::json!({}), default.clone()),
            (serde_json::json!({"capabilities": {}}), default.clone()),
            (serde_json::json!({"capabilities": {"add": ["NET_ADMIN"]}}), with(Capability::NetAdmin)),
            (serde_json::json!({"capabilities": {"add": ["cap_net_admin"]}}), with(Capability::NetAdmin)),
            (serde_json::json!({"capabilities": {"drop": ["CAP_KILL"]}}), without(Capability::Kill)),
            (serde_json::json!({"capabilities": {"drop": ["NO_SUCH"]}}), default.clone()),
            (serde_json::json!({"capabilities": {"drop": ["ALL"]}}), Capabilities::new()),
            (
                serde_json::json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}),
                Capabilities::from([Capability::NetBindService]),
            ),
            (serde_json::json!({"capabilities": {"add": ["ALL"]}}), all.clone()),
            (
                serde_json::json!({"capabilities": {"add": ["all"], "drop": ["SYS_ADMIN"]}}),
                Capabilities::from([Capability::Chown, Capability::Bpf]),
            ),
            (serde_json::json!({"privileged": true, "capabilities": {"drop": ["ALL"]}}), all.clone()),
        ];
        for (json, wanted) in cases {
            let in_need = json["privileged"] == true || json["capabilities"]["add"][0].as_str().is_some_and(is_all);
            assert_eq!(asks_for_all(Some(&context(json.clone()))), in_need, "{json}");
            assert_eq!(granted(Some(&context(json.clone())), &all).unwrap(), wanted, "{json}");
        }
        assert_eq!(granted(None, &all).unwrap(), default);
        let unknown = context(serde_json::json!({"capabilities": {"add": ["NO_SUCH"]}}));
        assert!(matches!(granted(Some(&unknown), &all), Err(SpecError::Capability(name)) if name == "NO_SUCH"));
    }

    #[test]
    fn masks_name_capabilities_by_bit() {
        assert_eq!(from_mask(0), Capabilities::new());
        assert_eq!(from_mask(1 | 1 << 21), Capabilities::from([Capability::Chown, Capability::SysAdmin]));
        assert_eq!(from_mask(1 << 40 | 1 << 63), Capabilities::from([Capability::CheckpointRestore]));
        assert_eq!(from_mask(u64::MAX).len(), 41);
    }
}
