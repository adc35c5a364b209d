//! What a report says. Fields are only ever added.

use std::sync::Arc;

use jiff::Timestamp;
use limpet_bundle::decision::AppliedBundle;
use limpet_core::status::observed::{Observed, ObservedPods};
use limpet_generations::{Outcome, SourceGenerationsView};
use limpet_server::{HeldUpdates, SourceView, Sources};
use limpet_telemetry::event::{Event, EventType, Events};
use limpet_telemetry::health::Health;
use serde_json::{Value, json};
use tokio::sync::watch;

/// The most warnings of a report: the newest ones.
const MAX_WARNINGS: usize = 10;
/// The most characters of a text.
const MAX_TEXT: usize = 300;

/// What a report is made of.
pub struct ReportInputs {
    pub node_name: Arc<str>,
    pub health: Health,
    pub observed: Observed,
    pub sources: Arc<dyn Sources>,
    /// The bundle that the node has, once that is known.
    pub bundle: Option<watch::Receiver<Option<Option<AppliedBundle>>>>,
    /// `None`: no source has generations.
    pub generations: Option<watch::Receiver<Vec<SourceGenerationsView>>>,
    pub held_updates: HeldUpdates,
    pub events: Events,
}

impl ReportInputs {
    /// The report as of now.
    pub(super) fn document(&self, now: Timestamp) -> Value {
        let views = self.sources.views();
        let generations = self.generations.as_ref().map(|views| views.borrow().clone()).unwrap_or_default();
        let bundle = self.bundle.as_ref().and_then(|bundle| bundle.borrow().clone().flatten());
        let (pods, is_healthy) = pods(&self.observed.load());
        json!({
            "apiVersion": "limpet.dev/v1beta1", "kind": "NodeReport",
            "node": &*self.node_name, "time": now.to_string(), "version": env!("CARGO_PKG_VERSION"),
            "healthy": is_healthy && self.health.has_containerd(),
            "containerd": self.health.has_containerd(),
            "pods": pods,
            "bundle": bundle.map(|bundle| {
                json!({ "name": bundle.name, "version": bundle.version, "serial": bundle.serial, "digest": bundle.digest })
            }),
            "sources": views.iter().map(source).collect::<Vec<_>>(),
            "generations": generations.iter().map(generation).collect::<Vec<_>>(),
            "heldUpdates": (self.held_updates)(),
            "warnings": warnings(&self.events.snapshot()),
        })
    }
}

/// How many pods there are, and whether all are as they should be.
fn pods(observed: &ObservedPods) -> (Value, bool) {
    let is_done = |phase: Option<&str>| phase == Some("Succeeded");
    let (mut ready, mut done, mut unready) = (0, 0, Vec::new());
    for pod in observed.pods.values() {
        let conditions = pod.status.conditions.iter().flatten();
        let is_ready = conditions.clone().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        match () {
            () if is_ready => ready += 1,
            () if is_done(pod.status.phase.as_deref()) => done += 1,
            () => unready.push(pod.record.key.to_string()),
        }
    }
    let is_healthy = unready.is_empty();
    let document = json!({ "total": observed.pods.len(), "ready": ready, "succeeded": done, "notReady": unready });
    (document, is_healthy)
}

fn source(view: &SourceView) -> Value {
    let rejected = view.snapshot.rejected.values().map(|rejection| {
        let first = rejection.faults.first().map(|fault| short(&fault.to_string())).unwrap_or_default();
        json!({ "origin": &*rejection.origin, "reason": first })
    });
    json!({
        "source": view.kind.as_str(), "place": &*view.place, "detail": &*view.backend,
        "pods": view.snapshot.pods.len(), "rejected": rejected.collect::<Vec<_>>(),
        "lastGood": view.last_good.map(|at| at.to_string()),
    })
}

fn generation(view: &SourceGenerationsView) -> Value {
    let outcome = |number: Option<u64>| {
        let generation = view.generations.iter().find(|generation| Some(generation.number) == number)?;
        Some(match &generation.outcome {
            Outcome::OnTrial => json!("trial"),
            Outcome::Good => json!("good"),
            Outcome::Refused(why) => json!(short(why)),
        })
    };
    json!({
        "source": view.source.as_str(), "running": view.running, "outcome": outcome(view.running),
        "refused": view.refused, "reason": outcome(view.refused),
        "waiting": view.waiting.as_deref().map(short),
    })
}

/// The newest warnings first.
fn warnings(events: &[Event]) -> Vec<Value> {
    let mut warnings: Vec<&Event> = events.iter().filter(|event| event.event_type == EventType::Warning).collect();
    warnings.sort_by_key(|event| std::cmp::Reverse(event.last_seen));
    let document = |event: &&Event| {
        json!({ "reason": &*event.reason, "message": short(&event.message), "count": event.count,
            "time": event.last_seen.to_string() })
    };
    warnings.iter().take(MAX_WARNINGS).map(document).collect()
}

fn short(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_newest_warnings_and_is_bounded() {
        let events = Events::default();
        for number in 0..20 {
            events.emit(None, None, EventType::Warning, "BundleRefused", format!("{number} {}", "x".repeat(1_000)));
        }
        events.emit(None, None, EventType::Normal, "BundleApplied", "fine".to_owned());
        let inputs = ReportInputs {
            node_name: Arc::from("edge1"),
            health: Health::new().0,
            observed: Observed::default(),
            sources: Arc::new(Vec::new),
            bundle: None,
            generations: None,
            held_updates: Arc::new(Vec::new),
            events,
        };
        let report = inputs.document(Timestamp::UNIX_EPOCH);
        assert_eq!(
            (&report["node"], &report["pods"]["total"], &report["bundle"]),
            (&json!("edge1"), &json!(0), &json!(null))
        );
        let warnings = report["warnings"].as_array().map(Vec::len);
        assert_eq!(warnings, Some(MAX_WARNINGS));
        assert!(report.to_string().len() < 8_000, "{report:#}");
        assert_eq!(report["healthy"], false, "containerd is not connected");
    }
}
