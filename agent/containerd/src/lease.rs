//! The leases of starts: each protects a container's snapshot from garbage collection until the container refers to it.

use std::collections::HashMap;

use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{CreateRequest, DeleteRequest};
use rustix::process::Signal;
use tonic::Code;

use super::container::Containers;
use super::error::{RuntimeError, found};
use super::record;
use limpet_model::container::ContainerId;

impl Containers {
    /// Creates a lease that protects a start's resources until the container refers to them. It has no expiry, since a clock
    /// change must not end it; [`Self::sweep_leases`] removes orphans of a crash.
    pub async fn lease(&self, id: &ContainerId) -> Result<String, RuntimeError> {
        let lease = lease_of(id);
        let labels = HashMap::from([(record::LABEL_MANAGED.to_owned(), "start".to_owned())]);
        match LeasesClient::new(self.client.channel())
            .create(self.client.call("Leases.Create", CreateRequest { id: lease.clone(), labels }))
            .await
        {
            Ok(_) => Ok(lease),
            Err(status) if status.code() == Code::AlreadyExists => Ok(lease),
            Err(status) => Err(RuntimeError::of("Leases.Create", id.as_str(), status)),
        }
    }

    /// Removes everything that an interrupted start of the container has created, its lease included. Its process may run: the
    /// start's last answer was lost.
    pub async fn remove_failed_attempt(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        // containerd deletes no task that runs.
        if self.kill(id, Signal::KILL.as_raw() as u32, true).await? {
            self.wait(id).await?;
        }
        self.remove_never_ran(id).await?;
        self.release(&lease_of(id)).await
    }

    /// Releases a lease.
    pub async fn release(&self, lease: &str) -> Result<(), RuntimeError> {
        let request = self.client.call("Leases.Delete", DeleteRequest { id: lease.to_owned(), sync: false });
        found(LeasesClient::new(self.client.channel()).delete(request).await)
            .map_err(|status| RuntimeError::of("Leases.Delete", lease, status))?;
        Ok(())
    }

    /// Releases the orphaned leases of starts that a crash interrupted. Called once, before anything starts.
    pub async fn sweep_leases(&self) -> Result<(), RuntimeError> {
        let filters = vec![format!("labels.\"{}\"==start", record::LABEL_MANAGED)];
        let request = self.client.call("Leases.List", containerd_client::services::v1::ListRequest { filters });
        let leases = LeasesClient::new(self.client.channel())
            .list(request)
            .await
            .map_err(|status| RuntimeError::of("Leases.List", "the node", status))?;
        for lease in leases.into_inner().leases {
            self.release(&lease.id).await?;
        }
        Ok(())
    }
}

fn lease_of(id: &ContainerId) -> String {
    format!("limpet-start-{id}")
}
