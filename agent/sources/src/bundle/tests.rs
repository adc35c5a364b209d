//! The source over a real store and real bundles without images; images are imported in the end-to-end suite.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use limpet_bundle::SecretKey;
use limpet_bundle::create::{Recipe, create};
use limpet_bundle::node_key::{NodeKey, NodePublicKey};
use limpet_bundle::settings::BundleSettings;
use limpet_containerd::client::Client;
use limpet_containerd::image::{ImageSettings, Images, ImagesConfig};
use limpet_core::source::{Decoder, SourceSnapshot};
use limpet_host::throttle::Throttle;
use limpet_model::manifest;
use limpet_telemetry::event::Events;
use limpet_telemetry::metrics::Metrics;
use limpet_wire::bundle::BundleDocument;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::intake::Way;
use super::{BundleIntake, BundleParts, BundleSource, intake};
use limpet_store::Store;

/// A pair for tests alone, in the form of minisign -G -W.
const SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWGZpTYsjynE0ao7rN8R7i31a/JxNJjKeQpziamPNXp5xHWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkUioi9CjRJmNDvCXD0+q+1bTyjp4D10lC6fH/W74mAgM4=\n";
const PUBLIC: &str = "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU";

struct Bench {
    root: tempfile::TempDir,
    store: Arc<Store>,
    seen: Arc<Mutex<Vec<Arc<SourceSnapshot>>>>,
    running: Option<(BundleIntake, CancellationToken, JoinHandle<()>)>,
    events: Events,
    metrics: Metrics,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("secret"), SECRET).unwrap();
        std::fs::write(root.path().join("public"), PUBLIC).unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        Self {
            root,
            store,
            seen: Arc::default(),
            running: None,
            events: Events::default(),
            metrics: Metrics::new("edge1"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn images(&self) -> Images {
        let config = ImagesConfig {
            snapshotter: "overlayfs".to_owned(),
            settings: ImageSettings::default(),
            auth_files: Vec::new(),
            archives_dir: self.path("images"),
            verifiers: None,
            throttle: Throttle::default(),
        };
        Images::new(Client::new(Path::new("/nonexistent")), config)
    }

    fn start(&mut self) {
        let parts = BundleParts {
            settings: BundleSettings {
                keys: vec![self.path("public")],
                directory: None,
                image: None,
                interval: BundleSettings::DEFAULT_INTERVAL,
                max_size: 1 << 20,
            },
            directory: self.path("bundle"),
            node_key: self.path("node.key"),
            store: Arc::clone(&self.store),
            images: self.images(),
            updates: Default::default(),
            events: self.events.clone(),
            metrics: self.metrics.clone(),
        };
        let source = BundleSource::new(parts, "edge1", DECODER);
        let (stop, seen) = (CancellationToken::new(), Arc::clone(&self.seen));
        let (way, inbox) = intake(Default::default(), self.path("bundle"), 1 << 20);
        let stopping = stop.clone();
        let publish = move |snapshot| seen.lock().unwrap().push(snapshot);
        let task = tokio::spawn(source.run(inbox, publish, stopping));
        self.running = Some((way, stop, task));
    }

    async fn stop(&mut self) {
        let (_, stop, task) = self.running.take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    /// A bundle of these manifests.
    fn bundle(&self, serial: u64, manifests: &str) -> PathBuf {
        self.sealed_bundle(serial, manifests, &[])
    }

    fn sealed_bundle(&self, serial: u64, manifests: &str, seal_to: &[NodePublicKey]) -> PathBuf {
        let out = self.path(&format!("{serial}.limpet"));
        let key = SecretKey::read(&self.path("secret")).unwrap();
        let manifests = vec![(PathBuf::from("m.yaml"), manifests.as_bytes().to_vec())];
        let recipe = Recipe {
            name: "plant",
            version: "1",
            serial,
            rollout: None,
            manifests,
            images: &[],
            from: None,
            seal_to,
            key: &key,
        };
        create(&recipe, &out).unwrap();
        out
    }

    /// As a client sends it.
    async fn apply(&self, path: &Path) -> Result<BundleDocument, String> {
        let (way, ..) = self.running.as_ref().unwrap();
        let bytes = stream::iter([Ok(Bytes::from(std::fs::read(path).unwrap()))]).boxed();
        way.apply(bytes, path, false).await.map_err(|refusal| refusal.to_string())
    }

    /// As a directory offers it.
    async fn offer(&self, path: &Path) -> Result<BundleDocument, String> {
        let (way, ..) = self.running.as_ref().unwrap();
        let offered = way.offer(path.to_owned(), path.to_owned(), Way::Directory).await;
        offered.map_err(|refusal| refusal.to_string())
    }

    /// `name image` of every pod, and the names of objects.
    fn shape(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let snapshot = seen.last().unwrap();
        assert!(snapshot.ready);
        let pods = snapshot.pods.values().map(|pod| pod.key.name().to_owned());
        pods.chain(snapshot.objects.keys().map(|key| key.name.to_string())).collect()
    }
}

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);

fn pod(name: &str) -> String {
    let image = format!("x/y@sha256:{}", "a".repeat(64));
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: a, image: '{image}'}}]}}\n---\n"
    )
}

