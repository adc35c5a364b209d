//! `plugins_registry`: sockets of plugins that wait for `GetInfo` of `pluginregistration.v1`. A device plugin is registered; a
//! plugin of another type gets an error: limpet does not support it.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::Status;

use super::DevicePlugins;
use super::connection::{connect, said};
use limpet_core::device_plugins::PluginId;
use limpet_host::blocking;
use limpet_host::path_watch::PathWatch;
use limpet_node_api::plugin_registration::registration_client::RegistrationClient;
use limpet_node_api::plugin_registration::{InfoRequest, RegistrationStatus};

/// The only supported type of plugin.
const DEVICE_PLUGIN: &str = "DevicePlugin";
/// How long a call may take; kubelet gives one second, and ten for the connection.
const DEADLINE: Duration = Duration::from_secs(10);
/// The pauses before a socket that does not answer is tried again; after them only another event brings another try.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(8), Duration::from_secs(30)];
/// The most sockets that are considered.
const MAX_SOCKETS: usize = 256;

/// A socket as it was seen: inode and time of its making, in nanoseconds.
type Seen = (u64, i64, i64);

/// Registers the plugins of `directory` until the agent stops.
pub async fn follow(plugins: Arc<DevicePlugins>, directory: PathBuf) {
    let stop = plugins.stop.clone();
    let following = async {
        let mut known: BTreeMap<PathBuf, (Seen, Registering)> = BTreeMap::new();
        let mut watch = match make(&directory).await {
            Ok(watch) => watch,
            Err(error) => {
                return tracing::error!(path = %directory.display(), %error, "plugins there are not registered");
            }
        };
        loop {
            let sockets = blocking::run(directory.clone(), blocking::DEADLINE, {
                let directory = directory.clone();
                move |_| sockets(&directory)
            });
            let sockets = sockets.await.unwrap_or_default();
            known.retain(|path, (seen, _)| sockets.get(path) == Some(seen));
            for (path, seen) in sockets {
                let plugins = Arc::clone(&plugins);
                known.entry(path).or_insert_with_key(|path| (seen, Registering::begin(plugins, path.clone())));
            }
            if let Err(error) = watch.changed().await {
                return tracing::error!(path = %directory.display(), %error, "plugins there are registered no longer");
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = following => {}
    }
}

async fn make(directory: &Path) -> std::io::Result<PathWatch> {
    let path = directory.to_owned();
    blocking::run(path.clone(), blocking::DEADLINE, move |_| std::fs::create_dir_all(path)).await??;
    PathWatch::directory(directory).await
}

/// The sockets in a directory; hidden ones are being made. Blocks.
fn sockets(directory: &Path) -> BTreeMap<PathBuf, Seen> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let shown = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    let socket = |entry: std::fs::DirEntry| {
        let metadata = entry.metadata().ok().filter(|metadata| metadata.file_type().is_socket())?;
        Some((entry.path(), (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())))
    };
    shown.filter_map(socket).take(MAX_SOCKETS).collect()
}

/// A socket that is being called, or whose plugin is registered. It is dropped when the socket is gone, and deregisters it.
struct Registering {
    _task: JoinSet<()>,
    plugins: Arc<DevicePlugins>,
    plugin: Arc<std::sync::OnceLock<PluginId>>,
}

impl Registering {
    fn begin(plugins: Arc<DevicePlugins>, path: PathBuf) -> Self {
        let plugin = Arc::new(std::sync::OnceLock::new());
        let mut task = JoinSet::new();
        let (registered, of) = (Arc::clone(&plugin), Arc::clone(&plugins));
        task.spawn(async move {
            for pause in PAUSES.into_iter().map(Some).chain([None]) {
                match register(&of, &path, &registered).await {
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

/// Calls `GetInfo` at `path`, registers the plugin, and notifies it. After an error another attempt is made.
async fn register(
    plugins: &Arc<DevicePlugins>,
    path: &Path,
    registered: &std::sync::OnceLock<PluginId>,
) -> Result<(), String> {
    let channel =
        tokio::time::timeout(DEADLINE, connect(path.to_owned())).await.map_err(|_| "no answer".to_owned())??;
    let mut client = RegistrationClient::new(channel);
    let info = within(client.get_info(InfoRequest {})).await?;
    let answer = if info.r#type == DEVICE_PLUGIN {
        let endpoint =
            Some(info.endpoint).filter(|endpoint| !endpoint.is_empty()).map_or(path.to_owned(), PathBuf::from);
        plugins.register(&info.name, &info.supported_versions, endpoint).await.map_err(|error| error.to_string())
    } else {
        Err(format!("limpet does not support plugins of type {}; it registers {DEVICE_PLUGIN} alone", info.r#type))
    };
    let error = answer.as_ref().err().cloned().unwrap_or_default();
    if let Err(error) = &answer {
        tracing::warn!(path = %path.display(), plugin = info.name, error, "plugin refused");
    }
    let told =
        within(client.notify_registration_status(RegistrationStatus { plugin_registered: answer.is_ok(), error }));
    let told = told.await;
    match (answer, told) {
        (Ok(plugin), Ok(_)) => {
            let _ = registered.set(plugin);
            Ok(())
        }
        (Ok(plugin), Err(error)) => {
            plugins.deregister(plugin);
            Err(error)
        }
        // The plugin has its notification; its answer does not matter.
        (Err(_), _) => Ok(()),
    }
}

async fn within<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, String> {
    let answer = tokio::time::timeout(DEADLINE, call).await.map_err(|_| "no answer".to_owned())?;
    answer.map(tonic::Response::into_inner).map_err(|status| said(&status))
}
