//! The pod network: calls CNI plugins as configured by a conflist.
//!
//! The first file of the configuration directory defines the network (`conflist`). inotify reports changes of the
//! directory, which wake pods that wait for a network. A pod is attached by an ADD and detached by a DEL of the same
//! plugins with the same configuration (`record`), even if the directory has changed since, the namespace is gone, or
//! the node was rebooted. The kernel is asked for what a record does not contain (`kernel`), and a DEL that fails
//! does not block a pod's removal forever (`release`).
//!
//! Owns `<root-dir>/network`. CNI 0.1.0 to 1.1.0. The sandbox brings up the loopback interface, so no plugin is
//! called for it; `VERSION`, `GC` and `STATUS` are not used.

mod answer;
mod chain;
mod conflist;
mod error;
mod kernel;
mod plugin_input;
mod record;
mod release;
mod request;
mod status;
mod watching;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use self::chain::Plugins;
use self::conflist::{ConfigError, Conflist};
pub use self::error::NetworkError;
use self::record::{NetworkNamespace, Reading, Record, Records};
use self::release::Release;
pub use self::request::{AttachRequest, BandwidthLimits, DnsSettings, PortMapping};
use self::request::{CGROUP_PATH, DNS, POD_ANNOTATIONS};
pub use self::status::NetworkStatus;
use self::status::status_of;
use crate::{blocking, orphan_processes};
use limpet_model::pod::PodUid;
use limpet_model::sandbox::PodAddresses;

/// The interface a pod gets, as every CRI runtime names it.
const INTERFACE: &str = "eth0";

/// The deadline of a plugin. A DHCP lease on a slow network takes tens of seconds; containerd's callers allow two
/// minutes for the whole sandbox.
const DEADLINE: Duration = Duration::from_secs(60);

/// A pod's current attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's addresses.
    pub addresses: PodAddresses,
    /// Whether they are recorded. Otherwise the record is missing or damaged, and they come from the kernel;
    /// [`Network::record_again`] writes another record.
    pub is_recorded: bool,
}

/// An attachment that may have to be undone.
#[derive(Debug)]
struct Earlier {
    record: Record,
    /// Whether its ADD was not completed, according to the record.
    never_came_up: bool,
}

/// Where CNI's plugins and their configuration are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniSettings {
    /// `cniConfigDirectory`.
    pub config_dir: PathBuf,
    /// `cniBinaryDirectories`; earlier ones take precedence.
    pub binary_dirs: Vec<PathBuf>,
}

