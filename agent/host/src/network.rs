//! The pod network: CNI plugins called by a conflist.
//!
//! Which network there is, is what the first file of the configuration directory says (`conflist`); a change of
//! the directory is learnt from the kernel, and pods that wait for a network are woken. A pod is attached by an
//! ADD and given back by a DEL of the same plugins with the same configuration (`record`), also when the
//! directory says something else by then, when the namespace is gone, and after a reboot.
//!
//! Owns `<root-dir>/network`. CNI 0.3.0 to 1.1.0. The loopback interface is the sandbox's, so no plugin for it is
//! called; `VERSION`, `GC` and `STATUS` are not used.

mod answer;
mod chain;
mod conflist;
mod invoke;
mod record;
mod request;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::conflist::Conflist;
use self::invoke::Plugins;
use self::record::{NetworkNamespace, Record, Records};
pub use self::request::{AttachRequest, PortMapping};
use crate::orphan_processes;
use crate::path_watch::PathWatch;
use limpet_model::pod::PodUid;
use limpet_model::sandbox::PodAddresses;

/// The interface a pod gets, as every CRI runtime names it.
const INTERFACE: &str = "eth0";

/// How long one plugin may take. A DHCP lease on a slow network needs some tens of seconds; containerd's callers
/// give the whole sandbox two minutes.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whether pods can be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkStatus {
    /// There is a configuration.
    Ready {
        /// The network's name.
        name: String,
    },
    /// There is none, or it is broken: pods without `hostNetwork` wait.
    NotReady {
        /// Which, and where.
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
    /// kubelet's words, with the reason after them.
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

/// Why a pod could not be attached or detached. Each may pass (the configuration is written, the plugin
/// installed, the address pool emptied of the dead), so the pod's worker tries again with back-off.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No usable configuration.
    #[error("network is not ready: {0}")]
    NotReady(NetworkStatus),
    /// The plugin is not installed.
    #[error("network of pod {pod}: failed to find plugin {plugin:?} in {dirs}; install it there")]
    PluginMissing {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// Where it was looked for.
        dirs: String,
    },
    /// The plugin failed, in its own words.
    #[error("network of pod {pod}: plugin type={plugin:?} failed ({command}): {message}")]
    Plugin {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// `add`, `check` or `del`.
        command: &'static str,
        /// CNI's error code, when it gave one; 11 is "try again later".
        code: Option<u32>,
        /// What it said.
        message: String,
    },
    /// The plugin could not be run or did not end in time.
    #[error("network of pod {pod}: plugin type={plugin:?} ({command}): {reason}")]
    Invocation {
        /// Namespace and name.
        pod: String,
        /// The plugin's `type`.
        plugin: String,
        /// `add`, `check` or `del`.
        command: &'static str,
        /// What happened.
        reason: String,
    },
    /// A file of the pod's attachment could not be read or written, or its namespace is not there.
    #[error("network of pod {uid}: cannot {operation} {}: {source}", path.display())]
    File {
        /// The pod.
        uid: PodUid,
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
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
    /// The network as `conf_dir` describes it, with plugins from `bin_dirs`; attachments are remembered in
    /// `state_dir`, which is `<root-dir>/network`. None of them need exist.
    pub fn new(conf_dir: PathBuf, bin_dirs: Vec<PathBuf>, state_dir: PathBuf) -> Self {
        Self::with_deadline(conf_dir, bin_dirs, state_dir, DEADLINE)
    }

    /// The same, with another deadline for each call of a plugin.
    pub fn with_deadline(conf_dir: PathBuf, bin_dirs: Vec<PathBuf>, state_dir: PathBuf, deadline: Duration) -> Self {
        let (status, _) = watch::channel(status_of(&conflist::load(&conf_dir)));
        let plugins = Plugins { dirs: bin_dirs, deadline };
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

    /// Keeps the status up to date until `stop`, and calls `changed` after each change. Where the kernel gives no
    /// notice (its inotify limits are used up) the directory is read at every attach only.
    pub async fn watch(&self, stop: CancellationToken, changed: impl Fn()) {
        tokio::select! {
            () = stop.cancelled() => {}
            ended = self.follow(&changed) => if let Err(error) = ended {
                tracing::warn!(
                    directory = %self.inner.conf_dir.display(), %error,
                    "changes of the CNI configuration go unnoticed until a pod is tried again; \
                     raise fs.inotify.max_user_instances and max_user_watches"
                );
                stop.cancelled().await;
            },
        }
    }

    async fn follow(&self, changed: &impl Fn()) -> io::Result<()> {
        let mut watch = PathWatch::directory(&self.inner.conf_dir)?;
        loop {
            if self.read_config().await.1 {
                tracing::info!(status = %self.status(), "CNI configuration changed");
                changed();
            }
            watch.changed().await?;
            watch.arm()?;
        }
    }

    /// Makes the pod part of the network and returns its addresses.
    ///
    /// Doing it again is safe: an attachment of this very namespace is checked and kept, any other one of the pod
    /// is undone first. When an ADD fails, the whole chain gets a DEL.
    ///
    /// A pod whose containers run is not attached again but asked for its [`Self::addresses`]: a CHECK may fail over
    /// trifles (the bridge plugin's, without `isGateway`, over a bridge's MAC that changes with its ports), and a new
    /// ADD would take the address away under the containers.
    pub async fn attach(&self, pod: &AttachRequest<'_>) -> Result<PodAddresses, NetworkError> {
        let here = self.file_call(pod.uid, "look at", pod.netns.to_owned(), NetworkNamespace::at).await?;
        if let Some(record) = self.load_or_discard(pod.uid).await? {
            if let Some(addresses) = self.still_attached(&record, &here).await {
                return Ok(addresses);
            }
            self.end_what_was_cut_short(&record).await;
            if let Err(error) = chain::del(&record, &self.inner.plugins).await {
                // Waiting for it would keep the pod down for the sake of an address.
                tracing::warn!(%error, "an older attachment could not be undone; its address may stay reserved");
            }
        }
        let conflist = self.read_config().await.0.map_err(|_| NetworkError::NotReady(self.status()))?;
        warn_of_unmapped_ports(pod, &conflist);
        let mut record = Record::intent(pod, here, &conflist);
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
                    Err(undo) => tracing::warn!(error = %undo, "a failed attachment could not be undone yet"),
                }
                Err(error)
            }
        }
    }

    /// Takes the pod out of the network and forgets it. A pod that is not remembered is not attached: success.
    ///
    /// The configuration and result of the time of the ADD are used; a namespace that is gone is no obstacle.
    pub async fn detach(&self, uid: &PodUid) -> Result<(), NetworkError> {
        if let Some(record) = self.load_or_discard(uid).await? {
            self.end_what_was_cut_short(&record).await;
            chain::del(&record, &self.inner.plugins).await?;
            self.forget(uid).await?;
        }
        Ok(())
    }

    /// The pods that are remembered as attached, wholly or half, for the clean-up of orphans. Reads a directory.
    pub fn attached(&self) -> Vec<PodUid> {
        self.inner.records.list().unwrap_or_else(|error| {
            tracing::warn!(directory = %self.inner.records.dir.display(), %error, "attachments cannot be listed");
            Vec::new()
        })
    }

    /// The addresses of a pod that is attached in a namespace that still stands. Reads one small file.
    pub fn addresses(&self, uid: &PodUid) -> Option<PodAddresses> {
        let record = self.inner.records.load(uid).ok()??;
        let addresses = answer::addresses(record.result.as_ref()?, INTERFACE).ok()?;
        record.network_namespace.is_there().then_some(addresses)
    }

    /// The addresses of `record` if it was made for the namespace `here` and its plugins find everything in place.
    async fn still_attached(&self, record: &Record, here: &NetworkNamespace) -> Option<PodAddresses> {
        let result = record.result.as_ref()?;
        if record.network_namespace != *here {
            return None;
        }
        let addresses = answer::addresses(result, INTERFACE).ok()?;
        match chain::check(record, result, &self.inner.plugins).await {
            Ok(()) => Some(addresses),
            Err(error) => {
                tracing::info!(%error, "the pod's network is not as it was made; it is made again");
                None
            }
        }
    }

    /// An ADD whose agent was killed may still be at work, and would undo what comes after it: it is ended first.
    async fn end_what_was_cut_short(&self, record: &Record) {
        let netns = record.network_namespace.path.to_string_lossy();
        if record.result.is_none() && !netns.is_empty() {
            orphan_processes::end("CNI_NETNS", &netns).await;
        }
    }

    /// Reads the configuration directory and says whether the status has changed by it.
    async fn read_config(&self) -> (Result<Conflist, conflist::ConfigError>, bool) {
        let dir = self.inner.conf_dir.clone();
        let read = tokio::task::spawn_blocking(move || conflist::load(&dir)).await;
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

    /// The pod's record. One that cannot be read any more is replaced by what can still be done: a DEL by the
    /// configuration of today.
    async fn load_or_discard(&self, uid: &PodUid) -> Result<Option<Record>, NetworkError> {
        let (records, pod) = (self.inner.records.clone(), uid.clone());
        let path = records.path(uid);
        match self.file_call(uid, "read", path.clone(), move |_| records.load(&pod)).await {
            Err(NetworkError::File { source, .. }) if source.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(file = %path.display(), error = %source, "damaged; the pod is detached without it");
                let Ok(conflist) = self.read_config().await.0 else { return Ok(None) };
                let nowhere = NetworkNamespace { path: PathBuf::new(), inode: 0, boot_id: String::new() };
                let pod = AttachRequest { namespace: "", name: "", uid, netns: Path::new(""), ports: Vec::new() };
                Ok(Some(Record::intent(&pod, nowhere, &conflist)))
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

    /// Runs `work` on `path` on tokio's threads for blocking calls.
    async fn file_call<T: Send + 'static>(
        &self,
        uid: &PodUid,
        operation: &'static str,
        path: PathBuf,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let on = path.clone();
        let done = tokio::task::spawn_blocking(move || work(&on)).await.unwrap_or_else(|error| Err(error.into()));
        done.map_err(|source| NetworkError::File { uid: uid.clone(), operation, path, source })
    }
}

fn status_of(read: &Result<Conflist, conflist::ConfigError>) -> NetworkStatus {
    match read {
        Ok(conflist) => NetworkStatus::Ready { name: conflist.name.clone() },
        Err(error) => NetworkStatus::NotReady { reason: error.to_string() },
    }
}

fn warn_of_unmapped_ports(pod: &AttachRequest<'_>, conflist: &Conflist) {
    if !pod.ports.is_empty() && !conflist.maps_ports() {
        tracing::warn!(
            pod = %format_args!("{}/{}", pod.namespace, pod.name), network = conflist.name,
            "hostPort has no effect: no plugin of the network has the portMappings capability; add the portmap plugin"
        );
    }
}

#[cfg(test)]
mod tests;
