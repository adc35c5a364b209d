//! Starts to send the node's reports.

use std::sync::Arc;

use tokio::sync::watch;

use super::SharedParts;
use crate::node_report::{NodeReporter, ReportInputs};
use limpet_bundle::decision::AppliedBundle;
use limpet_generations::SourceGenerationsView;
use limpet_server::Sources;
use limpet_wire::status::ReportDocument;

/// Starts to send the node's reports, if they are configured.
pub(super) fn start_report(
    shared: &SharedParts,
    node_name: &Arc<str>,
    sources: &Arc<dyn Sources>,
    bundle: Option<watch::Receiver<Option<Option<AppliedBundle>>>>,
    generations: Option<watch::Receiver<Vec<SourceGenerationsView>>>,
) -> watch::Receiver<Option<ReportDocument>> {
    let none = || watch::channel(None).1;
    let Some(settings) = &shared.config.report else { return none() };
    let inputs = ReportInputs {
        node_name: Arc::clone(node_name),
        health: shared.health.clone(),
        observed: shared.observed.clone(),
        sources: Arc::clone(sources),
        bundle,
        generations,
        held_updates: shared.held_updates(),
        events: shared.events.clone(),
    };
    match NodeReporter::new(settings, shared.config.report_key(), inputs, shared.node_network.clone()) {
        Ok(reporter) => {
            let state = reporter.state();
            shared.tasks.spawn(reporter.run(shared.stop.clone()));
            state
        }
        Err(error) => {
            tracing::error!(error, "updates.report.url is no URL with the node's name; no report is sent");
            none()
        }
    }
}
