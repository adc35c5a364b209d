//! CSI drivers of the node: they register in `plugins_registry`, report the node's id and topology, and stage and
//! publish volumes.
//!
//! Every call has kubelet's deadline and runs in a task of the driver's registration or of the pod that needs it, so
//! a driver that hangs delays only its own pods. [`CsiVolumes`] has them mount and unmount pods' volumes.
//! [`limpet_core::csi_node`] decides what is reported to the cluster.

mod driver;
mod files;
mod layout;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

pub use self::driver::{CallError, Driver};
pub use self::volumes::{CsiError, CsiVolumes, ExpandError, VolumeRequest};
use limpet_core::csi_node::{DriverInfo, DriverReport};
pub use limpet_host::volume::{InUse, VolumesInUse};
use limpet_model::pod::{is_label_value, is_qualified_name};

/// The most registered drivers.
const MAX_DRIVERS: usize = 64;
/// The longest name of a driver.
const MAX_NAME: usize = 63;
/// The longest node id of a driver, in bytes.
const MAX_NODE_ID: usize = 256;
/// The most topology labels of a driver.
const MAX_TOPOLOGY: usize = 32;

/// Identifies a registration of a driver.
pub type RegistrationId = u64;

/// Why a driver cannot register.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// It does not support version 1.
    #[error("none of the versions {0:?} of CSI is supported; limpet supports 1.x")]
    Version(String),
    /// Its name violates CSI's rules.
    #[error("{0:?} is not the name of a CSI driver: letters, digits, - and ., at most 63 characters")]
    Name(String),
    /// Another driver has the same name.
    #[error("CSI driver {name} is registered already, at {socket}", socket = socket.display())]
    NameTaken {
        name: String,
        /// The other driver's socket.
        socket: PathBuf,
    },
    #[error("{MAX_DRIVERS} CSI drivers are registered already")]
    TooMany,
    /// Its socket does not answer, or it refuses.
    #[error("cannot talk to CSI driver {name} at {socket}: {message}", socket = socket.display())]
    Unreachable { name: String, socket: PathBuf, message: String },
    /// Its answer to `NodeGetInfo` is invalid.
    #[error("CSI driver {name}: NodeGetInfo: {fault}")]
    NodeInfo { name: String, fault: String },
}

/// The drivers, and those that have disappeared since the agent started.
#[derive(Debug, Default)]
struct DriverTable {
    next: RegistrationId,
    registered: BTreeMap<String, (RegistrationId, Arc<Driver>)>,
    report: DriverReport,
}

/// All CSI drivers of the node.
#[derive(Debug, Default)]
pub struct CsiDrivers {
    known: Mutex<DriverTable>,
    /// Counts changes of registrations.
    changes: watch::Sender<u64>,
    /// Where drivers register, for messages; `None` if plugins are disabled.
    directory: Option<PathBuf>,
}

