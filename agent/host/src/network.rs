//! The pod network: calls CNI plugins as configured by a conflist.
//!
//! The first file of the configuration directory defines the network (`conflist`); inotify reports a change of the
//! directory, and pods that wait for a network are woken. A pod is attached by an ADD and detached by a DEL of the same
//! plugins with the same configuration (`record`), also when the directory has changed since, when the namespace is
//! gone, and after a reboot.
//!
//! Owns `<root-dir>/network`. CNI 0.1.0 to 1.1.0. The sandbox brings up the loopback interface, so no plugin is called
//! for it; `VERSION`, `GC` and `STATUS` are not used.

mod answer;
mod chain;
mod conflist;
mod record;
mod request;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::chain::Plugins;
use self::conflist::Conflist;
use self::record::{NetworkNamespace, Record, Records};
pub use self::request::{AttachRequest, BandwidthLimits, PortMapping};
use crate::blocking;
use crate::orphan_processes;
use crate::path_watch::PathWatch;
use limpet_model::pod::PodUid;
use limpet_model::sandbox::PodAddresses;

/// The interface a pod gets, as every CRI runtime names it.
const INTERFACE: &str = "eth0";

/// How long one plugin may take. A DHCP lease on a slow network takes tens of seconds; containerd's callers allow two
/// minutes for the whole sandbox.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whether pods can be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkStatus {
    /// There is a configuration.
    Ready {
        /// The network's name.
        name: String,
    },
    /// The configuration is missing or invalid: pods without `hostNetwork` wait.
    NotReady {
        /// The cause, with the path.
        reason: String,
    },
}

impl NetworkStatus {
    /// Whether there is a configuration to attach pods by.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }
}

impl std::fmt::Display for NetworkStatus {
    /// kubelet's message, followed by the reason.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ready { name } => write!(f, "network {name} is ready"),
            Self::NotReady { reason } => write!(
                f,
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                 message:Network plugin returns error: cni plugin not initialized: {reason}"
            ),
        }
    }
}

/// Why a pod could not be attached or detached. Each failure may be transient (the configuration is written, the plugin
/// installed, an address released), so the pod's worker tries again with back-off.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No usable configuration.
    #[error("network is not ready: {0}")]
    NotReady(NetworkStatus),
    /// The pod has host ports, and no plugin of the network forwards them.
    #[error(
        "network of pod {pod}: hostPort needs a plugin with the portMappings capability, and network {network:?} has \
         none; add the portmap plugin to its configuration"
    )]
    NoPortMappings {
        /// Namespace and name.
        pod: String,
        /// The network's name.
        network: String,
    },
    /// The plugin is not installed.
    #[error("network of pod {pod}: failed to find plugin {plugin:?} in {dirs}; install it there")]
    PluginMissing {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// The directories that were searched.
        dirs: String,
    },
    /// The plugin failed, with its own message.
    #[error("network of pod {pod}: plugin type={plugin:?} failed ({command}): {message}")]
    Plugin {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// `add`, `check` or `del`.
        command: &'static str,
        /// CNI's error code, if any; 11 is "try again later".
        code: Option<u32>,
        /// Its message.
        message: String,
    },
    /// The plugin could not be run or did not exit in time.
    #[error("network of pod {pod}: plugin type={plugin:?} ({command}): {reason}")]
    Invocation {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// `add`, `check` or `del`.
        command: &'static str,
        /// The cause.
        reason: String,
    },
    /// A file of the pod's attachment could not be read or written, or its namespace does not exist.
    #[error("network of pod {uid}: cannot {operation} {}: {source}", path.display())]
    File {
        /// The pod.
        uid: PodUid,
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The network of this node. Clones share it.
#[derive(Debug, Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    conf_dir: PathBuf,
    plugins: Plugins,
    records: Records,
    status: watch::Sender<NetworkStatus>,
}

impl Network {
    /// The network as `conf_dir` describes it, with plugins from `bin_dirs`; attachments are recorded in `state_dir`, which
    /// is `<root-dir>/network`. None of them need exist.
    pub fn new(conf_dir: PathBuf, bin_dirs: Vec<PathBuf>, state_dir: PathBuf) -> Self {
        let status = status_of(&conflist::load(&conf_dir));
        Self::with_status(conf_dir, Plugins { dirs: bin_dirs, deadline: DEADLINE }, state_dir, status)
    }

    /// The same for the agent, whose thread waits for no file system, with another deadline for each call of a plugin.
    pub async fn open(conf_dir: PathBuf, bin_dirs: Vec<PathBuf>, state_dir: PathBuf, deadline: Duration) -> Self {
        let unread = NetworkStatus::NotReady { reason: format!("{} has not been read yet", conf_dir.display()) };
        let network = Self::with_status(conf_dir, Plugins { dirs: bin_dirs, deadline }, state_dir, unread);
        // An error is in the status.
        let _ = network.read_config().await;
        network
    }

