//! Taints of a node by their keys.

/// The taint of a node that is short of memory.
pub const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
