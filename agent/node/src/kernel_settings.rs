//! What the configuration requires of the kernel before anything starts: no swap in use (`failSwapOn`), and kubelet's
//! settings (`protectKernelDefaults`).

use std::path::Path;
use std::{fmt, fs, io};

use crate::settings::KernelSettings;

const SETTINGS: &str = "/proc/sys";
const SWAPS: &str = "/proc/swaps";

/// The settings that kubelet expects (`setupKernelTunables`), each a path below `/proc/sys` and its value.
const EXPECTED: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// A setting that differs from kubelet's expectation.
#[derive(Debug)]
pub struct Deviation {
    setting: &'static str,
    expected: i64,
    /// Its current value, or why that is unknown.
    actual: io::Result<i64>,
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, expected) = (self.setting.replace('/', "."), self.expected);
        match &self.actual {
            Ok(actual) => write!(f, "{name} is {actual} and not {expected}"),
            Err(error) => write!(f, "{name} cannot be read: {error}"),
        }
    }
}

/// How the kernel violates the configuration.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// `failSwapOn`.
    #[error(
        "failSwapOn is true, and swap is in use: {swap}; turn it off, for example with swapoff -a, or set failSwapOn: false"
    )]
    SwapInUse { swap: String },
    /// `protectKernelDefaults`.
    #[error(
        "protectKernelDefaults is true, and the kernel has other settings: {}; set them with sysctl, or set protectKernelDefaults: false",
        .deviations.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Settings { deviations: Vec<Deviation> },
}

/// Checks what the configuration requires, and sets what limpet may set.
///
/// # Errors
///
/// Swap is in use, or the kernel has other settings.
pub(super) fn demand(settings: &KernelSettings) -> Result<(), KernelError> {
    if let Some(swap) = forbidden_swap(settings) {
        return Err(KernelError::SwapInUse { swap });
    }
    let deviations = match settings.protect_defaults {
        None => return Ok(()),
        Some(_) => deviations(Path::new(SETTINGS)),
    };
    if settings.protect_defaults == Some(true) {
        return if deviations.is_empty() { Ok(()) } else { Err(KernelError::Settings { deviations }) };
    }
    for deviation in deviations {
        match set(Path::new(SETTINGS), &deviation) {
            Ok(()) => tracing::info!(setting = deviation.setting, value = deviation.expected, "kernel setting changed"),
            Err(error) => tracing::warn!(%deviation, %error, "a kernel setting cannot be changed"),
        }
    }
    Ok(())
}

/// The swap that is in use although `failSwapOn` forbids it.
pub fn forbidden_swap(settings: &KernelSettings) -> Option<String> {
    // A kernel without swap has no such file.
    let swaps = fs::read_to_string(SWAPS).ok().filter(|_| settings.fail_swap_on)?;
    swap_in_use(&swaps)
}

/// The settings because of which `protectKernelDefaults` prevents limpet's start.
pub fn forbidden_settings(settings: &KernelSettings) -> Vec<Deviation> {
    if settings.protect_defaults == Some(true) { deviations(Path::new(SETTINGS)) } else { Vec::new() }
}

/// The devices and files in `/proc/swaps`, without its heading.
fn swap_in_use(swaps: &str) -> Option<String> {
    let names: Vec<&str> = swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn deviations(root: &Path) -> Vec<Deviation> {
    let check = |(setting, expected): (&'static str, i64)| {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
        let actual = fs::read_to_string(root.join(setting)).and_then(|text| text.trim().parse().map_err(invalid));
        let deviates = !matches!(&actual, Ok(value) if *value == expected);
        deviates.then_some(Deviation { setting, expected, actual })
    };
    EXPECTED.into_iter().filter_map(check).collect()
}

fn set(root: &Path, deviation: &Deviation) -> io::Result<()> {
    fs::write(root.join(deviation.setting), deviation.expected.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_in_use_where_the_kernel_lists_any() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert_eq!(swap_in_use(heading), None);
        assert_eq!(swap_in_use(""), None);
        let both = format!("{heading}/dev/sda2 partition 1048572 0 -2\n/swap file 4 0 -3\n");
        assert_eq!(swap_in_use(&both).as_deref(), Some("/dev/sda2, /swap"));
    }

    #[test]
    fn settings_that_deviate_are_named_and_can_be_set() {
        let root = tempfile::tempdir().unwrap();
        for (setting, value) in EXPECTED {
            let path = root.path().join(setting);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        assert!(deviations(root.path()).is_empty());
        fs::write(root.path().join("kernel/panic"), "0\n").unwrap();
        fs::write(root.path().join("vm/overcommit_memory"), "x").unwrap();
        let deviating = deviations(root.path());
        let shown: Vec<String> = deviating.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["vm.overcommit_memory cannot be read: invalid data", "kernel.panic is 0 and not 10"]);
        deviating.iter().for_each(|deviation| set(root.path(), deviation).unwrap());
        assert!(deviations(root.path()).is_empty());
    }

    #[test]
    fn nothing_is_demanded_by_default() {
        assert!(
            demand(&KernelSettings::default()).is_ok() && forbidden_settings(&KernelSettings::default()).is_empty()
        );
        let swap = swap_in_use(&fs::read_to_string(SWAPS).unwrap_or_default());
        assert_eq!(forbidden_swap(&KernelSettings { fail_swap_on: true, ..KernelSettings::default() }), swap);
        let strict = KernelSettings { protect_defaults: Some(true), ..KernelSettings::default() };
        let refused = demand(&strict).err().map(|error| error.to_string());
        match deviations(Path::new(SETTINGS)).as_slice() {
            [] => assert_eq!(refused, None),
            [first, ..] => assert!(refused.unwrap().contains(&first.to_string())),
        }
    }
}
