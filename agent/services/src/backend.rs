//! The kernel and the file of addresses, as the task uses them: the task decides, a backend performs.

use std::fmt::Debug;

use futures_util::future::{BoxFuture, ready};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use limpet_host::blocking::{self, DEADLINE};

use crate::addresses::Book;
use crate::kernel::{self, KernelError};
use crate::rules::Ruleset;
use crate::saved_addresses;
use crate::settings::Settings;
use crate::table_removal::TableRemovals;

/// What outlives the agent: rules in the kernel, and the addresses that were assigned.
pub trait Backend: Debug + Send + Sync {
    /// Whether rules are in effect; `None` if the kernel does not say.
    fn has_rules(&self) -> BoxFuture<'_, Option<bool>>;

    /// An item whenever the rules may have been removed by another program, and one at first.
    fn removals(&self) -> BoxStream<'static, ()>;

    /// Replaces the rules, and ends the connections by UDP that lead elsewhere (`ends_udp`). If it fails, the rules before stay.
    fn apply(&self, rules: Ruleset, ends_udp: bool) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Removes all that there is in the kernel. Returns whether there was anything; if it fails, something stays.
    fn clear(&self) -> BoxFuture<'_, Result<bool, KernelError>>;

    /// The addresses that were saved; none if they cannot be read.
    fn load(&self) -> BoxFuture<'_, Book>;

    /// Saves the addresses. They take effect all the same if they cannot be saved.
    fn save(&self, book: Book) -> BoxFuture<'_, ()>;
}

/// The kernel of this node, and a file of it.
#[derive(Debug)]
pub struct Linux(Settings);

impl Linux {
    /// The backend of a node with these settings.
    pub fn new(settings: Settings) -> Self {
        Self(settings)
    }
}

impl Backend for Linux {
    fn has_rules(&self) -> BoxFuture<'_, Option<bool>> {
        Box::pin(kernel::has_rules())
    }

    fn removals(&self) -> BoxStream<'static, ()> {
        let removals = match TableRemovals::listen() {
            Ok(removals) => removals,
            Err(error) => {
                tracing::warn!(%error, "the kernel does not report if another program removes the rules of Services");
                return stream::pending().boxed();
            }
        };
        let reported =
            stream::unfold(removals, |mut removals| async { removals.next().await.ok().map(|()| ((), removals)) });
        stream::once(ready(())).chain(reported).fuse().boxed()
    }

    fn apply(&self, rules: Ruleset, ends_udp: bool) -> BoxFuture<'_, Result<(), KernelError>> {
        Box::pin(kernel::apply(&self.0, rules, ends_udp))
    }

    fn clear(&self) -> BoxFuture<'_, Result<bool, KernelError>> {
        Box::pin(async {
            if !self.0.marker.exists() {
                return Ok(false);
            }
            kernel::clear(&self.0).await.map(|()| true)
        })
    }

    fn load(&self) -> BoxFuture<'_, Book> {
        Box::pin(async {
            let path = self.0.saved_addresses.clone();
            let read = blocking::run(path.clone(), DEADLINE, move |_| saved_addresses::load(&path)).await;
            read.flatten().unwrap_or_else(|error| {
                tracing::error!(%error, "the addresses that Services had cannot be read: they are derived anew");
                Book::default()
            })
        })
    }

    fn save(&self, book: Book) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let path = self.0.saved_addresses.clone();
            let written = blocking::run(path.clone(), DEADLINE, move |_| saved_addresses::save(&path, &book)).await;
            if let Err(error) = written.flatten() {
                tracing::error!(%error, "the addresses of Services cannot be saved; they take effect all the same");
            }
        })
    }
}
