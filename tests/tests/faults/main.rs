//! Harm at every step: whatever is killed, cut, delayed or refused, afterwards what is desired runs once, and nothing
//! else is left.
//!
//! The ordinary run tries a selection. `LIMPET_TEST_LONG=1` tries everything, and `LIMPET_TEST_FAULT=…`, which a
//! failure prints, only one fault.

mod errors;
mod fault;
mod idle;
mod inventory;
mod kills;
mod processes;
mod proxy;
mod random;
mod rig;
mod subject;
mod wrapper;

use std::process::ExitCode;

use limpet_tests::node::NodeOptions;
use limpet_tests::{case, suite};

use errors::{a_lease_whose_deletion_fails_goes_after_a_reconnection, errors_and_silence_at_every_call};
use idle::an_idle_agent_makes_no_calls;
use kills::kills_of_the_agent_at_every_step;
use processes::{
    a_shim_that_does_not_tell_of_an_end_is_named, a_stopped_shim_holds_up_its_own_pod_only,
    processes_killed_at_every_step,
};
use random::random_edits_and_kills;

fn main() -> ExitCode {
    let node = |node: &mut NodeOptions| (node.cni, node.agent) = (true, false);
    suite::run([
        case!(kills_of_the_agent_at_every_step).on(node),
        case!(errors_and_silence_at_every_call).on(node),
        case!(processes_killed_at_every_step).on(node),
        case!(a_stopped_shim_holds_up_its_own_pod_only).on(node),
        case!(a_shim_that_does_not_tell_of_an_end_is_named).on(node),
        case!(an_idle_agent_makes_no_calls).on(node),
        case!(a_lease_whose_deletion_fails_goes_after_a_reconnection).on(node),
        case!(random_edits_and_kills).on(node),
    ])
}