    fn with_status(conf_dir: PathBuf, plugins: Plugins, state_dir: PathBuf, status: NetworkStatus) -> Self {
        let (status, _) = watch::channel(status);
        Self { inner: Arc::new(Inner { conf_dir, plugins, records: Records { dir: state_dir }, status }) }
    }

    /// Whether pods can be attached, as the directory was last read.
    pub fn status(&self) -> NetworkStatus {
        self.inner.status.borrow().clone()
    }

    /// The status now and every change of it.
    pub fn subscribe(&self) -> watch::Receiver<NetworkStatus> {
        self.inner.status.subscribe()
    }

    /// Keeps the status up to date until `stop`, and calls `changed` after each change of the configuration. Where
    /// inotify is not available (its limits are used up) the directory is only read at every attach.
    pub async fn watch(&self, stop: CancellationToken, changed: impl Fn()) {
        tokio::select! {
            () = stop.cancelled() => {}
            ended = self.follow(&changed) => if let Err(error) = ended {
                tracing::warn!(
                    directory = %self.inner.conf_dir.display(), %error,
                    "the CNI configuration cannot be watched; changes are read when a pod is retried; \
                     raise fs.inotify.max_user_instances and max_user_watches"
                );
                stop.cancelled().await;
            },
        }
    }

    async fn follow(&self, changed: &impl Fn()) -> io::Result<()> {
        let mut watch = PathWatch::directory(&self.inner.conf_dir).await?;
        let mut known = None;
        loop {
            let (read, status_changed) = self.read_config().await;
            if status_changed || known.as_ref().is_some_and(|known| *known != read) {
                tracing::info!(status = %self.status(), "CNI configuration changed");
                changed();
            }
            known = Some(read);
            watch.changed().await?;
        }
    }

    /// Attaches the pod to the network and returns its addresses.
    ///
    /// Idempotent: an attachment of the same namespace is checked and reused, any other one of the pod is undone first.
    /// When an ADD fails, the whole chain gets a DEL.
    ///
    /// Callers read the [`Self::addresses`] of a pod with running containers instead of attaching it again: a CHECK may fail
    /// for harmless reasons (the bridge plugin's, without `isGateway`, over a bridge's MAC that changes with its ports), and
    /// a new ADD would change the address of running containers.
    pub async fn attach(&self, pod: &AttachRequest<'_>) -> Result<PodAddresses, NetworkError> {
        let namespace = self.file_call(pod.uid, "stat", pod.netns.to_owned(), NetworkNamespace::at).await?;
        if let Some(record) = self.load_or_discard(pod.uid).await? {
            if let Some(addresses) = self.still_attached(&record, &namespace).await {
                return Ok(addresses);
            }
            self.kill_interrupted_plugins(&record).await;
            if let Err(error) = chain::del(&record, &self.inner.plugins).await {
                // Retrying it would keep the pod down because of one address.
                tracing::warn!(%error, "detaching an earlier network attachment failed; its address may stay reserved");
            }
        }
        let conflist = self.read_config().await.0.map_err(|_| NetworkError::NotReady(self.status()))?;
        if !pod.ports.is_empty() && !conflist.has_capability("portMappings") {
            let name = format!("{}/{}", pod.namespace, pod.name);
            return Err(NetworkError::NoPortMappings { pod: name, network: conflist.name });
        }
        warn_of_missing_bandwidth(pod, &conflist);
        let mut record = Record::intent(pod, namespace, &conflist);
        self.save(pod.uid, &record, false).await?;
        match chain::add(&record, &conflist, &self.inner.plugins).await {
            Ok((result, addresses)) => {
                record.result = Some(result);
                self.save(pod.uid, &record, true).await?;
                Ok(addresses)
            }
            Err(error) => {
                match chain::del(&record, &self.inner.plugins).await {
                    Ok(()) => self.forget(pod.uid).await?,
                    Err(undo) => {
                        tracing::warn!(error = %undo, "undoing a failed network attachment failed; the next attempt repeats it")
                    }
                }
                Err(error)
            }
        }
    }

    /// Detaches the pod from the network and removes its record. A pod without a record is not attached: success.
    ///
    /// Uses the configuration and result recorded at the ADD; the namespace need not exist any more.
    pub async fn detach(&self, uid: &PodUid) -> Result<(), NetworkError> {
        if let Some(record) = self.load_or_discard(uid).await? {
            self.kill_interrupted_plugins(&record).await;
            chain::del(&record, &self.inner.plugins).await?;
            self.forget(uid).await?;
        }
        Ok(())
    }

    /// The pods with a record, attached or partly attached, for the clean-up of orphans.
    pub async fn attached(&self) -> Vec<PodUid> {
        let records = self.inner.records.clone();
        let listed = blocking::run(records.dir.clone(), blocking::DEADLINE, move |_| records.list()).await;
        listed.flatten().unwrap_or_else(|error| {
            tracing::warn!(directory = %self.inner.records.dir.display(), %error, "listing network attachments failed");
            Vec::new()
        })
    }

