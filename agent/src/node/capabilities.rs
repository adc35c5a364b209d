//! The Linux capabilities the agent needs: one table, with what each is for, when, and what is lost without it.
//!
//! At its start the agent drops all others, while it has one thread, so that neither it nor what it executes (CNI plugins)
//! has them. Containers are containerd's children and have theirs from there. Docs: `docs/configuration.md`.

use std::io;

use rustix::thread::{self, CapabilitySet, CapabilitySets};

use crate::config::Config;

/// When a capability is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Whatever is configured.
    Always,
    /// A `metricsAddress` has a port below 1024.
    LowPort,
    /// BPF programs may be loaded: the feature `ebpf` was not left out.
    Programs,
    /// A `manifestGuard` is configured.
    Guard,
}

impl When {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::LowPort => "`metricsAddress` below port 1024",
            Self::Programs => "built with eBPF",
            Self::Guard => "`manifestGuard`",
        }
    }

    fn applies(self, config: &Config) -> bool {
        match self {
            Self::Always => true,
            Self::LowPort => config.metrics_address.is_some_and(|address| (1..1_024).contains(&address.port())),
            Self::Programs => cfg!(feature = "attribution"),
            Self::Guard => cfg!(feature = "attribution") && config.guard.mode.is_some(),
        }
    }
}

/// A capability the agent needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// As people write it.
    pub name: &'static str,
    /// When.
    pub when: When,
    /// What for.
    pub purpose: &'static str,
    /// What happens without it.
    pub lost: &'static str,
    /// Hardly a pod starts without it.
    pub vital: bool,
    set: CapabilitySet,
}

const fn always(set: CapabilitySet, name: &'static str, purpose: &'static str, lost: &'static str) -> Need {
    Need { name, when: When::Always, purpose, lost, vital: false, set }
}

/// All that are needed. What is not here, neither the agent nor the plugins it calls have any use for.
pub static NEEDS: [Need; 16] = [
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
    Need {
        when: When::LowPort,
        ..always(
            CapabilitySet::NET_BIND_SERVICE,
            "CAP_NET_BIND_SERVICE",
            "listening on that port",
            "limpet does not start",
        )
    },
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
        "programs of those who change manifests are not told, processes that were left stay",
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
        when: When::Guard,
        ..always(
            CapabilitySet::MAC_ADMIN,
            "CAP_MAC_ADMIN",
            "BPF programs at the security hooks",
            "kernels that ask for it refuse the guard",
        )
    },
];

/// What is kept with this configuration.
fn kept(config: &Config) -> CapabilitySet {
    NEEDS.iter().filter(|need| need.when.applies(config)).map(|need| need.set).collect()
}

/// What is needed and not among `held`, of those that the kernel `knows`.
fn lacking_of(config: &Config, held: CapabilitySet, knows: CapabilitySet) -> Vec<&'static Need> {
    let lacks = |need: &&Need| {
        // CAP_SYS_ADMIN stands for both, as before Linux 5.8 (capabilities(7)).
        let implied = need.when == When::Programs && held.contains(CapabilitySet::SYS_ADMIN);
        need.when.applies(config) && knows.contains(need.set) && !held.contains(need.set) && !implied
    };
    NEEDS.iter().filter(lacks).collect()
}

/// What is needed with this configuration, and this thread lacks.
///
/// # Errors
/// The kernel does not say what it has.
pub fn lacking(config: &Config) -> io::Result<Vec<&'static Need>> {
    Ok(lacking_of(config, thread::capabilities(None)?.effective, known()))
}

/// The capabilities this kernel has.
fn known() -> CapabilitySet {
    // Numbers beyond its last one are an error.
    each(CapabilitySet::all()).take_while(|one| thread::capability_is_in_bounding_set(*one).is_ok()).collect()
}

fn each(set: CapabilitySet) -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)).filter(move |one| set.contains(*one))
}

/// Drops what is not needed with this configuration, for good, from this thread and whatever it will make; to be called while it
/// is the only one. What cannot be dropped is kept. What is lacking is told, one line each.
pub fn drop_unneeded(config: &Config) {
    let kept = kept(config);
    match narrow(kept) {
        Ok(()) => tracing::debug!(kept = names(kept), "capabilities that are not needed are dropped"),
        Err(error) => tracing::info!(%error, "not all capabilities that are not needed can be dropped"),
    }
    for need in lacking(config).unwrap_or_default() {
        tracing::warn!("no {}: {}", need.name, need.lost);
    }
}

fn narrow(kept: CapabilitySet) -> io::Result<()> {
    // The bounding set first: it takes CAP_SETPCAP, which goes with the rest.
    let bounding = each(known().difference(kept))
        .filter(|one| thread::capability_is_in_bounding_set(*one).unwrap_or(false))
        .try_for_each(thread::remove_capability_from_bounding_set);
    let now = thread::capabilities(None)?;
    let narrowed = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: now.inheritable & kept,
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
