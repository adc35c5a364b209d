//! The progress of an image's pull, as it is measured and as people see it.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullProgress {
    /// Bytes of compressed layers in containerd, those of earlier attempts included.
    pub done: u64,
    /// Bytes of all layers; 0 until the manifest is read.
    pub total: u64,
    /// How many layers there are; 0 until the manifest is read.
    pub layers: usize,
    /// How many of them are completely in containerd.
    pub downloaded: usize,
    /// How many of them are unpacked.
    pub unpacked: usize,
}

impl PullProgress {
    /// Whether all layers are downloaded, so that only unpacking is left.
    pub fn is_downloaded(&self) -> bool {
        self.layers > 0 && self.downloaded >= self.layers
    }
}

impl fmt::Display for PullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let Self { done, total, layers, downloaded, unpacked } = *self;
        if layers == 0 {
            return f.write_str("reading its manifest");
        }
        if self.is_downloaded() {
            return write!(f, "{} MiB downloaded, {unpacked} of {layers} layers unpacked", mib(total));
        }
        write!(f, "{} of {} MiB, {downloaded} of {layers} layers", mib(done), mib(total))
    }
}
