//! What completes a cluster besides its apiserver: kube-controller-manager and kube-scheduler, as kubeadm runs them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::Cluster;
use crate::apiserver::FIRST_START;
use crate::claim::Port;
use crate::process::{self, Daemon, tail};
use crate::{tools, wait};

/// How long a certificate is valid that kube-controller-manager signs.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(40);

/// One of them.
#[derive(Debug)]
pub(super) struct Controller {
    name: &'static str,
    command: Command,
    log: PathBuf,
    daemon: Daemon,
    port: Port,
}

impl Cluster {
    /// Starts both, and waits until they respond and have created the service account of the namespace `default`.
    /// `flags` are further ones of kube-controller-manager.
    pub fn start_controllers(&mut self, flags: &[&str]) -> Result<()> {
        let manager = self.credentials("controller-manager", "/CN=system:kube-controller-manager")?;
        let scheduler = self.credentials("scheduler", "/CN=system:kube-scheduler")?;
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.certificates.file(name).display());
        let of_manager = [
            file("root-ca-file", "ca.crt"),
            file("service-account-private-key-file", "sa.key"),
            file("cluster-signing-cert-file", "ca.crt"),
            file("cluster-signing-key-file", "ca.key"),
            // A node that requests its certificates renews them while a test waits.
            format!("--cluster-signing-duration={}s", CERTIFICATE_LIFE.as_secs()),
            "--use-service-account-credentials=true".to_owned(),
            "--controllers=*,bootstrap-signer-controller,token-cleaner-controller".to_owned(),
        ];
        let flags = of_manager.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned())).collect();
        let manager = self.start_controller("kube-controller-manager", &manager, flags)?;
        self.controllers.push(manager);
        let scheduler = self.start_controller("kube-scheduler", &scheduler, Vec::new())?;
        self.controllers.push(scheduler);
        for controller in &mut self.controllers {
            controller.wait_healthy()?;
        }
        wait::until_true(FIRST_START, "the service account of the namespace default", || {
            let path = "/api/v1/namespaces/default";
            [format!("{path}/serviceaccounts/default"), format!("{path}/configmaps/kube-root-ca.crt")]
                .iter()
                .all(|path| self.get(path).is_ok_and(|object| object.is_some()))
        })
    }

    /// Its processes, by kind.
    pub fn processes(&mut self) -> Vec<(&'static str, u32)> {
        let apiserver = self.apiserver.iter().map(|daemon| ("kube-apiserver", daemon.pid()));
        let controllers = self.controllers.iter().map(|controller| (controller.name, controller.daemon.pid()));
        let mut all: Vec<_> = apiserver.chain(controllers).collect();
        all.push(("etcd", self.etcd.daemon().pid()));
        all
    }

    /// Ends all of it at once, as a power cut does. What it has stored stays.
    pub fn lose_power(&mut self) {
        self.controllers.iter_mut().for_each(|controller| controller.daemon.kill());
        self.kill();
        self.etcd.daemon().kill();
    }

    /// Starts all of it again, and waits until it works.
    pub fn boot_again(&mut self) -> Result<()> {
        self.etcd.start()?;
        self.start()?;
        for controller in &mut self.controllers {
            controller.daemon = Daemon::start(&mut controller.command, &controller.log)?;
        }
        self.controllers.iter_mut().try_for_each(Controller::wait_healthy)
    }

    /// Fails once a process of the cluster has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        let apiserver = self.apiserver.as_mut().map(|daemon| ("kube-apiserver", daemon));
        let controllers = self.controllers.iter_mut().map(|controller| (controller.name, &mut controller.daemon));
        for (name, daemon) in apiserver.into_iter().chain(controllers).chain([("etcd", self.etcd.daemon())]) {
            if let Some(status) = daemon.ended()? {
                bail!("{name} ended, {status}; its log ends with:\n{}", tail(&daemon.log(), 20));
            }
        }
        Ok(())
    }

    /// A client's certificate and its kubeconfig.
    pub fn credentials(&self, name: &str, subject: &str) -> Result<PathBuf> {
        self.certificates.client(name, subject, 2)?;
        self.certificates.kubeconfig(&self.address(), name)
    }

    fn start_controller(&self, name: &'static str, kubeconfig: &Path, flags: Vec<String>) -> Result<Controller> {
        let program = tools::kubernetes(name).with_context(|| format!("no {name} here; run: cargo xtask cluster"))?;
        let port = Port::claim()?;
        let mut command = Command::new(program);
        for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            command.arg(format!("--{flag}={}", kubeconfig.display()));
        }
        for (flag, file) in [("client-ca-file", "ca.crt"), ("requestheader-client-ca-file", "front-proxy-ca.crt")] {
            command.arg(format!("--{flag}={}", self.certificates.file(file).display()));
        }
        // There is only one of each, so it need not wait for its election.
        command.args(["--bind-address=127.0.0.1", "--leader-elect=false", &format!("--secure-port={}", port.number)]);
        let log = self.dir.join(format!("{name}.log"));
        let daemon = Daemon::start(command.args(flags), &log)?;
        Ok(Controller { name, command, log, daemon, port })
    }
}

impl Controller {
    fn wait_healthy(&mut self) -> Result<()> {
        let url = format!("https://127.0.0.1:{}/healthz", self.port.number);
        let mut ended = false;
        wait::until_true(FIRST_START, self.name, || {
            ended = self.daemon.ended().is_ok_and(|status| status.is_some());
            let ask = || process::output("curl", &["--silent", "--fail", "--insecure", "--max-time", "5", &url]);
            ended || ask().is_ok_and(|said| said == "ok")
        })?;
        ensure!(!ended, "{} ended at once; its log ends with:\n{}", self.name, tail(&self.daemon.log(), 20));
        Ok(())
    }
}
