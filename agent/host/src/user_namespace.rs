//! Checks whether pods can have user namespaces here (`hostUsers: false`): the kernel, its settings, the agent's
//! privileges and the snapshotter. Every supported version of containerd and runc suffices.

use rustix::thread::CapabilitySet;

/// The first kernel with ID-mapped mounts of tmpfs, which kubelet requires too: volumes of Secrets are one.
const MIN_KERNEL: (u32, u32) = (6, 3);
/// The snapshotter whose layers can be mapped.
const SNAPSHOTTER: &str = "overlayfs";

#[derive(Debug, Clone)]
struct Facts<'a> {
    /// The kernel's release: `6.12.1-amd64`.
    release: &'a str,
    /// `/proc/sys/user/max_user_namespaces`; `None` if the kernel has no user namespaces.
    most: Option<u64>,
    /// The agent's capabilities.
    rights: CapabilitySet,
    snapshotter: &'a str,
}

/// Why no pod can have a user namespace, with a remedy; `None` if pods can. `snapshotter` is containerd's configured
/// one.
pub fn missing_support(snapshotter: &str) -> Option<String> {
    let uname = rustix::system::uname();
    let most = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").ok();
    judge(&Facts {
        release: &uname.release().to_string_lossy(),
        most: most.and_then(|most| most.trim().parse().ok()),
        // A kernel of unknown version refuses later, with its own error.
        rights: rustix::thread::capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective),
        snapshotter,
    })
}

fn judge(facts: &Facts<'_>) -> Option<String> {
    let mut numbers = facts.release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < MIN_KERNEL {
        let (major, minor) = MIN_KERNEL;
        return Some(format!("this kernel, {}, has no ID-mapped tmpfs; it needs Linux {major}.{minor}", facts.release));
    }
    match facts.most {
        None => return Some("this kernel has no user namespaces; it needs CONFIG_USER_NS".to_owned()),
        Some(0) => {
            return Some("user namespaces are turned off; set sysctl user.max_user_namespaces above 0".to_owned());
        }
        Some(_) => {}
    }
    if !facts.rights.contains(CapabilitySet::SETUID | CapabilitySet::SETGID) {
        return Some("limpet may not map ids; it needs CAP_SETUID and CAP_SETGID".to_owned());
    }
    (facts.snapshotter != SNAPSHOTTER).then(|| {
        format!(
            "snapshotter {} has no layers that can be mapped; it needs snapshotter: {SNAPSHOTTER}",
            facts.snapshotter
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let good =
            Facts { release: "6.12.9-amd64", most: Some(1), rights: CapabilitySet::all(), snapshotter: "overlayfs" };
        for (facts, missing) in [
            (good.clone(), None),
            (Facts { release: "6.3-rc1", ..good.clone() }, None),
            (Facts { release: "10.0.0", ..good.clone() }, None),
            (Facts { release: "6.1.0-13-amd64", ..good.clone() }, Some("Linux 6.3")),
            (Facts { most: None, ..good.clone() }, Some("CONFIG_USER_NS")),
            (Facts { most: Some(0), ..good.clone() }, Some("user.max_user_namespaces")),
            (Facts { rights: CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID, ..good.clone() }, Some("CAP_SETGID")),
            (Facts { snapshotter: "btrfs", ..good }, Some("snapshotter: overlayfs")),
        ] {
            let lacking = judge(&facts);
            let named = lacking.as_deref().zip(missing).is_some_and(|(lacking, missing)| lacking.contains(missing));
            assert!(named || lacking.is_none() && missing.is_none(), "{facts:?}: {lacking:?}");
        }
    }
}
