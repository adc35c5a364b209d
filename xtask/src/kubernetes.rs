//! `cargo xtask apiserver`, `cargo xtask kubelet`, `cargo xtask kubectl`, the rest of a control plane, the node tests
//! and programs of kubelet's tests: built from the Go module of Kubernetes, kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use limpet_tests::{process, tools};
use serde_json::Value;

use crate::{apt, setup};

/// The release of the Pod API that the feature of k8s-openapi in Cargo.toml has.
const VERSION: &str = "1.37.1";
/// The oldest kubectl with which nodes are tested: it uses SPDY where newer ones use WebSocket.
const OLD_KUBECTL: &str = "1.30.14";

/// Builds an apiserver, and fetches the store that it needs.
pub(crate) fn apiserver() -> Result<PathBuf> {
    setup::for_apiserver()?;
    ready("kube-apiserver", VERSION)
}

/// Builds an apiserver with its store, its controllers and its scheduler.
pub(crate) fn control_plane() -> Result<()> {
    apiserver()?;
    ready("kube-controller-manager", VERSION)?;
    ready("kube-scheduler", VERSION).map(drop)
}

/// Builds what a node with a whole control plane runs.
pub(crate) fn single_node() -> Result<()> {
    control_plane()?;
    ["kubelet", "kube-proxy"].iter().try_for_each(|name| ready(name, VERSION).map(drop))
}

/// Builds the kubelet that benches run beside limpet.
pub(crate) fn kubelet() -> Result<PathBuf> {
    ready("kubelet", VERSION)
}

/// Builds Kubernetes' own tests of a node, `test/e2e_node`, as one program.
pub(crate) fn node_tests() -> Result<PathBuf> {
    ready_from(Main::Suite, "e2e_node", VERSION)
}

/// Builds a program of Kubernetes' conformance specs, its runner in several processes, and the programs of the images
/// that they use.
pub(crate) fn conformance_tests(name: &str) -> Result<()> {
    ready_from(Main::Of("github.com/onsi/ginkgo/v2"), "ginkgo", VERSION)?;
    ready_from(Main::In("test/images"), "agnhost", VERSION)?;
    ready_from(Main::In("test/images"), "nonewprivs", VERSION)?;
    let tools = Main::Text(include_str!("../../tests/programs/network-tools/main.go"));
    ready_from(tools, "network-tools", VERSION)?;
    ready_from(Main::Suite, name, VERSION).map(drop)
}

/// Builds kubeadm and what it sets up: its control plane's programs, kube-proxy and a kubectl.
pub(crate) fn kubeadm() -> Result<()> {
    control_plane()?;
    ["kubeadm", "kube-proxy", "kubectl"].iter().try_for_each(|name| ready(name, VERSION).map(drop))
}

/// Builds the kubectls with which nodes are tested.
pub(crate) fn kubectls() -> Result<[PathBuf; 2]> {
    Ok([ready("kubectl", OLD_KUBECTL)?, ready("kubectl", VERSION)?])
}

/// Builds kubelet's sample device plugin, and a program with kubelet's own client of PodResources.
pub(crate) fn device_programs() -> Result<[PathBuf; 2]> {
    let client = Main::Text(include_str!("../../tests/programs/pod-resources/main.go"));
    Ok([
        ready_from(Main::In("test/images"), "sample-device-plugin", VERSION)?,
        ready_from(client, "pod-resources", VERSION)?,
    ])
}

