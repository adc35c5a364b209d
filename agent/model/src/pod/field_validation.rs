//! What happens to a field of a manifest that does not exist, or that is given twice: Kubernetes' `fieldValidation`.

use std::str::FromStr;

use crate::source::SourceKind;

/// Whether such a manifest is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldValidation {
    #[default]
    Strict,
    /// It is accepted with a warning: the field counts for nothing, and of a duplicated one the last value counts.
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

/// That of each source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FieldValidations([FieldValidation; SourceKind::ALL.len()]);

impl FieldValidations {
    /// Every source is strict.
    pub const STRICT: Self = Self([FieldValidation::Strict; SourceKind::ALL.len()]);

    /// That of the source.
    pub fn of(self, source: SourceKind) -> FieldValidation {
        self.0[source.index()]
    }

    /// The same with another one for one source.
    pub fn with(mut self, source: SourceKind, validation: FieldValidation) -> Self {
        self.0[source.index()] = validation;
        self
    }
}
