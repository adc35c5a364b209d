//! The terminal of `limpet ui`: its capabilities, its size, and restoring its state.

use std::io::{self, IsTerminal as _};
use std::sync::{Mutex, Once, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc;

use crate::error::CliError;
use crate::exec::terminal::{RawMode, size};

/// The most columns and lines of a screen.
const MOST: (u16, u16) = (400, 200);
/// The size of a terminal that does not report one.
const DEFAULT_SIZE: (u16, u16) = (80, 24);
/// How long to wait at exit for a terminal that accepts no output.
const LAST_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// The terminal's capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    /// It has more than one colour.
    pub(super) color: bool,
    /// It shows characters beyond ASCII.
    pub(super) utf8: bool,
    /// It has an alternate screen, which preserves the first one.
    pub(super) alternate: bool,
}

impl Abilities {
    /// Derives them from `TERM` and the locale; `env` reads environment variables.
    ///
    /// # Errors
    ///
    /// The terminal's cursor cannot be moved.
    pub(super) fn new(env: impl Fn(&str) -> Option<String>, color: bool) -> Result<Self, CliError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        // agetty's default for a serial line.
        let term = set("TERM").unwrap_or_else(|| "vt220".to_owned());
        if term == "dumb" {
            let remedy = "set TERM to what the terminal is (vt100 does for most), or use: limpet pods -w";
            return Err(CliError::Usage(format!("limpet ui fills a screen, which TERM=dumb cannot; {remedy}")));
        }
        // DEC's terminals and their emulators on serial lines: one colour, one screen, no UTF-8.
        let plain = term.starts_with("vt");
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
        let utf8 = locale.contains("utf-8") || locale.contains("utf8");
        Ok(Self { color: color && !plain, utf8: utf8 && !plain, alternate: !plain })
    }
}

/// Fails without a terminal.
pub(super) fn require() -> Result<(), CliError> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return Ok(());
    }
    Err(CliError::Usage(
        "limpet ui needs a terminal; for files and pipes, use: limpet pods -w, limpet events -w, limpet logs -f"
            .to_owned(),
    ))
}

/// Columns and lines as the terminal reports them, else from the environment, else 80 and 24.
pub(super) fn columns_and_lines(env: impl Fn(&str) -> Option<String>) -> (u16, u16) {
    bounded(size(), |name| env(name)?.parse().ok())
}

fn bounded(reported_size: Option<(u16, u16)>, set: impl Fn(&str) -> Option<u16>) -> (u16, u16) {
    let known = |name: &str, usual: u16| set(name).filter(|number| *number > 0).unwrap_or(usual);
    let (columns, lines) =
        reported_size.unwrap_or_else(|| (known("COLUMNS", DEFAULT_SIZE.0), known("LINES", DEFAULT_SIZE.1)));
    (columns.min(MOST.0), lines.min(MOST.1))
}

/// The terminal's state while the full screen is shown. It is static so that a panic can restore it.
static FILLED: Mutex<Option<(RawMode, Abilities)>> = Mutex::new(None);

/// Shows the full screen until this is dropped.
#[derive(Debug)]
pub(super) struct FullScreen(Abilities);

impl FullScreen {
    /// Begins the full screen.
    ///
    /// # Errors
    ///
    /// The terminal's settings cannot be changed.
    pub(super) fn begin(abilities: Abilities) -> Result<Self, CliError> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        let screen = Self(abilities);
        screen.fill()?;
        Ok(screen)
    }

    /// Begins the full screen again, whatever the terminal's state is.
    pub(super) fn fill(&self) -> Result<(), CliError> {
        give_back();
        let raw = RawMode::with_flow_control().map_err(failed)?;
        *FILLED.lock().unwrap_or_else(PoisonError::into_inner) = Some((raw, self.0));
        // The cursor is hidden.
        write(if self.0.alternate { b"\x1b[?1049h\x1b[?25l" } else { b"\x1b[?25l" }).map_err(failed)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal's state, unless that was already done.
pub(super) fn give_back() {
    let Some((raw, abilities)) = FILLED.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let end: &[u8] =
        if abilities.alternate { b"\x1b[m\x1b[?25h\x1b[?1049l" } else { b"\x1b[m\x1b[r\x1b[H\x1b[J\x1b[?25h" };
    // Does not wait for a terminal that is stopped or gone.
    let out = rustix::stdio::stdout();
    let mut writable = [PollFd::new(&out, PollFlags::OUT)];
    if poll(&mut writable, Some(&LAST_WAIT)).is_ok_and(|ready| ready > 0) {
        let _ = write(end);
    }
    drop(raw);
}

fn failed(source: io::Error) -> CliError {
    CliError::System { what: "set up the terminal".to_owned(), source }
}

fn write(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes screens on a thread of its own, because a slow line blocks it.
#[derive(Debug)]
pub(super) struct Writer {
    screens: mpsc::Sender<Vec<u8>>,
    written: mpsc::Receiver<io::Result<()>>,
    busy: bool,
}

impl Writer {
    /// A writer to stdout.
    ///
    /// # Errors
    ///
    /// No thread can be created.
    pub(super) fn start() -> Result<Self, CliError> {
        let (screens, mut next) = mpsc::channel::<Vec<u8>>(1);
        let (done, written) = mpsc::channel(1);
        let run = move || {
            while let Some(bytes) = next.blocking_recv() {
                // The next screen is drawn after this one was sent, so the screen is always current.
                let sent = write(&bytes).and_then(|()| Ok(rustix::termios::tcdrain(rustix::stdio::stdout())?));
                if done.blocking_send(sent).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("screen".to_owned()).spawn(run).map_err(failed)?;
        Ok(Self { screens, written, busy: false })
    }

    /// Whether the last screen is still being written.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Sends a screen to the thread. Must not be called while it is busy.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        self.busy = !bytes.is_empty() && self.screens.try_send(bytes).is_ok();
    }

    /// Waits until the last screen is written, or forever if there is none. An error means that the terminal is gone.
    pub(super) async fn done(&mut self) -> io::Result<()> {
        if !self.busy {
            return std::future::pending().await;
        }
        let sent = self.written.recv().await;
        self.busy = false;
        sent.unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn abilities_follow_the_terminal_and_the_locale() {
        let abilities = |term: &str, locale: &str| {
            let env = |name: &str| match name {
                "TERM" => Some(term.to_owned()),
                "LANG" => Some(locale.to_owned()),
                _ => Some(String::new()),
            };
            let Abilities { color, utf8, alternate } = Abilities::new(env, true).unwrap();
            (color, utf8, alternate)
        };
        assert_eq!(abilities("xterm-256color", "en_US.UTF-8"), (true, true, true));
        assert_eq!(abilities("linux", "C"), (true, false, true));
        assert_eq!(abilities("vt220", "en_US.UTF-8"), (false, false, false));
        assert_eq!(abilities("", "C.utf8"), (false, false, false), "a serial line");
        let dumb = Abilities::new(|name| (name == "TERM").then(|| "dumb".to_owned()), true).unwrap_err();
        assert_eq!(dumb.exit_code(), crate::error::EXIT_USAGE);
    }

    #[test]
    fn an_unknown_size_is_that_of_the_environment_or_the_usual_one() {
        assert_eq!(bounded(Some((132, 50)), |_| Some(1)), (132, 50));
        assert_eq!(bounded(None, |name| (name == "LINES").then_some(30)), (80, 30));
        assert_eq!(bounded(None, |_| Some(0)), (80, 24));
        assert_eq!(bounded(Some((9000, 9000)), |_| None), MOST);
    }
}
