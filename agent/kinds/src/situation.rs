//! What a step of a controller decides on, whatever the kind of its workload.

use limpet_model::object::ObjectKey;

use crate::clock::Clock;

/// A workload with the spec `S`, of whose pods `P` is observed.
#[derive(Debug)]
pub(crate) struct Situation<'a, S, P> {
    /// The node, whose name is part of pods' names.
    pub(crate) node_name: &'a str,
    pub(crate) key: &'a ObjectKey,
    /// What it is to be.
    pub(crate) spec: &'a S,
    /// The hash of its pods' template.
    pub(crate) hash: &'a str,
    /// Its pods, those included that are not wanted any more and have not gone yet.
    pub(crate) observed: &'a P,
    pub(crate) clock: Clock,
}
