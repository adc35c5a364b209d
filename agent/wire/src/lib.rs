//! What the agent's server and its clients exchange: JSON documents, the protocols of commands and forwarded ports, SPDY,
//! and the client of the local socket.
//!
//! Server and command line share this crate and know nothing of each other. Fields of documents are only ever added; a
//! reader ignores those it does not know.

pub mod command;
pub mod diff;
pub mod idle;
pub mod images;
pub mod pods;
pub mod port_forward;
pub mod socket_client;
pub mod spdy;
pub mod status;
pub mod usage;
