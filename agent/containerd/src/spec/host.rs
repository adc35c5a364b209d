//! Facts about the host that a spec needs, read when it is built: containerd's capabilities, devices, a seccomp
//! profile.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path};

use oci_spec::runtime::{Capabilities, LinuxDevice, LinuxDeviceType, LinuxSeccomp};

use super::seccomp::{self, Profile};
use super::{SpecError, SpecInput, apparmor, capabilities, cdi};
use limpet_host::peer;
use limpet_host::volume::{BlockDevice, read_env_file};
use limpet_model::pod::device::devices as devices_of;

/// Largest seccomp profile read.
const MAX_PROFILE: u64 = 1 << 20;

/// Most devices given to a privileged container.
const MAX_DEVICES: usize = 16_384;

/// Entries of `/dev` of which a container has its own.
const OWN_DEVICES: [&str; 8] = ["pts", "shm", "fd", "mqueue", "console", ".lxc", ".lxd-mounts", ".udev"];

/// The facts of the host on which one container's spec depends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostInput {
    /// containerd's capabilities, to which `ALL` and `privileged` expand; empty if the container uses neither.
    pub capabilities: Capabilities,
    /// The host's devices; empty unless the container is privileged.
    pub devices: Vec<LinuxDevice>,
    /// The devices that the container requests, with the access that its cgroup allows.
    pub granted: Vec<(LinuxDevice, String)>,
    /// The edits of the container's CDI devices.
    pub cdi: Vec<cdi::ContainerEdits>,
    /// The parsed profile of a container with a `Localhost` one.
    pub seccomp: Option<LinuxSeccomp>,
    /// The loaded AppArmor profile, if any.
    pub apparmor: Option<String>,
    /// The files of `fileKeyRef`, by volume and path; `None` if the file does not exist.
    pub env_files: BTreeMap<(String, String), Option<String>>,
    /// Whether the kernel can limit swap.
    pub swap_limit: bool,
    /// Directories under `/sys` that expose the CPU temperature, hidden from containers.
    pub thermal_paths: Vec<String>,
}

impl HostInput {
    /// Reads the facts for the container of `input`: small files of `/proc` and `/sys`, and its profile or `/dev` if
    /// needed.
    ///
    /// # Errors
    ///
    /// `/proc`, `/dev` or the profile cannot be read, or the profile is invalid.
    pub fn read(input: &SpecInput<'_>) -> Result<Self, SpecError> {
        let privileged = super::is_privileged(input.container);
        let context = input.container.security_context.as_ref();
        let seccomp = match seccomp::profile_of(input) {
            Profile::Localhost(name) => Some(read_profile(&input.node.seccomp_dir, name)?),
            Profile::Unconfined | Profile::RuntimeDefault => None,
        };
        Ok(Self {
            capabilities: if capabilities::asks_for_all(context) {
                runtime_capabilities(&input.node.runtime_endpoint)?
            } else {
                Capabilities::new()
            },
            devices: if privileged { devices(Path::new("/dev"))? } else { Vec::new() },
            granted: granted(input)?,
            cdi: cdi_edits(input)?,
            seccomp,
            apparmor: apparmor::profile(input.pod.spec(), input.container)?,
            env_files: env_files(input)?,
            swap_limit: swap_limit(input.node.cgroup_v2),
            thermal_paths: thermal_paths(),
        })
    }
}

/// The files of `fileKeyRef`, each read once.
fn env_files(input: &SpecInput<'_>) -> Result<BTreeMap<(String, String), Option<String>>, SpecError> {
    let mut files = BTreeMap::new();
    for variable in input.container.env.iter().flatten() {
        let Some(file) = variable.value_from.as_ref().and_then(|source| source.file_key_ref.as_ref()) else { continue };
        let at = (file.volume_name.clone(), file.path.clone());
        if files.contains_key(&at) {
            continue;
        }
        let text = read_env_file(input.pod_dir, &file.volume_name, &file.path);
        let text = text.map_err(|source| SpecError::EnvFile {
            variable: variable.name.clone(),
            volume: file.volume_name.clone(),
            path: file.path.clone(),
            source,
        })?;
        files.insert(at, text);
    }
    Ok(files)
}

