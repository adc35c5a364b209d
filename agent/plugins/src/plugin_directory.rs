//! `plugins_registry`: sockets of plugins that implement `GetInfo` of `pluginregistration.v1`. A device plugin or a
//! CSI driver is registered while its socket exists. A plugin of another type gets an error, because limpet does not
//! support it.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::csi::{CsiDrivers, RegistrationId};
use crate::device_plugins::DevicePlugins;
use crate::plugin_socket::{connect, status_message};
use limpet_core::device_plugins::PluginId;
use limpet_host::path_watch::PathWatch;
use limpet_host::watch_again::{Attempts, WATCH_AGAIN};
use limpet_host::{blocking, selinux};
use limpet_node_api::plugin_registration::registration_client::RegistrationClient;
use limpet_node_api::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus};

/// The supported types of plugin.
const DEVICE_PLUGIN: &str = "DevicePlugin";
const CSI_PLUGIN: &str = "CSIPlugin";
/// The deadline of a call; kubelet allows one second, and ten for the connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses before a socket that does not answer is retried; after them only another event causes a retry.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(8), Duration::from_secs(30)];
/// The most sockets that are considered.
const MAX_SOCKETS: usize = 256;

/// A socket's identity: inode and change time in seconds and nanoseconds.
type SocketIdentity = (u64, i64, i64);

/// Where plugins are registered.
#[derive(Debug, Clone)]
pub struct Registries {
    pub devices: Arc<DevicePlugins>,
    pub csi: Arc<CsiDrivers>,
}

/// A plugin that is registered.
#[derive(Debug, Clone, Copy)]
enum Registered {
    Device(PluginId),
    Csi(RegistrationId),
}

impl Registries {
    /// Registers the plugin if its type is supported.
    async fn register(&self, info: PluginInfo, path: &Path) -> Result<Registered, String> {
        let endpoint = if info.endpoint.is_empty() { path.to_owned() } else { PathBuf::from(&info.endpoint) };
        match &*info.r#type {
            DEVICE_PLUGIN => {
                let registered = self.devices.register(&info.name, &info.supported_versions, endpoint).await;
                registered.map(Registered::Device).map_err(|error| error.to_string())
            }
            CSI_PLUGIN => {
                let registered = self.csi.register(&info.name, &info.supported_versions, endpoint).await;
                registered.map(Registered::Csi).map_err(|error| error.to_string())
            }
            other => Err(format!(
                "limpet does not support plugins of type {other}; it registers {DEVICE_PLUGIN} and {CSI_PLUGIN} alone"
            )),
        }
    }

    fn deregister(&self, registered: Registered) {
        match registered {
            Registered::Device(plugin) => self.devices.deregister(plugin),
            Registered::Csi(driver) => self.csi.deregister(driver),
        }
    }
}

/// Registers the plugins in `directory` until `stop`. If it cannot be watched, it is read once a minute.
pub async fn follow(plugins: Registries, directory: PathBuf, stop: CancellationToken) {
    let following = async {
        let (mut known, mut attempts) = (BTreeMap::new(), Attempts::new(WATCH_AGAIN));
        loop {
            let error = follow_sockets(&plugins, &directory, &mut known).await;
            let report = |error: &io::Error| {
                tracing::error!(path = %directory.display(), %error, "watching the plugin directory failed; it is read once a minute");
            };
            attempts.failed(&error, report).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = following => {}
    }
}

/// Keeps `known` equal to the sockets in the directory, until that cannot be watched or read.
async fn follow_sockets(
    plugins: &Registries,
    directory: &Path,
    known: &mut BTreeMap<PathBuf, (SocketIdentity, Registering)>,
) -> io::Error {
    let mut watch = make(directory).await;
    loop {
        let path = directory.to_owned();
        let read = blocking::run(path.clone(), blocking::DEADLINE, move |_| sockets(&path)).await;
        // Plugins stay registered unless the directory shows that they are gone.
        let sockets = match read.flatten() {
            Ok(sockets) => sockets,
            Err(error) => return error,
        };
        known.retain(|path, (seen, _)| sockets.get(path) == Some(seen));
        for (path, seen) in sockets {
            let plugins = plugins.clone();
            known.entry(path).or_insert_with_key(|path| (seen, Registering::begin(plugins, path.clone())));
        }
        let changed = match &mut watch {
            Ok(watch) => watch.changed().await,
            Err(error) => Err(std::mem::replace(error, io::ErrorKind::Other.into())),
        };
        if let Err(error) = changed {
            return error;
        }
    }
}

async fn make(directory: &Path) -> io::Result<PathWatch> {
    let path = directory.to_owned();
    let made = blocking::run(path.clone(), blocking::DEADLINE, move |_| {
        std::fs::create_dir_all(&path).map(|()| selinux::open_to_plugins(&path))
    });
    made.await??;
    PathWatch::directory(directory).await
}

/// The sockets in a directory; none if it is missing. Hidden ones are still being created. Blocks.
///
/// # Errors
///
/// The directory's content is unknown.
fn sockets(directory: &Path) -> io::Result<BTreeMap<PathBuf, SocketIdentity>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    let shown = entries.into_iter().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    let socket = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.file_type().is_socket() => {
            Some(Ok((entry.path(), (metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))))
        }
        Ok(_) => None,
        // Removed in between.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(error)),
    };
    shown.filter_map(socket).take(MAX_SOCKETS).collect()
}

