//! What a test needs of the machine. `cargo xtask test` sets the machine up, so there a missing tool fails the test; a
//! test run by hand says that it is skipped, and why.

use std::fmt::Display;
use std::process::Command;

use crate::tools;

/// Set by `cargo xtask test`: what is missing is a failure.
pub const REQUIRE_VARIABLE: &str = "LIMPET_TEST_REQUIRE";

/// Whether what is missing is a failure.
pub fn is_required() -> bool {
    std::env::var_os(REQUIRE_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0")
}

/// What the test needs, or `None` with the reason printed: the test is to return then.
///
/// # Panics
/// In place of `None` where [`is_required`] says so.
#[track_caller]
pub fn need<T, E: Display>(found: Result<T, E>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
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

/// Says that the kernel lacks what a test is about. No set-up brings that, so it is no failure here; `cargo xtask test-kernels`
/// counts it, and fails where it is not declared for its kernel.
pub fn kernel_lacks(what: impl Display) {
    println!("skipped: this kernel: {what}");
}
