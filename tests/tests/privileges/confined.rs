//! Starts the agent with less than root's privileges, on a thread that gives them up first, so that its children do not
//! have them.

use std::ffi::c_long;

use anyhow::{Context as _, Result, anyhow};
use limpet_tests::{TestNode, agent};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// Starts the node's agent after `confine`.
pub(crate) fn start(node: &mut TestNode, confine: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    // The program is built before, with all privileges.
    agent::program()?;
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| {
            confine()?;
            node.agent.start()
        });
        starting.join().map_err(|_| anyhow!("starting the agent panicked"))?
    })
}

/// Removes capabilities from this thread's children: root gets what is in the bounding set.
pub(crate) fn drop_capabilities(capabilities: CapabilitySet) -> Result<()> {
    let mut each = capabilities.iter();
    each.try_for_each(remove_capability_from_bounding_set).context("drop capabilities")
}

/// Has the kernel answer these system calls with `errno`.
#[allow(clippy::useless_conversion)] // c_long: 32 bits on 32-bit machines
pub(crate) fn refuse(calls: &[c_long], errno: i32) -> Result<()> {
    let rules = calls.iter().map(|call| (i64::from(*call), Vec::new())).collect();
    let refusal = SeccompAction::Errno(errno.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, std::env::consts::ARCH.try_into()?)?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program).context("set the filter")
}
