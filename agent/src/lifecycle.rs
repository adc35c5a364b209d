//! What the kernel adds to containerd's events: victims of its OOM killer and senders of signals, reported by BPF
//! programs. Also returns free memory to the kernel.

#[cfg(feature = "attribution")]
pub mod kernel;
pub mod kernel_types;
pub mod memory;
