//! The same API for a build without the feature `ebpf`: nothing is loaded, so most of it is never called.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use crate::{Event, GuardError, GuardState, InodeId, LoadError, ProgramState, Request};

/// Nothing is read.
#[derive(Debug)]
pub struct Kernel(());

impl Kernel {
    /// Nothing is read.
    pub fn read() -> Self {
        Self(())
    }

    /// Empty.
    pub fn to_text(&self) -> String {
        String::new()
    }

    /// Nothing is read.
    pub fn from_text(_: &str) -> Self {
        Self(())
    }

    /// Always an error: there are no programs.
    ///
    /// # Errors
    /// [`LoadError::NotBuilt`].
    pub fn load(&self, _: &Request) -> Result<Loaded, LoadError> {
        Err(LoadError::NotBuilt)
    }
}

/// Never constructed.
#[derive(Debug)]
pub struct Loaded(Infallible);

/// Never constructed.
#[derive(Debug)]
pub struct Events(Infallible);

#[allow(missing_docs, clippy::missing_errors_doc, clippy::unused_async)] // as in load.rs and events.rs
impl Loaded {
    pub fn programs(&self) -> &[ProgramState] {
        match self.0 {}
    }
    pub fn events(&mut self) -> io::Result<Option<Events>> {
        match self.0 {}
    }
    pub fn watch(&mut self, _: InodeId) -> Result<(), LoadError> {
        match self.0 {}
    }
    pub fn unwatch(&mut self, _: InodeId) {
        match self.0 {}
    }
    pub fn follow_process(&mut self, _: u32) -> Result<(), LoadError> {
        match self.0 {}
    }
    pub fn forget_process(&mut self, _: u32) {
        match self.0 {}
    }
    pub fn lost(&self) -> u64 {
        match self.0 {}
    }
    pub fn skipped(&self) -> u64 {
        match self.0 {}
    }
    pub fn detach(&mut self, _: &str) -> bool {
        match self.0 {}
    }
    pub fn attach_again(&mut self, _: &Kernel, _: &str) -> Result<(), String> {
        match self.0 {}
    }
}

#[allow(missing_docs, clippy::missing_errors_doc, clippy::unused_async)]
impl Events {
    pub async fn next(&mut self) -> io::Result<Event> {
        match self.0 {}
    }
    pub fn now(&mut self) -> Option<Event> {
        match self.0 {}
    }
}

/// Never called.
///
/// # Errors
/// None.
pub fn arm(loaded: &mut Loaded, _: &Path) -> Result<(), GuardError> {
    match loaded.0 {}
}

/// Never called.
///
/// # Errors
/// None.
pub fn prove(loaded: &mut Loaded) -> Result<(), GuardError> {
    match loaded.0 {}
}

/// This build cannot read what a build with the feature has pinned.
///
/// # Errors
/// Always: the guard must not be reported as off.
pub fn state(_: &Path) -> io::Result<GuardState> {
    Err(io::Error::other(LoadError::NotBuilt.to_string()))
}

/// This build cannot remove a guard that another build has pinned.
///
/// # Errors
/// Always.
pub fn disarm(_: &Path) -> io::Result<bool> {
    Err(io::Error::other(LoadError::NotBuilt.to_string()))
}
