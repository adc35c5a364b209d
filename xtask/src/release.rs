//! `cargo xtask release`: everything that a node installs, for each architecture: tarball, deb, rpm, lists of what is in
//! them, checksums and signatures.
//!
//! Each file of a package is staged once ([`stage`]); the formats pack the same tree. Times of files are those of the
//! commit (`SOURCE_DATE_EPOCH`), so that the same sources give the same bytes.

mod auditable;
mod bundle;
mod check;
mod crates;
mod deb;
mod licences;
mod reproduce;
mod rpm;
mod sbom;
mod signature;
mod stage;
mod tarball;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use limpet_tests::agent::{SHIM, workspace_dir};
use limpet_tests::process;
use sha2::{Digest as _, Sha256};

use crate::architecture::Architecture;
use crate::cargo;
use crate::dist::{self, Profile};
use stage::Stage;

/// The version of what is released.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// An architecture; may be repeated. Without it all of them.
    #[arg(long, value_name = "ARCHITECTURE")]
    arch: Vec<Architecture>,
    /// The directory of the results; `packages` in the target directory if it is not given.
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// An existing executable instead of a build, with the shim beside it, for the one architecture given.
    #[arg(long, value_name = "FILE")]
    executable: Option<PathBuf>,
    /// The secret key, as `minisign -G` writes it, by which every file is signed. Its password is read from the terminal.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Build as for tests: hardly optimised, in a fifth of the time.
    #[arg(long)]
    for_tests: bool,
    /// Take the runtime of the offline archive from Debian's release as it is, for a mirror that lacks the archive of
    /// security updates.
    #[arg(long)]
    no_security_updates: bool,
    /// Also check the results: lintian, rpmlint, and the executables run under emulation.
    #[arg(long)]
    check: bool,
    /// Also build all of it once more in another directory, and compare the bytes.
    #[arg(long, conflicts_with = "executable")]
    reproduce: bool,
}

/// The settings that are the same for all architectures.
#[derive(Debug)]
struct Release {
    /// The directory of the results.
    out: PathBuf,
    /// The directory in which trees are staged. It is emptied at the start.
    work: PathBuf,
    /// The time of every file.
    time: Timestamp,
    /// Whether the runtime is taken with Debian's security updates.
    with_security_updates: bool,
}

/// Makes all files, and prints the path of each.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let architectures = if arguments.arch.is_empty() { Architecture::ALL.to_vec() } else { arguments.arch.clone() };
    ensure!(
        arguments.executable.is_none() || arguments.arch.len() == 1,
        "--executable is for one architecture: name it with --arch"
    );
    let out = arguments.out.clone().unwrap_or_else(|| cargo::target_dir().join("packages"));
    let release = Release::begin(&out, !arguments.no_security_updates)?;
    let documents = release.documents()?;
    let profile = if arguments.for_tests { Profile::DistTest } else { Profile::Dist };
    let mut made = Vec::new();
    for &architecture in &architectures {
        let program = match &arguments.executable {
            Some(program) => program.clone(),
            None => dist::build_for(architecture, profile)?,
        };
        let files = release.package(architecture, &program, &documents)?;
        if arguments.check {
            check::run(&release, architecture, &files)?;
        }
        made.extend(files);
    }
    if arguments.reproduce {
        reproduce::run(&release, &architectures, profile, &made)?;
    }
    made.push(release.checksums(&made)?);
    if let Some(key) = &arguments.key {
        let signatures = made.iter().map(|file| signature::sign(key, file)).collect::<Result<Vec<_>>>()?;
        made.extend(signatures);
    }
    for file in made {
        println!("{}", file.display());
    }
    Ok(())
}

