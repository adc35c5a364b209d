//! Writes the pods' `resolv.conf` files and keeps them in sync with the node's.
//!
//! A change reaches running pods by inotify, one of the name servers of the node's own Services at once, and one from before the agent was started when their containers are adopted. What
//! fails (a full disk, a watch that the kernel refuses) is tried again after a pause; a pod keeps its old file until then.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::dns::{self, DnsRequest, Resolver};
use super::{Settings, VolumeError, Volumes, Warning, blocking, files, in_place};
use crate::blocking::{DEADLINE, Progress};
use crate::path_watch::PathWatch;
use limpet_model::pod::PodRecord;

/// The file's name in a pod's directory.
pub(super) const FILE: &str = "etc-resolv.conf";

/// The pauses before a failed write or watch is tried again: the first, which doubles, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

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
    let Some(path) = &settings.configured.resolv_conf else { return Ok(NodeResolver::Off) };
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
    let (resolver, warnings) = dns::resolve(pod, node, &settings.cluster_dns());
    in_place::write(&path, &resolver.render(), false)?;
    Ok(warnings)
}

impl Volumes {
    /// The pod's resolver, as its file has it or is going to have it.
    ///
    /// # Errors
    /// The node's file cannot be read.
    pub async fn resolver(&self, pod: &PodRecord) -> Result<Resolver, VolumeError> {
        let (settings, request) = (self.settings.clone(), DnsRequest::new(pod));
        let read = move |_: &Progress| {
            let node = match read_nodes(&settings)? {
                NodeResolver::Off => None,
                NodeResolver::Missing => Some(Resolver::default()),
                NodeResolver::Present(resolver) => Some(resolver),
            };
            Ok(dns::resolve(&request, node.as_ref(), &settings.cluster_dns()).0)
        };
        blocking(self.settings.pod_dir(&pod.uid), DEADLINE, read).await
    }

    /// Keeps the files of the pods that `pods` returns in sync with the node's until `stop`. That may be a symlink, may be
    /// replaced, and may appear late. Pods that are not prepared yet are left to [`Self::prepare`].
    pub async fn follow_resolv_conf(&self, stop: CancellationToken, pods: impl Fn() -> Vec<Arc<PodRecord>>) {
        stop.run_until_cancelled(self.follow(pods, PathWatch::file, PAUSES)).await;
    }

    async fn follow(
        &self,
        pods: impl Fn() -> Vec<Arc<PodRecord>>,
        open: impl AsyncFn(&Path) -> io::Result<PathWatch>,
        (first, longest): (Duration, Duration),
    ) {
        let Some(path) = &self.settings.configured.resolv_conf else { return };
        let mut local_dns = self.settings.local_dns.changes();
        let (mut watch, mut lost, mut behind, mut pause) = (None, false, false, first);
        // Not read yet: pods that are there already are compared first, and those that are adopted later then.
        let mut known = None;
        loop {
            let was_watched = watch.is_some();
            if !was_watched {
                watch = open(path).await.inspect_err(|error| report_lost(path, error, &mut lost)).ok();
            }
            let is_late = behind || watch.is_none();
            if !is_late {
                (lost, pause) = (false, first);
            }
            // What has changed before a new watch was there is read at once.
            if was_watched || watch.is_none() {
                tokio::select! {
                    changed = changed(&mut watch) => if let Err(error) = changed {
                        report_lost(path, &error, &mut lost);
                        watch = None;
                        tokio::time::sleep(pause).await;
                    },
                    () = self.resolver_behind.notified() => behind = true,
                    Ok(()) = local_dns.changed() => behind = true,
                    () = tokio::time::sleep(pause), if is_late => pause = longest.min(pause * 2),
                }
            }
            // An unreadable or missing file (during a replacement) is not treated as an empty one.
            let Some(now) = self.read_resolv_conf(path).await else { continue };
            let is_new = known.as_ref() != Some(&now);
            if is_new || behind {
                let pods = pods();
                if is_new && known.is_some() {
                    tracing::info!(pods = pods.len(), "the node's resolv.conf changed");
                }
                known = Some(now);
                behind = !self.rewrite_resolv_conf(&pods).await;
            }
        }
    }

    /// Brings the file of an adopted pod up to date: the node's may have changed while no agent was running. A failure is
    /// logged, and tried again by [`Self::follow_resolv_conf`].
    pub async fn refresh_resolv_conf(&self, pod: &Arc<PodRecord>) {
        if !self.rewrite_resolv_conf(std::slice::from_ref(pod)).await {
            self.resolver_behind.notify_one();
        }
    }

    /// Updates the files of `pods` from the node's, in place, so that running containers see it. A failed write is logged, and
    /// the other pods are still updated. Returns whether all are up to date.
    async fn rewrite_resolv_conf(&self, pods: &[Arc<PodRecord>]) -> bool {
        let requests: Vec<_> = pods.iter().map(|pod| (pod.uid.clone(), DnsRequest::new(pod))).collect();
        let settings = self.settings.clone();
        let rewrite = move |progress: &Progress| {
            let node = read_nodes(&settings)?;
            let mut all = true;
            for (uid, request) in requests {
                let pod_dir = settings.pod_dir(&uid);
                progress.at(&pod_dir);
                if !pod_dir.join(FILE).exists() {
                    continue;
                }
                if let Err(error) = write(&pod_dir, &request, &node, &settings) {
                    all = false;
                    tracing::warn!(pod = %request.pod, %error, "updating resolv.conf of the pod failed; it keeps its old name servers until that is tried again");
                }
            }
            Ok(all)
        };
        blocking(self.settings.pods_dir(), DEADLINE, rewrite).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "reading resolv.conf failed; the pods keep their old name servers until that is tried again");
            false
        })
    }

    async fn read_resolv_conf(&self, path: &Path) -> Option<Resolver> {
        let settings = self.settings.clone();
        match blocking(path.to_owned(), DEADLINE, move |_| read_nodes(&settings)).await {
            Ok(NodeResolver::Present(resolver)) => Some(resolver),
            _ => None,
        }
    }
}

/// Resolves when the watch reports something; never without one.
async fn changed(watch: &mut Option<PathWatch>) -> io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Reported once until it is watched again.
fn report_lost(path: &Path, error: &io::Error, lost: &mut bool) {
    if !std::mem::replace(lost, true) {
        tracing::warn!(
            file = %path.display(), %error,
            "resolv.conf cannot be watched; that is tried again, and the file is read then; raise fs.inotify.max_user_instances and max_user_watches"
        );
    }
}

#[cfg(test)]
#[path = "tests/resolver.rs"]
mod tests;
