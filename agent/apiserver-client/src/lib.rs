//! limpet's client of an apiserver: credentials from a kubeconfig, requests with deadlines, watches.
//!
//! Without policy: what is sent, when, and what an answer means for the node is decided elsewhere. Documents are JSON
//! values: this crate knows paths and verbs, and no fields but those that it reads of an answer in protobuf.

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
