//! What a test needs of the machine. `cargo xtask test` sets the machine up, so a missing tool fails the test there.
//! A test that is run by hand prints that it is skipped, and why.

use std::fmt::Display;
use std::process::Command;

use crate::node::{NodeOptions, TestNode};
use crate::registry::{self, Registry};
use crate::tools::{self, ContainerdPrograms};

/// Set by `cargo xtask test`: what is missing is a failure.
pub const REQUIRE_VARIABLE: &str = "LIMPET_TEST_REQUIRE";

/// Whether what is missing is a failure.
pub fn is_required() -> bool {
    std::env::var_os(REQUIRE_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0")
}

/// What the test needs, or `None` after the reason was printed, in which case the test has to return.
///
/// # Panics
///
/// Instead of returning `None`, if [`is_required`] is true.
#[track_caller]
pub fn need<T, E: Display>(result: Result<T, E>) -> Option<T> {
    match result {
        Ok(needed) => Some(needed),
        Err(missing) => {
            assert!(!is_required(), "{missing} ({REQUIRE_VARIABLE} is set: this is a failure)");
            println!("skipped: {missing}");
            None
        }
    }
}

/// The right to do `what`, which root has.
#[track_caller]
pub fn root(what: &str) -> Option<()> {
    need(if tools::is_root() { Ok(()) } else { Err(format!("not root: {what}")) })
}

/// The program `name` as a command.
#[track_caller]
pub fn program(name: &str) -> Option<Command> {
    need(tools::on_path(name).map(Command::new).ok_or_else(|| format!("no {name} here")))
}

/// What the machine lacks for such a node.
pub(crate) fn lacks(options: &NodeOptions) -> Option<&'static str> {
    if !tools::is_root() {
        return Some("not root");
    }
    if ContainerdPrograms::chosen(options.containerd_choice.as_deref()).is_err() {
        return Some("no containerd 1.7 or newer; run: cargo xtask setup");
    }
    if tools::busybox().is_none() {
        return Some("no static busybox; run: cargo xtask setup");
    }
    if tools::on_path("runc").is_none() {
        return Some("no runc; run: cargo xtask setup");
    }
    if options.cluster && (tools::kube_apiserver().is_none() || tools::etcd().is_none()) {
        return Some("no kube-apiserver or no etcd; run: cargo xtask apiserver");
    }
    if options.cluster && tools::on_path("kubectl").is_none() {
        return Some("no kubectl; run: cargo xtask test");
    }
    if options.crictl && tools::crictl().is_none() {
        return Some("no crictl; run: cargo xtask crictl");
    }
    (options.cni && tools::cni_plugins().is_none()).then_some("no CNI plugins; run: cargo xtask setup")
}

/// A node for the test, for tests below the agent's command line: those of the crates that use containerd.
///
/// # Panics
///
/// The machine has all that is needed and the node does not boot; otherwise like [`need`].
#[track_caller]
pub fn node(options: &NodeOptions) -> Option<TestNode> {
    need(lacks(options).map_or(Ok(()), Err))?;
    match TestNode::boot(options) {
        Ok(node) => Some(node),
        Err(error) => panic!("boot a node: {error:#}"),
    }
}

/// A registry on that node.
///
/// # Panics
///
/// There is a program and it does not start; otherwise like [`need`].
#[track_caller]
pub fn registry(node: &TestNode, start: registry::Start) -> Option<Registry> {
    need(tools::registry().ok_or("no docker-registry; run: cargo xtask setup"))?;
    match start(&node.dir().join("registry")) {
        Ok(registry) => Some(registry),
        Err(error) => panic!("start a registry: {error:#}"),
    }
}

/// Prints that the kernel lacks what a test is about. No set-up can change that, so it is not a failure here. `cargo
/// xtask test-kernels` counts it, and fails if it is not declared for its kernel.
pub fn kernel_lacks(what: impl Display) {
    println!("skipped: this kernel: {what}");
}
