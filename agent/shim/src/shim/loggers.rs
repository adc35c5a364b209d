//! Calls of the OCI runtime that wait until a client's logger is ready, so that it misses no output.

use std::process::Command;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::Shim;
use super::operations::Operation;
use crate::failure::Failure;
use crate::logger_program::StartingLogger;
use crate::poller::Source;

/// A call of the runtime, and the logger that it waits for.
pub(super) struct AwaitedLogger {
    logger: StartingLogger,
    operation: Operation,
    command: Command,
}

impl AwaitedLogger {
    pub(super) fn until(&self) -> Instant {
        self.logger.until
    }
}

impl Shim {
    /// Calls the runtime with `command` once the logger is ready.
    pub(super) fn call_after_logger(
        &mut self,
        logger: StartingLogger,
        operation: Operation,
        command: Command,
    ) -> Result<(), Failure> {
        let token = self.poller.add(&logger.ready, Source::Logger, EventFlags::IN);
        let token = token.ok_or_else(|| Failure::unknown("epoll refuses the pipe of the logging binary"))?;
        self.awaited_loggers.insert(token, AwaitedLogger { logger, operation, command });
        Ok(())
    }

    /// The logger has written its byte, or has closed the pipe: both mean that it is ready.
    pub(super) fn logger_is_ready(&mut self, token: u64) {
        let Some(awaited) = self.awaited_loggers.remove(&token) else { return };
        let AwaitedLogger { logger, operation, mut command } = awaited;
        self.poller.remove(&logger.ready, token);
        if let Err((operation, failure)) = self.spawn(operation, &mut command) {
            self.complete(*operation, Err(failure));
        }
    }

    /// Fails the calls whose loggers are not ready in time.
    pub(super) fn give_up_loggers(&mut self, now: Instant) {
        let late: Vec<_> = self.awaited_loggers.extract_if(.., |_, awaited| awaited.logger.until <= now).collect();
        for (token, AwaitedLogger { logger, operation, .. }) in late {
            self.poller.remove(&logger.ready, token);
            let message = "failed to create init process I/O: the logging binary did not say that it is ready";
            self.complete(operation, Err(Failure::unknown(message)));
        }
    }
}
