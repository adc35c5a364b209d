//! Updates of an existing container: the resources of its task, and its record.

use std::collections::HashMap;

use containerd_client::services::v1::{Container, GetContainerRequest, UpdateContainerRequest, UpdateTaskRequest};
use limpet_model::container::{ContainerId, ContainerIdentity, ContainerState};
use limpet_model::probe::ProbeRecord;
use oci_spec::runtime::LinuxResources;
use prost_types::{Any, FieldMask};
use tonic::Code;

use super::Containers;
use crate::error::{RuntimeError, none_if_missing};
use crate::record;
use crate::spec::with_resources;

const RESOURCES_TYPE_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

impl Containers {
    /// Sets resources of the running task. Returns false if there is none.
    pub async fn resize_task(&self, id: &ContainerId, resources: &LinuxResources) -> Result<bool, RuntimeError> {
        // Plain numbers always serialize.
        let resources = serde_json::to_vec(resources).unwrap_or_default();
        let message = UpdateTaskRequest {
            container_id: id.to_string(),
            resources: Some(Any { type_url: RESOURCES_TYPE_URL.to_owned(), value: resources }),
            ..UpdateTaskRequest::default()
        };
        none_if_missing(self.tasks().update(self.client.call("Tasks.Update", message)).await)
            .map(|response| response.is_some())
            .map_err(|status| RuntimeError::from_status("Tasks.Update", id.as_str(), status))
    }

    /// Records the version to which a container was resized; `change` updates its identity. Returns false if the
    /// container does not exist.
    pub async fn write_resize(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
        manifest: &[u8],
        change: impl FnOnce(&mut ContainerIdentity),
    ) -> Result<bool, RuntimeError> {
        let request = self.client.call("Containers.Get", GetContainerRequest { id: id.to_string() });
        let response = none_if_missing(self.containers().get(request).await)
            .map_err(|status| RuntimeError::from_status("Containers.Get", id.as_str(), status))?;
        let Some(container) = response.and_then(|response| response.container) else { return Ok(false) };
        let unreadable = |message| RuntimeError::Refused {
            call: "Containers.Get",
            subject: id.to_string(),
            code: Code::DataLoss,
            message,
        };
        let mut identity = record::recorded(&container.extensions).map_err(unreadable)?.identity;
        change(&mut identity);
        let mut spec = container.spec.unwrap_or_default();
        spec.value = with_resources(&spec.value, resources).map_err(|error| unreadable(error.to_string()))?;
        let mut paths = vec!["spec".to_owned()];
        paths.extend([record::EXTENSION_IDENTITY, record::EXTENSION_MANIFEST].map(|key| format!("extensions.{key}")));
        let message = UpdateContainerRequest {
            container: Some(Container {
                id: id.to_string(),
                spec: Some(spec),
                extensions: record::version_extensions(&identity, manifest),
                ..Container::default()
            }),
            update_mask: Some(FieldMask { paths }),
        };
        none_if_missing(self.containers().update(self.client.call("Containers.Update", message)).await)
            .map(|response| response.is_some())
            .map_err(|status| RuntimeError::from_status("Containers.Update", id.as_str(), status))
    }

    /// Writes the container's state to its record. Returns false if the container does not exist.
    pub async fn write_state(&self, id: &ContainerId, state: &ContainerState) -> Result<bool, RuntimeError> {
        self.write_extension(id, record::EXTENSION_STATE, record::state_extension(state)).await
    }

    /// Writes the container's probe results next to its state, so an exit that is written meanwhile is kept. Returns
    /// false if the container does not exist.
    pub async fn write_probes(&self, id: &ContainerId, probes: &ProbeRecord) -> Result<bool, RuntimeError> {
        self.write_extension(id, record::EXTENSION_PROBES, record::probes_extension(probes)).await
    }

    async fn write_extension(&self, id: &ContainerId, key: &str, value: Any) -> Result<bool, RuntimeError> {
        let message = UpdateContainerRequest {
            container: Some(Container {
                id: id.to_string(),
                extensions: HashMap::from([(key.to_owned(), value)]),
                ..Container::default()
            }),
            update_mask: Some(FieldMask { paths: vec![format!("extensions.{key}")] }),
        };
        none_if_missing(self.containers().update(self.client.call("Containers.Update", message)).await)
            .map(|response| response.is_some())
            .map_err(|status| RuntimeError::from_status("Containers.Update", id.as_str(), status))
    }
}