/// A socket that is being called, or whose plugin is registered. It is dropped when the socket is gone, which
/// unregisters the plugin.
struct Registering {
    _task: JoinSet<()>,
    plugins: Registries,
    plugin: Arc<OnceLock<Registered>>,
}

impl Registering {
    fn begin(plugins: Registries, path: PathBuf) -> Self {
        let plugin = Arc::new(OnceLock::new());
        let mut task = JoinSet::new();
        let (registered, known) = (Arc::clone(&plugin), plugins.clone());
        task.spawn(async move {
            for pause in PAUSES.into_iter().map(Some).chain([None]) {
                match register(&known, &path, &registered).await {
                    Ok(()) => return,
                    Err(why) => tracing::warn!(path = %path.display(), why, "plugin not registered"),
                }
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return,
                }
            }
        });
        Self { _task: task, plugins, plugin }
    }
}

impl Drop for Registering {
    fn drop(&mut self) {
        if let Some(plugin) = self.plugin.get() {
            self.plugins.deregister(*plugin);
        }
    }
}

/// Calls `GetInfo` at `path`, registers the plugin, and notifies it. An error leads to another attempt.
async fn register(plugins: &Registries, path: &Path, registered: &OnceLock<Registered>) -> Result<(), String> {
    let channel =
        tokio::time::timeout(CALL_TIMEOUT, connect(path.to_owned())).await.map_err(|_| "no answer".to_owned())??;
    let mut client = RegistrationClient::new(channel);
    let info = within(client.get_info(InfoRequest {})).await?;
    let name = info.name.clone();
    let answer = plugins.register(info, path).await;
    let error = answer.as_ref().err().cloned().unwrap_or_default();
    if let Err(error) = &answer {
        tracing::warn!(path = %path.display(), plugin = name, error, "plugin refused");
    }
    let notified =
        within(client.notify_registration_status(RegistrationStatus { plugin_registered: answer.is_ok(), error }));
    let notified = notified.await;
    match (answer, notified) {
        (Ok(plugin), Ok(_)) => {
            let _ = registered.set(plugin);
            Ok(())
        }
        (Ok(plugin), Err(error)) => {
            plugins.deregister(plugin);
            Err(error)
        }
        // The plugin was notified; its answer does not matter.
        (Err(_), _) => Ok(()),
    }
}

async fn within<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, String> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| "no answer".to_owned())?;
    answer.map(tonic::Response::into_inner).map_err(|status| status_message(&status))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_read_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, socket) = (dir.path().join("plain"), dir.path().join("plugin.sock"));
        std::fs::write(&plain, "").unwrap();
        let _socket = UnixListener::bind(&socket).unwrap();
        let _hidden = UnixListener::bind(dir.path().join(".made.sock")).unwrap();
        assert_eq!(sockets(dir.path()).unwrap().into_keys().collect::<Vec<_>>(), [socket]);
        assert!(sockets(&dir.path().join("missing")).unwrap().is_empty());
        assert!(sockets(&plain).is_err());
    }
}
