//! Parses cgroup files of both versions.

use super::{CpuQuota, CpuUsage, MemoryUsage};
use crate::proc_files::USER_HZ;

/// The value of a line `key value`.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Whether a limit is set: v1 shows a number near 2^63, rounded to pages, for none.
pub(super) fn is_limit(value: u64) -> bool {
    value <= 1 << 62
}

/// `cpu.stat` of v2, in microseconds.
pub(super) fn cpu_v2(stat: &str) -> Option<CpuUsage> {
    let nanoseconds = |key: &str| keyed(stat, key).map(|microseconds| microseconds.saturating_mul(1_000));
    let total = nanoseconds("usage_usec")?;
    let part = |key: &str| nanoseconds(key).unwrap_or_default();
    Some(CpuUsage { total, user: part("user_usec"), system: part("system_usec"), quota: None })
}

/// `cpuacct.usage`, in nanoseconds, and `cpuacct.stat`, in clock ticks.
pub(super) fn cpu_v1(usage: &str, stat: &str) -> Option<CpuUsage> {
    let ticks = |key: &str| keyed(stat, key).unwrap_or_default().saturating_mul(1_000_000_000 / USER_HZ);
    Some(CpuUsage { total: usage.trim().parse().ok()?, user: ticks("user"), system: ticks("system"), quota: None })
}

/// `cpu.max` and `cpu.stat`; `None` if the group has no quota.
pub(super) fn quota_v2(max: &str, stat: &str) -> Option<CpuQuota> {
    let (quota, period) = max.trim().split_once(' ')?;
    let throttled = keyed(stat, "throttled_usec").unwrap_or_default().saturating_mul(1_000);
    throttling(quota.parse().ok()?, period.parse().ok()?, throttled, stat)
}

/// `cpu.cfs_quota_us`, which is -1 for none, `cpu.cfs_period_us` and `cpu.stat`.
pub(super) fn quota_v1(quota: &str, period: &str, stat: &str) -> Option<CpuQuota> {
    let throttled = keyed(stat, "throttled_time").unwrap_or_default();
    throttling(quota.trim().parse().ok()?, period.trim().parse().ok()?, throttled, stat)
}

fn throttling(quota: u64, period: u64, throttled: u64, stat: &str) -> Option<CpuQuota> {
    let count = |key: &str| keyed(stat, key).unwrap_or_default();
    let (periods, throttled_periods) = (count("nr_periods"), count("nr_throttled"));
    Some(CpuQuota { quota, period, periods, throttled_periods, throttled })
}

/// `memory.current`, if the group has it, and `memory.stat`.
pub(super) fn memory_v2(current: Option<u64>, stat: &str) -> Option<MemoryUsage> {
    let usage = match current {
        Some(usage) => usage,
        None => keyed(stat, "anon")? + keyed(stat, "file")?,
    };
    Some(memory(usage, stat, ["anon", "file", "file_mapped"], ""))
}

/// `memory.usage_in_bytes` and `memory.stat`, of which the sums over the groups below count.
pub(super) fn memory_v1(usage: u64, stat: &str) -> Option<MemoryUsage> {
    keyed(stat, "total_rss")?;
    Some(memory(usage, stat, ["total_rss", "total_cache", "total_mapped_file"], "total_"))
}

fn memory(usage: u64, stat: &str, [rss, cache, mapped_file]: [&str; 3], prefix: &str) -> MemoryUsage {
    let value = |key: &str| keyed(stat, key).unwrap_or_default();
    let common = |key: &str| value(&format!("{prefix}{key}"));
    let inactive_file = common("inactive_file");
    MemoryUsage {
        usage,
        working_set: usage.saturating_sub(inactive_file),
        rss: value(rss),
        cache: value(cache),
        mapped_file: value(mapped_file),
        active_file: common("active_file"),
        inactive_file,
        page_faults: common("pgfault"),
        major_page_faults: common("pgmajfault"),
        limit: None,
        peak: None,
        limit_hits: None,
    }
}
