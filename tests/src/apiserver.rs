//! A real kube-apiserver on loopback, with etcd beneath it. There are no scheduler and no controllers: it stores and
//! validates objects.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::claim::Port;
use crate::process::{self, Daemon};
use crate::{tools, wait};

/// The bearer token of its administrator.
pub const TOKEN: &str = "limpet";
/// How long the first start may take, in which etcd and the apiserver create their tables and certificates.
pub(crate) const FIRST_START: Duration = Duration::from_secs(180);

/// A running apiserver.
#[derive(Debug)]
pub struct Apiserver {
    dir: PathBuf,
    port: Port,
    apiserver: Daemon,
    _etcd: Etcd,
}

/// Its store, with the ports that it uses.
#[derive(Debug)]
pub(crate) struct Etcd {
    command: Command,
    log: PathBuf,
    daemon: Daemon,
    _ports: [Port; 2],
}

impl Etcd {
    /// Its process.
    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts it again, after its process has ended.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.daemon = Daemon::start(&mut self.command, &self.log)?;
        Ok(())
    }
}

impl Apiserver {
    /// Starts one that keeps its files below `dir`; `options` are added to its command line.
    pub fn start(dir: &Path, options: &[String]) -> Result<Self> {
        let program = tools::kube_apiserver().context("no kube-apiserver here; run: cargo xtask apiserver")?;
        fs::create_dir_all(dir.join("certificates")).with_context(|| format!("{}", dir.display()))?;
        fs::write(dir.join("tokens.csv"), format!("{TOKEN},limpet,limpet,\"system:masters\"\n"))?;
        let (etcd, store) = etcd(dir, None)?;
        let port = Port::claim()?;
        // The key that it generates for itself also signs its tokens.
        let key = dir.join("certificates/apiserver.key");
        let mut command = Command::new(program);
        command
            .args([format!("--etcd-servers={store}"), format!("--secure-port={}", port.number)])
            .args(["--bind-address=127.0.0.1", "--authorization-mode=AlwaysAllow", "--service-account-issuer=limpet"])
            .arg(format!("--token-auth-file={}", dir.join("tokens.csv").display()))
            .arg(format!("--cert-dir={}", dir.join("certificates").display()))
            .arg(format!("--service-account-key-file={}", key.display()))
            .arg(format!("--service-account-signing-key-file={}", key.display()))
            .args(["--service-cluster-ip-range=10.96.0.0/24", "--allow-privileged=true", "--profiling=false"])
            .args(options);
        let apiserver = Daemon::start(&mut command, &dir.join("apiserver.log"))?;
        let server = Self { dir: dir.to_owned(), port, apiserver, _etcd: etcd };
        wait::until_true(FIRST_START, "the apiserver's readiness", || {
            server.request("/readyz", None).is_ok_and(|said| said == "ok")
        })
        .with_context(|| process::tail(&server.apiserver.log(), 20))?;
        Ok(server)
    }

    /// Where it answers.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.number)
    }

    /// Its version, as in `v1.37.1`.
    pub fn version(&self) -> Result<String> {
        let said: Value = serde_json::from_str(&self.request("/version", None)?)?;
        Ok(said["gitVersion"].as_str().context("no gitVersion")?.to_owned())
    }

    /// Asks what it would make of a Pod, strictly, without storing it: the Pod with defaults, or a Status.
    pub fn judge(&self, pod: &Value) -> Result<Value> {
        let namespace = pod["metadata"]["namespace"].as_str().filter(|name| !name.is_empty()).unwrap_or("default");
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict");
        let answer = self.request(&path, Some(pod))?;
        serde_json::from_str(&answer).with_context(|| answer)
    }

    /// Makes one request by curl, which trusts the certificate that the apiserver made for itself.
    fn request(&self, path: &str, body: Option<&Value>) -> Result<String> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "30", "--cacert"]);
        command.arg(self.dir.join("certificates/apiserver.crt"));
        command.args(["--header", &format!("Authorization: Bearer {TOKEN}")]);
        if body.is_some() {
            command.args(["--header", "Content-Type: application/json", "--data-binary", "@-"]);
        }
        command.arg(format!("{}{path}", self.url()));
        let input = body.map(Value::to_string).unwrap_or_default();
        let output = process::run(&mut command, input.as_bytes())?;
        anyhow::ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// etcd, and its URL. `certificates` is a directory with those of an etcd that requires them, named as by kubeadm.
pub(crate) fn etcd(dir: &Path, certificates: Option<&Path>) -> Result<(Etcd, String)> {
    let program = tools::etcd().context("no etcd here; run: cargo xtask apiserver")?;
    let ports = [Port::claim()?, Port::claim()?];
    let scheme = if certificates.is_some() { "https" } else { "http" };
    let [client, peer] = ports.each_ref().map(|port| format!("{scheme}://127.0.0.1:{}", port.number));
    let mut command = Command::new(program);
    command
        .arg(format!("--data-dir={}", dir.join("etcd").display()))
        .args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")])
        .args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")])
        .arg(format!("--initial-cluster=default={peer}"));
    if let Some(certificates) = certificates {
        command.args(["--client-cert-auth", "--peer-client-cert-auth"]);
        for (flag, file) in [
            ("cert-file", "server.crt"),
            ("key-file", "server.key"),
            ("trusted-ca-file", "ca.crt"),
            ("peer-cert-file", "peer.crt"),
            ("peer-key-file", "peer.key"),
            ("peer-trusted-ca-file", "ca.crt"),
        ] {
            command.arg(format!("--{flag}={}", certificates.join(file).display()));
        }
    }
    let log = dir.join("etcd.log");
    let daemon = Daemon::start(&mut command, &log)?;
    Ok((Etcd { command, log, daemon, _ports: ports }, client))
}
