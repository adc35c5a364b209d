//! Kubernetes' own specs, unchanged: the images that they run, made here of busybox and of Kubernetes' agnhost under
//! the names they require, and ginkgo, which runs them. Its reports are written to `target/conformance`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::image::{Image, ImageBuilder};
use crate::process::{self, Daemon};
use crate::registry::{Registry, allow_plain_http, self_signed};
use crate::{agent, tools};

/// Names the specs to run, by a regular expression; all without it.
const FOCUS_VARIABLE: &str = "LIMPET_CONFORMANCE_FOCUS";
/// Names the specs that are left out, by a regular expression.
const SKIP_VARIABLE: &str = "LIMPET_CONFORMANCE_SKIP";
/// After this time the rest of the specs is not run: `4h`.
const LIMIT_VARIABLE: &str = "LIMPET_CONFORMANCE_LIMIT";
/// The longest that all specs together may take.
pub const SUITE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// The reason for specs that ask containerd's CRI.
const ASKS_CRI: &str = "asks the CRI of the runtime, which has only kubelet's pods";
/// The specs of a node that cannot run here, by a part of their names, and why. All are labelled `Serial`.
pub const CANNOT_RUN: &[(&str, &str)] = &[
    ("GarbageCollect Garbage Collection Test", ASKS_CRI),
    ("ImageGarbageCollect", ASKS_CRI),
    ("A node running restartable init containers reboots", ASKS_CRI),
    ("and the container runtime is temporarily down during pod termination", ASKS_CRI),
    ("temporarily failed termination due to volume failing to unmount", "needs an image with an NFS server"),
    (
        "Container Runtime Conformance Test container runtime conformance blackbox test when running a container with a new image",
        "needs images of other registries",
    ),
];
/// Those of kubelet's CPU manager that two processors can run, by a part of their names. The others ask for more processors,
/// for two threads of a core or for cgroup v2. Each is run alone: after another one too few processors are allocatable.
pub const CPU_MANAGER: &[&str] = &[
    "running non-guaranteed pods tests should let the container access all the online CPUs without a reserved CPUs set",
    "running non-guaranteed pods tests should let the container access all the online CPUs when using a reserved CPUs set",
    "running guaranteed pod tests should allocate exclusively a CPU to a 1-container pod",
    "running guaranteed pod tests with feature gates disabled should allocate exclusively a CPU to a 1-container pod",
    "running with strict CPU reservation should let the container access all the online CPUs without a reserved CPUs set",
    "running with strict CPU reservation should let the container access all the online CPUs minus the reserved CPUs set",
];
/// How many specs run at a time. They spend most of their time waiting.
const PROCESSES: usize = 8;
/// A replacement for an applet that Debian's busybox lacks and the specs use: the time of day with milliseconds.
const NMETER: &str = r#"#!/bin/sh
set -- $(adjtimex | sed -n 's/.*tv_u*sec: *//p')
printf '%s.%03d\n' "$(date -u -d "@$1" +%T)" "$(($2 / 1000))"
"#;
/// The network programs that the specs use: `tests/programs/network-tools` by these names.
const NETWORK_TOOLS: [&str; 4] = ["curl", "dig", "getent", "nc"];

/// The specs of one program, for one run.
#[derive(Debug)]
pub struct Specs<'a> {
    /// Kubernetes' program, below the tools.
    pub program: &'a str,
    /// The name of the report.
    pub report: &'a str,
    /// The labels of Kubernetes that select the specs.
    pub labels: &'a str,
    /// The only spec that is run, by a part of its name; `None` for all.
    pub alone: Option<&'a str>,
    /// Those of them that cannot run, by a part of their names, and why.
    pub left_out: &'a [(&'a str, &'a str)],
    /// The arguments of the program.
    pub arguments: &'a [String],
}

/// Puts the images into the registry under the names that the specs require, and has the node pull them from there.
pub fn serve(images: &[Image], registry: &Registry, certs_d: &Path) -> Result<()> {
    for image in images {
        let (repository, tag) = image.name.rsplit_once(':').context("an image without a tag")?;
        registry.add(image, repository.trim_start_matches("registry.k8s.io/"), tag)?;
    }
    allow_plain_http(certs_d, "registry.k8s.io", registry.address())
}

/// The working directory of the specs for a node with the directory `dir`; what they write without a path is there.
pub fn directory(dir: &Path) -> PathBuf {
    dir.join("suite")
}