/// The capabilities of containerd, whose child the container will be; if they cannot be read, the agent's own, which
/// are fewer.
fn runtime_capabilities(socket: &Path) -> Result<Capabilities, SpecError> {
    let containerd = peer::pid(socket).ok().flatten();
    let status = containerd.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let agent_status = Path::new("/proc/self/status");
    let status = match status {
        Some(status) => status,
        None => fs::read_to_string(agent_status).map_err(|source| SpecError::read(agent_status, source))?,
    };
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    Ok(capabilities::from_mask(mask))
}

/// The character and block devices below `directory`; links are not followed.
fn devices(directory: &Path) -> Result<Vec<LinuxDevice>, SpecError> {
    let mut devices = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            // A device may be removed during the listing.
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(SpecError::read(&directory, source)),
        };
        for entry in entries {
            let entry = entry.map_err(|source| SpecError::read(&directory, source))?;
            if entry.file_name().to_str().is_some_and(|name| OWN_DEVICES.contains(&name)) {
                continue;
            }
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
            if metadata.is_dir() {
                left.push(entry.path());
            } else if let Some(device) = device(&entry.path(), &metadata) {
                devices.push(device);
            }
            if devices.len() + left.len() > MAX_DEVICES {
                return Err(SpecError::read(&directory, std::io::Error::other("too many devices")));
            }
        }
    }
    devices.sort_by(|a, b| a.path().cmp(b.path()));
    Ok(devices)
}

/// The nodes of the devices that the container requests, those that device plugins have assigned, and those of its
/// volumes, at their paths. Starting the container waits for a device that is not plugged in.
fn granted(input: &SpecInput<'_>) -> Result<Vec<(LinuxDevice, String)>, SpecError> {
    let named = devices_of(input.container).filter_map(|(name, _)| input.node.devices.get(name));
    let named = named.flat_map(|device| device.paths.iter().map(move |path| (path, path, device.permissions.as_str())));
    let given = input.given.iter().flat_map(|device| &device.devices);
    let given = given.map(|device| (&device.host_path, &device.container_path, device.permissions.as_str()));
    // The access that kubelet requests; a container with read access must not create another node of the device.
    let access = |block: &BlockDevice| if block.read_only { "r" } else { "mrw" };
    let blocks = input.block_devices.iter().map(|block| (&block.host_path, &block.container_path, access(block)));
    let mut granted = Vec::new();
    for (host, inside, permissions) in named.chain(given).chain(blocks) {
        let metadata = fs::metadata(host).map_err(|source| SpecError::read(host, source))?;
        let permissions = if permissions.is_empty() { "rwm" } else { permissions };
        if let Some(node) = device(inside, &metadata) {
            granted.push((node, permissions.to_owned()));
            continue;
        }
        if !metadata.is_dir() {
            return Err(SpecError::read(host, std::io::Error::other("is no device")));
        }
        for mut node in devices(host)? {
            let below = node.path().strip_prefix(host).map(|below| inside.join(below));
            node.set_path(below.unwrap_or_else(|_| inside.clone()));
            granted.push((node, permissions.to_owned()));
        }
    }
    Ok(granted)
}

/// The edits of the container's CDI devices. Files are read only if it has such devices.
fn cdi_edits(input: &SpecInput<'_>) -> Result<Vec<cdi::ContainerEdits>, SpecError> {
    let mut names = Vec::new();
    let of_class = input.class_devices.iter().map(String::as_str);
    let of_table = devices_of(input.container).filter_map(|(name, _)| input.node.devices.get(name));
    let of_table = of_table.flat_map(|device| device.cdi.iter().map(String::as_str));
    let given = input.given.iter().flat_map(|device| device.cdi_names());
    for name in of_class.chain(of_table).chain(given) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(Vec::new());
    }
    cdi::resolve(&cdi::read(&input.node.cdi_dirs), &names)
}

