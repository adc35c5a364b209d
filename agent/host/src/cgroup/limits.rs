//! A group's limits as files of v1 and v2, and as properties of a slice.

use std::borrow::Cow;

use limpet_model::pod::compute_resources::{CPU_PERIOD, CgroupLimits, CpuQuotas};
use limpet_model::pod::huge_pages::kernel_name;
use limpet_model::pod::memory_qos::MemoryFiles;

/// The controller of huge pages, which many kernels lack.
pub(super) const HUGE_PAGES_CONTROLLER: &str = "hugetlb";

/// The controllers that limits of pods need.
pub(super) const REQUIRED_CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// The limits of one group. Absent limits are not changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GroupLimits {
    cpu_shares: Option<u64>,
    pod: Option<CgroupLimits>,
    cpu_quotas: CpuQuotas,
    /// The memory limit in bytes of a group that is not a pod's.
    memory: Option<u64>,
    /// Protected memory, and the usage from which the group is throttled, with v2.
    memory_qos: MemoryFiles,
    /// The most processes; `Some(None)` removes the limit.
    pids: Option<Option<i64>>,
    /// The limits in bytes by huge page size.
    huge_pages: Vec<(u64, u64)>,
}

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) controller: &'static str,
    /// The file in the group's directory.
    pub(super) file: Cow<'static, str>,
    pub(super) value: String,
    /// Whether a missing file is no error: its value is the default, or the limit is optional.
    pub(super) optional: bool,
}

/// A property of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property {
    /// A number; `u64::MAX` means no limit.
    Number(&'static str, u64),
    Switch(&'static str, bool),
}

impl GroupLimits {
    /// A level's CPU weight.
    pub(super) fn weighing(cpu_shares: u64) -> Self {
        Self { cpu_shares: Some(cpu_shares), ..Self::default() }
    }

    /// Adds a limit of processes; `None` removes it.
    pub(super) fn with_pids(self, pids: Option<i64>) -> Self {
        Self { pids: Some(pids.filter(|pids| *pids > 0)), ..self }
    }

    /// A pod's CPU weight and limits, its number of processes included.
    pub(super) fn of_pod(limits: &CgroupLimits, pids: Option<i64>) -> Self {
        Self { pod: Some(*limits), ..Self::weighing(limits.cpu_shares).with_pids(pids) }
    }

    /// The limits of a group for the node's own processes.
    pub(super) fn of_reserved(cpu_shares: Option<u64>, memory: Option<u64>, pids: Option<u64>) -> Self {
        let pids = pids.map(|pids| Some(i64::try_from(pids).unwrap_or(i64::MAX)));
        Self { cpu_shares, memory, pids, ..Self::default() }
    }

    /// Adapts the CPU limit to the node's settings.
    pub(super) fn with_cpu_quotas(self, cpu_quotas: CpuQuotas) -> Self {
        Self { cpu_quotas, ..self }
    }

    /// Adds protected and throttled memory.
    pub(super) fn with_memory_qos(self, memory_qos: MemoryFiles) -> Self {
        Self { memory_qos, ..self }
    }

    /// Adds limits of huge pages, in bytes by page size.
    pub(super) fn with_huge_pages(self, huge_pages: Vec<(u64, u64)>) -> Self {
        Self { huge_pages, ..self }
    }

    /// The limits as files of a group.
    pub(super) fn settings(&self, v2: bool) -> Vec<Setting> {
        let setting = |controller, file: &'static str, value: String, optional| Setting {
            controller,
            file: file.into(),
            value,
            optional,
        };
        let none = || if v2 { "max".to_owned() } else { "-1".to_owned() };
        let number = |value: Option<i64>| value.map_or_else(none, |value| value.to_string());
        let mut settings = Vec::new();
        if let Some(shares) = self.cpu_shares {
            settings.push(match v2 {
                true => setting("cpu", "cpu.weight", cpu_weight(shares).to_string(), false),
                false => setting("cpu", "cpu.shares", shares.to_string(), false),
            });
        }
        if let Some(pod) = &self.pod {
            let quota = self.cpu_quotas.scaled(pod.cpu_quota);
            let (period, unlimited) = (quota.map_or(CPU_PERIOD, |(_, period)| period), quota.is_none());
            let (quota, memory) = (number(quota.map(|(quota, _)| quota)), number(pod.memory));
            if v2 {
                settings.push(setting("cpu", "cpu.max", format!("{quota} {period}"), unlimited));
                settings.push(setting("memory", "memory.max", memory, pod.memory.is_none()));
            } else {
                settings.push(setting("cpu", "cpu.cfs_period_us", period.to_string(), unlimited));
                settings.push(setting("cpu", "cpu.cfs_quota_us", quota, unlimited));
                settings.push(setting("memory", "memory.limit_in_bytes", memory, pod.memory.is_none()));
            }
        }
        if let Some(bytes) = self.memory {
            let file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
            settings.push(setting("memory", file, bytes.to_string(), false));
        }
        for (file, bytes) in self.memory_qos.named().filter(|_| v2) {
            settings.push(setting("memory", file, bytes.to_string(), false));
        }
        if let Some(pids) = self.pids {
            let most = pids.map_or_else(|| "max".to_owned(), |pids| pids.to_string());
            settings.push(setting("pids", "pids.max", most, pids.is_none()));
        }
        settings.extend(self.huge_page_settings(v2));
        settings
    }

    /// The limits of huge pages as files: for pages in use and, from Linux 5.7 on, for reserved pages. systemd has no
    /// properties for them.
    pub(super) fn huge_page_settings(&self, v2: bool) -> Vec<Setting> {
        let end = if v2 { "max" } else { "limit_in_bytes" };
        let files = self.huge_pages.iter().flat_map(|(size, limit)| {
            let name = kernel_name(*size);
            [format!("hugetlb.{name}.{end}"), format!("hugetlb.{name}.rsvd.{end}")].map(|file| (file, limit))
        });
        let setting = |(file, limit): (String, &u64)| Setting {
            controller: HUGE_PAGES_CONTROLLER,
            file: file.into(),
            value: limit.to_string(),
            optional: true,
        };
        files.map(setting).collect()
    }

    /// The limits as properties of a slice (systemd.resource-control(5)).
    pub(super) fn unit_properties(&self, v2: bool) -> Vec<Property> {
        let number = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(u64::MAX);
        let most_memory = if v2 { "MemoryMax" } else { "MemoryLimit" };
        let mut properties = Vec::new();
        if let Some(shares) = self.cpu_shares {
            properties.push(match v2 {
                true => Property::Number("CPUWeight", cpu_weight(shares)),
                false => Property::Number("CPUShares", shares),
            });
        }
        if let Some(pod) = &self.pod {
            let quota = self.cpu_quotas.scaled(pod.cpu_quota);
            let per_second = quota.map_or(u64::MAX, |(quota, period)| quota_per_second(quota, period));
            properties.push(Property::Number("CPUQuotaPerSecUSec", per_second));
            // systemd before 242 has no such property; its default is the usual period.
            let unusual = quota.map(|(_, period)| period).filter(|period| *period != CPU_PERIOD);
            properties.extend(unusual.map(|period| Property::Number("CPUQuotaPeriodUSec", period)));
            properties.push(Property::Number(most_memory, number(pod.memory)));
        }
        properties.extend(self.memory.map(|bytes| Property::Number(most_memory, bytes)));
        for (file, bytes) in self.memory_qos.named().filter(|_| v2) {
            let name = match file {
                "memory.min" => "MemoryMin",
                "memory.low" => "MemoryLow",
                _ => "MemoryHigh",
            };
            properties.push(Property::Number(name, bytes));
        }
        properties.extend(self.pids.map(|pids| Property::Number("TasksMax", number(pids))));
        properties
    }
}

