//! AppArmor on this host: whether it is enabled, which profiles are loaded, and containerd's default profile.
//!
//! The default profile has containerd's name and rules, so one that containerd has loaded serves as well.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// containerd's name of the default profile.
pub const DEFAULT_PROFILE: &str = "cri-containerd.apparmor.d";

/// Tells whether AppArmor is enabled.
const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
/// The loaded profiles: `name (mode)`, one a line.
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
/// Where distributions keep the files that profiles include.
const INCLUDES: &str = "/etc/apparmor.d";
/// The paths of the program that loads profiles.
const PARSERS: [&str; 3] = ["/sbin/apparmor_parser", "/usr/sbin/apparmor_parser", "/usr/bin/apparmor_parser"];

/// Why a profile is not available.
#[derive(Debug, thiserror::Error)]
pub enum AppArmorError {
    /// The list of profiles cannot be read.
    #[error("read {PROFILES}: {0}")]
    Profiles(io::Error),
    /// No program can load the default profile.
    #[error("the profile {DEFAULT_PROFILE} is not loaded, and there is no apparmor_parser to load it")]
    NoParser,
    /// The program that loads profiles failed.
    #[error("apparmor_parser cannot load {DEFAULT_PROFILE}: {0}")]
    Load(String),
}

/// Whether AppArmor confines processes on this host.
pub fn is_enabled() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|value| value.starts_with('Y'))
}

/// Whether the profile `name` is loaded.
///
/// # Errors
///
/// The kernel does not report it.
pub fn is_loaded(name: &str) -> Result<bool, AppArmorError> {
    Ok(loaded()?.iter().any(|loaded| loaded == name))
}

/// The loaded profiles, as `localhostProfile` names them.
///
/// # Errors
/// The kernel does not report it.
pub fn loaded() -> Result<Vec<String>, AppArmorError> {
    let profiles = std::fs::read_to_string(PROFILES).map_err(AppArmorError::Profiles)?;
    Ok(names(&profiles).map(str::to_owned).collect())
}

/// The names in the kernel's list of profiles. A name may contain spaces; the mode follows the last one.
fn names(profiles: &str) -> impl Iterator<Item = &str> {
    profiles.lines().filter_map(|line| Some(line.rsplit_once(" (")?.0))
}

/// Loads the default profile unless it is loaded. Blocks while apparmor_parser runs.
///
/// # Errors
///
/// The profile cannot be loaded.
pub fn ensure_default() -> Result<(), AppArmorError> {
    if is_loaded(DEFAULT_PROFILE)? {
        return Ok(());
    }
    load(parser().ok_or(AppArmorError::NoParser)?, &default_profile(&Includes::there(Path::new(INCLUDES))))
}

/// The program that loads profiles, if it is installed.
pub fn parser() -> Option<&'static Path> {
    PARSERS.iter().map(Path::new).find(|path| path.exists())
}