impl Specs<'_> {
    /// Runs them with ginkgo, whose path and arguments `starter` gets, in [`directory`] below `dir`, and has `wait`
    /// wait for its end. Fails if a spec does.
    pub fn run(&self, mut starter: Command, dir: &Path, wait: impl FnOnce(&mut Daemon) -> Result<()>) -> Result<()> {
        let program = tools::kubernetes(self.program).with_context(|| missing(self.program))?;
        let ginkgo = tools::kubernetes("ginkgo").with_context(|| missing("ginkgo"))?;
        let dir = directory(dir);
        fs::create_dir_all(&dir)?;
        // ginkgo runs a program of that name, in its directory.
        let link = dir.join(format!("{}.test", self.program));
        if !link.exists() {
            fs::hard_link(&program, &link).or_else(|_| fs::copy(&program, &link).map(drop))?;
        }
        let report = format!("{}.json", self.report);
        starter.arg(ginkgo);
        let processes = if self.alone.is_some() { 1 } else { PROCESSES };
        starter.arg(format!("--procs={processes}")).arg(format!("--label-filter={}", self.labels));
        starter.args(["--no-color", "--keep-going"]);
        starter.args([format!("--json-report={report}"), format!("--output-dir={}", dir.display())]);
        let limit = std::env::var(LIMIT_VARIABLE).unwrap_or_else(|_| "4h".to_owned());
        starter.arg(format!("--timeout={limit}"));
        starter.args(self.alone.map(|name| format!("--focus={name}")));
        for (variable, option) in [(FOCUS_VARIABLE, "focus"), (SKIP_VARIABLE, "skip")] {
            if let Ok(names) = std::env::var(variable) {
                starter.arg(format!("--{option}={names}"));
            }
        }
        starter.args(self.left_out.iter().map(|(name, _)| format!("--skip={}", name.replace(' ', ".*"))));
        starter.arg(link).arg("--").args(self.arguments).current_dir(&dir);
        let reports = agent::workspace_dir().join("target/conformance");
        fs::create_dir_all(&reports)?;
        let log = reports.join(format!("{}.log", self.report));
        if self.alone.is_none() {
            fs::remove_file(&log).ok();
        }
        let mut suite = Daemon::start(&mut starter, &log)?;
        let ended = wait(&mut suite);
        if ended.is_err() {
            // ginkgo's own child would continue, and disturb the next run.
            suite.kill_group();
        }
        // It is kept even if the specs were cut short, because their error says more than that of a report that they
        // did not complete.
        let is_of_a_part = self.alone.is_some() || is_of_a_part();
        let kept = keep_report(&dir.join(&report), &reports.join(&report), is_of_a_part);
        let report = ended.and(kept).with_context(|| process::tail(&read(&log), 60))?;
        let states =
            report[0]["SpecReports"].as_array().into_iter().flatten().filter_map(|spec| spec["State"].as_str());
        let (passed, failed) = states.fold((0, 0), |(passed, failed), state| match state {
            "passed" => (passed + 1, failed),
            "skipped" | "pending" => (passed, failed),
            _ => (passed, failed + 1),
        });
        ensure!(passed + failed > 0, "no spec was run");
        ensure!(failed == 0, "{failed} specs failed:\n{}", process::tail(&read(&log), 60));
        Ok(())
    }
}

/// Copies the report of a run, whose outcomes replace those of `whole` if it is a part; returns it.
fn keep_report(of_run: &Path, whole: &Path, is_of_a_part: bool) -> Result<Value> {
    let report: Value = serde_json::from_slice(&fs::read(of_run)?).with_context(|| of_run.display().to_string())?;
    let before = if is_of_a_part { fs::read(whole).ok() } else { None };
    let before = before.map(|before| serde_json::from_slice(&before)).transpose()?;
    let written = before.map_or_else(|| report.clone(), |before| replaced(before, &report));
    fs::write(whole, written.to_string())?;
    Ok(report)
}

/// Whether only the specs that [`FOCUS_VARIABLE`] names are run: their outcomes replace those of an earlier run.
pub fn is_of_a_part() -> bool {
    std::env::var_os(FOCUS_VARIABLE).is_some()
}

/// The report of an earlier run with the outcomes of those specs that have run again.
fn replaced(mut whole: Value, part: &Value) -> Value {
    let id = |spec: &Value| (spec["ContainerHierarchyTexts"].to_string(), spec["LeafNodeText"].to_string());
    let again = part[0]["SpecReports"].as_array().into_iter().flatten();
    let again = again.filter(|spec| !matches!(spec["State"].as_str(), Some("skipped" | "pending")));
    if let Some(specs) = whole[0]["SpecReports"].as_array_mut() {
        for spec in again {
            match specs.iter_mut().find(|before| id(before) == id(spec)) {
                Some(before) => *before = spec.clone(),
                None => specs.push(spec.clone()),
            }
        }
    }
    whole
}

