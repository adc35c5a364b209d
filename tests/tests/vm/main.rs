//! limpet installed on a separate machine, as the README says: systemd, cgroup v2, reboots and power cuts.
//!
//! The machine is emulated and slow, so each test waits for facts. One installation with its pods running is the base of
//! all: its memory is kept, each test takes up from there, and boots only for what a boot has to show.

mod allocatable;
mod apparmor;
mod boots;
mod cluster;
mod cuts;
mod gateway;
mod guard;
mod leftovers;
mod machine;
mod memory;
mod pod;
mod runtimes;
mod selinux;
mod snapshotters;
mod storage;
mod suites;
mod swap;
mod tpm;
mod upgrades;

use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use limpet_tests::{broken_version, suite, sweep, tools, vm};

use self::machine::Machine;

type Case = (&'static str, fn(&Machine) -> Result<()>);
/// A case that cuts the power, the later the higher the number.
type Cut = (&'static str, fn(&Machine, usize) -> Result<()>);

/// The cases of every run.
const FIRST: [Case; 3] = [
    ("installed_as_the_readme_says_it_runs_pods", boots::installed_as_the_readme_says_it_runs_pods),
    ("a_reboot_brings_back_what_ran_and_nothing_that_had_finished", boots::a_reboot),
    ("a_power_cut_in_the_middle_of_a_start_then_1970_and_no_network", boots::a_power_cut_and_a_clock_in_1970),
];

/// The cases of a gateway.
const OF_A_GATEWAY: [Case; 3] = [
    ("a_power_cut_in_the_middle_of_a_pull", |machine| cuts::in_a_pull(machine, 0)),
    ("what_the_node_has_and_lacks_is_said", gateway::what_the_node_has_is_said),
    ("pods_run_and_are_pulled_in_2040", gateway::in_2040),
];

/// The cases of a long run.
const FURTHER: [Case; 23] = [
    ("upgrades_and_broken_versions_restart_none_of_twenty_pods", upgrades::twenty_pods_run_on),
    ("a_guard_refuses_pods_and_the_actor_of_each_change_is_known", guard::a_guard_and_the_actors),
    ("apparmor_profiles_confine_containers", apparmor::profiles_confine),
    ("selinux_keeps_pods_apart", selinux::pods_are_apart),
    ("an_export_and_a_disk_of_a_server_are_volumes", storage::nfs),
    ("a_pod_runs_under_crun_as_under_runc", runtimes::a_pod_under_crun),
    ("huge_pages_are_limited_by_cgroups", storage::huge_pages),
    ("a_file_system_counts_what_a_volume_takes", storage::project_quota),
    ("containers_have_a_share_of_the_swap", swap::limited_swap),
    ("memory_that_is_requested_is_kept", memory::what_is_requested_is_kept),
    ("a_pod_lives_on_btrfs", snapshotters::btrfs),
    ("a_pod_lives_on_devmapper", snapshotters::devmapper),
    ("a_pod_lives_on_native_snapshots", snapshotters::native),
    ("zfs_without_its_module_is_refused_with_the_reason", snapshotters::zfs),
    ("a_shutdown_lets_containers_end_within_their_grace", boots::a_shutdown_lets_containers_end),
    ("a_boot_without_the_url_s_server_and_the_registry", boots::a_boot_without_servers),
    ("all_pods_together_leave_what_is_reserved", allocatable::all_pods_leave_what_is_reserved),
    ("secrets_are_for_the_machine_with_its_tpm", tpm::secrets_are_for_one_tpm),
    ("a_cluster_of_its_own_outlives_a_power_cut", cluster::outlives_a_power_cut),
    ("a_power_cut_in_the_middle_of_a_start", |machine| cuts::in_a_start(machine, 0)),
    ("a_power_cut_in_the_middle_of_an_edit", |machine| cuts::in_an_edit(machine, 0)),
    ("a_power_cut_in_the_middle_of_a_pull", |machine| cuts::in_a_pull(machine, 0)),
    ("a_power_cut_in_the_middle_of_a_write_of_the_agent_s_state", |machine| cuts::in_a_write(machine, 0)),
];

/// The cuts that a long run makes three times, each time a little later.
const CUTS: [Cut; 4] = [
    ("start", cuts::in_a_start),
    ("edit", cuts::in_an_edit),
    ("pull", cuts::in_a_pull),
    ("write_of_the_agent_s_state", cuts::in_a_write),
];

fn main() -> ExitCode {
    if let Some(code) = broken_version::main() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // There is only one machine at a time, because it needs both cores.
    arguments.test_threads = Some(1);
    let lacking = lacking();
    if lacking.is_none() && !arguments.list {
        sweep::sweep();
    }
    let conclusion = libtest_mimic::run(&arguments, trials(lacking));
    machine::remove_work_dir();
    conclusion.exit_code()
}

/// Without an image the tests are ignored also where all else has to be there: not every machine can make one, and
/// `cargo xtask test` says why.
fn lacking() -> Option<&'static str> {
    (!tools::is_root()).then_some("not root")
}

fn trials(lacking: Option<&str>) -> Vec<Trial> {
    let mut trials: Vec<Trial> = FIRST.into_iter().map(|(name, test)| trial(name.to_owned(), test, lacking)).collect();
    if std::env::var_os(vm::GATEWAY_VARIABLE).is_some() {
        trials.extend(OF_A_GATEWAY.into_iter().map(|(name, test)| trial(name.to_owned(), test, lacking)));
    }
    if std::env::var_os(vm::ALL_VARIABLE).is_none() {
        return trials;
    }
    trials.extend(FURTHER.into_iter().map(|(name, test)| trial(name.to_owned(), test, lacking)));
    for round in 1..3 {
        let again = |(place, cut): Cut| {
            trial(
                format!("a_power_cut_in_the_middle_of_a_{place}_again_{round}"),
                move |machine| cut(machine, round),
                lacking,
            )
        };
        trials.extend(CUTS.into_iter().map(again));
    }
    for first in upgrades::cuts::cases() {
        let last = first + upgrades::cuts::CUTS_OF_A_CASE - 1;
        let name = format!("power_cuts_{first}_to_{last}_in_upgrades_leave_one_of_both_versions");
        trials.push(trial(name, move |machine| upgrades::cuts::from(machine, first), lacking));
    }
    for suite in vm::suites() {
        let name = format!("suite_{}", suites::name(&suite));
        trials.push(trial(name, move |machine| suites::inside(machine, &suite), lacking));
    }
    trials
}

fn trial(name: String, test: impl Fn(&Machine) -> Result<()> + Send + 'static, lacking: Option<&str>) -> Trial {
    /// The machine, which the first test makes.
    static MACHINE: OnceLock<Result<Machine, String>> = OnceLock::new();
    if let Some(reason) = lacking {
        return suite::lacking(&name, reason);
    }
    let run = move || {
        let machine = MACHINE.get_or_init(|| Machine::install().map_err(|error| format!("{error:#}")));
        let machine = machine.as_ref().map_err(|error| Failed::from(error.clone()))?;
        test(machine).map_err(|error| {
            // The error is printed at once, too, because the other tests take minutes each.
            eprintln!("{error:#}");
            Failed::from(format!("{error:#}"))
        })
    };
    let has_image = vm::image().is_some();
    if !has_image {
        eprintln!("skipped: {name}: no image of a machine; run: cargo xtask test-vm");
    }
    Trial::test(name, run).with_ignored_flag(!has_image)
}
