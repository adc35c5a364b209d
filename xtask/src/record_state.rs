//! `cargo xtask record-state`: the root directory of an agent of this release, for the tests of later ones.

use anyhow::{Result, ensure};
use limpet_tests::{recorded_state, sweep, tools, wait};

use crate::setup;

/// Writes `tests/states/<version>.tar.gz`.
pub(crate) fn run() -> Result<()> {
    wait::end_on_signal();
    setup::for_major(None)?;
    ensure!(tools::is_root(), "containers need root");
    sweep::sweep();
    let archive = recorded_state::record(env!("CARGO_PKG_VERSION"))?;
    println!("{}: {} bytes", archive.display(), std::fs::metadata(&archive)?.len());
    Ok(())
}
