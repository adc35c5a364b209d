//! Stdout: colour only on a terminal, and a closed pipe ends the command quietly.

use std::io::{self, IsTerminal, Write};

use super::error::CliError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// No colour.
    #[default]
    Plain,
    /// As desired.
    Good,
    /// In progress, or needs attention.
    Warn,
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

/// Makes untrusted text (messages, image names, file names) safe to print: escapes control characters, and characters
/// that change the direction of the following text.
pub fn printable(text: &str) -> String {
    escaped(text, |_| false)
}

/// The same for a text that may have several lines.
pub fn printable_lines(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

fn escaped(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let is_unsafe = |c: char| (c.is_control() || is_bidirectional(c)) && !keeps(c);
    text.chars().flat_map(|c| if is_unsafe(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The characters with Unicode's property `Bidi_Control`.
fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_moves_the_cursor_or_turns_the_line_around() {
        let table = [
            ("plain é 漢", "plain é 漢", "plain é 漢"),
            ("a\x1b[2Jb\rc", "a\\u{1b}[2Jb\\rc", "a\\u{1b}[2Jb\\rc"),
            ("a\nb", "a\\nb", "a\nb"),
            (
                "exe.\u{202e}gpj\u{2069}\u{200f}",
                "exe.\\u{202e}gpj\\u{2069}\\u{200f}",
                "exe.\\u{202e}gpj\\u{2069}\\u{200f}",
            ),
            ("\u{9b}2J", "\\u{9b}2J", "\\u{9b}2J"),
        ];
        for (text, expected, lines) in table {
            assert_eq!((printable(text), printable_lines(text)), (expected.to_owned(), lines.to_owned()), "{text:?}");
        }
    }
}
