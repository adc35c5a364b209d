//! Observes the start and the end of a container's process by a FIFO that it holds open: at once, without polling,
//! and in the same way whatever runs the container.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};

use crate::manifest::{shell, with};
use crate::wait;

/// The limit is generous, because it is only reached on failure.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// What happened to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Started,
    Ended,
}

/// What the process does on SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTerm {
    /// It exits at once.
    Ends,
    /// It ignores the signal.
    Ignores,
}

/// Watches one container's processes, one after the other.
#[derive(Debug)]
pub struct Life {
    /// The directory that is mounted into the container, at `/life`.
    pub dir: PathBuf,
    stop: File,
    signs: Receiver<(Sign, Instant)>,
}

impl Life {
    /// Makes the FIFOs in `dir` and listens.
    pub fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
        for name in ["signs", "stop"] {
            let path = dir.join(name);
            mknodat(CWD, &path, FileType::Fifo, 0o666.into(), 0).with_context(|| format!("{}", path.display()))?;
        }
        // It is opened for both, so that neither end ever waits for the other.
        let stop = OpenOptions::new().read(true).write(true).open(dir.join("stop"))?;
        let (say, signs) = channel();
        let fifo = dir.join("signs");
        thread::spawn(move || listen(&fifo, &say));
        Ok(Self { dir: dir.to_owned(), stop, signs })
    }

    /// The script of the process, which holds the FIFO open until its end.
    pub fn script(on_term: OnTerm) -> String {
        let trap = match on_term {
            OnTerm::Ends => "exit 0",
            OnTerm::Ignores => "",
        };
        format!("trap '{trap}' TERM; exec 3> /life/signs; echo >&3; (read -r _ < /life/stop) & wait; exit 1")
    }

    /// A pod's `containers` and `volumes`, with one process that is observed.
    pub fn spec(&self, on_term: OnTerm) -> Value {
        let mount = json!({ "volumeMounts": [{ "name": "life", "mountPath": "/life" }] });
        let volume = json!({ "name": "life", "hostPath": { "path": self.dir } });
        json!({ "containers": [with(shell("main", &Self::script(on_term)), mount)], "volumes": [volume] })
    }

    /// Discards what was seen so far.
    pub fn forget(&self) {
        while self.signs.try_recv().is_ok() {}
    }

    /// Whether nothing was seen since [`forget`](Self::forget).
    pub fn is_quiet(&self) -> bool {
        self.signs.try_recv().is_err()
    }

    /// Makes the process exit by itself, as a failure.
    pub fn fail(&self) -> Result<()> {
        (&self.stop).write_all(b"\n").context("tell a process to end")
    }

    /// When the next process started.
    pub fn started(&self) -> Result<Instant> {
        self.next(Sign::Started)
    }

    /// When the process ended.
    pub fn ended(&self) -> Result<Instant> {
        self.next(Sign::Ended)
    }

    fn next(&self, expected: Sign) -> Result<Instant> {
        let seen = self.signs.recv_timeout(wait::patient(WAIT_TIMEOUT));
        match seen.with_context(|| format!("waited in vain for {expected:?} of {}", self.dir.display()))? {
            (sign, at) if sign == expected => Ok(at),
            (sign, _) => bail!("{}: {expected:?} was to come, not {sign:?}", self.dir.display()),
        }
    }
}

/// Ends when the receiver is dropped.
fn listen(path: &Path, say: &Sender<(Sign, Instant)>) -> Option<()> {
    let mut fifo = File::open(path).ok()?;
    let mut byte = [0];
    loop {
        let sign = if fifo.read(&mut byte).ok()? == 0 { Sign::Ended } else { Sign::Started };
        say.send((sign, Instant::now())).ok()?;
        if sign == Sign::Ended {
            // The old end is closed after the new one is open, so that the next writer never finds a FIFO without a
            // reader.
            fifo = File::open(path).ok()?;
        }
    }
}