    /// The addresses of a pod that is attached in a namespace that still exists.
    pub async fn addresses(&self, uid: &PodUid) -> Option<PodAddresses> {
        let (records, pod) = (self.inner.records.clone(), uid.clone());
        let read = self.file_call(uid, "read", records.path(uid), move |_| {
            let record = records.load(&pod)?.filter(|record| record.network_namespace.exists());
            Ok(record.and_then(|record| answer::addresses(record.result.as_ref()?, INTERFACE).ok()))
        });
        read.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "reading the addresses of a running pod failed");
            None
        })
    }

    /// The addresses of `record` if it is of `namespace` and its plugins' CHECK succeeds.
    async fn still_attached(&self, record: &Record, namespace: &NetworkNamespace) -> Option<PodAddresses> {
        let result = record.result.as_ref()?;
        if record.network_namespace != *namespace {
            return None;
        }
        let addresses = answer::addresses(result, INTERFACE).ok()?;
        match chain::check(record, result, &self.inner.plugins).await {
            Ok(()) => Some(addresses),
            Err(error) => {
                tracing::info!(%error, "CNI CHECK failed; the pod is attached again");
                None
            }
        }
    }

    /// Plugins of an ADD whose agent was killed may still be running, and would interfere with later calls: kills them.
    async fn kill_interrupted_plugins(&self, record: &Record) {
        let netns = record.network_namespace.path.to_string_lossy();
        if record.result.is_none() && !netns.is_empty() {
            orphan_processes::end("CNI_NETNS", &netns).await;
        }
    }

    /// Reads the configuration directory; also returns whether the status has changed.
    async fn read_config(&self) -> (Result<Conflist, conflist::ConfigError>, bool) {
        let dir = self.inner.conf_dir.clone();
        let read = blocking::run(dir.clone(), blocking::DEADLINE, move |_| conflist::load(&dir)).await;
        let read = read.unwrap_or_else(|error| {
            Err(conflist::ConfigError::Read { path: self.inner.conf_dir.clone(), reason: error.to_string() })
        });
        let status = status_of(&read);
        let changed = self.inner.status.send_if_modified(|known| {
            let changed = *known != status;
            *known = status;
            changed
        });
        (read, changed)
    }

    /// The pod's record. A damaged one is replaced by a record with the current configuration, which is enough for a DEL.
    async fn load_or_discard(&self, uid: &PodUid) -> Result<Option<Record>, NetworkError> {
        let (records, pod) = (self.inner.records.clone(), uid.clone());
        let path = records.path(uid);
        match self.file_call(uid, "read", path.clone(), move |_| records.load(&pod)).await {
            Err(NetworkError::File { source, .. }) if source.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(file = %path.display(), error = %source, "the attachment record is damaged; the pod is detached with the current CNI configuration");
                let Ok(conflist) = self.read_config().await.0 else { return Ok(None) };
                let unknown = NetworkNamespace { path: PathBuf::new(), inode: 0, boot_id: String::new() };
                let netns = Path::new("");
                let pod = AttachRequest { namespace: "", name: "", uid, netns, ports: Vec::new(), bandwidth: None };
                Ok(Some(Record::intent(&pod, unknown, &conflist)))
            }
            other => other,
        }
    }

    async fn save(&self, uid: &PodUid, record: &Record, sync: bool) -> Result<(), NetworkError> {
        let (records, pod, record) = (self.inner.records.clone(), uid.clone(), record.clone());
        self.file_call(uid, "write", self.inner.records.path(uid), move |_| records.save(&pod, &record, sync)).await
    }

    async fn forget(&self, uid: &PodUid) -> Result<(), NetworkError> {
        let (records, pod) = (self.inner.records.clone(), uid.clone());
        self.file_call(uid, "remove", self.inner.records.path(uid), move |_| records.remove(&pod)).await
    }

    /// Runs `work` on `path` on a blocking thread.
    async fn file_call<T: Send + 'static>(
        &self,
        uid: &PodUid,
        operation: &'static str,
        path: PathBuf,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let on = path.clone();
        let done = blocking::run(path.clone(), blocking::DEADLINE, move |_| work(&on)).await.flatten();
        done.map_err(|source| NetworkError::File { uid: uid.clone(), operation, path, source })
    }
}

fn status_of(read: &Result<Conflist, conflist::ConfigError>) -> NetworkStatus {
    match read {
        Ok(conflist) => NetworkStatus::Ready { name: conflist.name.clone() },
        Err(error) => NetworkStatus::NotReady { reason: error.to_string() },
    }
}

fn warn_of_missing_bandwidth(pod: &AttachRequest<'_>, conflist: &Conflist) {
    if pod.bandwidth.is_some() && !conflist.has_capability("bandwidth") {
        tracing::warn!(
            pod = %format_args!("{}/{}", pod.namespace, pod.name), network = conflist.name,
            "the bandwidth annotations have no effect: no plugin of the network has the bandwidth capability; \
             add the bandwidth plugin"
        );
    }
}

#[cfg(test)]
mod tests;
