//! Finds who changes manifests, with `limpet-attribution`, or in a build without it with a stub that knows no actor.

#[cfg(feature = "attribution")]
pub use limpet_attribution::attributor::{Attributor, Completeness, DirectoryEntry};
#[cfg(feature = "attribution")]
pub use limpet_attribution::cgroup_path::path_of as cgroup_path;
#[cfg(feature = "attribution")]
pub use limpet_attribution::fanotify_probe::{can_mark, fanotify as probe_fanotify};
#[cfg(feature = "attribution")]
pub use limpet_attribution::feed::Feed;
#[cfg(feature = "attribution")]
pub use limpet_attribution::process_actor::actor as actor_of_process;

#[cfg(not(feature = "attribution"))]
mod absent;
#[cfg(not(feature = "attribution"))]
pub use absent::{
    Attributor, Completeness, DirectoryEntry, Feed, actor_of_process, can_mark, cgroup_path, probe_fanotify,
};

/// Whether this build can find out who changes manifests.
pub const BUILT: bool = cfg!(feature = "attribution");
