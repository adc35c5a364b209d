//! A supervisor like an init system: it starts the installed executable whenever the process has ended.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::{TestNode, process, wait};
use rustix::process::Signal;

/// The delay before each restart, as with `RestartSec`.
const RESTART_DELAY: Duration = Duration::from_millis(200);

/// The supervised agent of a node, in its own slot. Dropping it ends both.
pub(crate) struct Supervisor {
    slot: PathBuf,
    installed: PathBuf,
    pid: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    /// Held while the agent may not be started.
    paused: Arc<Mutex<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How the agent is started.
struct Start {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, Option<OsString>)>,
    log: PathBuf,
}

impl Start {
    fn from_command(command: &Command, log: PathBuf) -> Self {
        Self {
            program: command.get_program().into(),
            arguments: command.get_args().map(ToOwned::to_owned).collect(),
            variables: command
                .get_envs()
                .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
                .collect(),
            log,
        }
    }

    fn command(&self) -> Result<Command> {
        let log: File = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(command)
    }
}

impl Supervisor {
    /// Installs the node's executable as `<dir>/limpet`, has it supervised, and waits until it answers.
    pub(crate) fn start(node: &mut TestNode, program: &Path) -> Result<Self> {
        let directory = node.dir().join("bin");
        Self::start_in(node, program, &directory, None)
    }

    /// The same, with new versions in `slot`.
    pub(crate) fn start_in(node: &mut TestNode, program: &Path, directory: &Path, slot: Option<&Path>) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let installed = directory.join("limpet");
        if !installed.exists() {
            fs::copy(program, &installed).with_context(|| program.display().to_string())?;
        }
        node.agent.run_program(installed.clone());
        if let Some(slot) = slot {
            fs::create_dir_all(slot)?;
            let variable = ("LIMPET_SLOT", slot.display().to_string());
            node.agent.reconfigure(|settings| settings.environment = vec![variable])?;
        }
        let start = Start::from_command(&node.agent.command()?, node.dir().join("agent.log"));
        let (pid, stop, paused) = <(Arc<AtomicU32>, Arc<AtomicBool>, Arc<Mutex<()>>)>::default();
        let thread = std::thread::spawn({
            let (pid, stop, paused) = (Arc::clone(&pid), Arc::clone(&stop), Arc::clone(&paused));
            move || supervise(&start, &pid, &stop, &paused)
        });
        let slot = slot.map_or_else(|| directory.to_owned(), ToOwned::to_owned);
        let supervisor = Self { slot, installed, pid, stop, paused, thread: Some(thread) };
        supervisor.wait_answer(node)?;
        Ok(supervisor)
    }

    pub(crate) fn wait_answer(&self, node: &TestNode) -> Result<()> {
        wait::until_true(wait::SOON, "an answer of the agent", || {
            node.agent.cli(&["status", "-o", "json"]).is_ok_and(|reply| matches!(reply.code, Some(0 | 1)))
        })
    }

    /// A file of the slot.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.slot.join(name)
    }

    pub(crate) fn slot(&self) -> &Path {
        &self.slot
    }

    pub(crate) fn installed(&self) -> &Path {
        &self.installed
    }

    /// The size of the running executable, which tells the version.
    pub(crate) fn running_size(&self) -> Result<u64> {
        let exe = format!("/proc/{}/exe", self.pid.load(Ordering::SeqCst));
        Ok(fs::metadata(&exe).with_context(|| exe.clone())?.len())
    }

    /// Ends the agent and its guardian at once, as a power cut does; nothing starts before `meanwhile` has returned.
    pub(crate) fn cut_power(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let guardians = process::mentioning(&format!("upgrade-guardian\0{}", self.pid.load(Ordering::SeqCst)));
        for pid in guardians.into_iter().chain([self.pid.load(Ordering::SeqCst)]) {
            process::signal_pid(pid, Signal::KILL);
            wait::until_true(wait::SOON, "the end of a process", || !process::is_alive(pid))?;
        }
        let done = meanwhile();
        drop(paused);
        done
    }

    /// The journal's step.
    pub(crate) fn step(&self) -> Option<String> {
        let text = fs::read(self.file("limpet-upgrade.json")).ok()?;
        let journal: serde_json::Value = serde_json::from_slice(&text).ok()?;
        journal["step"].as_str().map(str::to_owned)
    }

    /// Waits until the upgrade is over, and returns the journal's step.
    pub(crate) fn wait_over(&self) -> Result<String> {
        wait::until(wait::SOON * 2, "the end of the upgrade", || {
            self.step().filter(|step| matches!(step.as_str(), "installed" | "undone"))
        })
    }

    /// Every file of the slot with its content.
    pub(crate) fn files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let entries = fs::read_dir(&self.slot)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        let mut files =
            entries.into_iter().map(|path| Ok((path.clone(), fs::read(path)?))).collect::<Result<Vec<_>>>()?;
        files.sort();
        ensure!(!files.is_empty(), "the slot is empty");
        Ok(files)
    }
}

fn supervise(start: &Start, pid: &AtomicU32, stop: &AtomicBool, paused: &Mutex<()>) {
    while !stop.load(Ordering::SeqCst) {
        let started = {
            let _paused = paused.lock().unwrap_or_else(PoisonError::into_inner);
            start.command().and_then(|mut command| Ok(command.spawn()?))
        };
        match started {
            Ok(mut child) => {
                pid.store(child.id(), Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    let _ = child.kill();
                }
                let _ = child.wait();
            }
            Err(error) => eprintln!("the agent cannot be started: {error:#}"),
        }
        std::thread::sleep(RESTART_DELAY);
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        process::signal_pid(self.pid.load(Ordering::SeqCst), Signal::KILL);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
