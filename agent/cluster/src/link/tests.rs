#![allow(clippy::unwrap_used)]

use std::path::Path;

use limpet_apiserver_client::{Request, Resource};

use super::*;
use crate::settings::ClusterSettings;
use limpet_core::status::observed::ObservedPods;

fn link(settings: &ClusterSettings, directory: &Path, parts: LinkParts) -> Link {
    Link::new(ClientSource::files(settings, directory).unwrap(), &settings.server, parts)
}

fn kubeconfig(path: &Path, server: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: edge\n\
         contexts: [{{name: edge, context: {{cluster: lab, user: node}}}}]\n\
         clusters: [{{name: lab, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: node, user: {{token: t}}}}]\n"
    );
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn the_server_of_an_edited_kubeconfig_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    // Both addresses refuse connections.
    let (before, after) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
    kubeconfig(&path, before);
    let mut settings = ClusterSettings::default();
    (settings.kubeconfig, settings.server) = (Some(path.clone()), before.to_owned());
    let (metrics, (_, node_network)) = (Metrics::new("node"), watch::channel(NodeNetwork::default()));
    let parts = LinkParts { node_network, metrics: metrics.clone(), events: Events::default() };
    let link = link(&settings, dir.path(), parts);
    let shown = async || {
        assert!(link.send(Request::get(Resource::Nodes)).await.is_err());
        let text = metrics.render(&ObservedPods::default(), None);
        let labels: Vec<&str> = text.lines().filter(|line| line.starts_with("limpet_apiserver_connected{")).collect();
        (link.view().server, labels.join("\n"))
    };
    let connected = |server: &str| format!("limpet_apiserver_connected{{server=\"{server}\"}} 0");
    assert_eq!(shown().await, (before.to_owned(), connected(before)));
    kubeconfig(&path, after);
    assert_eq!(shown().await, (after.to_owned(), connected(after)));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_links_or_credentials_ends_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    kubeconfig(&path, "http://127.0.0.1:1");
    let settings = ClusterSettings { kubeconfig: Some(path), ..ClusterSettings::default() };
    let (network, node_network) = watch::channel(NodeNetwork::default());
    let parts = LinkParts { node_network, metrics: Metrics::new("node"), events: Events::default() };
    let link = link(&settings, dir.path(), parts);
    let began = tokio::time::Instant::now();
    let changed = async { network.send_modify(|_| {}) };
    assert!(tokio::join!(link.pause(10, None), changed).0);
    let changed = async { link.renew_client() };
    assert!(tokio::join!(link.pause(10, None), changed).0);
    assert_eq!(began.elapsed(), std::time::Duration::ZERO);
    // Without an event the pause lasts its full time.
    assert!(!link.pause(10, None).await);
    assert!(began.elapsed() > std::time::Duration::from_secs(1));
}
