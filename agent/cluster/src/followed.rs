//! Updates that a watch reports about the objects it follows.

use serde_json::Value;

/// A change of the followed objects.
#[derive(Debug)]
pub(super) enum Update {
    /// All current objects, which replace everything known, and the list's version.
    Listed(Vec<Value>, String),
    /// A new or changed object.
    Stored(Value),
    /// A deleted object.
    Deleted(Value),
    /// Nothing has changed up to this version.
    Bookmark(String),
}
