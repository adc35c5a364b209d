//! The tree of files that a package installs, below a directory: what tarball, deb, rpm and offline bundle pack.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use limpet_tests::agent::workspace_dir;

/// A tree that is being filled. Only modes and contents count: owners and times are those of the package.
#[derive(Debug)]
pub(super) struct Stage {
    tree: PathBuf,
    /// The directory that `package_files` has written.
    documents: PathBuf,
}

/// Files of the repository, and where they are installed.
const SOURCES: [(&str, &str, u32); 8] = [
    ("deploy/limpet.service", "usr/lib/systemd/system/limpet.service", 0o644),
    // It may contain the headers of a URL, and manifests may contain Secrets.
    ("deploy/config.yaml", "etc/limpet/config.yaml", 0o600),
    ("deploy/10-limpet.conflist", "usr/share/doc/limpet/examples/10-limpet.conflist", 0o644),
    ("deploy/prometheus.yml", "usr/share/doc/limpet/examples/prometheus.yml", 0o644),
    ("deploy/prometheus-rules.yml", "usr/share/doc/limpet/examples/prometheus-rules.yml", 0o644),
    ("deploy/grafana-dashboard.json", "usr/share/doc/limpet/examples/grafana-dashboard.json", 0o644),
    ("LICENSE", "usr/share/doc/limpet/LICENSE", 0o644),
    ("README.md", "usr/share/doc/limpet/README.md", 0o644),
];

/// Directories that have no file, or another mode than usual.
const DIRECTORIES: [(&str, u32); 2] = [("etc/limpet", 0o700), ("etc/limpet/manifests", 0o700)];

/// Each shell, and the path at which it looks for the completions of a package.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/limpet"),
    ("fish", "usr/share/fish/vendor_completions.d/limpet.fish"),
    ("zsh", "usr/share/zsh/site-functions/_limpet"),
];

impl Stage {
    /// An empty tree.
    pub(super) fn new(tree: &Path, documents: &Path) -> Result<Self> {
        fs::create_dir_all(tree).with_context(|| format!("{}", tree.display()))?;
        Ok(Self { tree: tree.to_owned(), documents: documents.to_owned() })
    }

    /// Adds everything except the executables.
    pub(super) fn add_all(&self, sbom: &str, licences: &str) -> Result<()> {
        for (from, to, mode) in SOURCES {
            let bytes = fs::read(workspace_dir().join(from)).with_context(|| from.to_owned())?;
            self.write(to, &bytes, mode)?;
        }
        for (shell, to) in COMPLETIONS {
            let bytes = fs::read(self.documents.join("completions").join(shell)).with_context(|| shell.to_owned())?;
            self.write(to, &bytes, 0o644)?;
        }
        for (name, bytes) in files(&self.documents.join("schemas"))? {
            self.write(&format!("usr/share/limpet/schemas/{name}"), &bytes, 0o644)?;
        }
        for (name, bytes) in files(&self.documents.join("man"))? {
            let section = name.rsplit('.').next().unwrap_or_default();
            self.write(&format!("usr/share/man/man{section}/{name}.gz"), &gzip(&bytes)?, 0o644)?;
        }
        self.write("usr/share/doc/limpet/sbom.cdx.json", sbom.as_bytes(), 0o644)?;
        self.write("usr/share/doc/limpet/THIRD-PARTY-LICENSES.gz", &gzip(licences.as_bytes())?, 0o644)?;
        let changelog = fs::read(workspace_dir().join("CHANGELOG.md")).context("CHANGELOG.md")?;
        self.write("usr/share/doc/limpet/changelog.gz", &gzip(&changelog)?, 0o644)?;
        for (directory, mode) in DIRECTORIES {
            let path = self.tree.join(directory);
            fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    /// The path for a program that is made elsewhere.
    pub(super) fn program(&self, to: &str) -> Result<PathBuf> {
        let path = self.tree.join(to);
        create_parent(&path)?;
        Ok(path)
    }

    fn write(&self, to: &str, bytes: &[u8], mode: u32) -> Result<()> {
        write(&self.tree.join(to), bytes, mode)
    }
}

/// Writes a file with this mode, whatever the umask is, and the directories above it.
pub(super) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    create_parent(path)?;
    fs::write(path, bytes).with_context(|| format!("{}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(|| format!("{}", path.display()))
}

fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))
}

/// Adds the repository's script that installs a tarball.
pub(super) fn add_script(tree: &Path) -> Result<()> {
    let script = fs::read(workspace_dir().join("deploy/install.sh")).context("deploy/install.sh")?;
    write(&tree.join("install.sh"), &script, 0o755)
}

/// Copies a tree with modes and symlinks.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{}", to.display()))?;
    let mut command = std::process::Command::new("cp");
    limpet_tests::process::checked(command.arg("-a").arg(from.join(".")).arg(to)).map(drop)
}

/// Compresses by gzip, without a name and a time in the header.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// The files in a directory, by name.
fn files(directory: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("{}", directory.display()))? {
        let path = entry?.path();
        let bytes = fs::read(&path).with_context(|| format!("{}", path.display()))?;
        files.push((super::file_name(&path), bytes));
    }
    files.sort();
    Ok(files)
}
