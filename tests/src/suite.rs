//! How a file of end-to-end tests runs: each case on its own node, with evidence if it fails. It counts as ignored,
//! with the reason, if the machine lacks what it needs; under `cargo xtask test` such a case fails.

use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::node::{NodeOptions, TestNode};
use crate::sweep::sweep;
use crate::{need, tools, wait};

/// Set to `1`: suites that have a long form run it, and try everything instead of a selection.
pub const LONG_VARIABLE: &str = "LIMPET_TEST_LONG";

/// Whether the long forms are to be run.
pub fn is_long() -> bool {
    std::env::var_os(LONG_VARIABLE).is_some_and(|value| value == "1")
}

/// One test and the node it needs.
#[derive(Debug)]
pub struct Case {
    name: &'static str,
    test: fn(&mut TestNode) -> Result<()>,
    options: NodeOptions,
}

impl Case {
    /// The case `name`; see [`case!`](crate::case).
    pub fn new(name: &'static str, test: fn(&mut TestNode) -> Result<()>) -> Self {
        Self { name, test, options: NodeOptions::default() }
    }

    /// Changes the node that it runs on.
    pub fn on(mut self, change: impl FnOnce(&mut NodeOptions)) -> Self {
        change(&mut self.options);
        self
    }

    fn run(self) -> Result<()> {
        let mut node = TestNode::boot(&self.options).context("boot a node")?;
        let result = (self.test)(&mut node);
        if let Err(error) = result {
            // The error comes last, because it is what people look for, and what remains of a long output that is
            // cut.
            return Err(anyhow!("{}\n{}", node.evidence(), chain(&error)));
        }
        node.finish()
    }

    fn into_trial(self) -> Trial {
        let name = self.name;
        let Some(reason) = need::lacks(&self.options) else {
            return Trial::test(name, move || self.run().map_err(|error| Failed::from(chain(&error))));
        };
        lacking(name, reason)
    }
}

/// A test for which the machine lacks something: ignored with the reason printed, or failed if that is required.
pub fn lacking(name: &str, reason: &str) -> Trial {
    if need::is_required() {
        let reason = Failed::from(reason.to_owned());
        return Trial::test(name, || Err(reason));
    }
    eprintln!("skipped: {name}: {reason}");
    Trial::test(name, || Ok(())).with_ignored_flag(true)
}

/// The error and its causes, one per line and without a stack, because the evidence says more.
fn chain(error: &anyhow::Error) -> String {
    let causes: Vec<_> = error.chain().map(ToString::to_string).collect();
    causes.join("\nbecause: ")
}

/// Names a case after its function.
#[macro_export]
macro_rules! case {
    ($test:ident) => {
        $crate::suite::Case::new(stringify!($test), $test)
    };
}

/// How many cases run at the same time for each CPU. They mostly wait for grace periods, pauses and probes.
const CASES_PER_CPU: usize = 2;

/// Runs the cases as `cargo test` runs tests, with its arguments and its output.
pub fn run(cases: impl IntoIterator<Item = Case>) -> ExitCode {
    run_with(cases, [])
}

/// The same with tests that need no node.
pub fn run_with(cases: impl IntoIterator<Item = Case>, others: impl IntoIterator<Item = Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cpus * CASES_PER_CPU);
    if tools::is_root() && !arguments.list {
        sweep();
        wait::end_on_signal();
    }
    let trials = cases.into_iter().map(Case::into_trial).chain(others).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
