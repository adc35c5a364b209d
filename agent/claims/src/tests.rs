use limpet_core::status::observed::ObservedPod;
use limpet_model::manifest;
use serde_json::{Value, json};

use super::*;

const FILE: SourceKind = SourceKind::File;

/// A source with claims and pods, and what the claims make of it.
struct Node {
    claims: Claims,
    snapshot: SourceSnapshot,
    observed: ObservedPods,
}

impl Node {
    fn new(directories: &[(&str, bool)]) -> Self {
        let directories = directories.iter().map(|(name, retained)| (id(name), *retained));
        let snapshot = SourceSnapshot { ready: true, ..SourceSnapshot::default() };
        let mut claims = Claims::new("/v".into(), directories);
        claims.adopt(&[]);
        Self { claims, snapshot, observed: ObservedPods::default() }
    }

    fn claim(&mut self, name: &str, size: &str) {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
        let read = manifest::read(claim.to_string().as_bytes(), "a.yaml", FILE, "node");
        let record = Arc::clone(&read.objects[0]);
        self.snapshot.objects.insert(record.key.clone(), record);
    }

    fn remove_claim(&mut self, name: &str) {
        self.snapshot.objects.remove(&id(name).key());
    }

    fn pod(&mut self, claim: &str) -> Arc<PodRecord> {
        let pod = pod(claim);
        self.snapshot.pods.insert(pod.key.clone(), Arc::clone(&pod));
        pod
    }

    fn observe(&mut self, record: &Arc<PodRecord>, phase: &str) {
        let status = serde_json::from_value(json!({"phase": phase})).unwrap();
        let pod = ObservedPod {
            record: Arc::clone(record),
            allocated: None,
            status,
            note: None,
            terminating_since: None,
            containers: BTreeMap::new(),
            static_cpus: Default::default(),
        };
        self.observed = ObservedPods::new([(record.key.clone(), Arc::new(pod))].into_iter().collect());
    }

    fn turn(&mut self) -> Vec<(String, Action)> {
        self.turn_keeping(&[])
    }

    fn turn_keeping(&mut self, kept: &[SourceKind]) -> Vec<(String, Action)> {
        let mut snapshots = Snapshots::default();
        snapshots[FILE.index()] = Arc::new(self.snapshot.clone());
        let orders = self.claims.turn(&snapshots, &self.observed, kept);
        orders.into_iter().map(|order| (order.id.name.to_string(), order.action)).collect()
    }

    /// The claims that pods find, with their directories; `ending` is marked.
    fn served(&mut self) -> Vec<String> {
        let mut snapshots = Snapshots::default();
        snapshots[FILE.index()] = Arc::new(self.snapshot.clone());
        let expanded = self.claims.expand(snapshots);
        let text = |(key, record): (&ObjectKey, &Arc<ObjectRecord>)| {
            let claim = record.claim.as_ref().unwrap();
            let ending = if claim.ending { " ending" } else { "" };
            format!("{} {}{ending}", key.name, claim.directory.as_ref().unwrap().display())
        };
        claims(&expanded[FILE.index()]).map(text).collect()
    }
}

fn id(name: &str) -> ClaimId {
    ClaimId { source: FILE, namespace: Arc::from("shop"), name: Arc::from(name) }
}

fn pod(claim: &str) -> Arc<PodRecord> {
    let pod: Value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }});
    Arc::clone(&manifest::read(pod.to_string().as_bytes(), "p.yaml", FILE, "node").pods[0])
}

