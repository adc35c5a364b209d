//! The simulated node's disk for the controllers of workloads: a write takes time, and if the agent ends meanwhile it
//! may or may not have happened.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use limpet_kinds::MemoryChange;

use super::world::World;
use crate::workloads::Ledger;

/// The memory of controllers on the disk of a simulated node.
pub struct FakeLedger(pub Arc<Mutex<World>>);

impl fmt::Debug for FakeLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeLedger").finish_non_exhaustive()
    }
}

impl FakeLedger {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How soon a clock that is set is noticed.
const GLANCE: Duration = Duration::from_secs(60);

impl Ledger for FakeLedger {
    fn now(&self) -> Timestamp {
        self.world().now().wall
    }

    fn until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let pause = Duration::try_from(at.duration_since(self.now())).unwrap_or(Duration::ZERO);
            tokio::time::sleep(pause.min(GLANCE)).await;
        })
    }

    fn save(self: Arc<Self>, changes: Vec<MemoryChange>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let before = self.world().write_time();
            let after = self.world().write_time();
            tokio::time::sleep(Duration::from_millis(before)).await;
            for MemoryChange { id, memory } in changes {
                let mut world = self.world();
                match memory {
                    Some(memory) => drop(world.memories.insert(id, memory)),
                    None => drop(world.memories.remove(&id)),
                }
            }
            tokio::time::sleep(Duration::from_millis(after)).await;
        })
    }
}
