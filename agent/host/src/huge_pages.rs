//! The huge pages that the kernel has set aside (`/sys/kernel/mm/hugepages`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A directory for each size.
const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The most sizes that are read; an architecture has a handful.
const MAX_SIZES: usize = 64;

/// The number of pages of each supported size, by the size in bytes; empty where the kernel has no huge pages.
/// Reads a few small files of the kernel.
pub fn pools() -> BTreeMap<u64, u64> {
    pools_in(Path::new(POOLS))
}

/// The sizes alone.
pub(crate) fn sizes() -> Vec<u64> {
    pools().into_keys().collect()
}

fn pools_in(directory: &Path) -> BTreeMap<u64, u64> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(MAX_SIZES);
    let pool = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kibibytes: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        Some((kibibytes.checked_mul(1_024)?, pages.trim().parse().ok()?))
    };
    entries.filter_map(pool).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_each_size_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for (name, pages) in [("hugepages-2048kB", "16\n"), ("hugepages-1048576kB", "0\n"), ("other", "1\n")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("nr_hugepages"), pages).unwrap();
        }
        fs::create_dir(dir.path().join("hugepages-64kB")).unwrap();
        assert_eq!(pools_in(dir.path()), BTreeMap::from([(2 << 20, 16), (1 << 30, 0)]));
        assert_eq!(pools_in(&dir.path().join("none")), BTreeMap::new());
    }
}
