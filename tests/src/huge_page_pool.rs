//! Huge pages that the kernel reserves as long as a test needs them. An agent that is started meanwhile may not
//! allocate that memory, so a test that compares the node's memory keeps others from reserving any.

use std::fs::{self, File};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};

/// The number of pages of 2 MiB.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// Locked while the pool's size must not change. Suites are separate processes that run at the same time.
const LOCK: &str = "/run/limpet-tests-huge-pages.lock";

/// The pool, which gets its former size again when it is dropped.
#[derive(Debug)]
pub struct HugePagePool {
    before: String,
    // Released after the pool has its former size again, because fields are dropped after `drop`.
    _lock: File,
}

impl HugePagePool {
    /// Reserves `pages` pages of 2 MiB, once no test relies on the pool's size.
    ///
    /// # Errors
    ///
    /// The kernel has no such pages, or not enough contiguous memory.
    pub fn reserve(pages: u64) -> Result<Self> {
        let lock = locked(FlockOperation::LockExclusive)?;
        let read = || fs::read_to_string(POOL).with_context(|| format!("read {POOL}"));
        let pool = Self { before: read()?, _lock: lock };
        fs::write(POOL, pages.to_string()).with_context(|| format!("write {POOL}"))?;
        let set_aside = read()?;
        ensure!(
            set_aside.trim() == pages.to_string(),
            "the kernel has set aside {} huge pages of {pages}",
            set_aside.trim()
        );
        Ok(pool)
    }

    /// Keeps the pool's size unchanged until the result is dropped.
    ///
    /// # Errors
    ///
    /// The lock's file cannot be opened.
    pub fn keep_size() -> Result<File> {
        locked(FlockOperation::LockShared)
    }

    /// Whether this kernel has huge pages of 2 MiB at all.
    pub fn is_possible() -> bool {
        fs::exists(POOL).unwrap_or(false)
    }
}

impl Drop for HugePagePool {
    fn drop(&mut self) {
        // If this fails, nothing can be done: pages in use are returned once they are free.
        let _ = fs::write(POOL, self.before.trim());
    }
}

fn locked(operation: FlockOperation) -> Result<File> {
    let file = File::create(LOCK).with_context(|| format!("create {LOCK}"))?;
    flock(&file, operation).with_context(|| format!("lock {LOCK}"))?;
    Ok(file)
}
