//! Programs of the tests that are built from a Go module of their own and kept in the cache: crictl, metrics-server, etcd,
//! CoreDNS, cosign.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use limpet_tests::{process, tools};
use serde_json::Value;

use crate::apt;
use crate::kubernetes::go;

/// A program, and the files of its module that are kept beside it.
#[derive(Debug)]
pub(crate) struct GoProgram {
    name: &'static str,
    /// The directory of the cache, without the version.
    package: &'static str,
    module: &'static str,
    version: &'static str,
    /// The module's package with the program's `main`: its directory, or `.`.
    main: &'static str,
    /// The variable that holds its version.
    version_variable: &'static str,
    /// The files of the module that are kept.
    files: &'static [&'static str],
    /// How long the build takes on two cores, as text.
    takes: &'static str,
}

/// Kubernetes' client of CRI: the newest release that the Go module proxy has; it uses `runtime.v1`.
pub(crate) const CRICTL: GoProgram = GoProgram {
    name: "crictl",
    package: "cri-tools",
    module: "sigs.k8s.io/cri-tools",
    version: "1.36.0",
    main: "cmd/crictl",
    version_variable: "sigs.k8s.io/cri-tools/pkg/version.Version",
    files: &[],
    takes: "a minute",
};

/// The server behind `kubectl top` and HorizontalPodAutoscalers: the newest release that the Go module proxy has of
/// 0.8, with its rights.
pub(crate) const METRICS_SERVER: GoProgram = GoProgram {
    name: "metrics-server",
    package: "metrics-server",
    module: "sigs.k8s.io/metrics-server",
    version: "0.8.0",
    main: "cmd/metrics-server",
    version_variable: "k8s.io/component-base/version.gitVersion",
    files: &["manifests/base/rbac.yaml"],
    takes: "3 minutes",
};

/// The store of a control plane that kubeadm sets up, of the release for which kubeadm has flags.
pub(crate) const ETCD: GoProgram = GoProgram {
    name: "etcd",
    package: "etcd",
    module: "go.etcd.io/etcd/server/v3",
    version: "3.7.0",
    main: ".",
    version_variable: "go.etcd.io/etcd/api/v3/version.GitSHA",
    files: &[],
    takes: "2 minutes",
};

/// The name server of a cluster that kubeadm sets up, of the release that it requires.
pub(crate) const COREDNS: GoProgram = GoProgram {
    name: "coredns",
    package: "coredns",
    module: "github.com/coredns/coredns",
    version: "1.14.6",
    main: ".",
    version_variable: "github.com/coredns/coredns/coremain.GitCommit",
    files: &[],
    takes: "8 minutes",
};

/// What signs images: the newest release of 2, which has both forms of signatures.
pub(crate) const COSIGN: GoProgram = GoProgram {
    name: "cosign",
    package: "cosign",
    module: "github.com/sigstore/cosign/v2",
    version: "2.6.5",
    main: "cmd/cosign",
    version_variable: "sigs.k8s.io/release-utils/version.gitVersion",
    files: &[],
    takes: "10 minutes",
};

impl GoProgram {
    /// Returns the program, which is built if it is missing.
    pub(crate) fn ready(&self) -> Result<PathBuf> {
        let dir = tools::cache_dir().join(format!("{}-{}", self.package, self.version));
        let program = dir.join(self.name);
        if !program.is_file() {
            let (name, version, takes) = (self.name, self.version, self.takes);
            let what = format!("building {name} {version} into {} ({takes} on two cores)", dir.display());
            apt::say(&what, || self.build(&dir, &program))?;
        }
        Ok(program)
    }

    fn build(&self, dir: &Path, program: &Path) -> Result<()> {
        let (module, version) = (self.module, self.version);
        let work = dir.join("build");
        fs::create_dir_all(&work).with_context(|| format!("{}", work.display()))?;
        let text = format!("module limpet.test/program\n\ngo 1.26.0\n\nrequire {module} v{version}\n");
        fs::write(work.join("go.mod"), text).with_context(|| format!("{}", work.display()))?;
        self.keep_files(&work, dir)?;
        let flags = format!("-s -w -X {}=v{version}", self.version_variable);
        let partial = dir.join(format!("{}.partial", self.name));
        let mut command = go(&work, &["build", "-trimpath", "-ldflags", &flags, "-o"]);
        process::checked(
            command.arg(&partial).arg(Path::new(module).join(self.main).components().collect::<PathBuf>()),
        )?;
        fs::rename(&partial, program).with_context(|| format!("{}", program.display()))?;
        fs::remove_dir_all(&work).with_context(|| format!("{}", work.display()))
    }

    fn keep_files(&self, work: &Path, dir: &Path) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let name = format!("{}@v{}", self.module, self.version);
        let output = process::checked(go(work, &["mod", "download", "-json", &name]).env("GOFLAGS", ""))?;
        let output: Value = serde_json::from_str(&output).context("go mod download")?;
        let source = output["Dir"].as_str().map(Path::new).context("go mod download printed no Dir")?;
        for file in self.files {
            let (from, to) = (source.join(file), dir.join(Path::new(file).file_name().unwrap_or_default()));
            let text = fs::read(&from).with_context(|| format!("{}", from.display()))?;
            fs::write(&to, text).with_context(|| format!("{}", to.display()))?;
        }
        Ok(())
    }
}
