//! The user's terminal during `limpet exec` and `limpet ui`: raw mode, restored afterwards.

use std::io;

use rustix::termios::{InputModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Stdin in raw mode until dropped: every key goes to the command, including Ctrl-C.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Enters raw mode.
    ///
    /// # Errors
    /// When stdin is not a terminal.
    pub(crate) fn begin() -> io::Result<Self> {
        Self::enter(InputModes::empty())
    }

    /// The same, but a serial terminal may still stop and start the output (XOFF, XON) where it was allowed to.
    ///
    /// # Errors
    /// When stdin is not a terminal.
    pub(crate) fn with_flow_control() -> io::Result<Self> {
        Self::enter(InputModes::IXON | InputModes::IXOFF | InputModes::IXANY)
    }

    fn enter(kept: InputModes) -> io::Result<Self> {
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        raw.input_modes |= before.input_modes & kept;
        tcsetattr(stdin, OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Width and height of the user's terminal.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(rustix::stdio::stdout()).or_else(|_| tcgetwinsize(rustix::stdio::stdin())).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}
