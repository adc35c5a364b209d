//! containerd and the OCI runtime: running, recent enough, in the same mount namespace, and sending events.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use containerd_client::services::v1::Plugin;
use containerd_client::services::v1::version_client::VersionClient;
use tokio_util::sync::CancellationToken;

use super::Finding;
use crate::config::Config;
use limpet_cli::program_output::output_of;
use limpet_containerd::client::Client;
use limpet_containerd::container::runtime::SHIM_PROGRAM;
use limpet_containerd::settings::Shim;
use limpet_containerd::{event_stream, snapshotter};
use limpet_host::peer;
use limpet_model::lifecycle::LifecycleEvent;

/// The oldest containerd that limpet is tested with.
const CONTAINERD_NEEDED: (u32, u32) = (1, 7);
/// The timeout of containerd.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(3);
/// Where a host with cgroups of both versions has version 2.
const SECOND_HIERARCHY: &str = "/sys/fs/cgroup/unified";
/// The search path for programs if containerd's environment cannot be read.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let socket = &config.runtime.endpoint;
    let peer = match peer::pid(socket) {
        Ok(pid) => pid,
        Err(error) => {
            return vec![
                Finding::failed("containerd", format!("{}: {error}", socket.display()), remedy(&error)),
                oci_runtime(config, None).await,
            ];
        }
    };
    let client = Client::new(socket);
    let mut findings = vec![version(&client).await];
    // If not even the version can be read, further calls are pointless.
    if findings[0].level != super::Level::Failed {
        findings.extend(plugins(&client, &config.runtime.snapshotter).await);
        findings.push(events(&client).await);
    }
    findings.push(mounts(peer, peer.map(same_mount_namespace)));
    findings.push(oci_runtime(config, peer).await);
    findings.extend(shim(config).await);
    findings
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "Run this as root",
        _ => "Install and start containerd 1.7 or newer, or set containerRuntimeEndpoint",
    }
}

async fn version(client: &Client) -> Finding {
    let mut service = VersionClient::new(client.channel());
    match tokio::time::timeout(RUNTIME_TIMEOUT, service.version(())).await {
        Ok(Ok(answer)) => judge_version(&answer.into_inner().version),
        Ok(Err(status)) => Finding::failed("containerd", status.message().to_owned(), "Is that containerd's socket?"),
        Err(_) => {
            let text = format!("{} does not answer within {} s", client.socket().display(), RUNTIME_TIMEOUT.as_secs());
            Finding::failed("containerd", text, "See what it is doing: journalctl -u containerd")
        }
    }
}

fn judge_version(version: &str) -> Finding {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '~', '+']).map(|n| n.parse().unwrap_or(0));
    let installed = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if installed < CONTAINERD_NEEDED {
        let (major, minor) = CONTAINERD_NEEDED;
        return Finding::failed("containerd", version, format!("Install {major}.{minor} or newer"));
    }
    Finding::ok("containerd", version)
}

async fn plugins(client: &Client, wanted: &str) -> Vec<Finding> {
    match tokio::time::timeout(RUNTIME_TIMEOUT, snapshotter::plugins(client)).await {
        Ok(Ok(plugins)) => {
            vec![judge_snapshotter(&plugins, wanted), judge_cri(&plugins)]
        }
        Ok(Err(status)) => vec![Finding::degraded("snapshotter", status.message().to_owned(), "")],
        Err(_) => vec![Finding::degraded("snapshotter", "containerd's plugins cannot be listed", "")],
    }
}

fn judge_snapshotter(plugins: &[Plugin], wanted: &str) -> Finding {
    match snapshotter::judge(plugins, wanted) {
        Ok(()) => Finding::ok("snapshotter", wanted),
        Err(fault) => Finding::failed("snapshotter", fault.to_string(), fault.remedy()),
    }
}

