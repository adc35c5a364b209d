//! Bad updates: whatever is wrong with a change, what ran before runs again soon, and `limpet status` says why.
//!
//! Each case is a node on which one bad update follows another: since each is undone, all begin with the same. Those that need a
//! power cut are in the suite `vm`; bundles that are cut, changed, foreign or replayed in `bundle`; a ConfigMap that breaks a
//! pod beside it, a check that fails, kills of the agent and Deployments in `generations`.

mod bundles;
mod containers;
mod images;
mod manifests;
mod stage;
mod surroundings;
mod workloads;

use std::process::ExitCode;

use limpet_tests::node::NodeOptions;
use limpet_tests::{case, suite};

use bundles::a_bundle_that_does_not_work;
use containers::{containers_that_end, pods_that_never_work};
use images::{an_image_that_fills_the_disk, images_that_cannot_be_had};
use manifests::manifests_that_are_refused;
use surroundings::{a_clock_that_jumps, a_containerd_that_ends, a_probe_that_fails_later, a_url_that_does_not_agree};
use workloads::{claims_and_sets_come_back, workloads_that_fail};

fn main() -> ExitCode {
    suite::run(vec![
        case!(containers_that_end).on(on_trial),
        case!(pods_that_never_work).on(on_trial),
        case!(manifests_that_are_refused).on(on_trial),
        case!(workloads_that_fail).on(on_trial),
        case!(claims_and_sets_come_back).on(on_trial),
        case!(images_that_cannot_be_had).on(without_agent),
        case!(an_image_that_fills_the_disk).on(|node| {
            without_agent(node);
            node.image_disk = Some(48 << 20);
        }),
        case!(a_containerd_that_ends).on(on_trial),
        case!(a_url_that_does_not_agree).on(without_agent),
        case!(a_probe_that_fails_later).on(on_trial),
        case!(a_bundle_that_does_not_work).on(without_agent),
        case!(a_clock_that_jumps).on(without_agent),
    ])
}

fn on_trial(node: &mut NodeOptions) {
    node.limpet = vec![stage::settings("")];
}

fn without_agent(node: &mut NodeOptions) {
    on_trial(node);
    node.agent = false;
}
