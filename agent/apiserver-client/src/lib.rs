//! limpet's client of an apiserver: credentials from a kubeconfig, requests with deadlines, watches.
//!
//! It has no policy: callers decide what to send, when, and what an answer means for the node. Documents are JSON
//! values: this crate knows paths and verbs, and no fields except those it reads from a protobuf answer.

mod authorization;
mod body;
pub mod client;
mod connections;
mod credentials_error;
mod dial;
pub mod error;
mod impersonation;
pub mod kubeconfig;
mod lines;
mod program;
mod protobuf;
mod proxy;
pub mod request;
mod retry_after;
pub mod watch;

pub use body::Body;
pub use client::{Client, Credentials, Traffic};
pub use error::{CertificateFault, RequestError};
pub use request::{Request, Resource, Selector, WatchFrom};
