//! Stands for a person at a terminal: runs a command with its input held open, and reads what it shows.

use std::fs::File;
use std::io::Write as _;
use std::num::NonZero;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};
pub use vt100::{Cell, Color, Screen};

use crate::wait;

/// A running command whose input is typed. Dropping it kills it.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    stdin: Option<ChildStdin>,
    shown: PathBuf,
    /// How much of what is shown has been read.
    read: usize,
}

impl Terminal {
    /// Starts `command` with its input and output as pipes; what it shows goes to the file `shown`.
    pub fn piped(mut command: Command, shown: &Path) -> Result<Self> {
        let file = File::create(shown).with_context(|| format!("{}", shown.display()))?;
        command.process_group(0).stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
        let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, shown: shown.to_owned(), read: 0 })
    }

    /// The same with a terminal, which `script` makes.
    pub fn on_terminal(command: &Command, shown: &Path) -> Result<Self> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line: Vec<_> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &line.join(" "), "/dev/null"]);
        script.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Self::piped(script, shown)
    }

    /// Types.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its input has ended")?;
        stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()).context("type")
    }

    /// Waits until it shows `text` after what was waited for before.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        let seen = wait::until(wait::SOON, &format!("{text:?}"), || {
            let shown = std::fs::read(&self.shown).ok()?;
            let new = shown.get(self.read..)?;
            new.windows(text.len()).position(|window| window == text.as_bytes())
        });
        self.read += seen.with_context(|| self.shown())? + text.len();
        Ok(())
    }

    /// All that it has shown.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.shown).unwrap_or_default()).into_owned()
    }

    /// All that it has sent, as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.shown).unwrap_or_default()
    }

    /// The screen that a terminal of that size shows for it.
    pub fn screen(&self, columns: u16, lines: u16) -> Screen {
        let mut terminal = vt100::Parser::new(sized(lines), sized(columns), 0);
        terminal.process(&self.bytes());
        terminal.screen().clone()
    }

    /// Waits until that screen is as `accept` requires, and returns it.
    pub fn wait_screen(
        &self,
        (columns, lines): (u16, u16),
        what: &str,
        accept: impl Fn(&str) -> bool,
    ) -> Result<Screen> {
        let seen = wait::until(wait::SOON, what, || {
            let screen = self.screen(columns, lines);
            accept(&screen.contents()).then_some(screen)
        });
        seen.with_context(|| self.screen(columns, lines).contents())
    }

    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Waits until it ends by itself, successfully.
    pub fn wait_end(&mut self) -> Result<()> {
        let mut status: Option<ExitStatus> = None;
        wait::until_true(wait::SOON, "the end of the command", || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })
        .with_context(|| self.shown())?;
        ensure!(status.is_some_and(|status| status.success()), "{status:?}: {}", self.shown());
        Ok(())
    }
}

/// A size that is at least one.
fn sized(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap_or(NonZero::<u16>::MIN)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended, in which case there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
