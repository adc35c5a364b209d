#![allow(clippy::unwrap_used)]

use std::process::Command;

use super::*;

const DOCUMENT: &str = include_str!("../../../docs/configuration.md");
const UNIT: &str = include_str!("../../../deploy/limpet.service");

fn named(needs: &[&Need]) -> Vec<&'static str> {
    needs.iter().map(|need| need.name).collect()
}

#[test]
fn the_documentation_contains_the_table() {
    let row = |need: &Need| format!("| `{}` | {} | {} | {} |", need.name, need.when.as_str(), need.purpose, need.lost);
    let actual: Vec<&str> = DOCUMENT.lines().filter(|line| line.starts_with("| `CAP_")).collect();
    assert_eq!(actual, NEEDS.iter().map(row).collect::<Vec<_>>());
}

#[test]
fn the_unit_has_the_capabilities_of_the_table() {
    let bounds = UNIT.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let mut actual: Vec<&str> = bounds.flat_map(str::split_whitespace).collect();
    // With CAP_SETPCAP, the agent can drop what its configuration does not need.
    let mut wanted: Vec<&str> = NEEDS.iter().map(|need| need.name).chain(["CAP_SETPCAP"]).collect();
    actual.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(actual, wanted);
}

#[test]
fn each_capability_is_in_the_table_once() {
    let all = NEEDS.iter().fold(CapabilitySet::empty(), |all, need| all | need.set);
    assert_eq!(all.bits().count_ones() as usize, NEEDS.len());
    assert!(NEEDS.iter().all(|need| need.set.bits().is_power_of_two()));
}

#[test]
fn the_configuration_decides_which_capabilities_are_needed() {
    let plain = needed(AgentUses::default());
    assert!(plain.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN | CapabilitySet::SYS_PTRACE));
    assert!(!plain.intersects(CapabilitySet::SYS_TIME));
    assert_eq!(plain.contains(CapabilitySet::MAC_ADMIN), apparmor::is_enabled());
    assert!(!plain.intersects(CapabilitySet::BPF | CapabilitySet::PERFMON));
    let programs = AgentUses { programs: true, ..AgentUses::default() };
    assert!(needed(programs).contains(CapabilitySet::BPF | CapabilitySet::PERFMON));
    assert_eq!(needed(programs).contains(CapabilitySet::MAC_ADMIN), apparmor::is_enabled());
    assert!(needed(AgentUses { guard: true, ..programs }).contains(CapabilitySet::MAC_ADMIN));
}

#[test]
fn a_missing_capability_is_reported_unless_implied_or_unknown_to_the_kernel() {
    let uses = AgentUses { programs: true, ..AgentUses::default() };
    let all = CapabilitySet::all();
    let lacks = |held| named(&lacking_among(uses, held, all));
    assert!(lacks(all).is_empty());
    assert_eq!(lacks(all - CapabilitySet::SYS_RESOURCE), ["CAP_SYS_RESOURCE"]);
    assert!(lacks(all - CapabilitySet::BPF - CapabilitySet::MAC_ADMIN).is_empty());
    let without_admin = lacks(all - CapabilitySet::SYS_ADMIN - CapabilitySet::BPF);
    assert!(without_admin.contains(&"CAP_BPF"));
    assert!(without_admin.contains(&"CAP_SYS_ADMIN"));
    let old = all - CapabilitySet::KILL;
    assert!(lacking_among(uses, CapabilitySet::all() - CapabilitySet::KILL, old).is_empty());
}

/// A field of this thread's status.
fn status(path: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let digits = text.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    u64::from_str_radix(digits.trim(), 16).unwrap()
}

/// Each test has its own thread, and drops capabilities for that thread only.
#[test]
fn dropped_capabilities_are_gone_for_the_thread_and_its_children_and_dropping_twice_is_harmless() {
    let before = thread::capabilities(None).unwrap();
    let needed = needed(AgentUses::default());
    let may = before.effective.contains(CapabilitySet::SETPCAP);
    assert!(narrow(needed).is_ok() || !may);
    let after = thread::capabilities(None).unwrap();
    assert_eq!((after.effective, after.permitted), (before.effective & needed, before.permitted & needed));
    // Without CAP_SETPCAP the bounding set stays unchanged; the rest is dropped.
    drop_unneeded(AgentUses::default());
    assert_eq!(thread::capabilities(None).unwrap(), after);
    if !may {
        return;
    }
    let bounding = status("/proc/thread-self/status", "CapBnd:");
    assert_eq!(bounding & !needed.bits(), 0);
    let child = Command::new("cat").arg("/proc/self/status").output().unwrap();
    let child = String::from_utf8(child.stdout).unwrap();
    let its = child.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    assert_eq!(u64::from_str_radix(its.trim(), 16).unwrap() & !needed.bits(), 0);
}
