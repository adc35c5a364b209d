//! What is configured: `updates.download` and `updates.apply` of the LimpetConfiguration.

use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::window::{Window, Windows};

/// When the windows of both phases are.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowSettings {
    /// `timeZone`: that of the windows.
    pub zone: TimeZone,
    /// `withoutClock`: so often a window opens while the node's clock is not set.
    pub without_clock: Duration,
}

impl Default for WindowSettings {
    fn default() -> Self {
        Self { zone: TimeZone::UTC, without_clock: Windows::DEFAULT_WITHOUT_CLOCK }
    }
}

/// `updates.download`: what holds the fetching of bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DownloadSettings {
    /// `windows`; empty: at any time.
    pub windows: Vec<Window>,
    /// `meteredCommand`: a program and its arguments; with exit code 0 the link is metered.
    pub metered_command: Option<Vec<String>>,
}

/// `updates.apply`: what holds updates that are to take effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplySettings {
    /// `windows`; empty: at any time.
    pub windows: Vec<Window>,
    /// `lockFile`: while it exists, nothing takes effect.
    pub lock_file: Option<PathBuf>,
    /// `vetoURL`: an application that answers with a status from 200 to 299 while updates may take effect.
    pub veto_url: Option<String>,
}

/// The conditions of both phases.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GateSettings {
    pub windows: WindowSettings,
    pub download: DownloadSettings,
    pub apply: ApplySettings,
}

/// `updates` of the LimpetConfiguration, without the reports, which the agent sends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpdateSettings {
    pub gate: GateSettings,
    /// `bandwidth`: bytes per second of bundles and images together; `None`: as fast as it goes.
    pub bandwidth: Option<u64>,
}

impl GateSettings {
    /// Whether there is nothing that could hold an update.
    pub fn is_open(&self) -> bool {
        self.download == DownloadSettings::default() && self.apply == ApplySettings::default()
    }
}
