//! The leases of starts: what protects a container's snapshot until the container is there to hold it.

use std::collections::HashMap;

use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{CreateRequest, DeleteRequest};
use tonic::Code;

use super::container::Containers;
use super::error::{RuntimeError, found};
use super::record;
use limpet_model::container::ContainerId;

impl Containers {
    /// Protects what a start makes before the container exists to hold it. No expiry: a clock that jumps must not
    /// end it; what a crash leaves is swept by [`Self::sweep_leases`].
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

    /// Removes what a try to start the container has left, its lease included.
    pub async fn remove_half_made(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.remove_never_ran(id).await?;
        self.release(&lease_of(id)).await
    }

    /// Gives a lease back.
    pub async fn release(&self, lease: &str) -> Result<(), RuntimeError> {
        let request = self.client.call("Leases.Delete", DeleteRequest { id: lease.to_owned(), sync: false });
        found(LeasesClient::new(self.client.channel()).delete(request).await)
            .map_err(|status| RuntimeError::of("Leases.Delete", lease, status))?;
        Ok(())
    }

    /// Gives back every lease that a crash in mid-start left behind. Called once, before anything starts.
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
