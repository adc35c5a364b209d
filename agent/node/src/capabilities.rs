//! The Linux capabilities that the agent needs: a table with the purpose, the condition, and the effect of a missing
//! one.
//!
//! At its start, while it has one thread, the agent drops all others, for itself and for the programs it executes
//! (CNI plugins, drivers of flexVolumes). Containers are children of containerd and get their capabilities from it.
//! Documented in `docs/configuration.md`.

use std::io;

use rustix::thread::{self, CapabilitySet, CapabilitySets};

use limpet_host::apparmor;

/// The condition under which a capability is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// With any configuration.
    Always,
    /// If BPF programs may be loaded: the feature `ebpf` is in this build.
    Programs,
    /// If the host has AppArmor, or a `manifestGuard` is configured.
    SecurityModules,
    /// If `volumePluginDir` contains a driver.
    FlexDrivers,
}

impl When {
    /// The condition as documented.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Programs => "built with eBPF",
            Self::SecurityModules => "AppArmor, `manifestGuard`",
            Self::FlexDrivers => "a driver in `volumePluginDir` at the start",
        }
    }

    fn applies(self, uses: AgentUses) -> bool {
        match self {
            Self::Always => true,
            Self::Programs => uses.programs,
            Self::SecurityModules => apparmor::is_enabled() || uses.programs && uses.guard,
            Self::FlexDrivers => uses.flex_drivers,
        }
    }
}

/// Features that not every agent uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentUses {
    /// It is built with BPF programs.
    pub programs: bool,
    /// A `manifestGuard` is configured.
    pub guard: bool,
    /// `volumePluginDir` contains a driver.
    pub flex_drivers: bool,
}

/// A capability the agent needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    pub name: &'static str,
    pub when: When,
    pub purpose: &'static str,
    /// The effect if it is missing.
    pub lost: &'static str,
    /// Whether hardly any pod starts without it.
    pub vital: bool,
    set: CapabilitySet,
}

const fn always(set: CapabilitySet, name: &'static str, purpose: &'static str, lost: &'static str) -> Need {
    Need { name, when: When::Always, purpose, lost, vital: false, set }
}

/// All needed capabilities. Neither the agent nor its plugins use any others.
pub static NEEDS: [Need; 20] = [
    always(
        CapabilitySet::CHOWN,
        "CAP_CHOWN",
        "the group of volumes (`fsGroup`)",
        "pods with an `fsGroup` do not start",
    ),
    always(
        CapabilitySet::DAC_OVERRIDE,
        "CAP_DAC_OVERRIDE",
        "files that others keep to themselves: manifests, volumes, what ended pods leave",
        "such manifests are not read, such volumes not removed",
    ),
    always(
        CapabilitySet::DAC_READ_SEARCH,
        "CAP_DAC_READ_SEARCH",
        "a cgroup by its number: who changed a manifest",
        "cgroup and pod of a process that has ended at once are not known",
    ),
    always(
        CapabilitySet::FOWNER,
        "CAP_FOWNER",
        "modes and removal of files that belong to others",
        "volumes of ended pods may stay",
    ),
    always(
        CapabilitySet::FSETID,
        "CAP_FSETID",
        "the set-group-id bit of volumes with an `fsGroup`",
        "what is made in such volumes does not get their group",
    ),
    always(
        CapabilitySet::KILL,
        "CAP_KILL",
        "ending plugins that hang, and what a crash has left, also as another user",
        "processes of other users stay",
    ),
    always(
        CapabilitySet::SETGID,
        "CAP_SETGID",
        "mapping the group ids of pods with users of their own (`hostUsers: false`)",
        "such pods do not start",
    ),
    always(
        CapabilitySet::SETUID,
        "CAP_SETUID",
        "mapping the user ids of pods with users of their own (`hostUsers: false`)",
        "such pods do not start",
    ),
    always(
        CapabilitySet::NET_BIND_SERVICE,
        "CAP_NET_BIND_SERVICE",
        "listening below port 1024: the name server of Services",
        "names of Services are not answered, such addresses not served; for `metricsAddress` limpet does not start",
    ),
    Need {
        vital: true,
        ..always(
            CapabilitySet::NET_ADMIN,
            "CAP_NET_ADMIN",
            "the pods' network: interfaces, routes, firewall",
            "pods without `hostNetwork` do not start",
        )
    },
    always(
        CapabilitySet::NET_RAW,
        "CAP_NET_RAW",
        "CNI plugins: announcing addresses, iptables",
        "plugins that need it fail: no host ports, no masquerading",
    ),
    always(
        CapabilitySet::SYS_MODULE,
        "CAP_SYS_MODULE",
        "CNI plugins: iptables loads its modules",
        "plugins fail where these are not loaded already",
    ),
    always(
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "looking at processes: who changed a manifest, other agents, what a crash has left",
        "programs of those who change manifests are not named, processes that were left stay",
    ),
    Need {
        vital: true,
        ..always(
            CapabilitySet::SYS_ADMIN,
            "CAP_SYS_ADMIN",
            "mounts, namespaces, fanotify",
            "no new pod starts, and who changes a manifest is not known",
        )
    },
    always(
        CapabilitySet::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        "OOM scores below limpet's own",
        "containers get no `oom_score_adj` below limpet's own",
    ),
    Need {
        when: When::Programs,
        ..always(
            CapabilitySet::PERFMON,
            "CAP_PERFMON",
            "BPF programs that read the kernel's memory",
            "as without `CAP_BPF`",
        )
    },
    Need {
        when: When::Programs,
        ..always(
            CapabilitySet::BPF,
            "CAP_BPF",
            "BPF programs: who changes manifests, victims of OOM kills, senders of signals",
            "without `CAP_SYS_ADMIN`, too: victims of OOM kills and senders of signals are not named",
        )
    },
    Need {
        when: When::SecurityModules,
        ..always(
            CapabilitySet::MAC_ADMIN,
            "CAP_MAC_ADMIN",
            "loading the default AppArmor profile; BPF programs at the security hooks",
            "containers may run without the profile; kernels that ask for it refuse the guard",
        )
    },
    Need {
        when: When::FlexDrivers,
        ..always(
            CapabilitySet::MKNOD,
            "CAP_MKNOD",
            "drivers of flexVolumes that make device files",
            "such drivers fail",
        )
    },
    Need {
        when: When::FlexDrivers,
        ..always(
            CapabilitySet::SYS_CHROOT,
            "CAP_SYS_CHROOT",
            "drivers of flexVolumes that change their root or mount namespace (`chroot`, `nsenter`)",
            "such drivers fail",
        )
    },
];

