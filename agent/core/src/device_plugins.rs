//! The devices of the device plugins: which exist, and which container has which. Pure: time is an argument.
//!
//! These are kubelet's rules (`pkg/kubelet/cm/devicemanager`): the devices of a plugin that is gone count as
//! unhealthy, and after five minutes the node has none of them. A container keeps its devices until its pod ends.
//! Those of an init container are passed on to the containers after it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PodSpec;

use limpet_model::device_allocation::DeviceAllocation;
use limpet_model::pod::device::pod_devices;
use limpet_model::pod::{PodKey, PodRecord, PodUid, Role};

/// How long the node shows the resource of a plugin that is gone: kubelet's `endpointStopGracePeriod`.
pub const STOP_GRACE_PERIOD: Duration = Duration::from_secs(5 * 60);

/// One connection to a plugin.
pub type PluginId = u64;

/// A device as its plugin lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginDevice {
    /// Whether it can be used.
    pub healthy: bool,
    /// The NUMA nodes that it is near.
    pub numa_nodes: Vec<i64>,
}

/// How many devices of a resource the node has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCount {
    pub capacity: usize,
    pub allocatable: usize,
}

/// One extended resource.
#[derive(Debug, Clone, Default)]
struct Resource {
    devices: BTreeMap<String, PluginDevice>,
    /// The connected plugins, the newest last.
    plugins: Vec<PluginId>,
    /// Since when no plugin is connected.
    stopped: Option<Instant>,
    /// Whether that grace period has passed, so that the node has none of it.
    gone: bool,
}

/// What one pod has.
#[derive(Debug, Clone)]
struct PodDevices {
    key: PodKey,
    /// By container and resource.
    containers: BTreeMap<String, BTreeMap<String, AssignedDevices>>,
}

/// What a container has of one resource.
#[derive(Debug, Clone)]
enum AssignedDevices {
    /// These ids are reserved, but the plugin has not answered yet.
    Reserved(Vec<String>),
    Allocated(DeviceAllocation),
}

impl AssignedDevices {
    fn ids(&self) -> &[String] {
        match self {
            Self::Reserved(ids) => ids,
            Self::Allocated(allocation) => &allocation.ids,
        }
    }
}

/// Why a container cannot have its devices, in kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// No plugin has registered the resource.
    #[error("can't allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    /// The container has a device that is not healthy any more.
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    Unhealthy(String),
    /// Other containers have them.
    #[error("requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}")]
    Unavailable {
        resource: String,
        /// How many more the container needs.
        requested: usize,
        /// How many are free.
        available: usize,
    },
}

/// What a container may choose from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The ids it takes in any case, because init containers before it have them.
    pub reused: Vec<String>,
    /// The free ids.
    pub free: BTreeSet<String>,
    /// How many of those it needs.
    pub needed: usize,
}

impl Choice {
    /// The ids it gets, sorted; the plugin prefers `preferred`.
    pub fn pick(self, preferred: &[String]) -> Vec<String> {
        let wanted: Vec<&String> = preferred.iter().filter(|id| self.free.contains(*id)).collect();
        let others = self.free.iter().filter(|id| !wanted.contains(id));
        let mut chosen: BTreeSet<String> = self.reused.iter().cloned().collect();
        let all = self.reused.len() + self.needed;
        for id in wanted.iter().copied().chain(others) {
            if chosen.len() == all {
                break;
            }
            chosen.insert(id.clone());
        }
        chosen.into_iter().collect()
    }
}

/// All devices of all plugins.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The resources of `devices` in the LimpetConfiguration, which no plugin may register.
    configured: BTreeSet<String>,
    resources: BTreeMap<String, Resource>,
    pods: BTreeMap<PodUid, PodDevices>,
    /// What is recorded on existing containers, until their pods claim it.
    recorded: BTreeMap<PodUid, Vec<(String, DeviceAllocation)>>,
}

