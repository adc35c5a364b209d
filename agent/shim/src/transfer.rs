//! Copies bytes from one descriptor to another without blocking on either.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// The size of the read buffer, which all transfers share.
pub(crate) const BUFFER: usize = 8 << 10;
/// The most reads of a transfer before others run.
const ROUNDS: usize = 16;

/// What a transfer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// More input.
    Input,
    /// Space for output.
    Space,
    /// Nothing: the source has ended, or nobody reads any more.
    Ended,
}

/// One direction of a process's streams.
#[derive(Debug)]
pub(crate) struct Transfer {
    from: OwnedFd,
    to: OwnedFd,
    /// Bytes that were read and could not be written yet.
    pending: Vec<u8>,
    pub(crate) waiting: Waiting,
}

impl Transfer {
    pub(crate) fn new(from: OwnedFd, to: OwnedFd) -> Self {
        Self { from, to, pending: Vec::new(), waiting: Waiting::Input }
    }

    /// The descriptor to wait for.
    pub(crate) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor(self.waiting)
    }

    /// The descriptor to wait for in this state.
    pub(crate) fn descriptor(&self, waiting: Waiting) -> Option<BorrowedFd<'_>> {
        match waiting {
            Waiting::Input => Some(self.from.as_fd()),
            Waiting::Space => Some(self.to.as_fd()),
            Waiting::Ended => None,
        }
    }

    /// Copies what can be copied without blocking.
    pub(crate) fn advance(&mut self, buffer: &mut [u8]) -> Waiting {
        self.waiting = self.copy(buffer);
        self.waiting
    }

    fn copy(&mut self, buffer: &mut [u8]) -> Waiting {
        for _ in 0..ROUNDS {
            if !self.pending.is_empty() {
                let pending = std::mem::take(&mut self.pending);
                if let Some(waiting) = self.write(&pending) {
                    return waiting;
                }
            }
            match rustix::io::read(&self.from, &mut *buffer) {
                Ok(0) => return Waiting::Ended,
                Ok(count) => {
                    if let Some(waiting) = self.write(&buffer[..count]) {
                        return waiting;
                    }
                }
                Err(Errno::AGAIN) => return Waiting::Input,
                Err(Errno::INTR) => {}
                // The other end of the terminal is closed.
                Err(_) => return Waiting::Ended,
            }
        }
        Waiting::Input
    }

    /// Writes `bytes`, and buffers what cannot be written yet.
    fn write(&mut self, mut bytes: &[u8]) -> Option<Waiting> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.to, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.pending = bytes.to_vec();
                    return Some(Waiting::Space);
                }
                Err(_) => return Some(Waiting::Ended),
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn nothing_is_lost_when_the_reader_is_slow() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let ((from, source), (sink, to)) = (pipe(), pipe());
        let mut transfer = Transfer::new(from, to);
        let mut buffer = vec![0; 1_000];
        let text: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        let (mut sent, mut received) = (0, Vec::new());
        let mut waited = false;
        while received.len() < text.len() {
            if let Ok(count) = rustix::io::write(&source, &text[sent..]) {
                sent += count;
            }
            waited |= transfer.advance(&mut buffer) == Waiting::Space;
            if waited {
                let mut chunk = [0; 3_000];
                if let Ok(count) = rustix::io::read(&sink, &mut chunk) {
                    received.extend_from_slice(&chunk[..count]);
                }
            }
        }
        assert_eq!(received, text);
        drop(source);
        assert_eq!(transfer.advance(&mut buffer), Waiting::Ended);
    }

    #[test]
    fn it_ends_when_nobody_reads() {
        let ((from, source), (sink, to)) =
            (pipe_with(PipeFlags::CLOEXEC).unwrap(), pipe_with(PipeFlags::CLOEXEC).unwrap());
        drop(sink);
        rustix::io::write(&source, b"text").unwrap();
        assert_eq!(Transfer::new(from, to).advance(&mut [0; 10]), Waiting::Ended);
    }
}
