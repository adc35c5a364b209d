//! Bytes that must not be printed by accident.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

/// A value of a Secret or ConfigMap. Printing it shows nothing; the memory is erased when the last clone is dropped.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretBytes(Arc<Zeroizing<Vec<u8>>>);

impl SecretBytes {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// The bytes themselves.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as text; `None` if they are not UTF-8.
    pub fn expose_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl fmt::Display for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
