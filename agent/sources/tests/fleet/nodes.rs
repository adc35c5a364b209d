//! A fleet: many nodes in one process that ask one server for bundles.
//!
//! Each node is the agent's source of bundles and its requests to a URL, with a name, a database and a directory of its own.
//! There are no containers: what a node runs is what its source publishes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use limpet_bundle::SecretKey;
use limpet_bundle::create::{Recipe, create};
use limpet_bundle::settings::BundleSettings;
use limpet_containerd::client::Client;
use limpet_containerd::image::{ImageSettings, Images, ImagesConfig};
use limpet_core::node_place::NodePlace;
use limpet_core::node_state::NodeNetwork;
use limpet_core::source::{Decoder, SourceSnapshot};
use limpet_host::throttle::Throttle;
use limpet_model::manifest;
use limpet_model::node::NodeAddresses;
use limpet_sources::Pulse;
use limpet_sources::bundle::{BundleParts, BundleSource, RemoteBundles, RemoteParts, intake};
use limpet_sources::http::{Address, HttpSettings};
use limpet_store::Store;
use limpet_telemetry::event::Events;
use limpet_telemetry::metrics::Metrics;
use reqwest::header::HeaderMap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);
/// A pair for tests alone, in the form of `minisign -G -W`.
const SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWGZpTYsjynE0ao7rN8R7i31a/JxNJjKeQpziamPNXp5xHWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkUioi9CjRJmNDvCXD0+q+1bTyjp4D10lC6fH/W74mAgM4=\n";
const PUBLIC: &str = "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU";
/// The limit of a bundle here.
const MAX_SIZE: u64 = 4 << 20;
/// How often what all nodes have is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// All nodes, with what they keep over restarts.
pub(crate) struct Fleet {
    dir: PathBuf,
    url: String,
    interval: Duration,
    nodes: Vec<Node>,
}

