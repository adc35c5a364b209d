//! The machine's processors, as the kernel shows them below `/sys/devices/system`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use limpet_core::cpu_allocation::CpuTopology;
use limpet_model::cpu_set::{CpuSet, Processor};

/// The online processors. A processor without known topology counts as a core of its own, in one socket and NUMA
/// node.
pub(super) fn read(system: &Path) -> io::Result<CpuTopology> {
    let list = |path: &Path| -> io::Result<CpuSet> {
        CpuSet::parse(&fs::read_to_string(path)?).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    };
    let online = list(&system.join("cpu/online"))?;
    let nodes = numa_nodes(&system.join("node"));
    let processor = |cpu: u32| {
        let topology = system.join(format!("cpu/cpu{cpu}/topology"));
        let siblings = list(&topology.join("thread_siblings_list")).unwrap_or_default();
        let socket = fs::read_to_string(topology.join("physical_package_id"));
        let socket = socket.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let core = siblings.intersection(&online).iter().next().unwrap_or(cpu);
        let numa_node = nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map_or(0, |(node, _)| *node);
        (cpu, Processor { core, socket, numa_node })
    };
    Ok(CpuTopology::new(online.iter().map(processor).collect()))
}

/// The NUMA nodes; none without NUMA in the kernel.
fn numa_nodes(directory: &Path) -> BTreeMap<u32, CpuSet> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        Some((node, CpuSet::parse(&cpus).ok()?))
    };
    entries.filter_map(node).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_where_the_kernel_says() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(read(directory.path()).is_err());
        write("cpu/online", "0-2,4\n");
        let processor = |core, socket, numa_node| Processor { core, socket, numa_node };
        let plain = [0, 1, 2, 4].map(|cpu| (cpu, processor(cpu, 0, 0)));
        assert_eq!(read(directory.path()).unwrap(), CpuTopology::new(plain.into()));
        for (cpu, siblings, socket) in [(0, "0,2", 0), (1, "1,3", 1), (2, "0,2", 0), (4, "4", 1)] {
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), siblings);
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{socket}\n"));
        }
        write("node/node0/cpulist", "0,2\n");
        write("node/node1/cpulist", "1,3-4\n");
        write("node/possible", "0-1\n");
        let wanted =
            [(0, processor(0, 0, 0)), (1, processor(1, 1, 1)), (2, processor(0, 0, 0)), (4, processor(4, 1, 1))];
        assert_eq!(read(directory.path()).unwrap(), CpuTopology::new(wanted.into()));
    }

    #[test]
    fn this_machine_has_processors() {
        assert!(!read(Path::new("/sys/devices/system")).unwrap().all().is_empty());
    }
}
