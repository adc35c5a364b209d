//! Where the programs of a node are: those of the machine, or else those that `cargo xtask setup` has unpacked beside
//! them.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Chooses the containerd of tests and demo: `1`, `2`, or a directory that holds its programs.
pub const CONTAINERD_VARIABLE: &str = "LIMPET_TEST_CONTAINERD";

/// The directory in which setup stores what it has fetched, outside any clone: `$XDG_CACHE_HOME/limpet` or
/// `~/.cache/limpet`.
pub fn cache_dir() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    base.unwrap_or_else(|| env::temp_dir().join("cache")).join("limpet")
}

/// The search path for everything a node starts: the machine's, with the directories of administration.
pub fn search_path() -> Vec<PathBuf> {
    let mut path: Vec<_> = env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    for extra in ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"] {
        if !path.iter().any(|dir| dir == Path::new(extra)) {
            path.push(extra.into());
        }
    }
    path
}

/// The program `name` on the search path.
pub fn on_path(name: &str) -> Option<PathBuf> {
    search_path().into_iter().map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Unpacked packages whose name begins with `package-`, the newest version first.
fn unpacked(package: &str) -> Vec<PathBuf> {
    let prefix = format!("{package}-");
    let mut names: Vec<_> = std::fs::read_dir(cache_dir())
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(&prefix))
        .collect();
    names.sort_by_key(|name| std::cmp::Reverse(version_in(name)));
    names.into_iter().map(|name| cache_dir().join(name)).collect()
}

/// The program or file at `relative` in the newest unpacked `package`.
fn in_package(package: &str, relative: &str) -> Option<PathBuf> {
    unpacked(package).into_iter().map(|dir| dir.join(relative)).find(|path| path.exists())
}

/// The statically linked busybox that images are built from.
pub fn busybox() -> Option<PathBuf> {
    // The machine's own busybox may be dynamic, and would not run in an image that contains nothing else.
    in_package("busybox-static", "usr/bin/busybox")
        .or_else(|| in_package("busybox-static", "bin/busybox"))
        .or_else(|| on_path("busybox").filter(|path| is_static(path)))
}

/// Whether the ELF file at `path` names no interpreter.
fn is_static(path: &Path) -> bool {
    const INTERPRETER: &[u8] = b"/ld-";
    std::fs::read(path).is_ok_and(|bytes| {
        let head = &bytes[..bytes.len().min(4096)];
        head.starts_with(b"\x7fELF") && !head.windows(INTERPRETER.len()).any(|window| window == INTERPRETER)
    })
}

/// The source of Rust's library, which a target without a compiled one needs.
pub fn rust_library() -> Option<PathBuf> {
    let sources = unpacked("rust-src").into_iter().filter_map(|dir| std::fs::read_dir(dir.join("usr/src")).ok());
    let mut releases = sources.flatten().filter_map(|entry| Some(entry.ok()?.path().join("library")));
    releases.find(|path| path.is_dir())
}

/// Docker's registry, the reference implementation of the distribution protocol.
pub fn registry() -> Option<PathBuf> {
    on_path("docker-registry").or_else(|| in_package("docker-registry", "usr/bin/docker-registry"))
}

/// Names the kube-apiserver of the tests.
pub const APISERVER_VARIABLE: &str = "LIMPET_TEST_APISERVER";

/// The apiserver that the environment names, or else the newest one that `cargo xtask apiserver` has built.
pub fn kube_apiserver() -> Option<PathBuf> {
    if let Some(path) = env::var_os(APISERVER_VARIABLE).filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    in_package("kubernetes", "kube-apiserver")
}

/// The newest program of that name which `cargo xtask cluster` or its like has built: `kube-scheduler`, `kubelet`…
pub fn kubernetes(name: &str) -> Option<PathBuf> {
    in_package("kubernetes", name)
}

/// Every kubectl that `cargo xtask kubectl` has built, the newest first.
pub fn kubectls() -> Vec<PathBuf> {
    unpacked("kubernetes").into_iter().map(|dir| dir.join("kubectl")).filter(|path| path.is_file()).collect()
}

/// The client of CRI: the newest one that `cargo xtask crictl` has built, or else the machine's own.
pub fn crictl() -> Option<PathBuf> {
    in_package("cri-tools", "crictl").or_else(|| on_path("crictl"))
}

/// metrics-server, which `cargo xtask nightly metrics-server` has built; its `rbac.yaml` is next to it.
pub fn metrics_server() -> Option<PathBuf> {
    in_package("metrics-server", "metrics-server")
}

/// Prometheus, which reads the pages of metrics.
pub fn prometheus() -> Option<PathBuf> {
    on_path("prometheus").or_else(|| in_package("prometheus", "usr/bin/prometheus"))
}

/// What checks Prometheus' files; it comes with Prometheus.
pub fn promtool() -> Option<PathBuf> {
    on_path("promtool").or_else(|| in_package("prometheus", "usr/bin/promtool"))
}

/// QEMU's program of that name, which runs executables of another architecture: `qemu-arm-static`.
pub fn emulator(name: &str) -> Option<PathBuf> {
    on_path(name).or_else(|| in_package("qemu-user-static", &format!("usr/bin/{name}")))
}

/// The library that shows a program another time of day, where the program is linked dynamically.
pub fn faketime() -> Option<PathBuf> {
    let dirs = unpacked("libfaketime").into_iter().map(|dir| dir.join("usr/lib"));
    let of_machines = dirs.filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
    let files = of_machines.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    files.into_iter().find(|path| path.is_file())
}

