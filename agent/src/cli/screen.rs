//! Standard output: colour only where it helps, and a closed pipe ends the command quietly.

use std::io::{self, IsTerminal, Write};

use super::error::CliError;

/// What a word means to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tone {
    /// No colour.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// On its way, or worth a look.
    Warn,
    /// Broken.
    Bad,
    /// Less important.
    Faint,
}

/// Where a subcommand writes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen {
    /// Whether tones are shown.
    pub(super) color: bool,
    /// Whether remarks are left out.
    pub(super) quiet: bool,
}

impl Screen {
    /// Colour on a terminal, unless the user said no (`--no-color`, NO_COLOR, a dumb terminal).
    pub(super) fn new(no_color: bool, quiet: bool) -> Self {
        let refused = no_color
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { color: !refused && io::stdout().is_terminal(), quiet }
    }

    /// Writes `text` and flushes it, so that a watcher sees each change at once.
    pub(super) fn print(&self, text: &str) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }

    /// A remark, on standard error and not with `--quiet`.
    pub(super) fn remark(&self, text: &str) -> Result<(), CliError> {
        if self.quiet {
            return Ok(());
        }
        Ok(writeln!(io::stderr().lock(), "{text}")?)
    }

    /// `text` in that tone.
    pub(super) fn paint(&self, tone: Tone, text: &str) -> String {
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

/// Text that came from outside (messages, image names, files), safe to show: control characters are written out.
pub(super) fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
