//! What a watch tells of the objects that it follows.

use serde_json::Value;

/// A change of the objects that are followed.
#[derive(Debug)]
pub(super) enum Update {
    /// All there are, after which nothing that was known counts, and the version of the list.
    Listed(Vec<Value>, String),
    /// One is new or was changed.
    Stored(Value),
    /// One is gone.
    Deleted(Value),
    /// Nothing has changed up to this version.
    Bookmark(String),
}
