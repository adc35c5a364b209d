//! The Services of the node's own sources: what serves them, and where pods learn of their name server.

use std::sync::Arc;

use limpet_core::node_state::NodeState;
use limpet_host::volume::ClusterDns;
use limpet_model::source::SourceKind;
use limpet_services::backend::Linux;
use limpet_services::feed::Feed;
use limpet_services::settings::Settings;
use limpet_services::task::{self, Parts, SetNameServers};
use tokio::sync::watch;

use super::SharedParts;

/// Why a node of a cluster serves none.
const OF_CLUSTER: &str = "the node belongs to a cluster, whose kube-proxy and name server serve Services";

/// Passes the Services of the snapshots of these sources to a task that serves them, which starts with the first one.
pub(super) fn feed(shared: &SharedParts, sources: Vec<SourceKind>, node: watch::Receiver<NodeState>) -> Feed {
    let config = &shared.config;
    let cluster = &config.volumes.cluster;
    let settings = Settings::new(
        config.services.clone(),
        (&cluster.nameservers, &cluster.domain),
        config.volumes.resolv_conf.clone(),
        (config.root_dir.clone(), config.run_dir.clone()),
    );
    let has_leftovers = settings.marker.exists();
    let off = shared.link.is_some().then(|| OF_CLUSTER.to_owned());
    let set_name_servers = set_name_servers(shared, settings.domain.clone());
    let parts = Parts {
        observed: shared.observed.clone(),
        desired: shared.desired.clone(),
        node,
        events: shared.events.clone(),
        views: shared.services.clone(),
        set_name_servers: Arc::clone(&set_name_servers),
        links: shared.service_links.clone(),
        backend: Arc::new(Linux::new(settings.clone())),
        off,
        settings,
    };
    let (tasks, stop) = (shared.tasks.clone(), shared.stop.clone());
    let start = move |definitions: watch::Receiver<_>| {
        // At once, so that the pods that start now have it.
        if parts.off.is_none() {
            set_name_servers(&parts.settings.name_servers);
        }
        tasks.spawn(task::run(parts, definitions, stop));
    };
    Feed::new(sources, Box::new(start), shared.service_links.clone(), has_leftovers)
}

fn set_name_servers(shared: &SharedParts, domain: String) -> SetNameServers {
    let dns = shared.backends.volumes.local_dns();
    Arc::new(move |servers| {
        let name_servers = || ClusterDns { nameservers: servers.to_vec(), domain: domain.clone() };
        dns.set((!servers.is_empty()).then(name_servers));
    })
}
