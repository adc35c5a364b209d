//! The specs of Kubernetes' own node tests (`test/e2e_node` of 1.37.1) for a kubelet without an apiserver, run against the agent.
//!
//! The suite makes its namespaces on a real apiserver, puts manifests into the agent's directory, calls its ports 10250, 10255
//! and 10248, and restarts it by `sudo systemctl`: two scripts on its search path replace these, because the machine of the
//! tests need not have systemd. docs/testing.md says which spec is left out.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::apiserver::{Apiserver, TOKEN};
use limpet_tests::image::ImageBuilder;
use limpet_tests::node::NodeOptions;
use limpet_tests::process::Daemon;
use limpet_tests::{TestNode, case, process, suite, tools};

/// The images of the suite that these specs run.
const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2";

/// It removes a container by CRI, which limpet refuses, and asserts that `startTime` changes when the agent restarts: limpet
/// keeps it.
const LEFT_OUT: &str = "should be ready after init container is removed and kubelet restarts";

fn main() -> ExitCode {
    let open = |node: &mut NodeOptions| {
        node.cni = true;
        node.kubelet = vec![
            "address: 127.0.0.1\nport: 10250\nreadOnlyPort: 10255\nhealthzPort: 10248".to_owned(),
            "authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}".to_owned(),
            "authorization: {mode: AlwaysAllow}".to_owned(),
        ];
    };
    suite::run([case!(the_standalone_specs_of_kubernetes_pass).on(open)])
}

fn the_standalone_specs_of_kubernetes_pass(node: &mut TestNode) -> Result<()> {
    let program = tools::kubernetes("e2e_node").context("no e2e_node; run: cargo xtask nightly standalone")?;
    let apiserver = Apiserver::start(&node.dir().join("apiserver"), &[])?;
    node.import(&[&ImageBuilder::new(BUSYBOX).build()?])?;
    let units = Units::new(&node.dir().join("units"))?;
    let any_system = node.dir().join("system.yaml");
    fs::write(&any_system, "os: Linux\n")?;

    // It reads logs where kubelet has them.
    let script = "mkdir -p /var/log/pods && mount --bind \"$LOGS\" /var/log/pods && \"$@\"; echo ended > \"$ASKS\"";
    let mut suite = Command::new("unshare");
    suite.args(["--mount", "sh", "-c", script, "sh"]).arg(program);
    suite
        .args(["--standalone-mode", "--start-services=false", "--stop-services=false", "--prepull-images=false"])
        .arg("--delete-namespace=false")
        .arg(format!("--system-spec-file={}", any_system.display()))
        .arg(format!("--host={}", apiserver.url()))
        .args([&format!("--bearer-token={TOKEN}"), &format!("--node-name={}", node.name())])
        .args(["--ginkgo.label-filter=Feature: containsAny StandaloneMode", "--ginkgo.no-color"])
        .arg(format!("--ginkgo.skip={LEFT_OUT}"))
        .env("LOGS", node.agent.settings().pod_logs())
        .env("ASKS", &units.asks)
        .env("PATH", units.search_path()?)
        .current_dir(node.dir());
    let log = node.dir().join("suite.log");
    let mut suite = Daemon::start(&mut suite, &log)?;
    units.serve(node)?;
    suite.wait(Duration::from_secs(30))?;
    let said = fs::read_to_string(&log)?;
    let passed = said.contains("5 Passed | 0 Failed") && said.contains("SUCCESS!");
    ensure!(passed, "{}", process::tail(&said, 200));
    Ok(())
}

/// The replacement of systemd: a script requests a restart from the test, and waits for its answer.
struct Units {
    dir: PathBuf,
    asks: PathBuf,
    done: PathBuf,
}

impl Units {
    fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let (asks, done) = (dir.join("asks"), dir.join("done"));
        process::output("mkfifo", &[&asks, &done])?;
        let systemctl = format!(
            "#!/bin/sh\ncase \"$1\" in\nlist-units) echo 'kubelet-limpet.service loaded active running limpet' ;;\n\
             restart) echo restart > {}; read -r _ < {} ;;\nesac\n",
            asks.display(),
            done.display()
        );
        for (name, text) in [("sudo", "#!/bin/sh\nexec \"$@\"\n"), ("systemctl", &systemctl)] {
            let script = dir.join(name);
            fs::write(&script, text)?;
            fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        }
        Ok(Self { dir: dir.to_owned(), asks, done })
    }

    fn search_path(&self) -> Result<std::ffi::OsString> {
        let dirs = std::iter::once(self.dir.clone()).chain(tools::search_path());
        std::env::join_paths(dirs).context("PATH")
    }

    /// Restarts the agent on each request, until the suite has ended.
    fn serve(&self, node: &mut TestNode) -> Result<()> {
        // Open for writing too, so that it has no end between two writers.
        let asks = OpenOptions::new().read(true).write(true).open(&self.asks)?;
        for ask in BufReader::new(asks).lines() {
            if ask? != "restart" {
                break;
            }
            node.agent.kill();
            node.agent.start()?;
            writeln!(File::options().write(true).open(&self.done)?, "done")?;
        }
        Ok(())
    }
}
