//! A container's OCI spec. What it is built from is gathered first, with calls that wait; the rest accesses files.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Container;

use super::{ContainerdExecutor, Start, StartFailure, config_error, devices};
use limpet_containerd::image_volumes::declared;
use limpet_containerd::spec::{self, ContainerCpus, ProcessUser, ShimGroup, SpecInput};
use limpet_host::blocking::Progress;
use limpet_host::call_watch::calling;
use limpet_host::sandbox::id_mapped::IdMapping;
use limpet_host::sandbox::label_shared_memory;
use limpet_host::volume::Volumes;
use limpet_model::container::ContainerId;
use limpet_model::device_allocation::DeviceAllocation;
use limpet_model::image::LocalImage;
use limpet_model::node::{NodeAddresses, NodeFacts};
use limpet_model::object::PodObjects;
use limpet_model::pod::PodRecord;
use limpet_model::sandbox::{PodAddresses, Sandbox, in_order_of_node};
use limpet_model::selinux::ContainerLabels;

/// What a spec is built from.
pub(super) struct SpecParts {
    record: Arc<PodRecord>,
    container: Container,
    id: ContainerId,
    image: Arc<LocalImage>,
    user: ProcessUser,
    sandbox: Sandbox,
    mapping: Option<IdMapping>,
    addresses: PodAddresses,
    node_addresses: NodeAddresses,
    cgroups_path: String,
    node: NodeFacts,
    volumes: Volumes,
    pub(super) pod_dir: PathBuf,
    objects: Arc<PodObjects>,
    class_devices: Vec<String>,
    given: Vec<DeviceAllocation>,
    cpus: Option<ContainerCpus>,
    labels: Option<Arc<ContainerLabels>>,
    shim_group: ShimGroup,
}

impl ContainerdExecutor {
    /// Gathers the parts of a container's spec. This mounts its volumes on servers and of CSI drivers.
    pub(super) async fn gather_spec(
        &self,
        start: &Start<'_>,
        user: ProcessUser,
        labels: Option<Arc<ContainerLabels>>,
    ) -> Result<SpecParts, StartFailure> {
        let record = Arc::clone(&start.pod.record);
        let sandbox = start.joined()?;
        // They were mounted before the pod's first container, but may have been unmounted since.
        calling("mounting what its volumes have on servers");
        let exports = self.volumes.mount_exports(&record, &start.pod.objects).await;
        exports.map_err(|error| config_error(error.to_string()))?;
        let drivers = self.set_up_csi(&record, &start.pod.objects).await;
        drivers.map_err(|error| config_error(error.to_string()))?;
        let mapping = IdMapping::open(&sandbox).map_err(|error| config_error(error.to_string()))?;
        let class = self.runtime_class(start.pod).map_err(config_error)?;
        calling("the addresses of Services");
        let objects = match self.service_links.variables(&record).await {
            Some(variables) => Arc::new(start.pod.objects.with(variables)),
            None => Arc::clone(&start.pod.objects),
        };
        let node_addresses = self.node_network.borrow().addresses;
        let ips = match record.host_network() {
            true => node_addresses.iter().collect(),
            false => in_order_of_node(&start.sandbox.addresses.ips, node_addresses),
        };
        Ok(SpecParts {
            container: start.container.clone(),
            id: start.id.clone(),
            image: Arc::clone(start.image),
            user,
            sandbox,
            mapping,
            addresses: PodAddresses { ips },
            node_addresses,
            cgroups_path: self.cgroups.container_path(&record, start.id.as_str()),
            node: self.node.clone(),
            pod_dir: self.volumes.pod_dir(&record.uid),
            volumes: self.volumes.clone(),
            objects,
            class_devices: class.map(|class| class.devices.clone()).unwrap_or_default(),
            given: start.given.clone(),
            cpus: start.cpus.clone(),
            labels,
            shim_group: self.settings.runtime.shim_group,
            record,
        })
    }
}

impl SpecParts {
    /// The spec in JSON. Sets up the container's mounts. Blocks.
    pub(super) fn build(&self, progress: &Progress) -> Result<Vec<u8>, String> {
        let (volumes, record, objects) = (&self.volumes, &self.record, &self.objects);
        let mut input = self.input();
        let label = self.labels.as_deref().map(|labels| labels.file.as_str());
        devices::make_sources(&self.given)?;
        let expanded = spec::expand_sub_paths(&input).map_err(|error| error.to_string())?;
        let mounts = volumes.mounts(record, objects, &expanded, self.id.as_str(), label, progress);
        let mut mounts = mounts.map_err(|error| error.to_string())?;
        let declared = declared(&self.image, &self.container)?;
        let named = (self.container.name.as_str(), self.id.as_str());
        let added = volumes.mount_declared(&record.uid, named, &declared, label, &mut mounts);
        added.map_err(|error| error.to_string())?;
        if let Some(label) = label {
            label_shared_memory(&self.sandbox, label).map_err(|error| error.to_string())?;
        }
        if let Some(mapping) = &self.mapping {
            let mapped = mapping.mounts(self.id.as_str(), &self.pod_dir, mounts);
            mounts = mapped.map_err(|error| error.to_string())?;
        }
        input.mounts = &mounts;
        let block_devices = volumes.block_devices(record, objects, &self.container, progress);
        let block_devices = block_devices.map_err(|error| error.to_string())?;
        input.block_devices = &block_devices;
        let spec = spec::build(&input).map_err(|error| error.to_string())?;
        serde_json::to_vec(&spec).map_err(|error| error.to_string())
    }

    /// The input for the spec, without mounts and block devices.
    fn input(&self) -> SpecInput<'_> {
        SpecInput {
            pod: &self.record,
            container: &self.container,
            image: &self.image,
            user: &self.user,
            sandbox: &self.sandbox,
            addresses: &self.addresses,
            node_addresses: self.node_addresses,
            mounts: &[],
            cgroups_path: &self.cgroups_path,
            node: &self.node,
            pod_dir: &self.pod_dir,
            objects: &self.objects,
            class_devices: &self.class_devices,
            given: &self.given,
            cpus: self.cpus.as_ref(),
            block_devices: &[],
            labels: self.labels.as_deref(),
            shim_group: self.shim_group,
        }
    }
}
