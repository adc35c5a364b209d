//! What CSI drivers report about the volumes of claims: kubelet's `kubelet_volume_stats_*`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClaimLabels {
    namespace: String,
    persistentvolumeclaim: String,
}

/// The size and usage of a volume, in bytes and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimFigures {
    pub capacity: u64,
    pub available: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub inodes_used: u64,
}

/// A metric's name, its help text, and its value.
type Figure = (&'static str, &'static str, fn(&ClaimFigures) -> u64);

const FIGURES: [Figure; 6] = [
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |space| space.capacity),
    ("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", |space| {
        space.available
    }),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |space| space.used),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |space| space.inodes),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |space| space.inodes_free),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |space| space.inodes_used),
];

/// A gauge for each metric and claim.
#[derive(Debug, Clone, Default)]
pub(super) struct ClaimGauges([Family<ClaimLabels, Gauge>; 6]);

impl ClaimGauges {
    pub(super) fn register(&self, all: &mut Registry) {
        for ((name, help, _), family) in FIGURES.iter().zip(&self.0) {
            all.register(*name, *help, family.clone());
        }
    }

    pub(super) fn set(&self, claims: impl IntoIterator<Item = ((String, String), ClaimFigures)>) {
        self.0.iter().for_each(Family::clear);
        for ((namespace, persistentvolumeclaim), figures) in claims {
            let labels = ClaimLabels { namespace, persistentvolumeclaim };
            for ((.., figure), family) in FIGURES.iter().zip(&self.0) {
                family.get_or_create(&labels).set(i64::try_from(figure(&figures)).unwrap_or(i64::MAX));
            }
        }
    }
}
