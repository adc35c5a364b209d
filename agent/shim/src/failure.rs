//! Why a request failed, as a gRPC status with the messages of containerd's own shim, which clients look for.

/// The failure of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    pub(crate) fn invalid(message: impl std::fmt::Display) -> Self {
        Self { code: 3, message: format!("{message}: invalid argument") }
    }

    pub(crate) fn not_found(message: impl std::fmt::Display) -> Self {
        Self { code: 5, message: format!("{message}: not found") }
    }

    pub(crate) fn exists(message: impl std::fmt::Display) -> Self {
        Self { code: 6, message: format!("{message}: already exists") }
    }

    pub(crate) fn exhausted(message: impl std::fmt::Display) -> Self {
        Self { code: 8, message: format!("{message}: resource exhausted") }
    }

    pub(crate) fn precondition(message: impl std::fmt::Display) -> Self {
        Self { code: 9, message: format!("{message}: failed precondition") }
    }

    pub(crate) fn unavailable(message: impl std::fmt::Display) -> Self {
        Self { code: 14, message: format!("{message}: unavailable") }
    }

    pub(crate) fn unimplemented(message: impl std::fmt::Display) -> Self {
        Self { code: 12, message: format!("{message}: not implemented") }
    }
}

impl From<prost::DecodeError> for Failure {
    fn from(error: prost::DecodeError) -> Self {
        Self::invalid(error)
    }
}
