//! Kubernetes' protocol of forwarded ports: the names that both sides use.

/// The protocol: pairs of streams, `error` and `data`, with the headers below.
pub const PROTOCOL: &str = "portforward.k8s.io";

/// The header that says what a stream is for.
pub const STREAM_TYPE: &str = "streamtype";

/// The header with the pod's port.
pub const PORT: &str = "port";

/// The header that makes two streams a pair.
pub const REQUEST_ID: &str = "requestid";
