//! The executor (`limpet_worker::executor`) on containerd and the host.

pub mod containerd;
pub mod settings;
