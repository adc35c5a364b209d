//! What people see of generations.

use std::sync::Arc;

use jiff::Timestamp;
use limpet_model::source::SourceKind;

use crate::settings::Policy;
use crate::state::Outcome;

/// The generations of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceGenerationsView {
    pub source: SourceKind,
    pub policy: Policy,
    /// The number of the one in effect; `None`: the source has not been read yet.
    pub running: Option<u64>,
    /// The generations that are kept, the oldest first.
    pub generations: Vec<GenerationView>,
    /// What keeps the source's newest version from taking effect.
    pub waiting: Option<Arc<str>>,
    /// What keeps the generation that runs from being good.
    pub unready: Option<Arc<str>>,
    /// The source's newest version is this generation, which is refused.
    pub refused: Option<u64>,
}

/// A generation as it is shown: with the numbers of its pods and objects in place of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationView {
    pub number: u64,
    pub outcome: Outcome,
    pub made: Timestamp,
    pub decided: Option<Timestamp>,
    pub pods: usize,
    pub objects: usize,
}
