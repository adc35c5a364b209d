//! What is configured of the workers.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    /// `probeTimerSlackPercent`: how much later than its period a probe may run, in percent of the period, so that
    /// many containers' probes run together.
    pub probe_timer_slack: u32,
    /// `allowedUnsafeSysctls`: names, or prefixes ending in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self { probe_timer_slack: 10, allowed_unsafe_sysctls: Vec::new() }
    }
}
