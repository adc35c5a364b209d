//! The files of the node's own PersistentVolumeClaims: read once at the start, removed when their claim is gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use limpet_claims::{Action, ClaimId, Claims, Order};
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::claim_directories::{ClaimDirectories, FoundClaim};
use limpet_model::error_chain::error_chain;
use limpet_model::source::SourceKind;
use limpet_worker::claimed_volumes::{ClaimDisk, ClaimedVolumes, Removed};

use crate::config::Config;

/// The agent waits this long for a removal, because an SD card takes minutes for many files. One that takes longer
/// continues in the background.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(600);

/// The directories of claims.
#[derive(Debug)]
struct Disk(ClaimDirectories);

/// The claims that have files, and the disk with these. If the disk cannot be read, no files are removed.
pub async fn load(config: &Config) -> ClaimedVolumes {
    let base = config.volumes.claims_dir(&config.root_dir);
    let directories = ClaimDirectories::new(&base, &config.root_dir);
    let reading = directories.clone();
    let listed = match blocking::run(base.clone(), DEADLINE, move |_| reading.list()).await {
        Ok(Ok(claims)) => claims,
        Ok(Err(error)) => {
            tracing::error!(error = error_chain(&error), "the files of claims cannot be read");
            Vec::new()
        }
        Err(error) => {
            tracing::error!(error = error_chain(&error), "the files of claims cannot be read");
            Vec::new()
        }
    };
    let claims = Claims::new(base, listed.into_iter().filter_map(known));
    ClaimedVolumes::new(claims, Arc::new(Disk(directories)))
}

fn known(claim: FoundClaim) -> Option<(ClaimId, bool)> {
    let FoundClaim { source, namespace, name, retained } = claim;
    let source = SourceKind::from_name(&source)?;
    Some((ClaimId { source, namespace: Arc::from(namespace), name: Arc::from(name) }, retained))
}

impl ClaimDisk for Disk {
    fn perform(self: Arc<Self>, orders: Vec<Order>) -> BoxFuture<'static, Removed> {
        Box::pin(async move {
            let mut removed = Vec::new();
            for Order { id, directory, action } in orders {
                let (directories, subject) = (self.0.clone(), directory.clone());
                let work = move |_: &blocking::Progress| match action {
                    Action::Retain(retained) => directories.retain(&directory, retained),
                    Action::Remove => directories.remove(&directory),
                };
                let result = match blocking::run(subject, REMOVAL_DEADLINE, work).await {
                    Ok(result) => result.map_err(|error| error_chain(&error)),
                    Err(error) => Err(error_chain(&error)),
                };
                let claim = format!("{}/{}", id.namespace, id.name);
                match (action, &result) {
                    (Action::Remove, Ok(())) => tracing::info!(claim, "the files of a claim that is gone are removed"),
                    (Action::Remove, Err(error)) => {
                        tracing::error!(
                            claim,
                            error,
                            "the files of a claim that is gone cannot be removed; the next start tries it again"
                        );
                    }
                    (Action::Retain(_), Err(error)) => {
                        tracing::error!(claim, error, "it cannot be noted whether the files of a claim are kept");
                    }
                    (Action::Retain(_), Ok(())) => {}
                }
                if action == Action::Remove {
                    removed.push((id, result.is_ok()));
                }
            }
            removed
        })
    }
}
