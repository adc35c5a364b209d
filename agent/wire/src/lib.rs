//! What the agent's server and its clients exchange: JSON documents, the protocols of commands and forwarded ports,
//! SPDY, and the client of the local socket.
//!
//! Server and command line share this crate and do not depend on each other. Fields are only ever added to documents;
//! readers ignore fields that they do not know.

pub mod bundle;
pub mod command;
pub mod diff;
pub mod generations;
pub mod idle;
pub mod images;
pub mod objects;
pub mod pods;
pub mod port_forward;
pub mod revisions;
pub mod services;
pub mod socket_client;
pub mod spdy;
pub mod status;
pub mod usage;
