//! The leases of starts: each protects a container's snapshot from garbage collection until the container refers to
//! it.

use std::collections::HashMap;

use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{CreateRequest, DeleteRequest};
use rustix::process::Signal;
use tonic::Code;

use super::container::Containers;
use super::error::{RuntimeError, none_if_missing};
use super::record;
use limpet_model::container::ContainerId;

impl Containers {
    /// Creates a lease that protects a start's resources until the container refers to them. It never expires,
    /// because a clock change must not end it; [`Self::sweep_leases`] removes orphans of a crash. Leases of earlier
    /// starts of the container are released first.
    pub async fn lease(&self, id: &ContainerId) -> Result<String, RuntimeError> {
        self.release_orphans_of(id).await?;
        let lease = self.leases.begin(id);
        let labels = HashMap::from([(record::LABEL_MANAGED.to_owned(), "start".to_owned())]);
        match LeasesClient::new(self.client.channel())
            .create(self.client.call("Leases.Create", CreateRequest { id: lease.clone(), labels }))
            .await
        {
            Ok(_) => Ok(lease),
            Err(status) if status.code() == Code::AlreadyExists => Ok(lease),
            Err(status) => {
                // The lease exists if only the answer was lost.
                self.leases.end(&lease);
                Err(RuntimeError::from_status("Leases.Create", id.as_str(), status))
            }
        }
    }

    /// Removes everything that interrupted starts of the container have created, leases included. Its process may be
    /// running if the answer to the start was lost.
    pub async fn remove_failed_attempt(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        // containerd does not delete a running task.
        if self.kill(id, Signal::KILL.as_raw() as u32, true).await? {
            self.wait(id).await?;
        }
        self.remove_never_ran(id).await?;
        self.release_orphans_of(id).await
    }

    async fn release_orphans_of(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        for lease in self.leases.orphans(Some(id)) {
            self.release(&lease).await?;
        }
        Ok(())
    }

    /// Releases a lease. If this fails it is an orphan: see [`Self::release_orphaned_leases`].
    pub async fn release(&self, lease: &str) -> Result<(), RuntimeError> {
        self.leases.end(lease);
        let request = self.client.call("Leases.Delete", DeleteRequest { id: lease.to_owned(), sync: false });
        none_if_missing(LeasesClient::new(self.client.channel()).delete(request).await)
            .map_err(|status| RuntimeError::from_status("Leases.Delete", lease, status))?;
        self.leases.deleted(lease);
        Ok(())
    }

    /// Releases the leases of ended starts whose release has failed. Called after each reconnection. A failure leaves
    /// the rest to the next call.
    pub async fn release_orphaned_leases(&self) {
        for lease in self.leases.orphans(None) {
            if let Err(error) = self.release(&lease).await {
                return tracing::debug!(%error, "cannot delete the lease of a start; it is deleted after the next reconnection");
            }
        }
    }

    /// Releases the orphaned leases of starts that a crash interrupted. Called once, before anything starts.
    pub async fn sweep_leases(&self) -> Result<(), RuntimeError> {
        let filters = vec![format!("labels.\"{}\"==start", record::LABEL_MANAGED)];
        let request = self.client.call("Leases.List", containerd_client::services::v1::ListRequest { filters });
        let leases = LeasesClient::new(self.client.channel())
            .list(request)
            .await
            .map_err(|status| RuntimeError::from_status("Leases.List", "the node", status))?;
        for lease in leases.into_inner().leases {
            self.release(&lease.id).await?;
        }
        Ok(())
    }
}
