//! SPDY/3.1 as Kubernetes speaks it to nodes: several streams over one upgraded connection, for `/exec` and
//! `/portForward`.
//!
//! [`frame`] and [`headers`] are pure and bound everything a peer may send; [`connection`] reads and writes; `upgrade`
//! is the HTTP handshake. No side of Kubernetes uses SPDY's windows or priorities, and neither does this one: a
//! connection whose streams are not read is not read either (docs/decisions/0020-own-spdy-codec.md).

pub mod connection;
mod dictionary;
pub mod frame;
pub mod headers;
pub mod tcp;
pub(crate) mod upgrade;
