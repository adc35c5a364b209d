//! A kernel in memory for tests: its rules outlive an agent, and it refuses as many calls as a test sets.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use tokio::sync::watch;

use crate::addresses::Book;
use crate::backend::Backend;
use crate::kernel::KernelError;
use crate::rules::Ruleset;

/// A backend in memory. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FakeBackend(Arc<Mutex<FakeKernel>>);

/// What outlives an agent.
#[derive(Debug, Default)]
pub struct FakeKernel {
    /// The rules in effect.
    pub rules: Option<Ruleset>,
    /// Another program has removed them.
    pub removed: watch::Sender<()>,
    /// How often they have changed.
    pub changes: u64,
    /// The addresses that were saved.
    pub book: Book,
    /// How many of the next calls fail.
    pub refusals: u32,
    /// The network of the node that has addresses of Services.
    pub overlap: Option<(String, IpAddr)>,
}

impl FakeBackend {
    /// The kernel, which is locked meanwhile.
    pub fn kernel(&self) -> MutexGuard<'_, FakeKernel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeKernel {
    fn refuse(&mut self) -> Result<(), KernelError> {
        if self.refusals == 0 {
            return Ok(());
        }
        self.refusals -= 1;
        Err(KernelError::Rules(io::Error::from(io::ErrorKind::ResourceBusy)))
    }

    fn apply(&mut self, rules: Ruleset) -> Result<(), KernelError> {
        if let Some((interface, address)) = self.overlap.clone() {
            return Err(KernelError::Overlap(interface, address));
        }
        self.refuse()?;
        self.rules = Some(rules);
        self.changes += 1;
        Ok(())
    }

    fn clear(&mut self) -> Result<bool, KernelError> {
        if self.rules.is_none() {
            return Ok(false);
        }
        self.refuse()?;
        self.rules = None;
        self.changes += 1;
        Ok(true)
    }
}

impl Backend for FakeBackend {
    fn has_rules(&self) -> BoxFuture<'_, Option<bool>> {
        ready(Some(self.kernel().rules.is_some())).boxed()
    }

    fn removals(&self) -> BoxStream<'static, ()> {
        let removed = self.kernel().removed.subscribe();
        stream::unfold(removed, |mut removed| async { removed.changed().await.ok().map(|()| ((), removed)) }).boxed()
    }

    fn apply(&self, rules: Ruleset, _: bool) -> BoxFuture<'_, Result<(), KernelError>> {
        ready(self.kernel().apply(rules)).boxed()
    }

    fn clear(&self) -> BoxFuture<'_, Result<bool, KernelError>> {
        ready(self.kernel().clear()).boxed()
    }

    fn load(&self) -> BoxFuture<'_, Book> {
        ready(self.kernel().book.clone()).boxed()
    }

    fn save(&self, book: Book) -> BoxFuture<'_, ()> {
        self.kernel().book = book;
        ready(()).boxed()
    }
}