fn load(parser: &Path, profile: &str) -> Result<(), AppArmorError> {
    let failed = |source: io::Error| AppArmorError::Load(source.to_string());
    // Replaces a profile that was loaded meanwhile, and keeps no cache on disk.
    let mut command = Command::new(parser);
    command.args(["--replace", "--skip-cache"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A parser that ends early reports the cause.
        let _ = input.write_all(profile.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(AppArmorError::Load(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// The distribution's files that profiles may include.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Includes {
    directory: PathBuf,
    tunables: bool,
    base: bool,
    abi: bool,
}

impl Includes {
    fn there(directory: &Path) -> Self {
        let has = |file: &str| directory.join(file).exists();
        Self {
            directory: directory.to_owned(),
            tunables: has("tunables/global"),
            base: has("abstractions/base"),
            abi: has("abi/3.0"),
        }
    }
}

/// Paths that containers may not write. AppArmor rules have no exceptions, so names are spelled out letter by letter:
/// all of `/sys` except cgroups, all of `/proc` except processes and `sys/kernel/shm*`.
const DENIED_PATHS: [&str; 17] = [
    "@{PROC}/* w",
    "@{PROC}/{[^1-9],[^1-9][^0-9],[^1-9s][^0-9y][^0-9s],[^1-9][^0-9][^0-9][^0-9]*}/** w",
    "@{PROC}/sys/[^k]** w",
    "@{PROC}/sys/kernel/{?,??,[^s][^h][^m]**} w",
    "@{PROC}/sysrq-trigger rwklx",
    "@{PROC}/mem rwklx",
    "@{PROC}/kmem rwklx",
    "@{PROC}/kcore rwklx",
    "mount",
    "/sys/[^f]*/** wklx",
    "/sys/f[^s]*/** wklx",
    "/sys/fs/[^c]*/** wklx",
    "/sys/fs/c[^g]*/** wklx",
    "/sys/fs/cg[^r]*/** wklx",
    "/sys/firmware/** rwklx",
    "/sys/devices/virtual/powercap/** rwklx",
    "/sys/kernel/security/** rwklx",
];

/// The default profile: everything but the host's kernel settings, mounts, and signals to or from other profiles.
fn default_profile(includes: &Includes) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let file = |name: &str| includes.directory.join(name).display().to_string();
    if includes.abi {
        line(format!("abi \"{}\",", file("abi/3.0")));
    }
    line(match includes.tunables {
        true => format!("#include \"{}\"", file("tunables/global")),
        false => "@{PROC}=/proc/".to_owned(),
    });
    line(format!("profile {DEFAULT_PROFILE} flags=(attach_disconnected,mediate_deleted) {{"));
    if includes.base {
        line(format!("  #include \"{}\"", file("abstractions/base")));
    }
    for allowed in ["network", "capability", "file", "umount"] {
        line(format!("  {allowed},"));
    }
    // The peers are the host, and the runtimes that stop containers.
    for peer in ["unconfined", "runc", "crun"] {
        line(format!("  signal (receive) peer={peer},"));
    }
    line(format!("  signal (send,receive) peer={DEFAULT_PROFILE},"));
    DENIED_PATHS.iter().for_each(|rule| line(format!("  deny {rule},")));
    line(format!("  ptrace (trace,tracedby,read,readby) peer={DEFAULT_PROFILE},"));
    line("}".to_owned());
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn loaded_profiles_are_known_by_their_whole_name() {
        let profiles = "cri-containerd.apparmor.d (enforce)\nmy profile (complain)\n/usr/sbin/named//child (enforce)\n";
        let loaded: Vec<&str> = names(profiles).collect();
        assert_eq!(loaded, ["cri-containerd.apparmor.d", "my profile", "/usr/sbin/named//child"]);
    }

    #[test]
    fn the_default_profile_includes_what_is_there() {
        let none = Includes { directory: INCLUDES.into(), tunables: false, base: false, abi: false };
        let plain = default_profile(&none);
        assert!(plain.starts_with("@{PROC}=/proc/\nprofile cri-containerd.apparmor.d flags="), "{plain}");
        assert!(plain.contains("  deny mount,\n") && plain.ends_with("}\n"), "{plain}");
        let all = default_profile(&Includes { tunables: true, base: true, abi: true, ..none });
        for line in ["abi \"/etc/apparmor.d/abi/3.0\",", "#include \"/etc/apparmor.d/tunables/global\""] {
            assert!(all.lines().any(|listed| listed == line), "{all}");
        }
        assert!(all.contains("  #include \"/etc/apparmor.d/abstractions/base\"") && !all.contains("@{PROC}="), "{all}");
    }

    #[test]
    fn a_parser_is_given_the_profile_and_its_complaint_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let parser = |script: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            let path = directory.path().join("parser");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let given = directory.path().join("given");
        load(&parser(&format!("cat > {}", given.display())), "profile x {}").unwrap();
        assert_eq!(std::fs::read_to_string(given).unwrap(), "profile x {}");
        let refused = load(&parser("echo no such rule >&2; exit 1"), "").unwrap_err().to_string();
        assert_eq!(refused, "apparmor_parser cannot load cri-containerd.apparmor.d: no such rule");
    }
}
