//! Huge pages that the node's kernel sets aside, for as long as a test needs them.

use std::fs;

use anyhow::{Context as _, Result, ensure};

/// How many pages of 2 MiB there are.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// The pool; as it was before once it is dropped.
#[derive(Debug)]
pub struct HugePagePool {
    before: String,
}

impl HugePagePool {
    /// So many pages of 2 MiB.
    ///
    /// # Errors
    /// The kernel has no such pages, or not enough memory in one piece.
    pub fn of(pages: u64) -> Result<Self> {
        let read = || fs::read_to_string(POOL).with_context(|| format!("read {POOL}"));
        let pool = Self { before: read()? };
        fs::write(POOL, pages.to_string()).with_context(|| format!("write {POOL}"))?;
        let found = read()?;
        ensure!(found.trim() == pages.to_string(), "the kernel has set aside {} huge pages of {pages}", found.trim());
        Ok(pool)
    }

    /// Whether this kernel has huge pages of 2 MiB at all.
    pub fn is_possible() -> bool {
        fs::exists(POOL).unwrap_or(false)
    }
}

impl Drop for HugePagePool {
    fn drop(&mut self) {
        // Nothing to be done where it fails: pages in use go back once they are free.
        let _ = fs::write(POOL, self.before.trim());
    }
}