fn read(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

fn missing(name: &str) -> String {
    format!("no {name} here; run: cargo xtask conformance")
}

/// What the specs run, of busybox and agnhost.
pub fn images(dir: &Path) -> Result<Vec<Image>> {
    let program = |name: &str| {
        let path = tools::kubernetes(name).with_context(|| missing(name))?;
        fs::read(&path).with_context(|| format!("{}", path.display()))
    };
    let agnhost = program("agnhost")?;
    let (key, certificate) = (dir.join("localhost.key"), dir.join("localhost.crt"));
    self_signed(&key, &certificate)?;
    let (key, certificate) = (fs::read(key)?, fs::read(certificate)?);
    let path = json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
    let network_tools = program("network-tools")?;
    let image = |name: &str| {
        let image = ImageBuilder::new(&format!("registry.k8s.io/{name}")).config("Env", path.clone());
        // The shell of Debian's busybox prefers its own applets, and drops variables with a dash in their names.
        let image = image.machine_program("bin/bash", "bash")?.symlink("bin/sh", "bash");
        let image = image.file("usr/local/bin/network-tools", network_tools.clone(), 0o755);
        let add = |image: ImageBuilder, tool: &&str| image.symlink(&format!("usr/local/bin/{tool}"), "network-tools");
        anyhow::Ok(NETWORK_TOOLS.iter().fold(image, add))
    };
    let passwd = "root:x:0:0::/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/tmp:/bin/sh\n";
    let group = "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n";
    let of_agnhost = |name: &str, arguments: &[&str]| {
        let image = image(name)?
            .file("agnhost", agnhost.clone(), 0o755)
            .symlink("agnhost-2", "agnhost")
            .file("etc/passwd", passwd, 0o644)
            .file("etc/group", group, 0o644)
            .file("localhost.crt", certificate.clone(), 0o644)
            .file("localhost.key", key.clone(), 0o644)
            .file("bin/nmeter", NMETER, 0o755)
            .config("Entrypoint", json!(["/agnhost"]))
            .config("Cmd", json!(arguments));
        anyhow::Ok(image)
    };
    let with_agnhost = |name: &str, arguments: &[&str]| of_agnhost(name, arguments)?.build();
    let serving = |name: &str| {
        let page = format!("{{\"image\": \"{name}.jpg\"}}");
        let image = of_agnhost(&format!("e2e-test-images/{name}:1.8"), &["test-webserver"])?;
        // A spec of image volumes reads both.
        image.file("data.json", page, 0o644).file("etc/os-release", "NAME=\"Alpine Linux\"\n", 0o644).build()
    };
    Ok(vec![
        with_agnhost("e2e-test-images/agnhost:2.66.1", &["pause"])?,
        with_agnhost("e2e-test-images/agnhost:2.55", &["pause"])?,
        with_agnhost("pause:3.10.2", &["pause"])?,
        with_agnhost("e2e-test-images/nginx:1.27.0-2", &["netexec", "--http-port=80"])?,
        with_agnhost("e2e-test-images/nginx:1.28.0-2", &["netexec", "--http-port=80"])?,
        image("e2e-test-images/busybox:1.37.0-2")?.file("bin/nmeter", NMETER, 0o755).build()?,
        image("e2e-test-images/ipc-utils:1.4")?.build()?,
        image("e2e-test-images/glibc-dns-testing:2.1.1")?.build()?,
        serving("kitten")?,
        serving("nautilus")?,
        image("e2e-test-images/nonroot:1.5")?.config("User", json!("1234")).build()?,
        image("e2e-test-images/nonewprivs:1.4")?
            .file("usr/local/bin/nnp", program("nonewprivs")?, 0o4755)
            .config("Cmd", json!(["nnp"]))
            .build()?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_that_run_again_replace_those_of_the_whole_report() {
        let spec = |name: &str, state: &str| json!({ "ContainerHierarchyTexts": ["Pods"], "LeafNodeText": name, "State": state });
        let report = |specs: &[Value]| json!([{ "SpecReports": specs }]);
        let whole = report(&[spec("a", "failed"), spec("b", "passed")]);
        let part = report(&[spec("a", "passed"), spec("b", "skipped"), spec("c", "failed")]);
        assert_eq!(replaced(whole, &part), report(&[spec("a", "passed"), spec("b", "passed"), spec("c", "failed")]));
    }
}