/// The CRI plugin is harmless: it uses its own containers. But it shares images with limpet.
fn judge_cri(plugins: &[Plugin]) -> Finding {
    let cri =
        |plugin: &&Plugin| plugin.init_err.is_none() && (plugin.r#type == "io.containerd.cri.v1" || plugin.id == "cri");
    match plugins.iter().find(cri) {
        Some(_) => Finding::ok("CRI plugin", "loaded; it leaves limpet's containers alone"),
        None => Finding::ok("CRI plugin", "not loaded; limpet does not need it"),
    }
}

/// Publishes an event and waits for it, as the agent does when it starts.
async fn events(client: &Client) -> Finding {
    let (sender, mut events) = tokio::sync::mpsc::channel(4);
    let stop = CancellationToken::new();
    let started = Instant::now();
    let following = tokio::spawn(event_stream::run(client.clone(), sender, stop.clone()));
    let came = tokio::time::timeout(RUNTIME_TIMEOUT, async {
        loop {
            match events.recv().await {
                Some(LifecycleEvent::Connected) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    });
    let came = came.await.unwrap_or(false);
    let took = started.elapsed();
    stop.cancel();
    following.abort();
    if came {
        return Finding::ok("events", format!("containerd's stream delivers in {} ms", took.as_millis().max(1)));
    }
    let text = format!(
        "containerd delivers none within {} s; exits of containers would go unnoticed",
        RUNTIME_TIMEOUT.as_secs()
    );
    Finding::failed("events", text, "Restart containerd; its pods keep running")
}

/// Whether the process `pid` has this process's mount namespace.
pub(super) fn same_mount_namespace(pid: u32) -> io::Result<bool> {
    let namespace = |pid: &str| std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|file| (file.dev(), file.ino()));
    Ok(namespace("self")? == namespace(&pid.to_string())?)
}

fn mounts(pid: Option<u32>, same: Option<io::Result<bool>>) -> Finding {
    let name = "mounts";
    match (pid, same) {
        (Some(pid), Some(Ok(true))) => Finding::ok(name, format!("containerd (pid {pid}) sees the same as limpet")),
        (Some(pid), Some(Ok(false))) => Finding::failed(
            name,
            format!("containerd (pid {pid}) has a mount namespace of its own; it would not see the pods' namespaces"),
            "Start both in one mount namespace",
        ),
        (_, Some(Err(error))) => Finding::degraded(
            name,
            format!("cannot check whether containerd sees the same: {error}"),
            "Run this as root, next to containerd",
        ),
        _ => Finding::degraded(
            name,
            "cannot check whether containerd sees the same: it runs in another pid namespace",
            "Run this next to containerd",
        ),
    }
}

async fn oci_runtime(config: &Config, containerd: Option<u32>) -> Finding {
    let search = containerd.and_then(path_of).unwrap_or_else(|| USUAL_PATH.into());
    let (name, program_path) = match &config.runtime.binary {
        Some(path) => (path.display().to_string(), Some(path.clone()).filter(|path| path.is_file())),
        None => ("runc".to_owned(), in_path("runc", &search)),
    };
    let Some(program) = program_path else {
        let text = format!("{name} not found (searched {})", search.to_string_lossy());
        return Finding::failed("OCI runtime", text, "Install runc, or set runtimeBinary");
    };
    match output_of(&program, &["--version"]).await {
        Some(text) => {
            let version = text.lines().next().unwrap_or_default().to_owned();
            let has_both_cgroups = Path::new(SECOND_HIERARCHY).join("cgroup.controllers").exists();
            oci_runtime_finding(&version, &program, has_both_cgroups)
        }
        None => Finding::failed("OCI runtime", format!("{} does not run", program.display()), "Install it again"),
    }
}

/// crun starts no container on a host with cgroups of both versions.
fn oci_runtime_finding(version: &str, program: &Path, has_both_cgroups: bool) -> Finding {
    let text = format!("{version}, {}", program.display());
    if has_both_cgroups && version.starts_with("crun ") {
        let text = format!("{text}: it starts no container where cgroups of version 1 and 2 are mounted");
        let remedy = "Boot with systemd.unified_cgroup_hierarchy=1, or set runtimeBinary to runc's path";
        return Finding::failed("OCI runtime", text, remedy);
    }
    Finding::ok("OCI runtime", text)
}

/// Checks limpet's own shim, unless the configuration chooses containerd's: whether it exists at the path that
/// containerd is given, and can be run.
async fn shim(config: &Config) -> Option<Finding> {
    let executable = std::env::current_exe().ok()?;
    let Some(program) = config.runtime.shim.program(&executable) else {
        let missing = executable.with_file_name(SHIM_PROGRAM);
        let text = format!("{} is not there: each pod has containerd's, which takes 4 MiB more", missing.display());
        return (config.runtime.shim == Shim::Auto)
            .then(|| Finding::degraded("shim", text, "Install it beside limpet"));
    };
    let version = output_of(&program, &["-v"]).await;
    Some(match version.filter(|text| text.starts_with(SHIM_PROGRAM)) {
        Some(text) => Finding::ok("shim", format!("{}, {}", text.trim(), program.display())),
        None => Finding::failed(
            "shim",
            format!("{} does not run", program.display()),
            format!("Install {SHIM_PROGRAM} there, or set shim: runc-v2"),
        ),
    })
}

/// The `PATH` of a process: containerd's shims inherit it and look for runc there.
fn path_of(pid: u32) -> Option<OsString> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let path = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"PATH="))?;
    Some(String::from_utf8_lossy(path).into_owned().into())
}

