//! What happens if a manifest has a field that does not exist, or that is given twice: Kubernetes' `fieldValidation`.

use std::str::FromStr;

use crate::source::SourceKind;

/// Whether such a manifest is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldValidation {
    #[default]
    Strict,
    /// It is accepted with a warning. The unknown field is ignored, and of a duplicated one the last value counts.
    Warn,
}

impl FieldValidation {
    /// The values, as the configuration has them.
    pub const NAMES: [&str; 2] = ["strict", "warn"];
}

impl FromStr for FieldValidation {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "strict" => Ok(Self::Strict),
            "warn" => Ok(Self::Warn),
            _ => Err(()),
        }
    }
}

/// The setting of each source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FieldValidations([FieldValidation; SourceKind::ALL.len()]);

impl FieldValidations {
    /// All sources are strict.
    pub const STRICT: Self = Self([FieldValidation::Strict; SourceKind::ALL.len()]);

    /// The setting of the source.
    pub fn for_source(self, source: SourceKind) -> FieldValidation {
        self.0[source.index()]
    }

    /// The same with another setting for one source.
    pub fn with(mut self, source: SourceKind, validation: FieldValidation) -> Self {
        self.0[source.index()] = validation;
        self
    }
}
