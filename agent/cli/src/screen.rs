//! Stdout: colour only on a terminal, and a closed pipe ends the command quietly.

use std::io::{self, IsTerminal, Write};

use super::error::CliError;

/// The meaning of a coloured word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// No colour.
    #[default]
    Plain,
    /// As desired.
    Good,
    /// In progress, or needs attention.
    Warn,
    /// Broken.
    Bad,
    /// Less important.
    Faint,
}

/// The output of a subcommand.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    /// Whether tones are coloured.
    pub color: bool,
    /// Whether remarks are suppressed.
    pub quiet: bool,
}

impl Screen {
    /// Coloured on a terminal, unless disabled (`--no-color`, NO_COLOR, a dumb terminal).
    pub fn new(no_color: bool, quiet: bool) -> Self {
        let disabled = no_color
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { color: !disabled && io::stdout().is_terminal(), quiet }
    }

    /// Writes `text` and flushes it, so that a watcher sees each change at once.
    pub fn print(&self, text: &str) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }

    /// Writes a remark to stderr, unless `--quiet`.
    pub fn remark(&self, text: &str) -> Result<(), CliError> {
        if self.quiet {
            return Ok(());
        }
        Ok(writeln!(io::stderr().lock(), "{text}")?)
    }

    /// `text` in that tone.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if !self.color || text.is_empty() => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Makes untrusted text (messages, image names, files) safe to print: escapes control characters.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