/// Where the `main` of a program comes from.
#[derive(Debug, Clone, Copy)]
enum Main {
    /// In a package of the program's name, below this directory of Kubernetes.
    In(&'static str),
    /// In a package of the program's name, of this module that Kubernetes requires.
    Of(&'static str),
    /// The text of the program.
    Text(&'static str),
    /// `go test` makes it, for the tests of a package below `test`.
    Suite,
}

/// Returns the program `name` of `k8s.io/kubernetes/cmd` of that version, which is built if it is missing.
fn ready(name: &str, version: &str) -> Result<PathBuf> {
    ready_from(Main::In("cmd"), name, version)
}

/// Returns a program with another `main`. One whose text is here is rebuilt each time, because the text may have
/// changed.
fn ready_from(main: Main, name: &str, version: &str) -> Result<PathBuf> {
    let dir = tools::cache_dir().join(format!("kubernetes-{version}"));
    let program = dir.join(name);
    if !program.is_file() || matches!(main, Main::Text(_)) {
        let what = format!(
            "building {name} {version} into {} (8 minutes on two cores, 2 when others are built)",
            dir.display()
        );
        apt::say(&what, || build(main, name, version, &dir, &program))?;
    }
    Ok(program)
}

fn build(main: Main, name: &str, version: &str, dir: &Path, program: &Path) -> Result<()> {
    let work = dir.join(format!("build-{name}"));
    fs::create_dir_all(&work).with_context(|| format!("{}", work.display()))?;
    write_module(version, &work)?;
    let package_of_main = match main {
        Main::In(directory) => format!("k8s.io/kubernetes/{directory}/{name}"),
        Main::Of(module) => format!("{module}/{name}"),
        Main::Suite => format!("k8s.io/kubernetes/test/{name}"),
        Main::Text(text) => fs::write(work.join("main.go"), text).map(|()| ".".to_owned())?,
    };
    let minor = version.split('.').nth(1).unwrap_or_default();
    let package = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor} \
         -X {package}.gitTreeState=clean"
    );
    let partial = dir.join(format!("{name}.partial"));
    let verb: &[&str] = if matches!(main, Main::Suite) { &["test", "-c"] } else { &["build"] };
    let mut command = go(&work, verb);
    command.args(["-trimpath", "-ldflags", &flags, "-o"]).arg(&partial).arg(package_of_main);
    process::checked(&mut command)?;
    fs::rename(&partial, program).with_context(|| format!("{}", program.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("{}", work.display()))
}

/// Writes a module that requires what Kubernetes requires. Kubernetes' staging modules are in its own tree, and are
/// released as v0 for others.
fn write_module(version: &str, work: &Path) -> Result<()> {
    let name = format!("k8s.io/kubernetes@v{version}");
    let output = process::checked(go(work, &["mod", "download", "-json", &name]).env("GOFLAGS", ""))?;
    let output: Value = serde_json::from_str(&output).context("go mod download")?;
    let path = |key: &str| output[key].as_str().map(PathBuf::from).with_context(|| format!("go list printed no {key}"));
    let staging = version.split_once('.').map(|(_, rest)| format!("v0.{rest}")).unwrap_or_default();
    let module: String = fs::read_to_string(path("GoMod")?)?
        .lines()
        .map(|line| match (line.starts_with("module "), line.split_once(" => ./staging/src/")) {
            (true, _) => "module limpet.test/kubernetes\n".to_owned(),
            (_, Some((name, target))) => format!("{name} => {target} {staging}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    fs::write(work.join("go.mod"), format!("{module}require k8s.io/kubernetes v{version}\n"))?;
    fs::write(work.join("go.sum"), fs::read(path("Dir")?.join("go.sum"))?)?;
    Ok(())
}

/// The go command: that on the path, or else where its archive puts it.
fn go_program() -> PathBuf {
    tools::on_path("go").unwrap_or_else(|| PathBuf::from("/usr/local/go/bin/go"))
}

/// Whether there is a go command.
pub(crate) fn has_go() -> bool {
    go_program().exists()
}

/// A go command that runs in the module in `work`.
pub(crate) fn go(work: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(go_program());
    command.args(args).current_dir(work).env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "0").env("GOWORK", "off");
    command
}

#[cfg(test)]
mod tests {
    #[test]
    fn kubernetes_is_of_the_version_that_k8s_openapi_offers() {
        let manifest = include_str!("../../Cargo.toml");
        let line = manifest.lines().find(|line| line.starts_with("k8s-openapi")).unwrap_or_default();
        let feature: String = super::VERSION.split('.').take(2).collect::<Vec<_>>().join("_");
        assert!(line.contains(&format!("\"v{feature}\"")), "{line}");
    }
}
