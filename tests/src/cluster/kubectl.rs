//! kubectl against a cluster, as a user with all rights.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::Cluster;
use crate::{process, tools};

impl Cluster {
    /// `program`, a kubectl, as the administrator.
    pub fn kubectl(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("--kubeconfig=/dev/null").arg(format!("--server={}", self.address()));
        for (flag, name) in [
            ("certificate-authority", "ca.crt"),
            ("client-certificate", "super-admin.crt"),
            ("client-key", "super-admin.key"),
        ] {
            command.arg(format!("--{flag}={}", self.certificates.file(name).display()));
        }
        command
    }

    /// What the machine's own kubectl prints. Fails when it does.
    pub fn run_kubectl(&self, args: &[&str]) -> Result<String> {
        let program = tools::on_path("kubectl").context("no kubectl")?;
        process::checked(self.kubectl(&program).args(args))
    }
}
