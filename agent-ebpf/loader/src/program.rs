//! The purpose of a BPF program, and whether it is attached.

/// What a program is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// OOM victims, signals.
    Lifecycle,
    /// Who changes files.
    Watch,
    /// Refuse changes of guarded files.
    Guard,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramState {
    pub name: &'static str,
    /// What it is for.
    pub purpose: Purpose,
    /// The kernel's hook or function.
    pub hook: &'static str,
    /// Why it is not attached; none when it is.
    pub failure: Option<String>,
}
