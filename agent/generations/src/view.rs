//! What people see of generations.

use std::sync::Arc;

use jiff::Timestamp;
use limpet_core::source::SourceSnapshot;
use limpet_model::source::SourceKind;

use crate::masked::in_effect;
use crate::settings::Policy;
use crate::state::{Generation, Outcome};

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
    /// What it consists of.
    pub content: GenerationContent,
}

/// The pods and objects of a generation, which never change: two with the same number are equal.
#[derive(Debug, Clone)]
pub struct GenerationContent(pub(crate) Arc<Generation>);

impl PartialEq for GenerationContent {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for GenerationContent {}

impl GenerationContent {
    /// What the source with that newest snapshot has while the generation is in effect.
    pub fn in_effect(&self, newest: &SourceSnapshot, policy: Policy) -> SourceSnapshot {
        in_effect(newest, &self.0.content, policy)
    }
}

impl SourceGenerationsView {
    /// The generation of that number, if it is kept.
    pub fn generation(&self, number: u64) -> Option<&GenerationView> {
        self.generations.iter().find(|generation| generation.number == number)
    }
}
