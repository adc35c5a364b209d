//! kubelet's PodResources API, `v1`: which host devices and which exclusive processors containers have. None has
//! exclusive memory, as with kubelet's memory manager off.

use std::collections::BTreeMap;

use axum::Router;
use tonic::{Request, Response, Status};

use super::ServerState;
use super::grpc::MAX_MESSAGE;
use limpet_core::device_plugins::{Inventory, PluginDevice};
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_model::node::Device;
use limpet_model::pod::device::devices;
use limpet_model::pod::{PodKey, Role, is_terminal_phase};
use limpet_node_api::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use limpet_node_api::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, NumaNode,
    PodResources, TopologyInfo,
};
use limpet_plugins::device_plugins::DevicePlugins;

pub(super) fn services(state: ServerState) -> Router {
    let lister = PodResourcesListerServer::new(Lister(state)).max_decoding_message_size(MAX_MESSAGE);
    Router::new().route_service("/v1.PodResourcesLister/{call}", lister)
}

struct Lister(ServerState);

type Answer<T> = Result<Response<T>, Status>;

/// `devices` of the LimpetConfiguration.
type Table = BTreeMap<String, Device>;

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Answer<ListPodResourcesResponse> {
        let observed = self.0.observed.load();
        let mut pod_resources = all(&observed, &self.0.settings.devices, &self.0.device_plugins);
        pod_resources.iter_mut().for_each(|resources| self.add_cpus(resources, &observed));
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Answer<AllocatableResourcesResponse> {
        let table = self.0.settings.devices.iter().map(|(name, device)| entry(name, device));
        let healthy = |inventory: &Inventory| {
            inventory.healthy().map(|(name, id, device)| plugin_entry(name, id, Some(device))).collect::<Vec<_>>()
        };
        let devices = table.chain(self.0.device_plugins.with(healthy)).collect();
        let cpu_ids = self.0.cpus.iter().flat_map(|cpus| cpus.allocatable().iter().map(i64::from).collect::<Vec<_>>());
        let cpu_ids = cpu_ids.collect();
        Ok(Response::new(AllocatableResourcesResponse { devices, cpu_ids, ..AllocatableResourcesResponse::default() }))
    }

    async fn get(&self, request: Request<GetPodResourcesRequest>) -> Answer<GetPodResourcesResponse> {
        let GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let observed = self.0.observed.load();
        let key = PodKey::parse(pod_namespace.as_str(), pod_name.as_str()).ok();
        let pod = key.and_then(|key| observed.pods.get(&key));
        let pod =
            pod.ok_or_else(|| Status::not_found(format!("pod {pod_name} in namespace {pod_namespace} not found")))?;
        let mut resources = of_pod(pod, &self.0.settings.devices, &self.0.device_plugins);
        self.add_cpus(&mut resources, &observed);
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(resources) }))
    }
}

impl Lister {
    /// Adds the container's exclusive processors, as kubelet does.
    fn add_cpus(&self, resources: &mut PodResources, observed: &ObservedPods) {
        let Some(cpus) = &self.0.cpus else { return };
        let key = PodKey::parse(resources.namespace.as_str(), resources.name.as_str()).ok();
        let Some(pod) = key.and_then(|key| observed.pods.get(&key)) else { return };
        for container in &mut resources.containers {
            let given = cpus.container_cpus(&pod.record.uid, &container.name);
            if given.exclusive {
                container.cpu_ids = given.cpus.iter().map(i64::from).collect();
            }
        }
    }
}

/// The resources of pods that have not ended.
fn all(observed: &ObservedPods, table: &Table, plugins: &DevicePlugins) -> Vec<PodResources> {
    let lives = |pod: &&ObservedPod| !pod.status.phase.as_deref().is_some_and(is_terminal_phase);
    observed.pods.values().map(AsRef::as_ref).filter(lives).map(|pod| of_pod(pod, table, plugins)).collect()
}

