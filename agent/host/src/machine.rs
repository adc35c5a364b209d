//! The machine's processors and memory, and the ids that distinguish it from others. Read on request.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::proc_files::MemoryInfo;

const PROCESSORS: &str = "/sys/devices/system/cpu";
/// Larger numbers do not occur in the kernel's lists of processors.
const MOST_PROCESSORS: u32 = 1 << 16;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub ids: MachineIds,
    pub processors: Processors,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of swap space.
    pub swap: u64,
}

impl Machine {
    /// The machine's current state; `None` if the kernel does not report it.
    pub fn read() -> Option<Self> {
        let memory = MemoryInfo::read()?;
        let processors = Processors::read(Path::new(PROCESSORS))?;
        Some(Self { ids: MachineIds::read(), processors, memory: memory.total, swap: memory.swap_total })
    }
}

/// Ids that distinguish the machine; what cannot be read is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineIds {
    /// The id of the installed system.
    pub machine: String,
    /// The id in the machine's firmware; boards without such tables use the machine id.
    pub system: String,
    pub boot: String,
}

impl MachineIds {
    pub fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let machine = read("/etc/machine-id");
        let firmware = read("/sys/class/dmi/id/product_uuid");
        let system = if firmware.is_empty() { machine.clone() } else { firmware };
        Self { machine, system, boot: read("/proc/sys/kernel/random/boot_id") }
    }
}

/// The online processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processors {
    /// The number of logical processors.
    pub logical: usize,
    /// The number of cores; `None` if the kernel does not report them.
    pub physical: Option<usize>,
    /// The number of sockets; `None` if the kernel does not report them.
    pub sockets: Option<usize>,
}

/// How many processors are online; at least one.
pub fn processors() -> usize {
    let counted = Processors::read(Path::new(PROCESSORS)).map(|processors| processors.logical);
    counted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

impl Processors {
    /// Reads a directory such as `/sys/devices/system/cpu`.
    fn read(directory: &Path) -> Option<Self> {
        let online = parse_list(&fs::read_to_string(directory.join("online")).ok()?)?;
        let number = |processor: u32, file: &str| -> Option<i64> {
            let path = directory.join(format!("cpu{processor}/topology/{file}"));
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let place = |processor: &u32| {
            // An unknown socket is -1, and all unknown ones count as one.
            Some((number(*processor, "physical_package_id")?, number(*processor, "core_id")?))
        };
        let places: Option<BTreeSet<(i64, i64)>> = online.iter().map(place).collect();
        let sockets: Option<BTreeSet<i64>> =
            places.as_ref().map(|places| places.iter().map(|(socket, _)| *socket).collect());
        Some(Self {
            logical: online.len(),
            physical: places.map(|places| places.len()),
            sockets: sockets.map(|sockets| sockets.len()),
        })
    }
}

/// Parses a list of the kernel: `0-3,7`. `None` if it is invalid or empty.
fn parse_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST_PROCESSORS {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all).filter(|all| !all.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_kernels() {
        assert_eq!(parse_list("0-2,5\n"), Some(BTreeSet::from([0, 1, 2, 5])));
        for text in ["", "a", "0-", "0-4000000000", "3-1"] {
            assert_eq!(parse_list(text), None, "{text:?}");
        }
    }

    #[test]
    fn two_threads_of_a_core_are_one_core_and_an_offline_one_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("online", "0-3\n");
        let read = || Processors::read(directory.path()).unwrap();
        assert_eq!(read(), Processors { logical: 4, physical: None, sockets: None });
        for (processor, core, socket) in [(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 1, 1), (4, 9, 9)] {
            write(&format!("cpu{processor}/topology/core_id"), &format!("{core}\n"));
            write(&format!("cpu{processor}/topology/physical_package_id"), &format!("{socket}\n"));
        }
        assert_eq!(read(), Processors { logical: 4, physical: Some(3), sockets: Some(2) });
    }

    #[test]
    fn this_machine_has_processors_and_memory() {
        let machine = Machine::read().unwrap();
        assert!(machine.processors.logical > 0 && machine.memory > 0 && !machine.ids.boot.is_empty(), "{machine:?}");
    }
}
