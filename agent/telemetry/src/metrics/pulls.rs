//! The duration of image pulls, grouped by size as in kubelet.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// kubelet's buckets.
const SECONDS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// kubelet's groups: images of more than this many bytes, largest first.
const SIZES: [(u64, &str); 12] = [
    (100 * GIB, "GT100GB"),
    (60 * GIB, "60GB-100GB"),
    (40 * GIB, "40GB-60GB"),
    (30 * GIB, "30GB-40GB"),
    (20 * GIB, "20GB-30GB"),
    (10 * GIB, "10GB-20GB"),
    (5 * GIB, "5GB-10GB"),
    (GIB, "1GB-5GB"),
    (500 * MIB, "500MB-1GB"),
    (100 * MIB, "100MB-500MB"),
    (10 * MIB, "10MB-100MB"),
    (0, "0-10MB"),
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabel {
    image_size_in_bytes: &'static str,
}

#[derive(Debug, Clone)]
pub(super) struct PullSeconds(Family<SizeLabel, Histogram>);

impl Default for PullSeconds {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(SECONDS)))
    }
}

impl PullSeconds {
    pub(super) fn register(&self, all: &mut Registry) {
        let help = "[ALPHA] Duration in seconds to pull an image.";
        all.register("kubelet_image_pull_duration_seconds", help, self.0.clone());
    }

    pub(super) fn observe(&self, bytes: u64, took: Duration) {
        self.0.get_or_create(&SizeLabel { image_size_in_bytes: size(bytes) }).observe(took.as_secs_f64());
    }
}

fn size(bytes: u64) -> &'static str {
    SIZES.iter().find(|(more_than, _)| bytes > *more_than).map_or("N/A", |(_, size)| size)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_kubelets() {
        let table =
            [(0, "N/A"), (1, "0-10MB"), (10 << 20, "0-10MB"), ((10 << 20) + 1, "10MB-100MB"), (2 << 30, "1GB-5GB")];
        for (bytes, expected) in table {
            assert_eq!(super::size(bytes), expected, "{bytes}");
        }
    }
}