impl CsiDrivers {
    /// Without drivers. `directory` contains `plugins_registry`; `None` if plugins are disabled.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory: directory.map(|path| path.join("plugins_registry")), ..Self::default() }
    }

    fn known(&self) -> MutexGuard<'_, DriverTable> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports every change of a registration.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether drivers can register.
    pub fn is_on(&self) -> bool {
        self.directory.is_some()
    }

    /// Connects to the driver at `socket`, and requests its description of the node.
    ///
    /// # Errors
    /// It does not answer within a deadline, or its answer cannot be used.
    pub async fn register(
        &self,
        name: &str,
        versions: &[String],
        socket: PathBuf,
    ) -> Result<RegistrationId, RegisterError> {
        if !versions.iter().any(|version| is_supported(version)) {
            return Err(RegisterError::Version(versions.join(", ")));
        }
        if !is_driver_name(name) {
            return Err(RegisterError::Name(name.to_owned()));
        }
        self.is_free(name)?;
        let unreachable =
            |message: String| RegisterError::Unreachable { name: name.to_owned(), socket: socket.clone(), message };
        let (driver, info) = Driver::open(name, socket.clone()).await.map_err(unreachable)?;
        if let Some(fault) = fault(&info) {
            return Err(RegisterError::NodeInfo { name: name.to_owned(), fault });
        }
        self.is_free(name)?;
        tracing::info!(driver = name, socket = %socket.display(), node_id = info.node_id, "CSI driver registered");
        let id = {
            let mut known = self.known();
            known.next += 1;
            let id = known.next;
            known.registered.insert(name.to_owned(), (id, Arc::new(driver)));
            known.report.registered.insert(name.to_owned(), info);
            known.report.gone.remove(name);
            id
        };
        self.changes.send_modify(|changes| *changes += 1);
        Ok(id)
    }

    fn is_free(&self, name: &str) -> Result<(), RegisterError> {
        let known = self.known();
        match known.registered.get(name) {
            Some((_, other)) => {
                Err(RegisterError::NameTaken { name: name.to_owned(), socket: other.socket().to_owned() })
            }
            None if known.registered.len() >= MAX_DRIVERS => Err(RegisterError::TooMany),
            None => Ok(()),
        }
    }

    /// Unregisters a driver whose socket is gone.
    pub fn deregister(&self, id: RegistrationId) {
        let name = {
            let mut known = self.known();
            let Some(name) = known
                .registered
                .iter()
                .find(|(_, (connection_id, _))| *connection_id == id)
                .map(|(name, _)| name.clone())
            else {
                return;
            };
            known.registered.remove(&name);
            known.report.registered.remove(&name);
            known.report.gone.insert(name.clone());
            name
        };
        tracing::warn!(driver = name, "CSI driver deregistered: its socket was removed");
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// What is reported to the cluster.
    pub fn report(&self) -> DriverReport {
        self.known().report.clone()
    }

    /// The driver with this name.
    ///
    /// # Errors
    ///
    /// It is not registered; a sentence with the remedy.
    pub fn get(&self, name: &str) -> Result<Arc<Driver>, String> {
        if let Some((_, driver)) = self.known().registered.get(name) {
            return Ok(Arc::clone(driver));
        }
        Err(match &self.directory {
            Some(directory) => format!(
                "CSI driver {name} is not registered on this node: no socket of it in {}; start the driver, with its \
                 node-driver-registrar",
                directory.display()
            ),
            None => format!(
                "CSI driver {name} cannot be registered on this node: plugins are switched off; set pluginDirectory of the \
                 LimpetConfiguration"
            ),
        })
    }
}

/// Whether it is a version 1 of CSI.
fn is_supported(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.');
    numbers.next() == Some("1") && numbers.all(|number| number.parse::<u32>().is_ok())
}

/// Whether it is a name by CSI's rules; it also becomes a directory's name.
fn is_driver_name(name: &str) -> bool {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    let framed =
        name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    framed && plain(name) && name.len() <= MAX_NAME
}

/// Why an apiserver would refuse what a driver reports of the node.
fn fault(info: &DriverInfo) -> Option<String> {
    if info.node_id.is_empty() {
        return Some("the node id must not be empty".to_owned());
    }
    if info.node_id.len() > MAX_NODE_ID {
        return Some(format!("the node id is longer than {MAX_NODE_ID} bytes"));
    }
    if info.topology.len() > MAX_TOPOLOGY {
        return Some(format!("it names more than {MAX_TOPOLOGY} topology segments"));
    }
    let wrong = |(key, value): &(&String, &String)| !is_qualified_name(key) || !is_label_value(value);
    let (key, value) = info.topology.iter().find(wrong)?;
    Some(format!("the topology segment {key:?}: {value:?} is not a label"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_names_that_can_register() {
        for (version, supported) in
            [("1.0.0", true), ("v1.12.0", true), ("1.9", true), ("0.3.0", false), ("2.0.0", false), ("1.x", false)]
        {
            assert_eq!(is_supported(version), supported, "{version}");
        }
        for (name, valid) in
            [("hostpath.csi.k8s.io", true), ("a", true), ("", false), ("a/b", false), ("..", false), ("-a", false)]
        {
            assert_eq!(is_driver_name(name), valid, "{name}");
        }
        assert!(!is_driver_name(&"a".repeat(64)));
    }

    #[test]
    fn what_a_driver_says_of_the_node_is_checked() {
        let fault_of = |id: &str, topology: &[(&str, &str)]| {
            let topology = topology.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            fault(&DriverInfo { node_id: id.to_owned(), topology, max_volumes: 0 })
        };
        assert_eq!(fault_of("n1", &[("topology.d/node", "n1")]), None);
        assert!(fault_of("", &[]).unwrap().contains("must not be empty"));
        assert!(fault_of(&"n".repeat(257), &[]).unwrap().contains("longer than 256"));
        assert!(fault_of("n1", &[("a b", "c")]).unwrap().contains("is not a label"));
    }

    #[test]
    fn a_driver_that_is_not_there_is_named_with_the_remedy() {
        let error = |directory: Option<&str>| CsiDrivers::new(directory.map(PathBuf::from)).get("d").unwrap_err();
        assert!(
            error(Some("/p"))
                .contains("CSI driver d is not registered on this node: no socket of it in /p/plugins_registry")
        );
        assert!(error(None).contains("pluginDirectory"));
    }
}
