#![allow(clippy::unwrap_used)]

use std::process::Command;

use limpet_bpf::GuardMode;

use super::*;
use crate::config::GuardSettings;

const DOCUMENT: &str = include_str!("../../../docs/configuration.md");
const UNIT: &str = include_str!("../../../deploy/limpet.service");

fn named(needs: &[&Need]) -> Vec<&'static str> {
    needs.iter().map(|need| need.name).collect()
}

#[test]
fn the_document_has_the_table() {
    let row = |need: &Need| format!("| `{}` | {} | {} | {} |", need.name, need.when.as_str(), need.purpose, need.lost);
    let told: Vec<&str> = DOCUMENT.lines().filter(|line| line.starts_with("| `CAP_")).collect();
    assert_eq!(told, NEEDS.iter().map(row).collect::<Vec<_>>());
}

#[test]
fn the_unit_bounds_the_agent_by_the_table() {
    let bounds = UNIT.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let mut told: Vec<&str> = bounds.flat_map(str::split_whitespace).collect();
    // With it the agent drops what its configuration does not need.
    let mut wanted: Vec<&str> = NEEDS.iter().map(|need| need.name).chain(["CAP_SETPCAP"]).collect();
    told.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(told, wanted);
}

#[test]
fn each_is_in_the_table_once() {
    let all = NEEDS.iter().fold(CapabilitySet::empty(), |all, need| all | need.set);
    assert_eq!(all.bits().count_ones() as usize, NEEDS.len());
    assert!(NEEDS.iter().all(|need| need.set.bits().is_power_of_two()));
}

#[test]
fn what_is_configured_decides_what_is_kept() {
    let plain = kept(&Config::default());
    assert!(plain.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN | CapabilitySet::SYS_PTRACE));
    assert!(!plain.intersects(CapabilitySet::MAC_ADMIN | CapabilitySet::NET_BIND_SERVICE | CapabilitySet::SYS_TIME));
    assert_eq!(plain.contains(CapabilitySet::BPF | CapabilitySet::PERFMON), cfg!(feature = "attribution"));
    let guard = GuardSettings { mode: Some(GuardMode::Audit), ..GuardSettings::default() };
    let address = |port: u16| Some(([127, 0, 0, 1], port).into());
    let guarded = Config { guard, metrics_address: address(80), ..Config::default() };
    assert_eq!(kept(&guarded).contains(CapabilitySet::MAC_ADMIN), cfg!(feature = "attribution"));
    assert!(kept(&guarded).contains(CapabilitySet::NET_BIND_SERVICE));
    let high = Config { metrics_address: address(9_100), ..Config::default() };
    assert_eq!(kept(&high), plain);
}

#[test]
fn what_is_lacking_is_told_unless_it_is_implied_or_not_of_this_kernel() {
    let config = Config::default();
    let all = CapabilitySet::all();
    let lacks = |held| named(&lacking_of(&config, held, all));
    assert!(lacks(all).is_empty());
    assert_eq!(lacks(all - CapabilitySet::SYS_RESOURCE), ["CAP_SYS_RESOURCE"]);
    assert!(lacks(all - CapabilitySet::BPF - CapabilitySet::MAC_ADMIN).is_empty());
    let without_admin = lacks(all - CapabilitySet::SYS_ADMIN - CapabilitySet::BPF);
    assert_eq!(without_admin.contains(&"CAP_BPF"), cfg!(feature = "attribution"));
    assert!(without_admin.contains(&"CAP_SYS_ADMIN"));
    let old = all - CapabilitySet::KILL;
    assert!(lacking_of(&config, CapabilitySet::all() - CapabilitySet::KILL, old).is_empty());
}

/// A line of this thread's status.
fn status(of: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(of).unwrap();
    let digits = text.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    u64::from_str_radix(digits.trim(), 16).unwrap()
}

/// Each test has a thread of its own, and what it drops is gone for that one alone.
#[test]
fn what_is_dropped_is_gone_for_the_thread_and_its_children_and_twice_is_no_harm() {
    let before = thread::capabilities(None).unwrap();
    let kept = kept(&Config::default());
    let may = before.effective.contains(CapabilitySet::SETPCAP);
    assert!(narrow(kept).is_ok() || !may);
    let after = thread::capabilities(None).unwrap();
    assert_eq!((after.effective, after.permitted), (before.effective & kept, before.permitted & kept));
    // Without CAP_SETPCAP the bounding set stays, and all else is done.
    drop_unneeded(&Config::default());
    assert_eq!(thread::capabilities(None).unwrap(), after);
    if !may {
        return;
    }
    let bounding = status("/proc/thread-self/status", "CapBnd:");
    assert_eq!(bounding & !kept.bits(), 0);
    let child = Command::new("cat").arg("/proc/self/status").output().unwrap();
    let child = String::from_utf8(child.stdout).unwrap();
    let its = child.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    assert_eq!(u64::from_str_radix(its.trim(), 16).unwrap() & !kept.bits(), 0);
}
