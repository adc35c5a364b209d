//! The OCI runtime of the nodes that tests and benches set up.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use limpet_tests::{agent, tools};

use crate::apt;

/// Where a host with cgroups of both versions has version 2.
const SECOND_HIERARCHY: &str = "/sys/fs/cgroup/unified";

/// The OCI runtime of the pods that tests and benches start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Runtime {
    /// The default of both shims.
    Runc,
    /// The runtime in C, which starts containers in less time.
    Crun,
}

impl Runtime {
    /// Installs it if it is missing. Returns the variable that makes nodes use it.
    pub(crate) fn variable(self) -> Result<(&'static str, PathBuf)> {
        let name = match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        };
        if tools::on_path(name).is_none() {
            apt::install(&[name])?;
        }
        let program = tools::on_path(name).with_context(|| format!("{name} is not on the search path"))?;
        Ok((agent::RUNTIME_VARIABLE, program))
    }

    /// Makes this task run again where the runtime works, if it does not work here, and does not return then: crun
    /// refuses hosts with cgroups of both versions, so the task gets a mount namespace without version 2.
    pub(crate) fn enter_its_host(self) -> Result<()> {
        let has_both = Path::new(SECOND_HIERARCHY).join("cgroup.controllers").exists();
        if self != Self::Crun || !has_both {
            return Ok(());
        }
        use std::os::unix::process::CommandExt as _;
        let script = format!("umount {SECOND_HIERARCHY} && mount --make-rshared / && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "/bin/sh", "-c", &script]);
        command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
        Err(command.exec()).context("run unshare")
    }
}
