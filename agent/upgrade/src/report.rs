//! Reports the newest upgrade in the agent's status, an event, a metric and the log.

use std::io;
use std::sync::Arc;

use limpet_host::blocking;
use limpet_host::path_watch::PathWatch;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::{Metrics, UpgradeOutcome};
use limpet_wire::status::{LastUpgrade, UpgradeDocument};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::journal::{Journal, Step};
use crate::slot::Slot;

/// Where it is reported.
#[derive(Debug, Clone)]
pub struct Reporter {
    pub events: Events,
    pub metrics: Metrics,
    pub document: Arc<watch::Sender<Option<UpgradeDocument>>>,
}

/// Reports how the newest upgrade ended. While this agent itself is on trial it waits for the end; otherwise it
/// returns immediately.
pub async fn follow(slot: Slot, reporter: Reporter, stop: CancellationToken) {
    let followed = async {
        while !reporter.said(&slot).await? {
            let mut watch = PathWatch::file(&slot.journal_path()).await?;
            if !reporter.said(&slot).await? {
                watch.changed().await?;
            }
        }
        Ok::<_, io::Error>(())
    };
    tokio::select! {
        () = stop.cancelled() => {}
        followed = followed => {
            if let Err(error) = followed {
                tracing::warn!(%error, journal = %slot.journal_path().display(), "the journal of upgrades cannot be read");
            }
        }
    }
}

impl Reporter {
    async fn said(&self, slot: &Slot) -> io::Result<bool> {
        let (reporter, slot) = (self.clone(), slot.clone());
        blocking::run(slot.journal_path(), blocking::DEADLINE, move |_| reporter.report(&slot)).await?
    }

    /// Reports the journal's content. Returns whether it is final. Blocks.
    fn report(&self, slot: &Slot) -> io::Result<bool> {
        let journal = slot.journal()?;
        self.document.send_replace(Some(document(slot, journal.as_ref())));
        let Some(journal) = journal else { return Ok(true) };
        if !journal.is_over() {
            return Ok(false);
        }
        let (outcome, at) = match &journal.step {
            Step::Installed { at } => (UpgradeOutcome::Installed, at.0),
            Step::Undone { at, .. } => (UpgradeOutcome::Undone, at.0),
            Step::Trial { .. } | Step::Accepted => return Ok(false),
        };
        self.metrics.set_last_upgrade(outcome, at);
        if !journal.reported {
            self.emit(&journal);
            // On a read-only file system, or while another upgrade begins, it is reported again at the next start.
            if let Some(_lock) = slot.try_lock()?
                && slot.journal()?.as_ref() == Some(&journal)
            {
                let _ = slot.write_journal(&Journal { reported: true, ..journal });
            }
        }
        Ok(true)
    }

    fn emit(&self, journal: &Journal) {
        let Journal { from, to, .. } = journal;
        if let Step::Undone { reason, .. } = &journal.step {
            tracing::error!(from, to, reason, "upgrade undone");
            let message = format!("limpet {to} was undone, limpet {from} runs: {reason}");
            self.events.emit(None, None, EventType::Warning, "UpgradeUndone", message);
        } else {
            tracing::info!(from, to, "upgraded");
            self.events.emit(None, None, EventType::Normal, "Upgraded", format!("limpet {to} runs in place of {from}"));
        }
    }
}

/// The document of a slot with this journal.
fn document(slot: &Slot, journal: Option<&Journal>) -> UpgradeDocument {
    let last = journal.map(|journal| {
        let (outcome, at, reason) = match &journal.step {
            Step::Trial { .. } | Step::Accepted => ("trial", None, None),
            Step::Installed { at } => ("installed", Some(at.clone()), None),
            Step::Undone { at, reason } => ("undone", Some(at.clone()), Some(reason.clone())),
        };
        LastUpgrade { from: journal.from.clone(), to: journal.to.clone(), outcome: outcome.to_owned(), at, reason }
    });
    UpgradeDocument { directory: slot.directory().to_owned(), last }
}
