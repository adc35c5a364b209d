//! When updates that come by themselves are downloaded and applied: in windows of time, not on a metered link, and not while
//! an application has a veto.
//!
//! In: the settings, the clocks, the node's network. Out: [`UpdateGate`], which whoever has an update passes before each of
//! the two phases, and the list of what it holds, for people. Nothing runs while no update waits, and without settings
//! every update passes at once. What a user does by hand, and what is to run already, does not come here.

mod condition;
mod gate;
mod settings;
mod window;

pub use gate::{Hold, Subject, UpdateGate};
pub use settings::{ApplySettings, DownloadSettings, GateSettings, UpdateSettings, WindowSettings};
pub use window::{Window, WindowState, Windows};

/// What happens to an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Its bytes are fetched. Nothing that runs is touched.
    Download,
    /// It takes effect, and may restart pods.
    Apply,
}

impl Phase {
    /// Its name in the configuration and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Apply => "apply",
        }
    }
}