impl Inventory {
    /// An inventory without a connected plugin.
    pub fn new(configured: BTreeSet<String>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// Whether the LimpetConfiguration names the resource.
    pub fn is_configured(&self, resource: &str) -> bool {
        self.configured.contains(resource)
    }

    /// Whether a plugin has to give the pod this resource. A resource that another client has written into the Node's
    /// status is counted only by the scheduler and is not a device, so pods of the apiserver run with it, as in
    /// kubelet.
    pub fn serves(&self, record: &PodRecord, resource: &str) -> bool {
        let is_counted = || record.source.traits().is_scheduled && !self.resources.contains_key(resource);
        !self.is_configured(resource) && !is_counted()
    }

    /// The plugins' resources that the pod needs at the same time, and how many of each.
    pub fn pod_wants<'a>(&'a self, record: &'a PodRecord) -> impl Iterator<Item = (&'a str, usize)> {
        let all = pod_devices(record.spec()).into_iter().filter(|(name, _)| self.serves(record, name));
        all.map(|(name, count)| (name, usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// Records that the node had this resource before the agent started, because its plugin may come back.
    pub fn remember(&mut self, resource: &str, now: Instant) {
        let known = Resource { stopped: Some(now), ..Resource::default() };
        self.resources.entry(resource.to_owned()).or_insert(known);
    }

    /// Records that a plugin has registered; its list of devices follows.
    pub fn connected(&mut self, resource: &str, plugin: PluginId) {
        let known = self.resources.entry(resource.to_owned()).or_default();
        known.plugins.push(plugin);
        (known.stopped, known.gone) = (None, false);
    }

    /// Records all devices of a plugin. Returns whether that changes something.
    pub fn listed(&mut self, resource: &str, plugin: PluginId, devices: BTreeMap<String, PluginDevice>) -> bool {
        let known = self.resources.get_mut(resource).filter(|known| known.plugins.contains(&plugin));
        known.is_some_and(|known| std::mem::replace(&mut known.devices, devices) != known.devices)
    }

    /// Records that a plugin is gone. Returns whether it was connected.
    pub fn disconnected(&mut self, resource: &str, plugin: PluginId, now: Instant) -> bool {
        let Some(known) = self.resources.get_mut(resource) else { return false };
        let before = known.plugins.len();
        known.plugins.retain(|connected| *connected != plugin);
        if known.plugins.is_empty() && known.stopped.is_none() {
            known.stopped = Some(now);
            known.devices.values_mut().for_each(|device| device.healthy = false);
        }
        known.plugins.len() < before
    }

    /// Forgets the devices of plugins that have been gone for too long. Returns when the next ones are due.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for known in self.resources.values_mut().filter(|known| !known.gone) {
            let Some(due) = known.stopped.map(|stopped| stopped + STOP_GRACE_PERIOD) else { continue };
            if due <= now {
                known.gone = true;
                known.devices.clear();
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        next
    }

    /// How many devices there are, by resource. As in kubelet, a resource that is gone is shown with none.
    pub fn counts(&self) -> BTreeMap<String, DeviceCount> {
        let count = |known: &Resource| DeviceCount {
            capacity: known.devices.len(),
            allocatable: known.devices.values().filter(|device| device.healthy).count(),
        };
        self.resources.iter().map(|(name, known)| (name.clone(), count(known))).collect()
    }

    /// The healthy devices, by resource and id.
    pub fn healthy(&self) -> impl Iterator<Item = (&str, &str, &PluginDevice)> {
        self.resources.iter().flat_map(|(name, known)| {
            let healthy = known.devices.iter().filter(|(_, device)| device.healthy);
            healthy.map(move |(id, device)| (name.as_str(), id.as_str(), device))
        })
    }

    /// One device, if its plugin still lists it.
    pub fn device(&self, resource: &str, id: &str) -> Option<&PluginDevice> {
        self.resources.get(resource)?.devices.get(id)
    }

    /// The plugin of a resource.
    pub fn plugin(&self, resource: &str) -> Option<PluginId> {
        self.resources.get(resource)?.plugins.last().copied()
    }

    /// Whether a plugin has registered the resource, now or recently.
    pub fn is_known(&self, resource: &str) -> bool {
        self.resources.get(resource).is_some_and(|known| !known.gone)
    }

    /// How many healthy devices pods may have together.
    pub fn offer(&self, resource: &str) -> usize {
        let devices = self.resources.get(resource).into_iter().flat_map(|known| known.devices.values());
        devices.filter(|device| device.healthy).count()
    }

    /// How many of the devices that the pod of `key` has are not healthy.
    pub fn unhealthy_of(&self, key: &PodKey, resource: &str) -> usize {
        let pods = self.pods.values().filter(|pod| pod.key == *key);
        let ids: BTreeSet<&String> = pods.flat_map(|pod| pod.ids(resource)).collect();
        ids.into_iter().filter(|id| !self.device(resource, id).is_some_and(|device| device.healthy)).count()
    }

    /// Takes over what is recorded on a container that existed when the agent started. The first record of a name
    /// counts.
    pub fn adopt(&mut self, uid: &PodUid, container: &str, allocations: &[DeviceAllocation]) {
        for allocation in allocations {
            let resources = &mut self.resources;
            let stopped = Resource { gone: true, ..Resource::default() };
            resources.entry(allocation.resource.clone()).or_insert(stopped);
            let recorded = self.recorded.entry(uid.clone()).or_default();
            if !recorded.iter().any(|(name, recorded)| name == container && recorded.resource == allocation.resource) {
                recorded.push((container.to_owned(), allocation.clone()));
            }
        }
    }

    /// Whether containers of the pod had devices before the agent started.
    pub fn has_had(&self, uid: &PodUid) -> bool {
        self.recorded.contains_key(uid)
    }

    /// Gives the pod what is recorded on its containers, unless another one has it now.
    pub fn restore(&mut self, key: &PodKey, uid: &PodUid) {
        for (container, allocation) in self.recorded.remove(uid).unwrap_or_default() {
            let taken = self.taken_by_others(&allocation.resource, uid);
            if !allocation.ids.iter().any(|id| taken.contains(id.as_str())) {
                self.allocated(key, uid, &container, allocation);
            }
        }
    }

    /// Frees all that the pod of `key` has.
    pub fn free(&mut self, key: &PodKey) {
        self.pods.retain(|_, pod| pod.key != *key);
    }

    /// What the container may choose from to have `count` devices; `None` if it has them.
    ///
    /// # Errors
    ///
    /// It cannot have so many.
    pub fn choose(
        &self,
        uid: &PodUid,
        spec: &PodSpec,
        container: &str,
        resource: &str,
        count: usize,
    ) -> Result<Option<Choice>, AllocationError> {
        let pod = self.pods.get(uid);
        if !self.is_known(resource) {
            return Err(AllocationError::Unregistered(resource.to_owned()));
        }
        let listed = &self.resources[resource].devices;
        let is_healthy = |id: &str| listed.get(id).is_some_and(|device| device.healthy);
        if !listed.values().any(|device| device.healthy) {
            return Err(AllocationError::NoneHealthy(resource.to_owned()));
        }
        let has = pod.and_then(|pod| pod.containers.get(container)?.get(resource));
        if let Some(AssignedDevices::Allocated(has)) = has.filter(|has| has.ids().len() == count) {
            let healthy = has.ids.iter().all(|id| is_healthy(id));
            return if healthy { Ok(None) } else { Err(AllocationError::Unhealthy(resource.to_owned())) };
        }
        // A container that requests another number after an edit keeps its devices.
        let kept: BTreeSet<String> = has.into_iter().flat_map(AssignedDevices::ids).cloned().collect();
        let mut reusable = pod.map(|pod| pod.reusable(spec, container, resource)).unwrap_or_default();
        reusable.retain(|id| !kept.contains(id));
        let reused: Vec<String> = kept.into_iter().chain(reusable).filter(|id| is_healthy(id)).take(count).collect();
        let taken = self.taken(resource);
        let healthy = listed.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id);
        let mut free: BTreeSet<String> = healthy.filter(|id| !taken.contains(id.as_str())).cloned().collect();
        let needed = count - reused.len();
        // What a pod had before the agent started is left to it as long as there are other devices.
        let awaited = self.recorded.iter().filter(|(other, _)| *other != uid).flat_map(|(_, recorded)| recorded);
        let awaited =
            awaited.filter(|(_, recorded)| recorded.resource == resource).flat_map(|(_, recorded)| &recorded.ids);
        for id in awaited {
            if free.len() > needed {
                free.remove(id);
            }
        }
        if free.len() < needed {
            let (resource, available) = (resource.to_owned(), free.len());
            return Err(AllocationError::Unavailable { resource, requested: needed, available });
        }
        Ok(Some(Choice { reused, free, needed }))
    }

    /// Reserves these for the container; [`Self::allocated`] or [`Self::withdraw`] follows.
    pub fn reserve(&mut self, key: &PodKey, uid: &PodUid, container: &str, resource: &str, ids: Vec<String>) {
        self.assign(key, uid, container, resource, AssignedDevices::Reserved(ids));
    }

    /// Records that the plugin has allocated them.
    pub fn allocated(&mut self, key: &PodKey, uid: &PodUid, container: &str, allocation: DeviceAllocation) {
        let resource = allocation.resource.clone();
        self.assign(key, uid, container, &resource, AssignedDevices::Allocated(allocation));
    }

    /// Frees the container's devices that were reserved but not allocated, and those that it no longer requests.
    pub fn withdraw(&mut self, uid: &PodUid, container: &str, wanted: &[(&str, usize)]) {
        let given = self.pods.get_mut(uid).and_then(|pod| pod.containers.get_mut(container));
        let asked = |resource: &String| wanted.iter().any(|(name, _)| name == resource);
        if let Some(given) = given {
            given.retain(|resource, assigned| matches!(assigned, AssignedDevices::Allocated(_)) && asked(resource));
        }
    }

    /// The devices that the container has.
    pub fn of_container(&self, uid: &PodUid, container: &str) -> impl Iterator<Item = &DeviceAllocation> {
        let given = self.pods.get(uid).and_then(|pod| pod.containers.get(container));
        given.into_iter().flatten().filter_map(|(_, given)| match given {
            AssignedDevices::Allocated(allocation) => Some(allocation),
            AssignedDevices::Reserved(_) => None,
        })
    }

    fn assign(&mut self, key: &PodKey, uid: &PodUid, container: &str, resource: &str, given: AssignedDevices) {
        let new = || PodDevices { key: key.clone(), containers: BTreeMap::new() };
        let pod = self.pods.entry(uid.clone()).or_insert_with(new);
        pod.containers.entry(container.to_owned()).or_default().insert(resource.to_owned(), given);
    }

    fn taken<'a>(&'a self, resource: &'a str) -> BTreeSet<&'a str> {
        self.pods.values().flat_map(|pod| pod.ids(resource)).map(String::as_str).collect()
    }

    fn taken_by_others(&self, resource: &str, uid: &PodUid) -> BTreeSet<String> {
        let others = self.pods.iter().filter(|(other, _)| *other != uid);
        others.flat_map(|(_, pod)| pod.ids(resource)).cloned().collect()
    }
}

impl PodDevices {
    fn ids<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a String> {
        self.containers.values().filter_map(move |given| given.get(resource)).flat_map(AssignedDevices::ids)
    }

    /// What init containers before `container` have, unless a sidecar or regular container before it has taken it
    /// over.
    fn reusable(&self, spec: &PodSpec, container: &str, resource: &str) -> BTreeSet<String> {
        let mut reusable = BTreeSet::new();
        for (name, role) in Role::assign(spec).take_while(|(name, _)| *name != container) {
            let given = self.containers.get(name).and_then(|given| given.get(resource));
            for id in given.into_iter().flat_map(AssignedDevices::ids) {
                match role {
                    Role::Init => reusable.insert(id.clone()),
                    Role::Sidecar | Role::Main | Role::Ephemeral => reusable.remove(id),
                };
            }
        }
        reusable
    }
}

#[cfg(test)]
mod tests;
