//! A port of a pod that `kubectl port-forward` or `limpet port-forward` forwards to this machine, and the data that
//! comes through it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::manifest::{pod, shell};
use crate::node::TestNode;
use crate::process::{self, Daemon};
use crate::wait;

/// The port of [`server`] in the pod.
pub const PORT: u16 = 8080;
/// How many connections are open at the same time.
const CONNECTIONS: usize = 12;

/// A pod that serves 4 MiB of noise, only on its own loopback.
pub fn server(name: &str) -> Value {
    let script = "mkdir /www; head -c 4194304 /dev/urandom > /www/noise; httpd -p 127.0.0.1:8080 -h /www; echo serves; \
                  trap 'exit 0' TERM; sleep 100000 & wait";
    pod(name, json!({ "hostNetwork": false, "containers": [shell("main", script)] }))
}

/// A forwarded port, as long as the command runs.
#[derive(Debug)]
pub struct Forwarded {
    command: Daemon,
    port: u16,
}

impl Forwarded {
    /// Runs `command`, which forwards any free port of 127.0.0.1, and waits until it says which.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        Self::start_to(command, log, PORT)
    }

    /// The same with another port of the pod.
    pub fn start_to(command: &mut Command, log: &Path, of_pod: u16) -> Result<Self> {
        let command = Daemon::start(command, log)?;
        let port = wait::until(wait::SOON, "a forwarded port", || {
            let said = command.log();
            let (_, rest) = said.split_once("Forwarding from 127.0.0.1:")?;
            rest.split_once(&format!(" -> {of_pod}\n"))?.0.parse().ok()
        });
        let port = port.with_context(|| command.log())?;
        Ok(Self { command, port })
    }

    /// The port of this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the command has written so far.
    pub fn log(&self) -> String {
        self.command.log()
    }

    /// Gets the noise of [`server`] by many connections at the same time, and compares it.
    pub fn check(&self, node: &TestNode, pod: &str) -> Result<()> {
        let sum = |text: String| text.split_whitespace().next().unwrap_or_default().to_owned();
        let expected = sum(node.exec(pod, "main", &["sha256sum", "/www/noise"])?);
        let get = format!("curl -sS --fail --max-time 120 http://127.0.0.1:{}/noise | sha256sum", self.port);
        let got: Vec<_> = std::thread::scope(|scope| {
            let gets: Vec<_> = (0..CONNECTIONS)
                .map(|_| scope.spawn(|| process::checked(Command::new("sh").args(["-c", &get])).map(sum)))
                .collect();
            gets.into_iter().map(|get| get.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for got in got {
            let got = got?;
            ensure!(got == expected, "{got} instead of {expected}: {}", self.log());
        }
        let handled = format!("Handling connection for {}\n", self.port);
        ensure!(self.log().matches(&handled).count() >= CONNECTIONS, "{}", self.log());
        Ok(())
    }
}