/// The resources of a pod's sidecars and regular containers, as in kubelet.
fn of_pod(pod: &ObservedPod, table: &Table, plugins: &DevicePlugins) -> PodResources {
    let spec = pod.record.spec();
    let lasting = Role::assign(spec).filter(|(_, role)| matches!(role, Role::Sidecar | Role::Main));
    let container = |(name, _): (&str, Role)| {
        // A container has its devices once it is created.
        let created = pod.record.container(name).filter(|_| pod.containers.contains_key(name));
        let given = created.into_iter().flat_map(devices);
        let of_table = given.filter_map(|(name, _)| Some(entry(name, table.get(name)?)));
        // A plugin's devices are assigned at the pod's admission.
        let of_plugins = plugins.given(&pod.record, name);
        let of_plugins = plugins.with(|inventory| {
            let ids =
                of_plugins.iter().flat_map(|devices| devices.ids.iter().map(move |id| (devices.resource.as_str(), id)));
            ids.map(|(name, id)| plugin_entry(name, id, inventory.device(name, id))).collect::<Vec<_>>()
        });
        ContainerResources {
            name: name.to_owned(),
            devices: of_table.chain(of_plugins).collect(),
            ..ContainerResources::default()
        }
    };
    PodResources {
        name: pod.record.key.name().to_owned(),
        namespace: pod.record.key.namespace().to_owned(),
        containers: lasting.map(container).collect(),
        ..PodResources::default()
    }
}

/// A device with its paths and CDI names as ids.
fn entry(name: &str, device: &Device) -> ContainerDevices {
    let paths = device.paths.iter().map(|path| path.to_string_lossy().into_owned());
    ContainerDevices {
        resource_name: name.to_owned(),
        device_ids: paths.chain(device.cdi.iter().cloned()).collect(),
        topology: None,
    }
}

/// A plugin's device. Its NUMA nodes are known while the plugin lists it.
fn plugin_entry(name: &str, id: &str, device: Option<&PluginDevice>) -> ContainerDevices {
    let nodes = device.into_iter().flat_map(|device| &device.numa_nodes).map(|id| NumaNode { id: *id });
    let nodes: Vec<_> = nodes.collect();
    ContainerDevices {
        resource_name: name.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: (!nodes.is_empty()).then_some(TopologyInfo { nodes }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use limpet_core::fixtures::observed;
    use limpet_core::status::observed::ObservedContainer;

    fn pod(name: &str, phase: &str, created: &[&str]) -> Arc<ObservedPod> {
        let limits = json!({"limits": {"example.com/modem": 1, "example.com/other": 1, "cpu": 1}});
        let pod = observed(json!({
            "metadata": {"name": name},
            "spec": {
                "initContainers": [
                    {"name": "first", "resources": limits},
                    {"name": "side", "restartPolicy": "Always", "resources": limits},
                ],
                "containers": [{"name": "main", "resources": limits}, {"name": "plain"}],
            },
            "status": {"phase": phase},
        }));
        let containers = created.iter().map(|name| ((*name).to_owned(), ObservedContainer::default())).collect();
        Arc::new(ObservedPod { containers, ..ObservedPod::clone(&pod) })
    }

    fn table() -> Table {
        let paths = vec!["/dev/ttyS0".into(), "/dev/ttyS1".into()];
        [(
            "example.com/modem".to_owned(),
            Device { paths, cdi: Vec::new(), exclusive: true, permissions: "rw".to_owned() },
        )]
        .into()
    }

    #[test]
    fn created_containers_have_the_devices_of_the_table() {
        let resources = of_pod(&pod("web", "Running", &["first", "main"]), &table(), &DevicePlugins::default());
        let shown: Vec<_> = resources
            .containers
            .iter()
            .map(|container| {
                (container.name.as_str(), container.devices.iter().map(|device| device.device_ids.join(" ")).collect())
            })
            .collect::<Vec<(&str, Vec<String>)>>();
        let modem = vec!["/dev/ttyS0 /dev/ttyS1".to_owned()];
        assert_eq!(shown, [("side", vec![]), ("main", modem), ("plain", vec![])]);
    }

    #[test]
    fn pods_that_have_ended_have_nothing() {
        let pods =
            [pod("a", "Running", &[]), pod("b", "Succeeded", &[]), pod("c", "Failed", &[]), pod("d", "Pending", &[])];
        let observed = ObservedPods::new(pods.iter().map(|pod| (pod.record.key.clone(), Arc::clone(pod))).collect());
        let names: Vec<_> =
            all(&observed, &table(), &DevicePlugins::default()).into_iter().map(|pod| pod.name).collect();
        assert_eq!(names, ["a", "d"]);
    }
}
