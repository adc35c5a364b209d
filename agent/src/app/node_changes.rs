//! Follows what changes on the node by itself: its networks, its resolv.conf, and the archives of images.

use std::sync::Arc;

use super::SharedParts;
use limpet_containerd::image::Images;
use limpet_node::network::NetworkFollower;

/// Follows the node's own network and the pods', because a change of either may be what a pod is waiting for.
pub(super) fn follow_networks(shared: &SharedParts, follower: NetworkFollower) {
    let (network, count, stop) = (shared.backends.network.clone(), follower.counter(), shared.stop.clone());
    shared.tasks.spawn(async move { network.watch(stop, count).await });
    shared.tasks.spawn(follower.run(shared.stop.clone()));
}

/// Follows the archives of images, and the node's resolv.conf.
pub(super) fn watch_node_files(shared: &SharedParts, images: &Images) {
    let stop = &shared.stop;
    let (images, watching) = (images.clone(), stop.clone());
    shared.tasks.spawn(async move { images.import_archives(watching).await });

    let (volumes, observed, watching) = (shared.backends.volumes.clone(), shared.observed.clone(), stop.clone());
    shared.tasks.spawn(async move {
        let pods = || observed.load().pods.values().map(|pod| Arc::clone(&pod.record)).collect();
        volumes.follow_resolv_conf(watching, pods).await;
    });
}
