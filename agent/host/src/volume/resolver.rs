//! Writes the pods' `resolv.conf` files and keeps them in sync with the node's.

use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::dns::{self, DnsRequest, Resolver};
use super::{Settings, VolumeError, Volumes, Warning, blocking, files};
use crate::blocking::{DEADLINE, Progress};
use crate::path_watch::PathWatch;
use limpet_model::pod::PodRecord;

/// The file's name in a pod's directory.
pub(super) const FILE: &str = "etc-resolv.conf";

/// The content of the node's own file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeResolver {
    /// `resolvConf` is empty: lookups are turned off.
    Off,
    /// The file is missing: not yet created, on a node that boots without a network, or being replaced.
    Missing,
    /// The file's content.
    Present(Resolver),
}

pub(super) fn read_nodes(settings: &Settings) -> Result<NodeResolver, VolumeError> {
    let Some(path) = &settings.resolv_conf else { return Ok(NodeResolver::Off) };
    Ok(match files::read(path)? {
        None => NodeResolver::Missing,
        Some(text) => NodeResolver::Present(Resolver::parse(&text)),
    })
}

/// Writes a pod's file in place if its content changed. While the node's is missing, a pod keeps its file, and a new pod
/// starts with its own settings alone.
pub(super) fn write(
    pod_dir: &Path,
    pod: &DnsRequest,
    node: &NodeResolver,
    settings: &Settings,
) -> Result<Vec<Warning>, VolumeError> {
    let path = pod_dir.join(FILE);
    let nothing = Resolver::default();
    let node = match node {
        NodeResolver::Missing if path.exists() => return Ok(Vec::new()),
        NodeResolver::Missing => Some(&nothing),
        NodeResolver::Off => None,
        NodeResolver::Present(resolver) => Some(resolver),
    };
    let (resolver, warnings) = dns::resolve(pod, node, &settings.cluster);
    files::write_in_place(&path, &resolver.render(), false)?;
    Ok(warnings)
}

impl Volumes {
    /// Updates the files of `pods` from the node's, in place, so that running containers see it. Pods that are not prepared
    /// yet are left to [`Self::prepare`]. A failed write is logged, and the other pods are still updated.
    pub async fn rewrite_resolv_conf(&self, pods: &[Arc<PodRecord>]) {
        let requests: Vec<_> = pods.iter().map(|pod| (pod.uid.clone(), DnsRequest::of(pod))).collect();
        let settings = self.settings.clone();
        let rewrite = move |progress: &Progress| {
            let node = read_nodes(&settings)?;
            for (uid, request) in requests {
                let pod_dir = settings.pod_dir(&uid);
                progress.at(&pod_dir);
                if !pod_dir.join(FILE).exists() {
                    continue;
                }
                if let Err(error) = write(&pod_dir, &request, &node, &settings) {
                    tracing::warn!(pod = %request.pod, %error, "updating resolv.conf of the pod failed; it keeps its old name servers");
                }
            }
            Ok(())
        };
        if let Err(error) = blocking(self.settings.pods_dir(), DEADLINE, rewrite).await {
            tracing::warn!(%error, "reading resolv.conf failed; the pods keep their old name servers");
        }
    }

    /// Calls `changed` each time the content of the node's resolv.conf changes, until `stop`. The file may be a symlink, may
    /// be replaced, and may appear late. Where inotify is not available, that is logged once and `changed` is never called.
    pub async fn watch_resolv_conf(&self, stop: CancellationToken, changed: impl Fn()) {
        let Some(path) = &self.settings.resolv_conf else { return stop.cancelled().await };
        tokio::select! {
            () = stop.cancelled() => {}
            ended = self.follow_resolv_conf(path, &changed) => if let Err(error) = ended {
                tracing::warn!(file = %path.display(), %error, "resolv.conf cannot be watched; changes are read when a pod starts");
                stop.cancelled().await;
            },
        }
    }

    async fn follow_resolv_conf(&self, path: &Path, changed: &impl Fn()) -> Result<(), VolumeError> {
        let mut watch = PathWatch::file(path).await.map_err(VolumeError::io("watch", path))?;
        let mut known = self.read_resolv_conf(path).await;
        loop {
            watch.changed().await.map_err(VolumeError::io("watch", path))?;
            // An unreadable or missing file (during a replacement) is not treated as an empty one.
            let Some(now) = self.read_resolv_conf(path).await else { continue };
            if known.as_ref() != Some(&now) {
                known = Some(now);
                changed();
            }
        }
    }

    async fn read_resolv_conf(&self, path: &Path) -> Option<Resolver> {
        let settings = self.settings.clone();
        match blocking(path.to_owned(), DEADLINE, move |_| read_nodes(&settings)).await {
            Ok(NodeResolver::Present(resolver)) => Some(resolver),
            _ => None,
        }
    }
}