impl Default for CniSettings {
    fn default() -> Self {
        Self { config_dir: "/etc/cni/net.d".into(), binary_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()] }
    }
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
    /// The network that `conf_dir` describes, with plugins from `bin_dirs`. Attachments are recorded in `state_dir`,
    /// which is `<root-dir>/network`. None of these directories need exist.
    pub fn new(settings: CniSettings, state_dir: PathBuf) -> Self {
        let CniSettings { config_dir: conf_dir, binary_dirs: bin_dirs } = settings;
        let status = status_of(&conflist::load(&conf_dir));
        Self::with_status(conf_dir, Plugins { dirs: bin_dirs, deadline: DEADLINE }, state_dir, status)
    }

    /// The same for the agent, whose thread must not wait for file systems, with a deadline for each call of a
    /// plugin.
    pub async fn open(settings: CniSettings, state_dir: PathBuf, deadline: Duration) -> Self {
        let CniSettings { config_dir: conf_dir, binary_dirs: bin_dirs } = settings;
        let unread = NetworkStatus::NotReady { reason: format!("{} has not been read yet", conf_dir.display()) };
        let network = Self::with_status(conf_dir, Plugins { dirs: bin_dirs, deadline }, state_dir, unread);
        // The status contains the error.
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

    /// Attaches the pod to the network and returns its addresses.
    ///
    /// Idempotent: an attachment in the same namespace is checked and reused; any other attachment of the pod is
    /// undone first. If an ADD fails, the whole chain gets a DEL.
    ///
    /// For a pod with running containers, callers read [`Self::attachment`] instead of attaching it again: a CHECK
    /// may fail for harmless reasons (the bridge plugin's, without `isGateway`, because a bridge's MAC changes with
    /// its ports), and a new ADD would change the address of running containers.
    pub async fn attach(&self, pod: &AttachRequest<'_>) -> Result<PodAddresses, NetworkError> {
        let namespace = self.file_call(pod.uid, "stat", pod.netns.to_owned(), NetworkNamespace::at).await?;
        if let Some(Earlier { record, .. }) = self.earlier(pod.uid, pod.netns).await? {
            if let Some(addresses) = self.still_attached(&record, &namespace).await {
                return Ok(addresses);
            }
            if let Err(error) = self.release(&record).await {
                // Retrying would keep the pod down because of one leaked address.
                tracing::warn!(%error, "detaching an earlier network attachment failed; its address may stay reserved");
            }
            self.clear_namespace(pod).await;
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

    /// Detaches the pod, whose namespace is or was pinned at `netns`, and removes its record. Succeeds if the pod is
    /// not attached, and if nothing can perform its DEL (`release`).
    ///
    /// Uses the configuration and result recorded at the ADD, or else the current configuration. The namespace need
    /// not exist any more.
    pub async fn detach(&self, uid: &PodUid, netns: &Path) -> Result<(), NetworkError> {
        let Some(Earlier { record, never_came_up }) = self.earlier(uid, netns).await? else { return Ok(()) };
        if let Err(error) = self.release(&record).await {
            match release::after_failure(&error, never_came_up) {
                Release::Repeat => return Err(error),
                Release::Postpone => {
                    tracing::warn!(
                        %error, record = %self.inner.records.path(uid).display(),
                        "the pod goes without being detached; its address stays reserved until limpet starts with the plugin \
                         installed"
                    );
                    return Ok(());
                }
                Release::Forget => tracing::warn!(
                    %error, "what a failed network attachment has left cannot be released; an address may stay reserved"
                ),
            }
        }
        self.forget(uid).await
    }

    /// Performs a DEL with the recorded configuration, or else with the current one, which may have been corrected
    /// since.
    async fn release(&self, record: &Record) -> Result<(), NetworkError> {
        self.kill_interrupted_plugins(record).await;
        let Err(error) = chain::del(record, &self.inner.plugins).await else { return Ok(()) };
        if !release::may_be_of_configuration(&error) {
            return Err(error);
        }
        let present = self.read_config().await.0.ok().and_then(|conflist| record.with(&conflist));
        let Some(present) = present else { return Err(error) };
        match chain::del(&present, &self.inner.plugins).await {
            Ok(()) => {
                tracing::info!(%error, "the pod was detached with the present CNI configuration, since the recorded one fails");
                Ok(())
            }
            Err(_) => Err(error),
        }
    }

    /// The pods with a record, attached or partly attached, for the clean-up of orphans.
    ///
    /// # Errors
    /// The records cannot be listed.
    pub async fn attached(&self) -> io::Result<Vec<PodUid>> {
        let records = self.inner.records.clone();
        blocking::run(records.dir.clone(), blocking::DEADLINE, move |_| records.list()).await.flatten()
    }

    /// The attachment of a pod whose namespace is pinned at `netns`; `None` if it is not attached there. If its
    /// record is missing, damaged or unreadable, the kernel is asked.
    ///
    /// # Errors
    ///
    /// It is unknown whether the pod is attached.
    pub async fn attachment(&self, uid: &PodUid, netns: &Path) -> Result<Option<Attachment>, NetworkError> {
        let is_recorded = match self.read_record(uid).await {
            Ok(Reading::Whole(record)) => {
                let Some(result) = &record.result else { return Ok(None) };
                if !self.is_in(&record, uid, netns).await? {
                    return Ok(None);
                }
                if let Ok(addresses) = answer::addresses(result, INTERFACE) {
                    return Ok(Some(Attachment { addresses, is_recorded: true }));
                }
                false
            }
            Ok(Reading::Absent | Reading::Damaged(_)) => false,
            // The record may be intact.
            Err(_) => true,
        };
        let addresses = kernel::addresses(netns, INTERFACE).await;
        let addresses = addresses.map_err(|source| self.failed(uid, "look into", netns.to_owned(), source))?;
        let mut ips: Vec<IpAddr> = Vec::new();
        for address in addresses.unwrap_or_default() {
            if !ips.iter().any(|known| known.is_ipv4() == address.ip.is_ipv4()) {
                ips.push(address.ip);
            }
        }
        ips.sort_by_key(IpAddr::is_ipv6);
        Ok((!ips.is_empty()).then_some(Attachment { addresses: PodAddresses { ips }, is_recorded }))
    }

    /// Rewrites the record of an attached pod, which a DEL needs, from the current configuration and the kernel's
    /// state.
    pub async fn record_again(&self, pod: &AttachRequest<'_>) -> Result<(), NetworkError> {
        let conflist = self.read_config().await.0.map_err(|_| NetworkError::NotReady(self.status()))?;
        let namespace = self.file_call(pod.uid, "stat", pod.netns.to_owned(), NetworkNamespace::at).await?;
        let addresses = kernel::addresses(pod.netns, INTERFACE).await;
        let addresses = addresses.map_err(|source| self.failed(pod.uid, "look into", pod.netns.to_owned(), source))?;
        let mut record = Record::intent(pod, namespace, &conflist);
        record.result = Some(answer::result(&conflist.version, INTERFACE, pod.netns, &addresses.unwrap_or_default()));
        self.save(pod.uid, &record, true).await
    }

    /// Whether the namespace pinned at `netns` is the one in the record.
    async fn is_in(&self, record: &Record, uid: &PodUid, netns: &Path) -> Result<bool, NetworkError> {
        match self.file_call(uid, "stat", netns.to_owned(), NetworkNamespace::at).await {
            Ok(namespace) => Ok(namespace == record.network_namespace),
            Err(NetworkError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The addresses in `record` if it belongs to `namespace` and its plugins' CHECK succeeds.
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

    /// Kills plugins of an ADD whose agent was killed: they may still be running and would interfere with later
    /// calls.
    async fn kill_interrupted_plugins(&self, record: &Record) {
        let netns = record.network_namespace.path.to_string_lossy();
        if record.result.is_none() && !netns.is_empty() {
            orphan_processes::end("CNI_NETNS", &netns).await;
        }
    }

    /// Reads the configuration directory; also returns whether the status has changed.
    async fn read_config(&self) -> (Result<Conflist, ConfigError>, bool) {
        let dir = self.inner.conf_dir.clone();
        let read = blocking::run(dir.clone(), blocking::DEADLINE, move |_| conflist::load(&dir)).await;
        let read = read.unwrap_or_else(|error| {
            Err(ConfigError::Read { path: self.inner.conf_dir.clone(), reason: error.to_string() })
        });
        let status = status_of(&read);
        let changed = self.inner.status.send_if_modified(|known| {
            let changed = *known != status;
            *known = status;
            changed
        });
        (read, changed)
    }

    async fn read_record(&self, uid: &PodUid) -> Result<Reading, NetworkError> {
        let (records, pod) = (self.inner.records.clone(), uid.clone());
        let reading = self.file_call(uid, "read", records.path(uid), move |_| records.load(&pod)).await;
        reading.inspect_err(|error| tracing::warn!(%error, "the record of a pod's network attachment cannot be read"))
    }

    /// The attachment that may have to be undone: the recorded one or, if the record is damaged, or missing although
    /// the pod is attached, one with the current configuration, which suffices for a DEL.
    async fn earlier(&self, uid: &PodUid, netns: &Path) -> Result<Option<Earlier>, NetworkError> {
        let cause = match self.read_record(uid).await? {
            Reading::Whole(record) => {
                return Ok(Some(Earlier { never_came_up: record.result.is_none(), record: *record }));
            }
            Reading::Absent if !self.has_interface(uid, netns).await? => return Ok(None),
            Reading::Absent => "it is missing".to_owned(),
            Reading::Damaged(error) => error.to_string(),
        };
        let file = self.inner.records.path(uid);
        tracing::warn!(file = %file.display(), cause, "the attachment record cannot be used; the pod is detached with the current CNI configuration");
        let Ok(conflist) = self.read_config().await.0 else { return Ok(None) };
        let namespace = self.file_call(uid, "stat", netns.to_owned(), NetworkNamespace::at).await;
        let namespace = namespace.unwrap_or_else(|_| NetworkNamespace::none());
        let record = Record::intent(&AttachRequest::nameless(uid, netns), namespace, &conflist);
        Ok(Some(Earlier { record, never_came_up: false }))
    }

    /// Removes what a DEL has left in the pod's namespace, which would make the ADD fail.
    async fn clear_namespace(&self, pod: &AttachRequest<'_>) {
        // If this is unknown, the removal reports why.
        if let Ok(false) = self.has_interface(pod.uid, pod.netns).await {
            return;
        }
        let pod_name = format!("{}/{}", pod.namespace, pod.name);
        match kernel::remove_links(pod.netns).await {
            Ok(links) => tracing::warn!(pod = pod_name, ?links, "links of an earlier network attachment were removed"),
            Err(error) => {
                tracing::warn!(pod = pod_name, %error, "removing the links of an earlier network attachment failed");
            }
        }
    }

    /// Whether the pod has an interface in the namespace pinned at `netns`; false if none is pinned.
    async fn has_interface(&self, uid: &PodUid, netns: &Path) -> Result<bool, NetworkError> {
        match kernel::addresses(netns, INTERFACE).await {
            Ok(record) => Ok(record.is_some()),
            // The file is not a namespace, but a pin from before a reboot.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
            Err(source) => Err(self.failed(uid, "look into", netns.to_owned(), source)),
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
        done.map_err(|source| self.failed(uid, operation, path, source))
    }

    fn failed(&self, uid: &PodUid, operation: &'static str, path: PathBuf, source: io::Error) -> NetworkError {
        NetworkError::File { uid: uid.clone(), operation, path, source }
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
mod recovery_tests;
#[cfg(test)]
mod tests;