const SETTINGS: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\nimmutable: true\ndata: {a: b}\n---\n";

#[tokio::test]
async fn a_bundle_replaces_the_one_before_as_a_whole_and_survives_a_restart() {
    let mut bench = Bench::new();
    bench.start();
    let first = bench.bundle(1, &format!("{}{}{SETTINGS}", pod("a"), pod("b")));
    let applied = bench.apply(&first).await.unwrap();
    assert_eq!((applied.changed, applied.serial, applied.pods), (true, 1, 2));
    assert_eq!(bench.shape(), ["a-edge1", "b-edge1", "settings"]);
    assert!(!bench.apply(&first).await.unwrap().changed);
    assert!(std::fs::read_dir(bench.path("bundle")).unwrap().next().is_none(), "no copy is left");
    bench.stop().await;
    bench.seen.lock().unwrap().clear();
    bench.start();
    let second = bench.bundle(2, &pod("b"));
    assert!(bench.apply(&second).await.unwrap().changed);
    let seen = bench.seen.lock().unwrap().clone();
    assert_eq!((seen[0].ready, seen[0].pods.len(), seen[0].objects.len()), (true, 2, 1), "published before any bundle");
    assert!(Arc::ptr_eq(&seen[0].pods[seen[1].pods.keys().next().unwrap()], seen[1].pods.values().next().unwrap()));
    assert_eq!(bench.shape(), ["b-edge1"]);
    let message = bench.apply(&first).await.unwrap_err();
    assert!(message.contains("serial 1 is not higher than 2") && message.contains("reset-serial"), "{message}");
    bench.stop().await;
    let reasons: Vec<String> = bench.events.snapshot().into_iter().map(|event| event.reason.to_string()).collect();
    assert!(
        reasons.contains(&"BundleApplied".to_owned()) && reasons.contains(&"BundleRefused".to_owned()),
        "{reasons:?}"
    );
}

