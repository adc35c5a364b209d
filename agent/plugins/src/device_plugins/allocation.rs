//! Allocates devices to the containers of a pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodStatus, ResourceHealth, ResourceStatus};

use super::DevicePlugins;
use super::connection::Connection;
use crate::plugin_socket::status_message;
use limpet_core::device_plugins::{AllocationError, Choice};
use limpet_model::device_allocation::DeviceAllocation;
use limpet_model::pod::device::devices;
use limpet_model::pod::{PodRecord, Role};
use limpet_telemetry::reporter::DeviceHealth;

/// Why a container does not get its devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The node does not have enough of them.
    #[error(transparent)]
    Refused(#[from] AllocationError),
    /// The plugin is not connected.
    #[error("endpoint of {0} has been stopped")]
    Stopped(String),
    /// The plugin's own error message.
    #[error("{0}")]
    Plugin(String),
}

impl DevicePlugins {
    /// The plugins' resources that a container requests, with the number of each.
    fn wanted<'a>(&self, record: &'a PodRecord, container: &str) -> Vec<(&'a str, usize)> {
        let Some(container) = record.container(container) else { return Vec::new() };
        let inventory = self.inventory();
        let wanted = devices(container).filter(|(name, _)| inventory.serves(record, name));
        wanted.map(|(name, count)| (name, usize::try_from(count).unwrap_or(usize::MAX))).collect()
    }

    /// Allocates to every container of the pod what it requests and does not have yet.
    ///
    /// # Errors
    ///
    /// A container cannot get its devices; the other containers keep theirs.
    pub async fn allocate(self: &Arc<Self>, record: &PodRecord) -> Result<(), AllocateError> {
        for (container, _) in Role::assign(record.spec()) {
            self.allocate_container(record, container).await?;
        }
        Ok(())
    }

    /// Allocates to one container what it requests, unless it already has it, for its start.
    ///
    /// # Errors
    ///
    /// The container cannot get its devices.
    pub async fn complete(self: &Arc<Self>, record: &PodRecord, container: &str) -> Result<(), AllocateError> {
        let given = self.given(record, container);
        let has = |(resource, count): (&str, usize)| {
            given.iter().any(|given| given.resource == resource && given.ids.len() == count)
        };
        if self.wanted(record, container).into_iter().all(has) {
            return Ok(());
        }
        self.allocate_container(record, container).await
    }

    async fn allocate_container(self: &Arc<Self>, record: &PodRecord, container: &str) -> Result<(), AllocateError> {
        let wanted = self.wanted(record, container);
        self.inventory().withdraw(&record.uid, container, &wanted);
        for (resource, count) in wanted {
            let given = self.allocate_resource(record, container, resource, count).await;
            if given.is_err() {
                self.inventory().withdraw(&record.uid, container, &[(resource, count)]);
            }
            given?;
        }
        Ok(())
    }

    async fn allocate_resource(
        &self,
        record: &PodRecord,
        container: &str,
        resource: &str,
        count: usize,
    ) -> Result<(), AllocateError> {
        let (key, uid) = (&record.key, &record.uid);
        let choose = |inventory: &limpet_core::device_plugins::Inventory| {
            inventory.choose(uid, record.spec(), container, resource, count)
        };
        let Some(choice) = choose(&self.inventory())? else { return Ok(()) };
        let plugin = self.connection(resource).ok_or_else(|| AllocateError::Stopped(resource.to_owned()))?;
        let preferred = match &choice {
            Choice { needed: 0, .. } => Vec::new(),
            Choice { reused, free, .. } => {
                let available = free.iter().chain(reused).cloned().collect();
                let asked = plugin.preferred(available, reused.clone(), count).await;
                let failed = |status| {
                    AllocateError::Plugin(format!(
                        "device plugin GetPreferredAllocation rpc failed with err: {}",
                        status_message(&status)
                    ))
                };
                asked.map_err(failed)?
            }
        };
        // Other pods may have got some of them meanwhile.
        let ids = {
            let mut inventory = self.inventory();
            let Some(choice) = choose(&inventory)? else { return Ok(()) };
            let ids = choice.pick(&preferred);
            inventory.reserve(key, uid, container, resource, ids.clone());
            ids
        };
        let allocation = plugin.allocate(ids).await.map_err(|status| AllocateError::Plugin(status_message(&status)))?;
        tracing::info!(pod = %key, container, resource, ids = ?allocation.ids, "devices allocated");
        self.inventory().allocated(key, uid, container, allocation);
        Ok(())
    }

    fn connection(&self, resource: &str) -> Option<Connection> {
        let plugin = self.inventory().plugin(resource)?;
        self.connections().get(&plugin).cloned()
    }

    /// What the plugins have returned for a container and the resources that it requests.
    pub fn given(&self, record: &PodRecord, container: &str) -> Vec<DeviceAllocation> {
        let wanted = self.wanted(record, container);
        if wanted.is_empty() {
            return Vec::new();
        }
        let inventory = self.inventory();
        let given = inventory.of_container(&record.uid, container);
        given.filter(|given| wanted.iter().any(|(name, _)| *name == given.resource)).cloned().collect()
    }

    /// Lets plugins that require it prepare a container's devices for its start.
    ///
    /// # Errors
    ///
    /// A plugin refuses, or does not answer in time.
    pub async fn pre_start(&self, given: &[DeviceAllocation]) -> Result<(), AllocateError> {
        for allocation in given {
            // Without its plugin, a container starts with the devices that it has.
            let Some(plugin) = self.connection(&allocation.resource) else { continue };
            let failed = |status| {
                AllocateError::Plugin(format!(
                    "device plugin PreStartContainer rpc failed with err: {}",
                    status_message(&status)
                ))
            };
            plugin.pre_start(allocation.ids.clone()).await.map_err(failed)?;
        }
        Ok(())
    }
}

impl DeviceHealth for DevicePlugins {
    /// Shows the health of the regular containers' devices, as kubelet does.
    fn show_health(&self, record: &PodRecord, status: &mut PodStatus) {
        for container in status.container_statuses.iter_mut().flatten() {
            let given = self.given(record, &container.name);
            if given.is_empty() {
                continue;
            }
            let inventory = self.inventory();
            let health = |resource: &str, id: &String| {
                let word = match inventory.device(resource, id) {
                    Some(device) if device.healthy => "Healthy",
                    Some(_) => "Unhealthy",
                    None => "Unknown",
                };
                ResourceHealth { resource_id: id.clone(), health: Some(word.to_owned()), ..ResourceHealth::default() }
            };
            let shown = given.iter().map(|given| ResourceStatus {
                name: given.resource.clone(),
                resources: Some(given.ids.iter().map(|id| health(&given.resource, id)).collect()),
            });
            container.allocated_resources_status = Some(shown.collect());
        }
    }
}