fn in_path(program: &str, search: &OsString) -> Option<PathBuf> {
    std::env::split_paths(search).map(|directory| directory.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use containerd_client::google::rpc::Status;

    use limpet_containerd::settings::RuntimeSettings;

    use super::super::Level;
    use super::*;

    fn plugin(kind: &str, id: &str, error: Option<&str>) -> Plugin {
        let init_err = error.map(|message| Status { message: message.to_owned(), ..Status::default() });
        Plugin { r#type: kind.to_owned(), id: id.to_owned(), init_err, ..Plugin::default() }
    }

    #[test]
    fn containerd_is_judged() {
        for (version, level) in
            [("1.7.24~ds1", Level::Ok), ("v2.1.9", Level::Ok), ("1.6.20", Level::Failed), ("unknown", Level::Failed)]
        {
            assert_eq!(judge_version(version).level, level, "{version}");
        }
        let plugins = [
            plugin("io.containerd.snapshotter.v1", "overlayfs", None),
            plugin("io.containerd.snapshotter.v1", "zfs", Some("path must be a zfs filesystem")),
            plugin("io.containerd.grpc.v1", "cri", None),
        ];
        assert_eq!(judge_snapshotter(&plugins, "overlayfs").level, Level::Ok);
        let broken = judge_snapshotter(&plugins, "zfs");
        assert_eq!((broken.level, broken.text.as_str()), (Level::Failed, "zfs: path must be a zfs filesystem"));
        assert_eq!(broken.remedy, "Set snapshotter to one of: overlayfs");
        assert!(judge_cri(&plugins).text.starts_with("loaded"));
        assert!(judge_cri(&plugins[..2]).text.starts_with("not loaded"));
    }

    #[test]
    fn crun_needs_cgroups_of_a_single_version() {
        let level = |version: &str, has_both| oci_runtime_finding(version, Path::new("/r"), has_both).level;
        assert_eq!(level("crun version 1.8.1", true), Level::Failed);
        assert_eq!(level("crun version 1.8.1", false), Level::Ok);
        assert_eq!(level("runc version 1.1.5", true), Level::Ok);
    }

    #[test]
    fn mounts_are_compared() {
        assert!(same_mount_namespace(std::process::id()).unwrap());
        assert_eq!(mounts(Some(1), Some(Ok(true))).level, Level::Ok);
        assert_eq!(mounts(Some(1), Some(Ok(false))).level, Level::Failed);
        assert_eq!(mounts(None, None).level, Level::Degraded);
    }

    #[tokio::test]
    async fn a_machine_without_containerd_is_reported() {
        let config = Config {
            runtime: RuntimeSettings { endpoint: "/nowhere/containerd.sock".into(), ..RuntimeSettings::default() },
            ..Config::default()
        };
        let findings = examine(&config).await;
        assert_eq!(findings[0].level, Level::Failed);
        assert!(findings[0].text.starts_with("/nowhere/containerd.sock: No such file"), "{findings:?}");
        assert_eq!(findings[1].name, "OCI runtime");
    }
}