/// The capabilities that these features need.
fn needed(uses: AgentUses) -> CapabilitySet {
    NEEDS.iter().filter(|need| need.when.applies(uses)).map(|need| need.set).collect()
}

/// The needed capabilities that are missing in `held`, among those that the kernel `knows`.
fn lacking_among(uses: AgentUses, held: CapabilitySet, knows: CapabilitySet) -> Vec<&'static Need> {
    let lacks = |need: &&Need| {
        // CAP_SYS_ADMIN includes both, as before Linux 5.8 (capabilities(7)).
        let implied = need.when == When::Programs && held.contains(CapabilitySet::SYS_ADMIN);
        need.when.applies(uses) && knows.contains(need.set) && !held.contains(need.set) && !implied
    };
    NEEDS.iter().filter(lacks).collect()
}

/// The needed capabilities that this thread lacks.
///
/// # Errors
/// The kernel does not report them.
pub fn lacking(uses: AgentUses) -> io::Result<Vec<&'static Need>> {
    Ok(lacking_among(uses, thread::capabilities(None)?.effective, known()))
}

/// The capabilities this kernel has.
fn known() -> CapabilitySet {
    // Numbers above the last capability are an error.
    each(CapabilitySet::all())
        .take_while(|capability| thread::capability_is_in_bounding_set(*capability).is_ok())
        .collect()
}

fn each(set: CapabilitySet) -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS)
        .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
        .filter(move |capability| set.contains(*capability))
}

/// Permanently drops the capabilities that are not needed, from this thread and its future threads and children. Must
/// be called while it is the only thread. Capabilities that cannot be dropped stay. Logs each missing capability.
pub fn drop_unneeded(uses: AgentUses) {
    let needed = needed(uses);
    match narrow(needed) {
        Ok(()) => tracing::debug!(kept = names(needed), "dropped unneeded capabilities"),
        Err(error) => tracing::info!(%error, "cannot drop all unneeded capabilities"),
    }
    for need in lacking(uses).unwrap_or_default() {
        tracing::warn!("no {}: {}", need.name, need.lost);
    }
}

fn narrow(needed: CapabilitySet) -> io::Result<()> {
    // The bounding set comes first: dropping from it needs CAP_SETPCAP, which is dropped with the rest.
    let bounding = each(known().difference(needed))
        .filter(|capability| thread::capability_is_in_bounding_set(*capability).unwrap_or(false))
        .try_for_each(thread::remove_capability_from_bounding_set);
    let now = thread::capabilities(None)?;
    let narrowed = CapabilitySets {
        effective: now.effective & needed,
        permitted: now.permitted & needed,
        inheritable: now.inheritable & needed,
    };
    thread::set_capabilities(None, narrowed)?;
    Ok(bounding?)
}

fn names(set: CapabilitySet) -> String {
    let names: Vec<&str> = NEEDS.iter().filter(|need| set.contains(need.set)).map(|need| need.name).collect();
    names.join(" ")
}

#[cfg(test)]
#[path = "capabilities_tests.rs"]
mod tests;
