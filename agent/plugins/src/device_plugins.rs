//! kubelet's device plugins, `v1beta1`: they register on a socket, list their devices, and return what a container
//! needs to use one. [`limpet_core::device_plugins`] decides which container gets which device.
//!
//! Every call has a deadline, and runs in a task of the plugin or of the pod that needs it, so a plugin that hangs
//! delays only its own pods. The socket, [`registration`], and the directory, [`crate::plugin_directory`], call
//! [`DevicePlugins::register`].

mod allocation;
mod connection;
pub mod registration;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::Connection;
#[cfg(any(test, feature = "fixtures"))]
use limpet_core::device_plugins::PluginDevice;
use limpet_core::device_plugins::{DeviceCount, Inventory, PluginId};
use limpet_host::clock::sleep_until_or_forever;
use limpet_host::private_file;
use limpet_model::device_allocation::DeviceAllocation;
use limpet_model::pod::PodUid;
use limpet_model::pod::device::is_extended_resource;

pub use self::allocation::AllocateError;

/// The version of the API that limpet speaks.
const VERSION: &str = "v1beta1";
/// The most connected plugins.
const MAX_PLUGINS: usize = 256;
/// The file below the root directory with the names of the resources, one per line: after a restart the Node shows
/// none of them until their plugins return.
const NAMES: &str = "device-plugin-resources";

/// Why a plugin cannot register.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// It uses another version.
    #[error("requested API version {0:?} is not supported by limpet. Supported version is \"v1beta1\"")]
    Version(String),
    /// It is not the name of an extended resource.
    #[error("the ResourceName {0:?} is invalid")]
    Name(String),
    /// `devices` of the LimpetConfiguration names it.
    #[error("the resource {0} is also defined in devices of the LimpetConfiguration; rename one of the two")]
    InTable(String),
    /// The socket's name leads out of the directory.
    #[error("the endpoint {0:?} is not the name of a socket in the directory of device plugins")]
    Endpoint(String),
    #[error("{MAX_PLUGINS} device plugins are connected already")]
    TooMany,
    /// Its socket does not answer.
    #[error("cannot talk to the device plugin at {path}: {message}", path = path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The cause.
        message: String,
    },
}

/// All device plugins of the node.
#[derive(Debug, Default)]
pub struct DevicePlugins {
    inventory: Mutex<Inventory>,
    connections: Mutex<BTreeMap<PluginId, Connection>>,
    /// Counts changes of devices.
    changes: watch::Sender<u64>,
    next: AtomicU64,
    /// The file [`NAMES`]; `None` if nothing is stored.
    names: Option<PathBuf>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl DevicePlugins {
    /// Without plugins. `table` has the resources that no plugin may register; `root_dir` is where names are stored.
    pub fn new(table: BTreeSet<String>, root_dir: &Path, tasks: TaskTracker, stop: CancellationToken) -> Self {
        let names = root_dir.join(NAMES);
        let known = std::fs::read_to_string(&names).unwrap_or_default();
        let mut inventory = Inventory::new(table);
        let now = Instant::now();
        known.lines().filter(|name| is_extended_resource(name)).for_each(|name| inventory.remember(name, now));
        Self { inventory: Mutex::new(inventory), names: Some(names), tasks, stop, ..Self::default() }
    }

    /// Without a directory, for tests.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn with_table<const N: usize>(table: [&str; N]) -> Self {
        Self { inventory: Mutex::new(Inventory::new(table.map(str::to_owned).into())), ..Self::default() }
    }

    /// Lists healthy devices of the resource as a plugin would, for tests.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn list(&self, resource: &str, count: usize) {
        let devices =
            (0..count).map(|index| (index.to_string(), PluginDevice { healthy: true, ..PluginDevice::default() }));
        self.inventory().connected(resource, 0);
        self.inventory().listed(resource, 0, devices.collect());
        self.changed();
    }

    fn inventory(&self) -> MutexGuard<'_, Inventory> {
        self.inventory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<PluginId, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Reports every change of devices: of their number, or of their health.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Connects to the plugin at `socket`, and follows its devices until it is gone.
    ///
    /// # Errors
    ///
    /// It does not answer in time, or its resource cannot be registered.
    pub async fn register(
        self: &Arc<Self>,
        resource: &str,
        versions: &[String],
        socket: PathBuf,
    ) -> Result<PluginId, RegisterError> {
        if !versions.iter().any(|version| version == VERSION) {
            return Err(RegisterError::Version(versions.join(", ")));
        }
        if !is_extended_resource(resource) {
            return Err(RegisterError::Name(resource.to_owned()));
        }
        if self.inventory().is_configured(resource) {
            return Err(RegisterError::InTable(resource.to_owned()));
        }
        let (connection, client) = Connection::open(resource, socket).await?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut connections = self.connections();
            // The plugin was restarted at the same path, before its predecessor's end was noticed.
            let earlier = connections.values().filter(|known| known.is_at(resource, connection.socket()));
            earlier.for_each(Connection::end);
            if connections.len() >= MAX_PLUGINS {
                return Err(RegisterError::TooMany);
            }
            connections.insert(id, connection.clone());
        }
        self.inventory().connected(resource, id);
        tracing::info!(resource, socket = %connection.socket().display(), "device plugin registered");
        self.changed();
        self.tasks.spawn(connection::follow(Arc::clone(self), id, connection, client));
        Ok(id)
    }

    /// Stops following the plugin.
    pub fn deregister(&self, plugin: PluginId) {
        if let Some(connection) = self.connections().get(&plugin) {
            connection.end();
        }
    }

    /// Forgets the devices of plugins that have been gone for too long, and stores the names of the resources on
    /// disk, until the agent stops.
    pub async fn run(self: Arc<Self>) {
        let mut changes = self.subscribe();
        let mut kept: BTreeSet<String> = self.inventory().counts().into_keys().collect();
        loop {
            changes.borrow_and_update();
            let (before, due, counts) = {
                let mut inventory = self.inventory();
                (inventory.counts(), inventory.expire(Instant::now()), inventory.counts())
            };
            if before != counts {
                self.changed();
            }
            let names: BTreeSet<String> = counts.into_keys().collect();
            if names != kept {
                self.save_names(&names).await;
                kept = names;
            }
            let expiry = sleep_until_or_forever(due.map(Into::into));
            tokio::select! {
                () = self.stop.cancelled() => return,
                Ok(()) = changes.changed() => {}
                () = expiry => {}
            }
        }
    }

    async fn save_names(&self, names: &BTreeSet<String>) {
        let Some(path) = self.names.clone() else { return };
        let text = names.iter().map(|name| format!("{name}\n")).collect::<String>();
        let written = tokio::task::spawn_blocking(move || private_file::write(&path, &text));
        if let Ok(Err(error)) = written.await {
            tracing::warn!(%error, "saving the names of the device plugins' resources failed");
        }
    }

    /// The number of devices by resource.
    pub fn counts(&self) -> BTreeMap<String, DeviceCount> {
        self.inventory().counts()
    }

    /// Runs `look` on the current devices.
    pub fn with<T>(&self, look: impl FnOnce(&Inventory) -> T) -> T {
        look(&self.inventory())
    }

    /// Runs `change` on the current devices, which assigns devices to pods or releases them.
    pub fn change<T>(&self, change: impl FnOnce(&mut Inventory) -> T) -> T {
        change(&mut self.inventory())
    }

    /// Applies the record on a container that was found when the agent started.
    pub fn record_found(&self, uid: &PodUid, container: &str, allocations: &[DeviceAllocation]) {
        self.inventory().adopt(uid, container, allocations);
    }
}
