//! What the guard protects, and from whom.

use std::io;
use std::path::{Path, PathBuf};

use limpet_events::{guarded, mode};

use crate::InodeId;

/// Whom the guard refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardMode {
    /// Nobody; what [`Self::Containers`] would refuse is told.
    Audit,
    /// Processes in a pod's cgroup or below it.
    Containers,
    /// All but listed executables and cgroups.
    Strict,
}

impl GuardMode {
    /// As the configuration names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Audit => "audit",
            Self::Containers => "containers",
            Self::Strict => "strict",
        }
    }

    /// As the programs know it.
    #[cfg_attr(not(feature = "ebpf"), allow(dead_code))]
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Audit => mode::AUDIT,
            Self::Containers => mode::CONTAINERS,
            Self::Strict => mode::STRICT,
        }
    }
}

/// One guarded path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarded {
    /// As it is known to people.
    pub path: PathBuf,
    /// Which inode it is.
    pub id: InodeId,
    /// What of it: `limpet_events::guarded`.
    pub(crate) what: u32,
}

impl Guarded {
    /// A directory and the names in it; not what is in directories below.
    ///
    /// # Errors
    /// The path leads nowhere.
    pub fn directory(path: &Path) -> io::Result<Self> {
        let what = guarded::CHILDREN | guarded::ITSELF | guarded::PLACE;
        Ok(Self { path: path.to_owned(), id: InodeId::of(path)?, what })
    }

    /// One file.
    ///
    /// # Errors
    /// The path leads nowhere.
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: InodeId::of(path)?, what: guarded::ITSELF | guarded::PLACE })
    }

    /// Whether names in it are guarded.
    pub fn is_directory(&self) -> bool {
        self.what & guarded::CHILDREN != 0
    }
}

/// The directories above `path`, which may not be renamed away or mounted over either; the root cannot be.
///
/// # Errors
/// The path leads nowhere.
pub fn ancestors(path: &Path) -> io::Result<Vec<Guarded>> {
    let path = path.canonicalize()?;
    let above = path.ancestors().skip(1).filter(|above| above.parent().is_some());
    above.map(|above| Ok(Guarded { path: above.to_owned(), id: InodeId::of(above)?, what: guarded::PLACE })).collect()
}

/// The whole of the guard's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardRules {
    /// Whom it refuses.
    pub mode: GuardMode,
    /// What it protects.
    pub guarded: Vec<Guarded>,
    /// Cgroups (v2 ids) below which are pods.
    pub pod_cgroups: Vec<u64>,
    /// Strict: executables that may write.
    pub allowed_executables: Vec<InodeId>,
    /// Strict: cgroups (v2 ids) that may write, with those below.
    pub allowed_cgroups: Vec<u64>,
}

/// What is pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardState {
    /// Nothing.
    Off,
    /// A guard.
    Pinned {
        /// Its mode, as the configuration names it.
        mode: String,
        /// The hooks it holds.
        hooks: Vec<&'static str>,
        /// The hooks it should hold and does not.
        missing: Vec<&'static str>,
    },
}

/// Why the guard is not on.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Some hooks are not held: a guard with a hole is none.
    #[error("the kernel does not take these hooks of the guard: {}", .0.join("; "))]
    Hooks(Vec<String>),
    /// The programs were loaded without rules.
    #[error("the programs were loaded without a guard")]
    NotAsked,
    /// The hooks are held, and yet it could be changed.
    #[error("{} could be changed under the guard: its file system hides which inode it is (btrfs and overlayfs do); keep it on ext4 or xfs", path.display())]
    NotGuarded {
        /// The path.
        path: PathBuf,
    },
    /// It could not be tried.
    #[error("{}: the guard could not be tried: {source}", path.display())]
    Trial {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The links could not be pinned.
    #[error("{}: {source}", path.display())]
    Pin {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A map did not take what it needs.
    #[error(transparent)]
    Load(#[from] crate::LoadError),
}
