//! How a process ended, and the file that preserves this even if the shim is killed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;
use rustix::process::WaitStatus;
use serde::{Deserialize, Serialize};

/// The file's default name in a bundle.
pub(crate) const FILE: &str = "exit.json";
/// The longest such file in bytes.
const MAX_FILE: u64 = 4 << 10;

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    /// Its exit code, or 128 plus the number of the signal that killed it.
    pub(crate) code: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<u32>,
    /// The time in seconds since 1970.
    pub(crate) seconds: i64,
    /// The nanoseconds of the time.
    pub(crate) nanoseconds: u32,
    /// How many processes of its container the OOM killer has killed.
    #[serde(rename = "oomKills")]
    pub(crate) oom_kills: u64,
    /// Its process id on the host.
    pub(crate) pid: u32,
}

impl Exit {
    /// An exit that happens now.
    pub(crate) fn now(pid: u32, status: WaitStatus) -> Self {
        let signal = status.terminating_signal().map(i32::unsigned_abs);
        let code = signal.map_or_else(|| status.exit_status().map_or(255, i32::unsigned_abs), |signal| 128 + signal);
        Self::at_now(pid, code, signal)
    }

    /// The exit of a process whose status is unknown, as containerd reports it.
    pub(crate) fn unknown(pid: u32) -> Self {
        Self::at_now(pid, 137, None)
    }

    fn at_now(pid: u32, code: u32, signal: Option<u32>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        Self { code, signal, seconds, nanoseconds: now.subsec_nanos(), oom_kills: 0, pid }
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        Timestamp { seconds: self.seconds, nanos: i32::try_from(self.nanoseconds).unwrap_or(0) }
    }

    /// Writes the exit to `path` atomically.
    pub(crate) fn record(&self, path: &Path) -> io::Result<()> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut file = File::create(&partial)?;
        file.write_all(&self.to_vec()?)?;
        file.sync_data()?;
        fs::rename(&partial, path)?;
        match path.parent() {
            Some(directory) => File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Reads a recorded exit.
    pub(crate) fn recorded(path: &Path) -> io::Result<Self> {
        use std::io::Read as _;
        let mut text = Vec::new();
        File::open(path)?.take(MAX_FILE).read_to_end(&mut text)?;
        Ok(Self::from_slice(&text)?)
    }

    pub(crate) fn from_slice(record: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(record)
    }

    pub(crate) fn to_vec(self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("exits").join(FILE);
        assert!(Exit::recorded(&path).is_err());
        let exit =
            Exit { code: 137, signal: Some(9), seconds: 1_767_323_045, nanoseconds: 678_901_234, oom_kills: 1, pid: 7 };
        exit.record(&path).unwrap();
        exit.record(&path).unwrap();
        assert_eq!(Exit::recorded(&path).unwrap(), exit);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            r#"{"code":137,"signal":9,"seconds":1767323045,"nanoseconds":678901234,"oomKills":1,"pid":7}"#
        );
        assert_eq!(fs::read_dir(directory.path().join("exits")).unwrap().count(), 1);
    }
}