/// Converts v1's shares to v2's weight: 2 to 262,144 become 1 to 10,000, as in the OCI runtime.
fn cpu_weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9_999 / 262_142
}

/// A quota per period as microseconds per second, in whole percents, because systemd stores no finer values.
fn quota_per_second(quota: i64, period: u64) -> u64 {
    let per_second = u64::try_from(quota).unwrap_or(0).saturating_mul(1_000_000) / period.max(1);
    per_second.div_ceil(10_000).saturating_mul(10_000)
}

/// The count of `oom_kill` in `memory.events` or `memory.oom_control`.
pub(super) fn oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited() -> GroupLimits {
        let pod = CgroupLimits { cpu_shares: 102, cpu_quota: Some(25_000), memory: Some(1_048_576) };
        GroupLimits::of_pod(&pod, Some(100))
    }

    fn unlimited() -> GroupLimits {
        GroupLimits::of_pod(&CgroupLimits { cpu_shares: 2, cpu_quota: None, memory: None }, None)
    }

    fn written(limits: GroupLimits, v2: bool) -> Vec<(Cow<'static, str>, String)> {
        limits.settings(v2).into_iter().map(|setting| (setting.file, setting.value)).collect()
    }

    #[test]
    fn limits_are_written_for_both_versions() {
        let settings = |pairs: &[(&'static str, &str)]| -> Vec<(Cow<'static, str>, String)> {
            pairs.iter().map(|(file, value)| (Cow::Borrowed(*file), (*value).to_owned())).collect()
        };
        let cases = [
            (
                limited(),
                false,
                settings(&[
                    ("cpu.shares", "102"),
                    ("cpu.cfs_period_us", "100000"),
                    ("cpu.cfs_quota_us", "25000"),
                    ("memory.limit_in_bytes", "1048576"),
                    ("pids.max", "100"),
                ]),
            ),
            (
                limited(),
                true,
                settings(&[
                    ("cpu.weight", "4"),
                    ("cpu.max", "25000 100000"),
                    ("memory.max", "1048576"),
                    ("pids.max", "100"),
                ]),
            ),
            (
                unlimited(),
                false,
                settings(&[
                    ("cpu.shares", "2"),
                    ("cpu.cfs_period_us", "100000"),
                    ("cpu.cfs_quota_us", "-1"),
                    ("memory.limit_in_bytes", "-1"),
                    ("pids.max", "max"),
                ]),
            ),
            (
                unlimited(),
                true,
                settings(&[("cpu.weight", "1"), ("cpu.max", "max 100000"), ("memory.max", "max"), ("pids.max", "max")]),
            ),
            (
                limited().with_cpu_quotas(CpuQuotas::InPeriods(10_000)),
                true,
                settings(&[
                    ("cpu.weight", "4"),
                    ("cpu.max", "2500 10000"),
                    ("memory.max", "1048576"),
                    ("pids.max", "100"),
                ]),
            ),
            (
                limited().with_cpu_quotas(CpuQuotas::Off),
                false,
                settings(&[
                    ("cpu.shares", "102"),
                    ("cpu.cfs_period_us", "100000"),
                    ("cpu.cfs_quota_us", "-1"),
                    ("memory.limit_in_bytes", "1048576"),
                    ("pids.max", "100"),
                ]),
            ),
            (GroupLimits::weighing(1_024), false, settings(&[("cpu.shares", "1024")])),
            (GroupLimits::default(), true, Vec::new()),
        ];
        for (limits, v2, wanted) in cases {
            assert_eq!(written(limits, v2), wanted);
        }
        assert!(unlimited().settings(true)[1..].iter().all(|setting| setting.optional));
        assert!(limited().settings(true).iter().all(|setting| !setting.optional));
    }

    #[test]
    fn huge_pages_are_limited_in_use_and_reserved() {
        let limits = limited().with_huge_pages(vec![(2 << 20, 4 << 20), (1 << 30, 0)]);
        let names = |v2: bool| -> Vec<String> {
            let settings = limits.settings(v2).into_iter().filter(|setting| setting.controller == "hugetlb");
            settings.map(|setting| format!("{}={}", setting.file, setting.value)).collect()
        };
        assert_eq!(
            names(true),
            ["hugetlb.2MB.max=4194304", "hugetlb.2MB.rsvd.max=4194304", "hugetlb.1GB.max=0", "hugetlb.1GB.rsvd.max=0"]
        );
        assert_eq!(
            names(false)[..2],
            ["hugetlb.2MB.limit_in_bytes=4194304", "hugetlb.2MB.rsvd.limit_in_bytes=4194304"]
        );
        assert_eq!(limits.unit_properties(true), limited().unit_properties(true));
    }

    #[test]
    fn limits_are_properties_of_slices() {
        use Property::Number;
        assert_eq!(
            limited().unit_properties(true),
            [
                Number("CPUWeight", 4),
                Number("CPUQuotaPerSecUSec", 250_000),
                Number("MemoryMax", 1_048_576),
                Number("TasksMax", 100)
            ]
        );
        let in_other_periods = limited().with_cpu_quotas(CpuQuotas::InPeriods(10_000)).unit_properties(true);
        assert_eq!(
            in_other_periods[1..3],
            [Number("CPUQuotaPerSecUSec", 250_000), Number("CPUQuotaPeriodUSec", 10_000)]
        );
        let off = limited().with_cpu_quotas(CpuQuotas::Off).unit_properties(true);
        assert_eq!(off[1..3], [Number("CPUQuotaPerSecUSec", u64::MAX), Number("MemoryMax", 1_048_576)]);
        assert_eq!(
            unlimited().unit_properties(false),
            [
                Number("CPUShares", 2),
                Number("CPUQuotaPerSecUSec", u64::MAX),
                Number("MemoryLimit", u64::MAX),
                Number("TasksMax", u64::MAX)
            ]
        );
    }

    #[test]
    fn memory_is_kept_and_slowed_with_v2_alone() {
        let files = MemoryFiles { min: Some(4096), low: Some(0), high: Some(8192) };
        let limits = GroupLimits::weighing(1_024).with_memory_qos(files);
        let names: Vec<_> =
            written(limits.clone(), true).into_iter().map(|(file, value)| format!("{file}={value}")).collect();
        assert_eq!(names, ["cpu.weight=39", "memory.min=4096", "memory.low=0", "memory.high=8192"]);
        assert_eq!(written(limits.clone(), false).len(), 1);
        use Property::Number;
        assert_eq!(
            limits.unit_properties(true)[1..],
            [Number("MemoryMin", 4096), Number("MemoryLow", 0), Number("MemoryHigh", 8192)]
        );
        assert_eq!(limits.unit_properties(false).len(), 1);
    }

    #[test]
    fn shares_and_quotas_convert() {
        for (shares, weight) in [(0, 1), (2, 1), (102, 4), (1_024, 39), (262_144, 10_000), (u64::MAX, 10_000)] {
            assert_eq!(cpu_weight(shares), weight, "{shares}");
        }
        for (quota, per_second) in [(1_000, 10_000), (1_500, 20_000), (100_000, 1_000_000), (150_001, 1_510_000)] {
            assert_eq!(quota_per_second(quota, CPU_PERIOD), per_second, "{quota}");
        }
    }

    #[test]
    fn kills_are_counted_in_both_versions() {
        assert_eq!(oom_kills("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\n"), None);
        assert_eq!(oom_kills("oom_kill many\n"), None);
    }
}