fn device(path: &Path, metadata: &fs::Metadata) -> Option<LinuxDevice> {
    let kind = match metadata.file_type() {
        kind if kind.is_char_device() => LinuxDeviceType::C,
        kind if kind.is_block_device() => LinuxDeviceType::B,
        _ => return None,
    };
    let mut device = LinuxDevice::default();
    device
        .set_path(path.to_owned())
        .set_typ(kind)
        .set_major(i64::from(rustix::fs::major(metadata.rdev())))
        .set_minor(i64::from(rustix::fs::minor(metadata.rdev())))
        .set_file_mode(Some(metadata.mode() & 0o7777))
        .set_uid(Some(metadata.uid()))
        .set_gid(Some(metadata.gid()));
    Some(device)
}

/// Reads a `Localhost` profile: OCI's seccomp document in JSON, only from below `directory`.
fn read_profile(directory: &Path, name: &str) -> Result<LinuxSeccomp, SpecError> {
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if name.is_empty() || !inside {
        return Err(SpecError::ProfileName(name.to_owned()));
    }
    let path = directory.join(name);
    let mut text = Vec::new();
    fs::File::open(&path)
        .and_then(|file| file.take(MAX_PROFILE).read_to_end(&mut text))
        .map_err(|source| SpecError::read(&path, source))?;
    serde_json::from_slice(&text).map_err(|source| SpecError::Profile { path, source })
}

/// Whether swap can be limited: with v1 the kernel counts swap only with a boot parameter.
pub(super) fn swap_limit(cgroup_v2: bool) -> bool {
    if !cgroup_v2 {
        return Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
    }
    // The root cgroup has no such file; all of its children have it, or none.
    let children = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    children.into_iter().any(|child| child.path().join("memory.swap.max").exists())
}

fn thermal_paths() -> Vec<String> {
    let processors = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let mut paths: Vec<String> = processors
        .map(|processor| processor.path().join("thermal_throttle"))
        .filter(|path| path.exists())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    paths.sort();
    paths
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    #[test]
    fn capabilities_are_those_of_the_listener_and_devices_are_the_hosts() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("containerd.sock");
        let unseen = runtime_capabilities(&socket).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(runtime_capabilities(&socket).unwrap(), unseen, "it is this process");
        let devices = devices(Path::new("/dev")).unwrap();
        let null = devices.iter().find(|device| device.path() == Path::new("/dev/null")).unwrap();
        assert_eq!((null.typ(), null.major(), null.minor()), (LinuxDeviceType::C, 1, 3));
        assert!(devices.iter().all(|device| !device.path().starts_with("/dev/pts")));
    }

    #[test]
    fn a_volumes_device_is_a_node_at_the_containers_path_with_its_access() {
        let mut fixture = Fixture::new(serde_json::json!({}), serde_json::json!({"Cmd": ["run"]}));
        let device =
            |read_only| BlockDevice { host_path: "/dev/null".into(), container_path: "/dev/data".into(), read_only };
        fixture.block_devices = vec![device(false), device(true)];
        let nodes = granted(&fixture.input()).unwrap();
        let nodes: Vec<_> = nodes.iter().map(|(node, access)| (node.path(), node.minor(), access.as_str())).collect();
        let path = &Path::new("/dev/data").to_owned();
        assert_eq!(nodes, [(path, 3, "mrw"), (path, 3, "r")]);
        fixture.block_devices[0].host_path = "/proc/version".into();
        assert!(matches!(granted(&fixture.input()), Err(SpecError::Read { .. })));
    }

    #[test]
    fn a_profile_is_read_only_from_its_directory() {
        let directory = std::env::temp_dir().join(format!("limpet-seccomp-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("good.json"), r#"{"defaultAction":"SCMP_ACT_LOG","syscalls":[]}"#).unwrap();
        fs::write(directory.join("bad.json"), "[]").unwrap();
        let action = read_profile(&directory, "good.json").map(|profile| profile.default_action());
        assert!(matches!(action, Ok(oci_spec::runtime::LinuxSeccompAction::ScmpActLog)));
        assert!(matches!(read_profile(&directory, "bad.json"), Err(SpecError::Profile { .. })));
        assert!(matches!(read_profile(&directory, "none.json"), Err(SpecError::Read { .. })));
        for name in ["", "../good.json", "/etc/passwd", "a/../../b"] {
            assert!(matches!(read_profile(&directory, name), Err(SpecError::ProfileName(_))), "{name:?}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
