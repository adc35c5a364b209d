#![allow(clippy::unwrap_used)]
//! The node's resolv.conf and those of running pods.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use limpet_tests::need;
use rustix::mount::MountFlags;
use serde_json::json;

use super::super::ClusterDns;
use super::super::tests::{Node, record};
use super::*;

/// The pauses of the tests.
const SHORT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));

/// A prepared pod with the node's name servers.
async fn pod(node: &Node) -> Arc<PodRecord> {
    let spec = json!({"dnsPolicy": "Default"});
    node.prepare(spec.clone()).await.unwrap();
    Arc::new(record(spec))
}

impl Node {
    fn resolv_conf(&self) -> PathBuf {
        self.pod_dir().join(FILE)
    }

    fn pods_text(&self) -> String {
        std::fs::read_to_string(self.resolv_conf()).unwrap()
    }

    /// Replaces the node's file, as a DHCP client does.
    fn replace(&self, text: &str) {
        std::fs::write(self.dir.path().join("new"), text).unwrap();
        std::fs::rename(self.dir.path().join("new"), self.dir.path().join("resolv.conf")).unwrap();
    }

    async fn wait_for(&self, text: &str) {
        while self.pods_text() != text {
            tokio::task::yield_now().await;
        }
    }
}

/// Runs `steps` while resolv.conf is followed. The timeout only ends a failing test.
async fn while_following(node: &Node, pod: &Arc<PodRecord>, steps: impl Future<Output = ()>) {
    let pods = || vec![Arc::clone(pod)];
    tokio::select! {
        () = node.volumes.follow(pods, PathWatch::file, PAUSES) => {}
        done = tokio::time::timeout(Duration::from_secs(60), steps) => done.unwrap(),
    }
}

#[tokio::test]
async fn running_pods_follow_the_nodes_file() {
    let node = Node::new();
    let pod = pod(&node).await;
    let inode = std::fs::metadata(node.resolv_conf()).unwrap().ino();
    while_following(&node, &pod, async {
        for address in 2..9 {
            let text = format!("nameserver 10.0.0.{address}\n");
            node.replace(&text);
            node.wait_for(&text).await;
        }
    })
    .await;
    assert_eq!(std::fs::metadata(node.resolv_conf()).unwrap().ino(), inode);
}

#[tokio::test]
async fn running_pods_get_and_lose_the_name_server_of_services() {
    let node = Node::new();
    let spec = json!({"dnsPolicy": "ClusterFirst"});
    node.prepare(spec.clone()).await.unwrap();
    let pod = Arc::new(record(spec));
    let plain = node.pods_text();
    let dns = node.volumes.local_dns();
    let local = ClusterDns { nameservers: vec!["10.43.0.10".parse().unwrap()], domain: "cluster.local".to_owned() };
    let namespace = pod.key.namespace();
    let searches = format!("search {namespace}.svc.cluster.local svc.cluster.local cluster.local");
    let with_services = format!("{searches}\nnameserver 10.43.0.10\noptions ndots:5\n");
    while_following(&node, &pod, async {
        for _ in 0..3 {
            dns.set(Some(local.clone()));
            node.wait_for(&with_services).await;
            dns.set(None);
            node.wait_for(&plain).await;
        }
    })
    .await;
    let configured = ClusterDns { nameservers: vec!["10.0.0.10".parse().unwrap()], ..ClusterDns::default() };
    dns.set(Some(local));
    assert_eq!(dns.or_configured(&configured), configured, "what is configured comes first");
}

#[tokio::test]
async fn a_change_while_no_agent_ran_reaches_an_adopted_pod() {
    let node = Node::new();
    let pod = pod(&node).await;
    node.replace("nameserver 10.0.0.2\n");
    node.volumes.refresh_resolv_conf(&pod).await;
    assert_eq!(node.pods_text(), "nameserver 10.0.0.2\n");
}

#[tokio::test]
async fn what_a_full_disk_prevents_is_done_later() {
    if need::root("a small file system").is_none() {
        return;
    }
    let node = Node::new();
    let root_dir = node.dir.path().join("root");
    std::fs::create_dir(&root_dir).unwrap();
    rustix::mount::mount("t", &root_dir, "tmpfs", MountFlags::empty(), Some(c"size=64k")).unwrap();
    let pod = pod(&node).await;
    std::fs::write(root_dir.join("other"), vec![1; 1 << 20]).unwrap_err();
    let options: String = (0..2000).map(|number| format!(" o{number}")).collect();
    let long = format!("nameserver 10.0.0.2\noptions{options}\n");
    node.replace(&long);
    // Refreshed at the adoption, and when the watch reports a change.
    node.volumes.refresh_resolv_conf(&pod).await;
    assert_eq!(node.pods_text(), "nameserver 10.0.0.1\n");
    let tries = Cell::new(0);
    let pods = || {
        tries.set(tries.get() + 1);
        vec![Arc::clone(&pod)]
    };
    let steps = async {
        // The first attempt is that of the adoption; the others follow a pause.
        while tries.get() < 5 {
            tokio::task::yield_now().await;
        }
        std::fs::remove_file(root_dir.join("other")).unwrap();
        node.wait_for(&long).await;
    };
    tokio::select! {
        () = node.volumes.follow(pods, PathWatch::file, SHORT) => {}
        done = tokio::time::timeout(Duration::from_secs(60), steps) => done.unwrap(),
    }
}

#[tokio::test]
async fn a_watch_that_fails_is_armed_again() {
    let node = Node::new();
    let pod = pod(&node).await;
    let tries = Cell::new(0);
    let open = async |path: &Path| {
        tries.set(tries.get() + 1);
        match tries.get() {
            1..=3 => Err(io::ErrorKind::StorageFull.into()),
            _ => PathWatch::file(path).await,
        }
    };
    let steps = async {
        // Without a watch, the file is read after each pause.
        node.replace("nameserver 10.0.0.2\n");
        node.wait_for("nameserver 10.0.0.2\n").await;
        while tries.get() < 4 {
            tokio::task::yield_now().await;
        }
        node.replace("nameserver 10.0.0.3\n");
        node.wait_for("nameserver 10.0.0.3\n").await;
    };
    tokio::select! {
        () = node.volumes.follow(|| vec![Arc::clone(&pod)], open, SHORT) => {}
        done = tokio::time::timeout(Duration::from_secs(60), steps) => done.unwrap(),
    }
    assert_eq!(tries.get(), 4, "one watch that works is enough");
}

#[tokio::test]
async fn a_node_without_the_file_runs_pods() {
    let node = Node::new();
    std::fs::remove_file(node.dir.path().join("resolv.conf")).unwrap();
    let pod = pod(&node).await;
    assert_eq!(node.pods_text(), "");
    // The file appears, and is missing again for a short time, which must not cost pods their nameservers.
    while_following(&node, &pod, async {
        node.replace("nameserver 10.0.0.7\n");
        node.wait_for("nameserver 10.0.0.7\n").await;
    })
    .await;
    std::fs::remove_file(node.dir.path().join("resolv.conf")).unwrap();
    assert!(node.volumes.rewrite_resolv_conf(std::slice::from_ref(&pod)).await);
    node.prepare(json!({"dnsPolicy": "Default"})).await.unwrap();
    assert_eq!(node.pods_text(), "nameserver 10.0.0.7\n");
}