/// One node that runs.
struct Node {
    name: Arc<str>,
    pulse: Arc<Pulse>,
    published: watch::Receiver<Arc<SourceSnapshot>>,
    /// Lives as long as the node.
    _network: watch::Sender<NodeNetwork>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Fleet {
    /// A fleet without nodes, with its files in `dir`. Its nodes ask `url` at that interval.
    pub(crate) fn new(dir: &Path, url: String, interval: Duration) -> Self {
        std::fs::write(dir.join("public"), PUBLIC).unwrap();
        std::fs::write(dir.join("secret"), SECRET).unwrap();
        Self { dir: dir.to_owned(), url, interval, nodes: Vec::new() }
    }

    /// Starts that many nodes, as an earlier start has left them.
    pub(crate) fn start(&mut self, count: usize) {
        self.nodes = (0..count).map(|number| self.start_node(&format!("edge-{number}"))).collect();
    }

    /// Stops all nodes. They keep their files.
    pub(crate) async fn stop(&mut self) {
        for node in std::mem::take(&mut self.nodes) {
            node.stop.cancel();
            node.tasks.close();
            node.tasks.wait().await;
        }
    }

    fn start_node(&self, name: &str) -> Node {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let (name, keys): (Arc<str>, _) = (Arc::from(name), vec![self.dir.join("public")]);
        let bundles = dir.join("bundle");
        let settings = BundleSettings {
            keys: keys.clone(),
            directory: None,
            image: None,
            interval: BundleSettings::DEFAULT_INTERVAL,
            max_size: MAX_SIZE,
        };
        let parts = BundleParts {
            settings,
            directory: bundles.clone(),
            node_key: dir.join("node.key"),
            store: Arc::new(Store::open(&dir.join("limpet.db")).unwrap().0),
            images: images(&dir),
            updates: Default::default(),
            events: Events::default(),
            metrics: Metrics::new(&name),
        };
        let source = BundleSource::new(parts, &name, DECODER);
        let (intake, inbox) = intake(Default::default(), bundles.clone(), MAX_SIZE);
        let addresses = NodeAddresses::single([10, 0, 0, 1].into());
        let (sender, network) = watch::channel(NodeNetwork { addresses, changes: 0 });
        let url = HttpSettings {
            address: Address::parse(&self.url).unwrap(),
            headers: HeaderMap::new(),
            frequency: self.interval,
            ca_file: None,
            client_files: None,
        };
        let remote = RemoteParts {
            directory: bundles,
            max_size: MAX_SIZE,
            keys,
            intake,
            throttle: Throttle::default(),
            node_name: Arc::clone(&name),
            network,
        };
        let (stop, tasks, pulse) = (CancellationToken::new(), TaskTracker::new(), source.pulse());
        let (publish, published) = watch::channel(Arc::<SourceSnapshot>::default());
        let publish = move |snapshot| drop(publish.send_replace(snapshot));
        tasks.spawn(source.run(inbox, publish, stop.clone()));
        tasks.spawn(RemoteBundles::of_url(url, remote).run(stop.clone()));
        Node { name, pulse, published, _network: sender, stop, tasks }
    }

    /// The bytes of a bundle with that serial, for all nodes or for some percent of them, with so much else in it.
    pub(crate) fn bundle(&self, serial: u64, rollout: Option<u8>, further: &str) -> Vec<u8> {
        let key = SecretKey::read(&self.dir.join("secret")).unwrap();
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{serial: '{serial}', further: '{further}'}}\n"
        );
        let manifests = vec![(PathBuf::from("settings.yaml"), settings.into_bytes())];
        let version = serial.to_string();
        let (images, from, seal_to) = (&[][..], None, &[][..]);
        let recipe =
            Recipe { name: "plant", version: &version, serial, rollout, manifests, images, from, seal_to, key: &key };
        let out = self.dir.join("plant.limpet");
        create(&recipe, &out).unwrap();
        std::fs::read(&out).unwrap()
    }

    /// Waits until each node has the bundle `serial`, or knows that it is for others. Returns the names of those that have it.
    pub(crate) async fn settled(&self, serial: u64, deadline: Duration) -> Result<Vec<Arc<str>>, String> {
        let all = async {
            while !self.nodes.iter().all(|node| node.has(serial) || node.passes_by(serial)) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(deadline, all).await.is_err() {
            let waits = self.nodes.iter().filter(|node| !node.has(serial) && !node.passes_by(serial));
            let waits: Vec<String> = waits.take(3).map(Node::shown).collect();
            return Err(format!("after {deadline:?} nodes have not decided on serial {serial}: {waits:?}"));
        }
        Ok(self.nodes.iter().filter(|node| node.has(serial)).map(|node| Arc::clone(&node.name)).collect())
    }

    /// The names of the nodes that a stage of so many percent has, by the hash of their names.
    pub(crate) fn stage(&self, percent: u8) -> Vec<Arc<str>> {
        let within = self.nodes.iter().filter(|node| NodePlace::new(&node.name).is_within(percent));
        within.map(|node| Arc::clone(&node.name)).collect()
    }
}

impl Node {
    /// Whether what it publishes is of that bundle.
    fn has(&self, serial: u64) -> bool {
        let snapshot = self.published.borrow();
        let settings = snapshot.objects.values().find(|object| &*object.key.name == "settings");
        let shown = settings.and_then(|settings| settings.data.get("serial")?.bytes.expose_text());
        shown == Some(serial.to_string().as_str())
    }

    fn passes_by(&self, serial: u64) -> bool {
        self.shown().contains(&format!("serial {serial} is for the first"))
    }

    /// As `limpet sources` shows it.
    fn shown(&self) -> String {
        self.pulse.backend().map(|shown| shown.to_string()).unwrap_or_default()
    }
}

/// There are none in these bundles, so no containerd is asked.
fn images(dir: &Path) -> Images {
    let config = ImagesConfig {
        snapshotter: "overlayfs".to_owned(),
        settings: ImageSettings::default(),
        auth_files: Vec::new(),
        archives_dir: dir.join("images"),
        verifiers: None,
        throttle: Throttle::default(),
    };
    Images::new(Client::new(Path::new("/nonexistent")), config)
}
