//! The error of the node's credentials: of a kubeconfig, of the file of a token, or of a program that issues one.

/// Why the node cannot say who it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CredentialsError(pub(crate) String);