/// Makes the deb for one architecture and nothing else, in a directory beside the releases', and returns it.
pub(crate) fn deb(architecture: Architecture, profile: Profile) -> Result<PathBuf> {
    let release = Release::begin(&cargo::target_dir().join("packages-for-tests"), false)?;
    let program = dist::build_for(architecture, profile)?;
    let (tree, _) = release.stage(architecture, &program, &release.documents()?)?;
    deb::make(&release, architecture, &tree)
}

impl Release {
    fn begin(out: &Path, with_security_updates: bool) -> Result<Self> {
        let work = cargo::target_dir().join("release-work");
        fs::remove_dir_all(&work).ok();
        for directory in [out, &work] {
            fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
        }
        Ok(Self { out: fs::canonicalize(out)?, work, time: time()?, with_security_updates })
    }

    /// Writes completions, manual pages and schemas into a directory, which is returned.
    fn documents(&self) -> Result<PathBuf> {
        let documents = self.work.join("documents");
        let run = ["run", "--quiet", "--package", "limpet", "--example", "package_files", "--"];
        cargo::run(cargo::command(&run).arg(&documents))?;
        Ok(documents)
    }

    /// Makes all files for one architecture, and returns them.
    fn package(&self, architecture: Architecture, program: &Path, documents: &Path) -> Result<Vec<PathBuf>> {
        let (tree, sbom) = self.stage(architecture, program, documents)?;
        let bill = self.out.join(format!("{}.cdx.json", base_name(architecture)));
        fs::write(&bill, &sbom).with_context(|| format!("{}", bill.display()))?;
        Ok(vec![
            tarball::make(self, architecture, &tree)?,
            bundle::make(self, architecture, &tree)?,
            deb::make(self, architecture, &tree)?,
            rpm::make(self, architecture, &tree)?,
            bill,
        ])
    }

    /// Makes the tree that the packages install. Returns it, and the list of what is linked.
    fn stage(&self, architecture: Architecture, program: &Path, documents: &Path) -> Result<(PathBuf, String)> {
        let linked = crates::linked(architecture, &crates::ROOTS)?;
        let sbom = sbom::document(&linked, architecture, self.time);
        let licences = licences::text(&linked)?;
        let tree = self.work.join(architecture.name()).join("tree");
        let stage = Stage::new(&tree, documents)?;
        let shim = program.with_file_name(SHIM.0);
        for (from, name, package) in [(program, "limpet", crates::ROOTS[0]), (&shim, SHIM.0, SHIM.1)] {
            let to = stage.program(&format!("usr/bin/{name}"))?;
            auditable::add_list(from, package, &crates::linked(architecture, &[package])?, &to)?;
        }
        stage.add_all(&sbom, &licences)?;
        Ok((tree, sbom))
    }

    /// The time of every file, in seconds since 1970.
    fn seconds(&self) -> u64 {
        self.time.as_second().unsigned_abs()
    }

    /// Writes `SHA256SUMS`, in the form that sha256sum reads.
    fn checksums(&self, files: &[PathBuf]) -> Result<PathBuf> {
        let mut lines = Vec::new();
        for file in files {
            let bytes = fs::read(file).with_context(|| format!("{}", file.display()))?;
            let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            lines.push(format!("{hash}  {}\n", file_name(file)));
        }
        let sums = self.out.join("SHA256SUMS");
        fs::write(&sums, lines.concat()).with_context(|| format!("{}", sums.display()))?;
        Ok(sums)
    }
}

/// `limpet-0.1.0-aarch64`.
fn base_name(architecture: Architecture) -> String {
    format!("limpet-{VERSION}-{}", architecture.name())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The time of `SOURCE_DATE_EPOCH`, or of the last commit.
fn time() -> Result<Timestamp> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            process::checked(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(workspace_dir()))
                .context("SOURCE_DATE_EPOCH is not set, and git does not know the time of the last commit")?
        }
    };
    let seconds =
        text.trim().parse().with_context(|| format!("SOURCE_DATE_EPOCH has to be a number: {}", text.trim()))?;
    Ok(Timestamp::from_second(seconds)?)
}
