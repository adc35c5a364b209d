//! The records of containers in a private containerd.
#![allow(clippy::unwrap_used)]

use containerd_client::services::v1::UpdateContainerRequest;
use limpet_model::stop_signal::StopSignal;
use prost_types::FieldMask;

use super::*;
use crate::fixtures::TestContainer;

fn config() -> ContainersConfig {
    ContainersConfig {
        snapshotter: "overlayfs".into(),
        runtime_binary: None,
        systemd_cgroup: false,
        attach_dir: "/nonexistent".into(),
        shim: None,
        exit_dir: "/nonexistent".into(),
    }
}

fn identity(container: &str) -> ContainerIdentity {
    ContainerIdentity {
        namespace: "default".into(),
        pod: "web-node".into(),
        uid: "0123".into(),
        container: container.into(),
        init: false,
        attempt: 0,
        source: "file".into(),
        origin: "web.yaml".into(),
        fingerprint: "aa".into(),
        image: "docker.io/library/web:1".into(),
        image_digest: "sha256:00".into(),
        log_path: "/var/log/pods/x/web/0.log".into(),
        backoff_seconds: 0,
        pod_start: None,
        pod_ips: Vec::new(),
        stop_signal: StopSignal::default(),
        sandbox: None,
        pod_restarts: 0,
        resized_at: None,
        ephemeral: None,
        devices: Vec::new(),
        user: None,
        start_values: Default::default(),
    }
}

/// Twelve containers with the largest allowed manifest exceed the size of one answer of containerd's.
#[tokio::test]
async fn large_manifests_are_listed_and_one_bad_record_hides_no_other() {
    let Some(test) = TestContainer::start() else { return };
    let containers = Containers::new(test.client.clone(), config());
    let manifest = vec![b' '; 1_500 << 10];
    let id = |number: usize| ContainerId::new(format!("{}-{number:02}", test.id));
    for number in 0..12 {
        let (id, identity) = (id(number), identity(&format!("c{number}")));
        let new = NewContainer {
            id: &id,
            identity: &identity,
            manifest: &manifest,
            image: "web:1",
            class: None,
            input: false,
            spec: b"{}".to_vec(),
        };
        containers.create(&new).await.unwrap();
    }
    let key = record::EXTENSION_STATE;
    let broken = UpdateContainerRequest {
        container: Some(Container {
            id: id(5).to_string(),
            extensions: HashMap::from([(key.to_owned(), Any { type_url: key.to_owned(), value: b"no JSON".to_vec() })]),
            ..Container::default()
        }),
        update_mask: Some(FieldMask { paths: vec![format!("extensions.{key}")] }),
    };
    containers.containers().update(test.client.call("Containers.Update", broken)).await.unwrap();

    let all = ListContainersRequest { filters: Vec::new() };
    let unary = containers.containers().list(test.client.request(all)).await;
    assert_eq!(unary.unwrap_err().code(), Code::ResourceExhausted, "together they exceed one message");

    let (listed, unreadable) = containers.list().await.unwrap();
    assert_eq!(listed.len(), 11);
    assert!(listed.iter().all(|container| container.recorded.manifest.len() == manifest.len()));
    let [(broken, reason)] = &unreadable[..] else { panic!("{unreadable:?}") };
    assert_eq!(*broken, id(5));
    assert!(reason.contains(key), "{reason}");
    for number in 0..12 {
        containers.delete_container(&id(number)).await.unwrap();
    }
}
