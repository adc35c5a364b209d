//! The error of the node's credentials: from a kubeconfig, a token's file or a program.

/// Why the node has no usable credentials.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CredentialsError(pub(crate) String);