#[test]
fn a_claim_stays_until_its_last_pod_has_gone() {
    let mut node = Node::new(&[]);
    assert_eq!((node.turn(), node.served()), (vec![], vec![]));
    node.claim("data", "1Gi");
    let record = node.pod("data");
    node.observe(&record, "Running");
    assert_eq!(node.turn(), []);
    assert_eq!(node.served(), ["data /v/file/shop/data/data"]);

    node.remove_claim("data");
    assert_eq!(node.turn(), []);
    assert_eq!(node.served(), ["data /v/file/shop/data/data ending"]);
    assert!(node.claims.is_waiting());
    node.snapshot.pods.clear();
    assert_eq!(node.turn(), [], "it terminates");
    node.observe(&record, "Succeeded");
    assert_eq!(node.turn(), [("data".to_owned(), Action::Remove)]);
    assert_eq!(node.turn(), [], "ordered once");
    // One of the same name has to wait.
    node.claim("data", "1Gi");
    assert_eq!((node.turn(), node.served()), (vec![], vec![]));
    node.claims.done(&id("data"), true);
    assert_eq!((node.turn(), node.served()), (vec![], vec!["data /v/file/shop/data/data".to_owned()]));
}

#[test]
fn one_that_is_back_in_time_is_the_same() {
    let mut node = Node::new(&[]);
    node.claim("data", "1Gi");
    let record = node.pod("data");
    node.observe(&record, "Running");
    node.turn();
    node.remove_claim("data");
    assert_eq!(node.turn(), []);
    node.claim("data", "2Gi");
    node.snapshot.pods.clear();
    node.observed = ObservedPods::default();
    assert_eq!(node.turn(), []);
    assert_eq!(node.served(), ["data /v/file/shop/data/data"]);
    assert!(!node.claims.is_waiting());
}

#[test]
fn a_trial_keeps_the_files_of_claims_that_may_come_back() {
    let mut node = Node::new(&[]);
    node.claim("data", "1Gi");
    node.turn();
    node.remove_claim("data");
    assert_eq!(node.turn_keeping(&[FILE]), []);
    assert!(node.claims.is_waiting());
    // It is undone.
    node.claim("data", "1Gi");
    assert_eq!(node.turn(), []);
    node.remove_claim("data");
    assert_eq!(node.turn_keeping(&[FILE]), []);
    // It is accepted.
    assert_eq!(node.turn_keeping(&[SourceKind::Push]), [("data".to_owned(), Action::Remove)]);
}

#[test]
fn nothing_is_removed_before_all_is_known() {
    let mut node = Node::new(&[("data", false), ("kept", true)]);
    node.claims.adopted = None;
    assert_eq!(node.turn(), [], "what runs is not known");
    node.claims.adopt(&[pod("data")]);
    node.snapshot.ready = false;
    assert_eq!(node.turn(), [], "the source is not known");
    node.snapshot.ready = true;
    assert_eq!(node.turn(), [], "an adopted pod has it");
    node.observe(&pod("data"), "Running");
    assert_eq!(node.turn(), []);
    node.observed = ObservedPods::default();
    assert_eq!(node.turn(), [("data".to_owned(), Action::Remove)]);
    node.claims.done(&id("data"), false);
    assert_eq!(node.turn(), [], "not again at once");
    assert!(!node.claims.is_waiting());
}

#[test]
fn an_edit_reaches_pods_and_the_rest_is_untouched() {
    let mut node = Node::new(&[]);
    let plain = Arc::new(node.snapshot.clone());
    let mut snapshots = Snapshots::default();
    snapshots[FILE.index()] = Arc::clone(&plain);
    let expanded = node.claims.expand(snapshots);
    assert!(Arc::ptr_eq(&expanded[FILE.index()], &plain), "without claims it is the source's own");
    node.claim("a", "1Gi");
    node.claim("b", "1Gi");
    node.turn();
    node.served();
    node.claim("a", "2Gi");
    node.turn();
    let before = node.claims.snapshots[FILE.index()].claims.clone();
    node.served();
    let after = &node.claims.snapshots[FILE.index()].claims;
    let is_same = |name: &str| Arc::ptr_eq(&before[&id(name).key()], &after[&id(name).key()]);
    assert_eq!((is_same("a"), is_same("b")), (false, true));
    assert_eq!(after[&id("a").key()].claim.as_ref().unwrap().size, 2 << 30);
}
