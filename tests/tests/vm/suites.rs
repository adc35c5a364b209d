//! The end-to-end suites inside the machine: the same tests under systemd's cgroup driver and cgroup v2.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::vm::Suite;
use limpet_tests::{agent, need, wait};

use crate::machine::Machine;

/// How long a suite may take under emulation.
const SUITE_TIMEOUT: Duration = Duration::from_secs(3_000);

/// `pods` of `…/pods-0123456789abcdef`, with what the names of its cases contain where not all run.
pub(crate) fn name(suite: &Suite) -> String {
    let file = suite.path.file_name().unwrap_or_default().to_string_lossy();
    let name = file.rsplit_once('-').map_or(file.as_ref(), |(name, _)| name);
    [name, &suite.cases].join("_").trim_end_matches('_').to_owned()
}

pub(crate) fn inside(machine: &Machine, suite: &Suite) -> Result<()> {
    let mut guest = machine.resume()?;
    let file = suite.path.file_name().context("a suite without a name")?.to_string_lossy().into_owned();
    guest.run("systemctl stop limpet && install /payload/docker-registry /usr/local/bin/")?;
    let run = format!(
        "cd /tmp && LIMPET_TEST_PATIENCE=20 LIMPET_TEST_CGROUP_DRIVER=systemd {}=1 {}=/payload/limpet timeout {} \
         /payload/{file} {} --test-threads=1 --skip hundred --skip twenty > /tmp/suite.log 2>&1; echo $? > /tmp/suite.code",
        need::REQUIRE_VARIABLE,
        agent::PROGRAM_VARIABLE,
        wait::patient(SUITE_TIMEOUT).as_secs(),
        suite.cases,
    );
    guest.run(&format!("systemd-run --unit=suite --setenv=HOME=/root bash -c {}", quoted(&run)))?;
    let code = guest
        .until(SUITE_TIMEOUT, "the suite to end", "cat /tmp/suite.code", |text| text.trim().parse::<i32>().ok())?;
    let log = guest.run("tail -n 80 /tmp/suite.log")?;
    ensure!(code == 0, "{file}: exit {code}\n{log}");
    guest.power_cut();
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
