//! Names in Kubernetes' protocol for forwarded ports, which both sides use.

/// The protocol: pairs of streams, `error` and `data`, with the headers below.
pub const PROTOCOL: &str = "portforward.k8s.io";

/// The header that names a stream's purpose.
pub const STREAM_TYPE: &str = "streamtype";

/// The header with the pod's port.
pub const PORT: &str = "port";

/// The header that pairs two streams.
pub const REQUEST_ID: &str = "requestid";
