//! SPDY/3.1 as Kubernetes speaks it to nodes: several streams over one upgraded connection, for `/exec` and
//! `/portForward`.
//!
//! [`frame`] and [`headers`] are pure and bound everything a peer may send; [`connection`] reads and writes; the HTTP
//! handshake is a matter of each side. No side of Kubernetes uses SPDY's windows or priorities, and neither does this one: a
//! connection whose streams are not read is not read either (docs/decisions/0020-own-spdy-codec.md).

pub mod connection;
mod dictionary;
pub mod frame;
pub mod headers;
pub mod tcp;

use hyper::header::HeaderName;

/// What `Upgrade` names.
pub const SPDY: &str = "SPDY/3.1";

/// The protocols that a client has, and the one that is spoken.
pub const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
