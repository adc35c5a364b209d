//! The guard's rules: which paths it protects, and whose changes it refuses.

use std::io;
use std::path::{Path, PathBuf};

use limpet_events::{guarded, mode};

use crate::InodeId;

/// Whose changes the guard refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardMode {
    /// None; what [`Self::Containers`] would refuse is reported.
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

    /// The programs' code of the mode.
    #[cfg_attr(not(feature = "ebpf"), allow(dead_code))]
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Audit => mode::AUDIT,
            Self::Containers => mode::CONTAINERS,
            Self::Strict => mode::STRICT,
        }
    }
}

/// What is configured of the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardSettings {
    /// `manifestGuard`; `None`: off.
    pub mode: Option<GuardMode>,
    /// `manifestGuardRequired`: the agent does not start without it.
    pub required: bool,
    /// `manifestGuardExecutables`: the executables that may write in strict mode.
    pub executables: Vec<PathBuf>,
    /// `manifestGuardCgroups`: from the root of the v2 hierarchy.
    pub cgroups: Vec<PathBuf>,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self { mode: None, required: true, executables: Vec::new(), cgroups: Vec::new() }
    }
}

/// One guarded path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarded {
    /// The path as configured.
    pub path: PathBuf,
    pub id: InodeId,
    /// Which changes: `limpet_events::guarded`.
    pub(crate) what: u32,
}

impl Guarded {
    /// A directory and the names in it; not what is in directories below.
    ///
    /// # Errors
    /// The path does not exist.
    pub fn directory(path: &Path) -> io::Result<Self> {
        let what = guarded::CHILDREN | guarded::ITSELF | guarded::PLACE;
        Ok(Self { path: path.to_owned(), id: InodeId::read(path)?, what })
    }

    /// One file.
    ///
    /// # Errors
    /// The path does not exist.
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: InodeId::read(path)?, what: guarded::ITSELF | guarded::PLACE })
    }

    /// The same, but refused to pods only, in every mode.
    #[must_use]
    pub fn from_pods(self) -> Self {
        Self { what: self.what << guarded::FROM_PODS, ..self }
    }

    /// Whether only pods are refused.
    pub fn is_from_pods(&self) -> bool {
        self.what >> guarded::FROM_PODS != 0
    }

    /// Whether names in it are guarded.
    pub fn is_directory(&self) -> bool {
        self.has(guarded::CHILDREN)
    }

    /// Whether it is only kept in its place.
    #[cfg(feature = "ebpf")]
    pub(crate) fn is_place(&self) -> bool {
        !self.has(guarded::CHILDREN | guarded::ITSELF)
    }

    fn has(&self, what: u32) -> bool {
        self.what & (what | what << guarded::FROM_PODS) != 0
    }
}

/// The directories above `path`, which may not be renamed away or mounted over either; the root cannot be.
///
/// # Errors
/// The path does not exist.
pub fn ancestors(path: &Path) -> io::Result<Vec<Guarded>> {
    let path = path.canonicalize()?;
    let above = path.ancestors().skip(1).filter(|above| above.parent().is_some());
    above.map(|above| Ok(Guarded { path: above.to_owned(), id: InodeId::read(above)?, what: guarded::PLACE })).collect()
}

/// All rules of the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardRules {
    /// Whose changes it refuses.
    pub mode: GuardMode,
    /// The paths it protects.
    pub guarded: Vec<Guarded>,
    /// Cgroups (v2 ids) below which are pods.
    pub pod_cgroups: Vec<u64>,
    /// Strict: executables that may write.
    pub allowed_executables: Vec<InodeId>,
    /// Strict: cgroups (v2 ids) that may write, with those below.
    pub allowed_cgroups: Vec<u64>,
}

/// The pinned guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardState {
    /// Nothing.
    Off,
    /// A guard.
    Pinned {
        /// Its mode, as the configuration names it.
        mode: String,
        /// The hooks that are pinned.
        hooks: Vec<&'static str>,
        /// The hooks that should be pinned and are not.
        missing: Vec<&'static str>,
    },
}

/// Why the guard is not on.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Some hooks could not be attached: an incomplete guard protects nothing.
    #[error("the kernel does not support these hooks of the manifest guard: {}", .0.join("; "))]
    Hooks(Vec<String>),
    /// The programs were loaded without rules.
    #[error("the BPF programs were loaded without the manifest guard")]
    NotAsked,
    /// The hooks are attached, and yet the trial changed the path.
    #[error("{} cannot be guarded: its file system hides inode numbers (as btrfs and overlayfs do); keep it on ext4 or xfs", path.display())]
    NotGuarded { path: PathBuf },
    /// The trial failed for another reason than a refusal.
    #[error("test the guard on {}: {source}", path.display())]
    Trial { path: PathBuf, source: io::Error },
    /// The links could not be pinned.
    #[error("pin the guard in {}: {source}", path.display())]
    Pin { path: PathBuf, source: io::Error },
    /// A map refused a value.
    #[error(transparent)]
    Load(#[from] crate::LoadError),
}
