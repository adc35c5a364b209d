//! A private D-Bus message bus of the real `dbus-daemon`, which is stopped with the test.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result};

use crate::need;

#[derive(Debug)]
pub struct MessageBus {
    daemon: Child,
    directory: PathBuf,
    address: String,
}

impl MessageBus {
    /// Starts a bus and waits until it listens; `None`, with a message, if there is no `dbus-daemon`.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn start(name: &str) -> Result<Option<Self>> {
        let directory = std::env::temp_dir().join(format!("limpet-bus-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let address = format!("unix:path={}", directory.join("bus").display());
        Ok(daemon(&address)?.map(|daemon| Self { daemon, directory, address }))
    }

    /// Where it listens, as D-Bus writes addresses.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The directory of the bus.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Stops it: every connection is lost.
    ///
    /// # Errors
    /// It cannot be stopped.
    pub fn stop(&mut self) -> Result<()> {
        self.daemon.kill()?;
        self.daemon.wait()?;
        Ok(std::fs::remove_file(self.directory.join("bus"))?)
    }

    /// Starts it again at the same address.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_again(&mut self) -> Result<()> {
        self.daemon = daemon(&self.address)?.context("dbus-daemon is gone")?;
        Ok(())
    }
}

impl Drop for MessageBus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns once it listens.
fn daemon(address: &str) -> Result<Option<Child>> {
    let Some(mut program) = need::program("dbus-daemon") else { return Ok(None) };
    let mut daemon = program
        .args(["--session", "--nofork", "--print-address=1", "--address", address])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = daemon.stdout.take().context("its output")?;
    BufReader::new(output).read_line(&mut String::new())?;
    Ok(Some(daemon))
}
