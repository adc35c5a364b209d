//! Which sysctls a Pod may set, and their paths. Pure; the rules are kubelet's (`pkg/kubelet/sysctl`).

use std::path::PathBuf;

use k8s_openapi::api::core::v1::PodSpec;

/// kubelet's safe sysctls, which any Pod may set because they are isolated between pods and harmless to the node.
const SAFE_SYSCTLS: [&str; 14] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// A sysctl that the Pod may not set on this node. Admission refuses such a Pod (kubelet's reason `SysctlForbidden`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SysctlRefused {
    /// It is neither safe nor allowed by the configuration.
    #[error("forbidden sysctl: {0:?} not allowlisted")]
    NotAllowed(String),
    /// Its namespace is the host's.
    #[error("forbidden sysctl: {0:?} not allowed with host {1} enabled")]
    HostNamespace(String, &'static str),
    /// It is not namespaced: setting it would change the node.
    #[error("forbidden sysctl: {0:?} is not namespaced")]
    NotNamespaced(String),
}

/// The Pod's sysctls, as written.
pub fn sysctls(spec: &PodSpec) -> Vec<(String, String)> {
    let wanted = spec.security_context.as_ref().and_then(|context| context.sysctls.as_deref()).unwrap_or_default();
    wanted.iter().map(|sysctl| (sysctl.name.clone(), sysctl.value.clone())).collect()
}

/// Whether the Pod may set its sysctls: each is on kubelet's safe list or matched by `allowed`
/// (`allowedUnsafeSysctls`: names, or prefixes ending in `*`), and none belongs to a namespace of the host.
pub fn check_sysctls(spec: &PodSpec, allowed: &[String]) -> Result<(), SysctlRefused> {
    let host_network = spec.host_network.unwrap_or(false);
    let host_ipc = spec.host_ipc.unwrap_or(false);
    for (name, _) in sysctls(spec) {
        let dotted = dotted(&name);
        let permitted =
            SAFE_SYSCTLS.contains(&dotted.as_str()) || allowed.iter().any(|pattern| matches(pattern, &dotted));
        if !permitted {
            return Err(SysctlRefused::NotAllowed(dotted));
        }
        match namespace(&dotted) {
            Some("net") if host_network => return Err(SysctlRefused::HostNamespace(dotted, "Net")),
            Some("ipc") if host_ipc => return Err(SysctlRefused::HostNamespace(dotted, "IPC")),
            Some(_) => {}
            None => return Err(SysctlRefused::NotNamespaced(dotted)),
        }
    }
    Ok(())
}

fn matches(pattern: &str, dotted_name: &str) -> bool {
    let pattern = dotted(pattern);
    match pattern.strip_suffix('*') {
        Some(prefix) => dotted_name.starts_with(prefix),
        None => dotted_name == pattern,
    }
}

/// The namespace of a sysctl, if it is one that a pod may have.
fn namespace(dotted_name: &str) -> Option<&'static str> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| dotted_name.starts_with(prefix));
    match dotted_name {
        "kernel.sem" => Some("ipc"),
        _ if ipc => Some("ipc"),
        _ if dotted_name.starts_with("net.") => Some("net"),
        _ => None,
    }
}

/// The name with `.` between its parts. If the first separator is a `/`, the two characters are swapped, so that a
/// `.` within an interface's name stays distinct: `net/ipv4/conf/eth0.1/x` is `net.ipv4.conf.eth0/1.x`.
pub fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name[first..].starts_with('/') => swap_separators(name),
        _ => name.to_owned(),
    }
}

/// The file below `/proc/sys`. A validated name contains no `..` and starts with a letter.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(swap_separators(&dotted(name)))
}

fn swap_separators(name: &str) -> String {
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    name.chars().map(swap).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> PodSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn kubelets_rules() {
        let allow = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let not_allowed = |name: &str| Err(SysctlRefused::NotAllowed(name.to_owned()));
        // name, hostNetwork, hostIPC, allowedUnsafeSysctls, verdict
        let table = [
            ("net.ipv4.tcp_syncookies", false, false, allow(&[]), Ok(())),
            ("net/ipv4/tcp_syncookies", false, false, allow(&[]), Ok(())),
            ("net.ipv4.tcp_notsent_lowat", false, false, allow(&[]), Ok(())),
            ("net.ipv4.tcp_slow_start_after_idle", false, false, allow(&[]), Ok(())),
            ("net.core.somaxconn", false, false, allow(&[]), not_allowed("net.core.somaxconn")),
            ("net.core.somaxconn", false, false, allow(&["net.core.*"]), Ok(())),
            ("net.core.somaxconn", false, false, allow(&["net.core.somaxconn"]), Ok(())),
            ("net.core.somaxconn", false, false, allow(&["net.core.somax"]), not_allowed("net.core.somaxconn")),
            (
                "net.ipv4.tcp_syncookies",
                true,
                false,
                allow(&[]),
                Err(SysctlRefused::HostNamespace("net.ipv4.tcp_syncookies".to_owned(), "Net")),
            ),
            (
                "kernel.shm_rmid_forced",
                false,
                true,
                allow(&[]),
                Err(SysctlRefused::HostNamespace("kernel.shm_rmid_forced".to_owned(), "IPC")),
            ),
            ("kernel.shm_rmid_forced", true, false, allow(&[]), Ok(())),
            ("kernel.sem", false, false, allow(&["kernel.sem"]), Ok(())),
            ("vm.swappiness", false, false, allow(&["*"]), Err(SysctlRefused::NotNamespaced("vm.swappiness".into()))),
        ];
        for (name, host_network, host_ipc, allowed, verdict) in table {
            let spec = spec(serde_json::json!({
                "containers": [], "hostNetwork": host_network, "hostIPC": host_ipc,
                "securityContext": {"sysctls": [{"name": name, "value": "1"}]},
            }));
            assert_eq!(check_sysctls(&spec, &allowed), verdict, "{name} with {allowed:?}");
        }
    }

    #[test]
    fn paths() {
        for (name, file) in [
            ("net.ipv4.tcp_syncookies", "/proc/sys/net/ipv4/tcp_syncookies"),
            ("net/ipv4/tcp_syncookies", "/proc/sys/net/ipv4/tcp_syncookies"),
            ("net/ipv4/conf/eth0.1/rp_filter", "/proc/sys/net/ipv4/conf/eth0.1/rp_filter"),
            ("net.ipv4.conf.eth0/1.rp_filter", "/proc/sys/net/ipv4/conf/eth0.1/rp_filter"),
        ] {
            assert_eq!(path(name), PathBuf::from(file), "{name}");
        }
    }

    #[test]
    fn refusal_reads_as_kubelets() {
        assert_eq!(
            SysctlRefused::NotAllowed("net.core.somaxconn".to_owned()).to_string(),
            r#"forbidden sysctl: "net.core.somaxconn" not allowlisted"#
        );
    }
}