/// The packages of OpenRC, whose files make a system of its own.
pub const OPENRC_PACKAGES: [&str; 3] = ["openrc", "librc1", "libeinfo1"];

/// Where they are unpacked.
pub fn openrc_packages() -> Option<Vec<PathBuf>> {
    OPENRC_PACKAGES.iter().map(|package| unpacked(package).into_iter().next()).collect()
}

/// The packages with which Podman works beside the machine, Podman's first.
pub const PODMAN_PACKAGES: [&str; 5] = ["podman", "conmon", "catatonit", "libsubid4", "libgpgme11"];

/// The directories of these packages, if all of them are unpacked.
pub fn podman_packages() -> Option<Vec<PathBuf>> {
    PODMAN_PACKAGES.iter().map(|package| unpacked(package).into_iter().next()).collect()
}

/// gVisor's OCI runtime.
pub fn runsc() -> Option<PathBuf> {
    on_path("runsc").or_else(|| in_package("runsc", "usr/bin/runsc"))
}

/// The store that an apiserver needs.
pub fn etcd() -> Option<PathBuf> {
    on_path("etcd").or_else(|| in_package("etcd-server", "usr/bin/etcd"))
}

/// The etcd of the release that kubeadm sets up, which `cargo xtask nightly kubeadm` has built.
pub fn kubeadms_etcd() -> Option<PathBuf> {
    in_package("etcd", "etcd")
}

/// The name server of a cluster, which `cargo xtask nightly kubeadm` has built.
pub fn coredns() -> Option<PathBuf> {
    in_package("coredns", "coredns")
}

/// cosign, which `cargo xtask nightly cosign` has built.
pub fn cosign() -> Option<PathBuf> {
    in_package("cosign", "cosign")
}

/// The directory of the CNI plugins.
pub fn cni_plugins() -> Option<PathBuf> {
    ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]
        .into_iter()
        .map(PathBuf::from)
        .chain(in_package("containernetworking-plugins", "usr/lib/cni"))
        .find(|dir| ["bridge", "host-local", "loopback"].iter().all(|plugin| dir.join(plugin).is_file()))
}

/// A containerd that the harness can run.
#[derive(Debug, Clone)]
pub struct ContainerdPrograms {
    /// Holds `containerd`, its shim and `ctr`.
    pub dir: PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
}

impl ContainerdPrograms {
    /// The programs in `dir`, when they are there and run.
    fn in_dir(dir: &Path) -> Option<Self> {
        let all = ["containerd", "containerd-shim-runc-v2", "ctr"];
        if !all.iter().all(|program| dir.join(program).is_file()) {
            return None;
        }
        let said = process::output(dir.join("containerd").to_str()?, &["--version"]).ok()?;
        Some(Self { dir: dir.to_owned(), version: version_in(said.rsplit("containerd ").next()?)? })
    }

    /// Every containerd of version 1.7 or newer: the machine's own first, then the unpacked ones, newest first.
    pub fn all() -> Vec<Self> {
        let installed = on_path("containerd").and_then(|path| path.parent().map(Path::to_owned));
        let beside = unpacked("containerd").into_iter().map(|dir| dir.join("usr/bin"));
        installed
            .into_iter()
            .chain(beside)
            .filter_map(|dir| Self::in_dir(&dir))
            .filter(|programs| programs.version >= (1, 7))
            .collect()
    }

    /// The one of major version `major`, if there is one.
    pub fn of_major(major: u32) -> Option<Self> {
        Self::all().into_iter().find(|programs| programs.version.0 == major)
    }

    /// The containerd to use: `choice`, or what [`CONTAINERD_VARIABLE`] says (`1`, `2`, or a directory of programs);
    /// otherwise 1.x, which most nodes run; otherwise any.
    pub fn chosen(choice: Option<&str>) -> Result<Self> {
        let wish = choice.map(str::to_owned).or_else(|| env::var(CONTAINERD_VARIABLE).ok()).unwrap_or_default();
        let tools = match wish.as_str() {
            "" => Self::of_major(1).or_else(|| Self::all().into_iter().next()),
            dir if dir.starts_with('/') => Self::in_dir(Path::new(dir)),
            major => {
                let major =
                    major.parse().with_context(|| format!("{CONTAINERD_VARIABLE}={major}: not 1, 2 or a path"))?;
                Self::of_major(major)
            }
        };
        match tools {
            Some(programs) => Ok(programs),
            None if wish.is_empty() => bail!("no containerd 1.7 or newer here; run: cargo xtask setup"),
            None => bail!("no containerd for {CONTAINERD_VARIABLE}={wish}; run: cargo xtask setup --containerd {wish}"),
        }
    }
}

/// The first `major.minor` in `text`.
pub fn version_in(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
        let mut parts = word.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

/// Whether the process runs as root, which namespaces, mounts and cgroups need.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn versions_are_found_in_what_programs_and_packages_say() {
        for (text, version) in [
            ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+b4", Some((1, 7))),
            ("containerd-2.1.9~ds1-1", Some((2, 1))),
            ("containerd.io 1.6.33 abcdef", Some((1, 6))),
            ("v2.0.0-rc.1", Some((2, 0))),
            ("no version", None),
        ] {
            assert_eq!(version_in(text), version, "{text}");
        }
    }
}
