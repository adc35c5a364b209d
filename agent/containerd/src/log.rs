//! Container logs: paths, the reader, and the replacement of loggers.
//!
//! Another process writes them ([`limpet_log::writer`]): limpet's shim, or a logger beside each container of
//! containerd's runc shim. The agent only reads, and only on request. Both use kubelet's layout and the CRI line
//! format, so log collectors for kubelet can read them.

mod entry;
pub mod follow;
mod logger;
pub mod paths;
mod read_options;
pub mod reader;
mod render;
mod start;

pub use entry::LogStream;
pub use paths::{LogPaths, newest_attempt, previous_attempt, remove_log};
pub use read_options::ReadOptions;
pub use reader::{exists, open, read, tail_for_termination_message};
