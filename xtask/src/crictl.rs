//! `cargo xtask crictl`: Kubernetes' client of CRI, built from its Go module and kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use limpet_tests::{process, tools};

use crate::apt;
use crate::kubernetes::go;

/// The newest release that the Go module proxy has; it speaks `runtime.v1`.
const VERSION: &str = "1.36.0";
const MODULE: &str = "sigs.k8s.io/cri-tools";

/// The program, built if it is not there yet.
pub(crate) fn ready() -> Result<PathBuf> {
    let dir = tools::cache_dir().join(format!("cri-tools-{VERSION}"));
    let program = dir.join("crictl");
    if !program.is_file() {
        let what = format!("building crictl {VERSION} into {} (a minute on two cores)", dir.display());
        apt::say(&what, || build(&dir, &program))?;
    }
    Ok(program)
}

fn build(dir: &Path, program: &Path) -> Result<()> {
    let work = dir.join("build");
    fs::create_dir_all(&work).with_context(|| format!("{}", work.display()))?;
    let module = format!("module limpet.test/crictl\n\ngo 1.26.0\n\nrequire {MODULE} v{VERSION}\n");
    fs::write(work.join("go.mod"), module).with_context(|| format!("{}", work.display()))?;
    let flags = format!("-s -w -X {MODULE}/pkg/version.Version=v{VERSION}");
    let partial = dir.join("crictl.partial");
    let mut command = go(&work, &["build", "-trimpath", "-ldflags", &flags, "-o"]);
    process::checked(command.arg(&partial).arg(format!("{MODULE}/cmd/crictl")))?;
    fs::rename(&partial, program).with_context(|| format!("{}", program.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("{}", work.display()))
}
