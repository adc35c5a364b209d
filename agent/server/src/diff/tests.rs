//! The routes on a real socket.
#![allow(clippy::unwrap_used)]

use limpet_model::manifest;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::super::caller::tests::for_host;
use super::*;
use limpet_core::forecast::as_if_running;
use limpet_core::source::SourceSnapshot;
use limpet_wire::diff::{DiffDocument, DiffFile, DiffRequest};
use limpet_wire::socket_client::SocketClient;

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);

struct Fixture {
    dir: tempfile::TempDir,
    client: SocketClient,
    _stop: tokio_util::sync::DropGuard,
}

fn pod_text(image: &str) -> String {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": { "containers": [{ "name": "a", "image": image }] } })
    .to_string()
}

/// The files of the manifest directory, as the file source reads them.
fn files(directory: &[(String, String)]) -> Vec<(Arc<str>, Manifest)> {
    let read = |(name, text): &(String, String)| {
        (Arc::from(name.as_str()), manifest::read(text.as_bytes(), name, SourceKind::File, "edge1"))
    };
    directory.iter().map(read).collect()
}

/// A node that runs the pod `web` of `web.yaml` and has only the image `a:2`. Its manifest directory holds
/// `directory`.
fn fixture(directory: &[(&str, String)]) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    for (name, text) in directory {
        std::fs::write(manifests.join(name), text).unwrap();
    }
    let running = Proposal {
        source: SourceKind::File,
        name: Arc::from("web.yaml"),
        manifest: manifest::read(pod_text("a:1").as_bytes(), "web.yaml", SourceKind::File, "edge1"),
    };
    let snapshots = propose(&Snapshots::default(), vec![running], false).snapshots;
    let snapshot = SourceSnapshot { health: Health::Good, ..SourceSnapshot::clone(&snapshots[0]) };
    let observed = Observed::default();
    for (key, pod) in &as_if_running(&snapshots).pods {
        observed.publish(key, Some(Arc::clone(pod)));
    }
    let (place, snapshot): (Arc<str>, _) = (Arc::from(manifests.to_string_lossy()), Arc::new(snapshot));
    let view = move |kind, snapshot| SourceView {
        kind,
        place: Arc::clone(&place),
        backend: "inotify".into(),
        last_good: None,
        next_retry: None,
        persist_error: None,
        snapshot,
    };
    let push = Arc::new(SourceSnapshot { health: Health::Good, ..SourceSnapshot::default() });
    let sources =
        move || vec![view(SourceKind::File, Arc::clone(&snapshot)), view(SourceKind::Push, Arc::clone(&push))];
    let state = DiffState {
        node_name: "edge1".into(),
        manifest_path: Some(manifests),
        decoder: DECODER,
        sources: Arc::new(sources),
        observed,
        generations: None,
        read_directory: {
            let directory: Vec<_> = directory.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect();
            let path = dir.path().join("manifests");
            Arc::new(move || match path.is_dir() {
                true => Ok(files(&directory)),
                false => Err(format!("{} is not there", path.display())),
            })
        },
        has_image: Arc::new(|image| Box::pin(async move { Some(image == "a:2") })),
    };
    let stop = CancellationToken::new();
    let socket = dir.path().join("limpet.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let app = for_host(routes(state).into_router());
    let stopped = stop.clone().cancelled_owned();
    tokio::spawn(async move { axum::serve(listener, app).with_graceful_shutdown(stopped).await });
    Fixture { client: SocketClient::new(&socket), dir, _stop: stop.drop_guard() }
}

/// Each pod with its change and the presence of its images.
fn changes(document: &DiffDocument) -> Vec<String> {
    let present = |pod: &limpet_wire::diff::PodDiffDocument| -> Vec<Option<bool>> {
        pod.images.iter().map(|image| image.present).collect()
    };
    let pods = document.pods.iter();
    pods.map(|pod| format!("{} {} {} {:?}", pod.name, pod.source, pod.change, present(pod))).collect()
}

fn request(name: &str, text: String) -> DiffRequest {
    DiffRequest { files: vec![DiffFile { name: name.to_owned(), text }], ..DiffRequest::default() }
}

#[tokio::test]
async fn get_compares_the_manifest_directory_with_the_running_pods() {
    let fixture = fixture(&[("web.yaml", pod_text("a:2")), ("bad.yaml", "kind: [".to_owned())]);
    let document: DiffDocument = fixture.client.get_json("/limpet/v1/diff").await.unwrap();
    assert_eq!(changes(&document), ["web-edge1 file updates [Some(true)]"]);
    assert_eq!(document.pods[0].restarts, ["a"]);
    assert_eq!(document.rejected[0].origin, "bad.yaml");
    std::fs::remove_dir_all(fixture.dir.path().join("manifests")).unwrap();
    let document: DiffDocument = fixture.client.get_json("/limpet/v1/diff").await.unwrap();
    assert!(
        !document.differs() && document.remarks[0].contains("its last good manifests stay in effect"),
        "{:?}",
        document.remarks
    );
}

#[tokio::test]
async fn post_assigns_manifests_to_the_source_of_their_pods() {
    let fixture = fixture(&[]);
    let post = async |request: &DiffRequest| {
        let document: DiffDocument = fixture.client.post_json("/limpet/v1/diff", request).await.unwrap();
        document
    };
    assert_eq!(changes(&post(&request("x.yaml", pod_text("a:3"))).await), ["web-edge1 file updates [Some(false)]"]);
    let pushed = DiffRequest { source: Some("push".to_owned()), ..request("x.yaml", pod_text("a:3")) };
    let document = post(&pushed).await;
    assert!(changes(&document).is_empty() && document.rejected[0].faults[0].message.contains("takes precedence"));
    let unknown = DiffRequest { source: Some("http".to_owned()), ..request("x.yaml", pod_text("a:3")) };
    let error = fixture.client.post_json::<DiffDocument>("/limpet/v1/diff", &unknown).await.unwrap_err();
    assert_eq!(error.to_string(), "no source http is configured, only file, push");
}

#[tokio::test]
async fn pods_are_removed_only_when_the_whole_directory_is_compared() {
    let fixture = fixture(&[]);
    let other = pod_text("a:2").replace("\"web\"", "\"other\"");
    let part = request("other.yaml", other);
    let whole = DiffRequest { whole: true, ..part.clone() };
    let same_directory = DiffRequest { directory: Some(fixture.dir.path().join("./manifests")), ..part.clone() };
    let foreign = DiffRequest { directory: Some(fixture.dir.path().to_owned()), ..part.clone() };
    let mixed = DiffRequest { source: Some("push".to_owned()), ..whole.clone() };
    let error = fixture.client.post_json::<DiffDocument>("/limpet/v1/diff", &mixed).await.unwrap_err();
    assert_eq!(error.to_string(), "only the manifest directory is compared whole");
    let gone = vec!["other-edge1 file starts [Some(true)]", "web-edge1 file stops []"];
    for (request, wanted) in [(part, &gone[..1]), (whole, &gone), (same_directory, &gone), (foreign, &gone[..1])] {
        let document: DiffDocument = fixture.client.post_json("/limpet/v1/diff", &request).await.unwrap();
        assert_eq!(changes(&document), wanted, "{request:?}");
    }
}
