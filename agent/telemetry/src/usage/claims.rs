//! The volumes of claims for Prometheus, as CSI drivers report them, read at most once per `volumeStatsAggPeriod`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::disks::{MeasureDisks, VolumeDisk};
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_model::pod::PodUid;

/// A claim: its namespace and name.
pub type ClaimName = (String, String);

/// The time and content of a pod's last report.
type Reported = (Instant, Vec<(ClaimName, VolumeDisk)>);

/// Reads volume usage from drivers on request. Clones share the last report.
#[derive(Debug, Clone)]
pub struct ClaimMeter {
    measure: Arc<dyn MeasureDisks>,
    period: Duration,
    last: Arc<tokio::sync::Mutex<BTreeMap<PodUid, Reported>>>,
}

impl ClaimMeter {
    pub fn new(measure: Arc<dyn MeasureDisks>, period: Duration) -> Self {
        Self { measure, period, last: Arc::default() }
    }

    /// The volumes of running pods' claims, each once.
    pub async fn volumes(&self, pods: &ObservedPods) -> BTreeMap<ClaimName, VolumeDisk> {
        let running = pods.pods.values().filter(|pod| pod.containers.values().any(|container| container.pid.is_some()));
        let running: BTreeMap<&PodUid, &Arc<ObservedPod>> = running.map(|pod| (&pod.record.uid, pod)).collect();
        let mut last = self.last.lock().await;
        last.retain(|uid, (taken, _)| running.contains_key(uid) && taken.elapsed() < self.period);
        let due: Vec<_> = running.into_iter().filter(|(uid, _)| !last.contains_key(*uid)).collect();
        let asked = due.into_iter().map(|(uid, pod)| async move {
            let namespace = pod.record.key.namespace();
            let of_claim = |disk: VolumeDisk| Some(((namespace.to_owned(), disk.claim.clone()?), disk));
            let reported = self.measure.claims(pod).await.into_iter().filter_map(of_claim).collect();
            (uid.clone(), (Instant::now(), reported))
        });
        last.extend(join_all(asked).await);
        last.values().flat_map(|(_, reported)| reported.clone()).collect()
    }
}
