//! Checks that containerd has the configured snapshotter, by its list of plugins.

use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::{Plugin, PluginsRequest};
use tonic::Status;

use crate::client::Client;

const KIND: &str = "io.containerd.snapshotter.v1";

/// Why containerd cannot create snapshots for limpet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{snapshotter}: {why}")]
pub struct SnapshotterFault {
    /// The configured name.
    pub snapshotter: String,
    pub why: String,
    /// The snapshotters that work.
    pub usable: Vec<String>,
}

impl SnapshotterFault {
    pub fn remedy(&self) -> String {
        format!("Set snapshotter to one of: {}", self.usable.join(" "))
    }
}

/// Lists containerd's plugins.
///
/// # Errors
///
/// containerd does not list them.
pub async fn plugins(client: &Client) -> Result<Vec<Plugin>, Status> {
    let request = client.call("Introspection.Plugins", PluginsRequest::default());
    Ok(IntrospectionClient::new(client.channel()).plugins(request).await?.into_inner().plugins)
}

/// Checks that `wanted` is among `plugins` and has started.
///
/// # Errors
///
/// It is missing, or failed when containerd started.
pub fn judge(plugins: &[Plugin], wanted: &str) -> Result<(), SnapshotterFault> {
    let all = || plugins.iter().filter(|plugin| plugin.r#type == KIND);
    let plugin = all().find(|plugin| plugin.id == wanted);
    let why = match plugin.map(|plugin| &plugin.init_err) {
        Some(None) => return Ok(()),
        Some(Some(error)) => error.message.clone(),
        None => "not in this containerd".to_owned(),
    };
    let usable = all().filter(|plugin| plugin.init_err.is_none()).map(|plugin| plugin.id.clone()).collect();
    Err(SnapshotterFault { snapshotter: wanted.to_owned(), why, usable })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use containerd_client::google::rpc;

    use super::*;

    fn plugin(kind: &str, id: &str, error: Option<&str>) -> Plugin {
        let init_err = error.map(|message| rpc::Status { message: message.to_owned(), ..rpc::Status::default() });
        Plugin { r#type: kind.to_owned(), id: id.to_owned(), init_err, ..Plugin::default() }
    }

    #[test]
    fn a_snapshotter_is_there_absent_or_broken() {
        let plugins = [
            plugin(KIND, "overlayfs", None),
            plugin(KIND, "native", None),
            plugin(KIND, "zfs", Some("path must be a zfs filesystem")),
            plugin("io.containerd.grpc.v1", "cri", None),
        ];
        for (wanted, expected) in [
            ("overlayfs", None),
            ("zfs", Some("zfs: path must be a zfs filesystem")),
            ("nydus", Some("nydus: not in this containerd")),
            ("cri", Some("cri: not in this containerd")),
        ] {
            let fault = judge(&plugins, wanted).err();
            assert_eq!(fault.as_ref().map(ToString::to_string).as_deref(), expected, "{wanted}");
            let remedy = fault.map(|fault| fault.remedy());
            assert!(remedy.is_none_or(|remedy| remedy == "Set snapshotter to one of: overlayfs native"));
        }
    }
}