#[tokio::test]
async fn a_bundle_that_is_refused_changes_nothing() {
    let mut bench = Bench::new();
    bench.start();
    bench.apply(&bench.bundle(5, &format!("{}{SETTINGS}", pod("a")))).await.unwrap();
    let whole = std::fs::read(bench.bundle(6, &pod("b"))).unwrap();
    let damaged = bench.path("damaged");
    let write = |bytes: &[u8]| std::fs::write(&damaged, bytes).unwrap();
    let published = bench.seen.lock().unwrap().len();
    write(&whole[..whole.len() / 2]);
    assert!(bench.apply(&damaged).await.unwrap_err().contains("not what was signed"));
    write(&vec![0; 2 << 20]);
    assert!(bench.apply(&damaged).await.unwrap_err().contains("bundle.maxSize"));
    write(b"PK");
    assert!(bench.apply(&damaged).await.unwrap_err().contains("not a bundle"));
    assert!(bench.offer(&bench.path("gone")).await.unwrap_err().contains("cannot copy"));
    assert!(bench.offer(&bench.path("bundle")).await.unwrap_err().contains("not a file"));
    std::fs::write(bench.path("public"), "RWRsaW1wZXQtYtdWIlka9Cp2pXXE7V1NgyG2IWnqeppSx8YgXg5sI5fH").unwrap();
    assert!(bench.apply(&bench.path("6.limpet")).await.unwrap_err().contains("none of the keys"));
    std::fs::write(bench.path("public"), PUBLIC).unwrap();
    let changed = SETTINGS.replace("a: b", "a: c");
    let error = bench.apply(&bench.bundle(7, &changed)).await.unwrap_err();
    assert!(error.contains("immutable"), "{error}");
    assert_eq!(bench.shape(), ["a-edge1", "settings"]);
    assert_eq!(bench.seen.lock().unwrap().len(), published, "a refusal publishes nothing");
    bench.stop().await;
    bench.start();
    // After all of them the next one is what counts, and the serial of none of them.
    assert!(bench.apply(&bench.path("6.limpet")).await.unwrap().changed);
    assert_eq!(bench.shape(), ["b-edge1"]);
    bench.stop().await;
}

#[tokio::test]
async fn after_a_reset_an_older_bundle_is_taken_once() {
    let mut bench = Bench::new();
    bench.start();
    let (way, ..) = bench.running.as_ref().unwrap();
    assert!(way.reset_serial().await.unwrap_err().to_string().contains("has no bundle"));
    let [old, new] = [(1, "a"), (9, "b")].map(|(serial, name)| bench.bundle(serial, &pod(name)));
    bench.apply(&new).await.unwrap();
    bench.apply(&old).await.unwrap_err();
    assert_eq!(way.reset_serial().await.map_err(|refusal| refusal.to_string()).unwrap().serial, 0);
    bench.stop().await;
    bench.start();
    assert_eq!(bench.shape(), ["b-edge1"]);
    assert!(bench.apply(&old).await.unwrap().changed);
    assert_eq!(bench.shape(), ["a-edge1"]);
    assert!(!bench.apply(&old).await.unwrap().changed);
    bench.stop().await;
}

#[tokio::test]
async fn sealed_secrets_run_on_their_node_alone() {
    const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {token: s3cret}\n---\n";
    let mut bench = Bench::new();
    bench.start();
    let (other, key) = (NodeKey::generate().unwrap(), bench.path("node.key"));
    // A client may ask for the key as soon as the agent answers.
    bench.running.as_ref().unwrap().0.wait_restored().await;
    let node = NodeKey::read(&key).unwrap().public();
    let foreign = bench.sealed_bundle(1, SECRET, &[other.public()]);
    let error = bench.apply(&foreign).await.unwrap_err();
    assert!(error.contains("sealed to other nodes") && error.contains(&node.id()), "{error}");
    let bundle = bench.sealed_bundle(2, &format!("{}{SECRET}", pod("a")), &[other.public(), node.clone()]);
    let hidden = bench.path("hidden");
    std::fs::rename(&key, &hidden).unwrap();
    let error = bench.apply(&bundle).await.unwrap_err();
    assert!(error.contains("cannot read the key") && error.contains("node.key"), "{error}");
    std::fs::rename(&hidden, &key).unwrap();
    assert!(bench.apply(&bundle).await.unwrap().changed);
    assert_eq!(bench.shape(), ["a-edge1", "token"]);
    bench.stop().await;
    // What the node has needs the key no more, and a new one is made.
    std::fs::remove_file(&key).unwrap();
    bench.start();
    bench.apply(&bench.bundle(1, &pod("b"))).await.unwrap_err();
    assert_eq!(bench.shape(), ["a-edge1", "token"]);
    assert_ne!(NodeKey::read(&key).unwrap().public(), node);
    bench.stop().await;
    let messages = format!("{:?} {}", bench.events.snapshot(), bench.metrics.render(&Default::default(), []));
    assert!(!messages.contains("s3cret") && !messages.contains("czNjcmV0"), "{messages}");
    assert!(messages.contains("limpet_bundle_serial{bundle=\"plant\"} 2"), "{messages}");
}
