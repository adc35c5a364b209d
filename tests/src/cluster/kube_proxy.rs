//! kube-proxy of a cluster, which passes connections to Services on by nftables, in the network of the harness.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::Cluster;
use crate::claim::Port;
use crate::process::{self, Daemon, tail};
use crate::{tools, wait};

/// A kube-proxy that runs until this is dropped.
#[derive(Debug)]
pub struct KubeProxy {
    command: Command,
    log: std::path::PathBuf,
    daemon: Option<Daemon>,
    health: Port,
    _metrics: Port,
}

impl KubeProxy {
    /// kube-proxy of that node of the cluster, not started; its log is in `dir`. It is for a network that only the bench has: its
    /// rules are everybody's there.
    pub fn prepare(cluster: &Cluster, node: &str, dir: &Path) -> Result<Self> {
        let program = tools::kubernetes("kube-proxy").context("no kube-proxy; cargo xtask bench services builds it")?;
        ensure!(
            tools::on_path("nft").is_some(),
            "no nft, which kube-proxy runs; cargo xtask bench services installs it"
        );
        let kubeconfig = cluster.kubeconfig()?;
        let (health, metrics) = (Port::claim()?, Port::claim()?);
        let mut command = Command::new(program);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--hostname-override={node}"))
            .arg("--proxy-mode=nftables")
            // The kernel's limits of connections are the whole machine's.
            .args(["--conntrack-max-per-core=0", "--conntrack-min=0"])
            .args(["--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"])
            .arg(format!("--healthz-bind-address=127.0.0.1:{}", health.number))
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", metrics.number));
        if let Ok(path) = std::env::join_paths(tools::search_path()) {
            command.env("PATH", path);
        }
        Ok(Self { command, log: dir.join("kube-proxy.log"), daemon: None, health, _metrics: metrics })
    }

    /// Starts it; it may not have written its rules yet.
    pub fn spawn(&mut self) -> Result<()> {
        self.daemon = Some(Daemon::start(&mut self.command, &self.log)?);
        Ok(())
    }

    /// Starts it, and waits until it has written its rules.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        let url = format!("http://127.0.0.1:{}/healthz", self.health.number);
        let ask = || process::output("curl", &["--silent", "--fail", "--max-time", "5", &url]).is_ok();
        wait::until_true(wait::SOON * 2, "kube-proxy", ask).with_context(|| self.evidence())
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// The end of its log.
    pub fn evidence(&self) -> String {
        tail(&self.daemon.as_ref().map(Daemon::log).unwrap_or_default(), 20)
    }

    /// Ends it, and removes its rules.
    pub fn stop(&mut self) -> Result<()> {
        self.daemon = None;
        process::output("nft", &["flush", "ruleset"]).map(drop)
    }
}
