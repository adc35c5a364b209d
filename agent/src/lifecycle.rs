//! What the kernel adds to containerd's events: victims of its OOM killer and senders of signals, by BPF programs; and
//! free memory that is returned to it.

#[cfg(feature = "attribution")]
pub mod kernel;
pub mod kernel_types;
pub mod memory;
