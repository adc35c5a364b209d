//! SPDY/3.1 as Kubernetes uses it with nodes: several streams over one upgraded connection, for `/exec` and
//! `/portForward`.
//!
//! [`frame`] and [`headers`] are pure and bound everything a peer may send; [`connection`] reads and writes; each
//! side does the HTTP handshake itself. Kubernetes uses neither SPDY's windows nor its priorities, and neither does
//! this crate: while streams are not read, their connection is not read either
//! (docs/decisions/0020-own-spdy-codec.md).

pub mod connection;
mod dictionary;
pub mod frame;
pub mod headers;
pub mod tcp;

use hyper::header::HeaderName;

/// The value of `Upgrade`.
pub const SPDY: &str = "SPDY/3.1";

/// The header with the client's protocols, and with the one the server has chosen.
pub const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
