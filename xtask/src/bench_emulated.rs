//! `cargo xtask bench watch --emulated`: the same measurement on an emulated machine, whose kernel takes the BPF programs.
//! Its figures compare with each other, not with those of a real machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::measure;
use limpet_tests::sweep::Machines;
use limpet_tests::vm::{self, Boot, Disk, Guest};

use crate::{cargo, setup, vm_image};

/// The time limit beyond the idle windows.
const TIMEOUT: Duration = Duration::from_secs(1_200);
/// What the machine's shell prints after the table.
const END_MARKER: &str = "ended with ";

/// A directory that is removed with the value.
struct WorkDir(PathBuf);

impl Drop for WorkDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Measures each way `runs` times, and watches an idle one for `seconds`.
pub(crate) fn watch(runs: u32, seconds: u32) -> Result<()> {
    setup::default()?;
    let image = vm_image::ensure()?;
    let mut build = cargo::command(&["bench", "--package", "limpet", "--bench", "watch", "--no-run"]);
    let built = cargo::executables(&mut build)?;
    let bench = built.into_iter().find(|target| target.name == "watch").context("the bench was not built")?;
    let dir = WorkDir(Machines::Bench.dir());
    let (files, payload) = (dir.0.join("payload"), dir.0.join("payload.img"));
    fs::create_dir_all(&files)?;
    fs::copy(&bench.path, files.join("watch"))?;
    vm::write_payload(&files, &payload)?;
    let disk = Disk::over_image(&image, &dir.0.join("disk.qcow2"))?;
    let mut guest = Guest::boot(disk, &Boot::new(&image, &payload, &dir.0))?;
    let variables = format!("{}={runs} {}={seconds}", measure::RUNS_VARIABLE, measure::SECONDS_VARIABLE);
    guest
        .run(&format!("({variables} /payload/watch --bench > /tmp/table 2>&1; echo {END_MARKER}$? >> /tmp/table) &"))?;
    let limit = TIMEOUT + Duration::from_secs(4 * u64::from(seconds));
    let table =
        guest.until(limit, "the bench", "cat /tmp/table", |text| text.contains(END_MARKER).then(|| text.to_owned()))?;
    guest.power_cut();
    print!("{table}");
    ensure!(table.trim_end().ends_with(&format!("{END_MARKER}0")), "the bench failed");
    Ok(())
}
