#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::borrow::Cow;

use limpet_model::manifest;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use limpet_core::source::push::{Pusher, channel};

use super::*;
use limpet_core::fixtures::observed;
use limpet_core::source::delta;
use limpet_core::status::observed::ObservedPod;
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord};

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);

fn text(name: &str, image: &str) -> Vec<u8> {
    let spec = format!("{{containers: [{{name: a, image: '{image}'}}], terminationGracePeriodSeconds: 20}}");
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {spec}\n").into_bytes()
}

/// The sender, the published snapshots, the stop token and the task.
type Running = (Pusher, watch::Receiver<Arc<SourceSnapshot>>, CancellationToken, JoinHandle<()>);

/// Each snapshot names what differs from the one before.
fn assert_names_its_edits(before: &SourceSnapshot, after: &SourceSnapshot) {
    if before.revision.is_some() {
        let (named, compared) = (delta::between(before, after), delta::compare(before, after));
        assert!(matches!(named, Cow::Borrowed(_)));
        assert!(compared.pods.iter().all(|key| named.pods.contains(key)), "{compared:?} {named:?}");
        assert!(compared.objects.iter().all(|key| named.objects.contains(key)), "{compared:?} {named:?}");
    }
}

struct Bench {
    _root: tempfile::TempDir,
    path: std::path::PathBuf,
    store: Arc<Store>,
    context: PushContext,
    running: Option<Running>,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("limpet.db");
        let store = Arc::new(Store::open(&path).unwrap().0);
        let context = PushContext { slots: Arc::default(), observed: Observed::default() };
        Self { _root: root, path, store, context, running: None }
    }

    async fn start(&mut self) {
        let (sender, mut receiver) = watch::channel(Arc::new(SourceSnapshot::default()));
        let stop = CancellationToken::new();
        let (pusher, inbox) = channel("edge1", DECODER);
        let source = PushSource::new("edge1", Arc::clone(&self.store), DECODER, self.context.clone());
        let publish = move |snapshot: Arc<SourceSnapshot>| {
            assert_names_its_edits(&sender.borrow(), &snapshot);
            sender.send_replace(snapshot);
        };
        let task = tokio::spawn(source.run(inbox, publish, stop.clone()));
        receiver.changed().await.unwrap();
        self.running = Some((pusher, receiver, stop, task));
    }

    async fn stop(&mut self) {
        let (_, _, stop, task) = self.running.take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    async fn put(&self, name: &str, image: &str) -> Result<Verb, PushError> {
        let (pusher, ..) = self.running.as_ref().unwrap();
        pusher.put(pusher.pod("default", name, &text(name, image))?).await.map(|stored| stored.verb)
    }

    async fn delete(&self, name: &str, grace: Option<u64>) -> Result<Arc<PodRecord>, PushError> {
        self.running.as_ref().unwrap().0.delete("default", name, grace).await
    }

    fn snapshot(&self) -> Arc<SourceSnapshot> {
        Arc::clone(&self.running.as_ref().unwrap().1.borrow())
    }

    fn shape(&self) -> Vec<String> {
        let image = |pod: &PodRecord| pod.spec().containers[0].image.clone().unwrap();
        self.snapshot().pods.values().map(|pod| format!("{} {}", pod.key.name(), image(pod))).collect()
    }

    /// As if a worker ran the pod.
    fn runs(&self, name: &str) -> Arc<ObservedPod> {
        let metadata =
            serde_json::json!({"metadata": {"name": format!("{name}-edge1"), "namespace": "default", "uid": "u"}});
        let pod = observed(metadata);
        self.context.observed.publish(&pod.record.key, Some(Arc::clone(&pod)));
        pod
    }
}

#[tokio::test]
async fn pods_are_created_configured_unchanged_and_deleted_and_survive_restarts() {
    let mut bench = Bench::new();
    bench.start().await;
    assert!(bench.snapshot().ready && bench.snapshot().health == Health::Good);
    assert_eq!(bench.put("web", "x:1").await.unwrap(), Verb::Created);
    assert_eq!(bench.shape(), ["web-edge1 x:1"], "published before it is acknowledged");
    let written = std::fs::read(&bench.path).unwrap();
    assert_eq!(bench.put("web", "x:1").await.unwrap(), Verb::Unchanged);
    assert!(std::fs::read(&bench.path).unwrap() == written, "and nothing is written");
    assert_eq!(bench.put("web", "x:2").await.unwrap(), Verb::Configured);
    assert_eq!(bench.put("db", "x:1").await.unwrap(), Verb::Created);
    bench.stop().await;
    bench.start().await;
    assert_eq!(bench.shape(), ["db-edge1 x:1", "web-edge1 x:2"]);
    // The name with the suffix of the node works as the one without.
    bench.delete("db-edge1", None).await.unwrap();
    bench.delete("web", None).await.unwrap();
    assert!(matches!(bench.delete("web", None).await, Err(PushError::NotFound { .. })));
    assert_eq!(bench.shape(), [""; 0]);
    bench.stop().await;
    bench.start().await;
    assert_eq!(bench.shape(), [""; 0]);
    bench.stop().await;
}

#[tokio::test]
async fn a_running_pod_is_terminated_within_the_requested_grace_period() {
    let mut bench = Bench::new();
    bench.start().await;
    bench.put("web", "x:1").await.unwrap();
    let web = bench.runs("web");
    bench.delete("web", Some(3)).await.unwrap();
    let marked = |bench: &Bench| {
        let snapshot = bench.snapshot();
        let metadata = snapshot.pods.values().next().map(|pod| pod.pod.metadata.clone());
        metadata.map(|metadata| (metadata.deletion_timestamp.is_some(), metadata.deletion_grace_period_seconds))
    };
    assert_eq!(marked(&bench), Some((true, Some(3))));
    assert!(bench.store.load::<LastGood>(SourceKind::Push).unwrap().records.is_empty(), "it would not come back");
    assert!(matches!(bench.put("web", "x:1").await, Err(PushError::BeingDeleted { .. })));
    bench.delete("web", Some(0)).await.unwrap();
    assert_eq!(marked(&bench), Some((true, Some(0))));
    bench.context.observed.publish(&web.record.key, None);
    let (_, snapshots, ..) = bench.running.as_mut().unwrap();
    snapshots.wait_for(|now| now.pods.is_empty()).await.unwrap();
    assert_eq!(bench.put("web", "x:1").await.unwrap(), Verb::Created);
    bench.runs("web");
    bench.delete("web", None).await.unwrap();
    assert_eq!(marked(&bench), Some((true, Some(20))), "its own grace");
    bench.stop().await;
}

#[tokio::test]
async fn an_invalid_request_is_rejected_with_the_reason() {
    let mut bench = Bench::new();
    bench.start().await;
    let file = manifest::read(&text("web", "x:1"), "web.yaml", SourceKind::File, "edge1").pods.remove(0);
    let http = manifest::read(&text("cam", "x:1"), "http://x", SourceKind::Http, "edge1").pods.remove(0);
    for record in [file, http] {
        let pods = imbl::OrdMap::unit(record.key.clone(), Arc::clone(&record));
        let snapshot = SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() };
        bench.context.slots.publish(record.source, Arc::new(snapshot));
    }
    let message = |error: PushError| error.to_string();
    assert_eq!(
        message(bench.put("web", "x:2").await.unwrap_err()),
        "pod default/web-edge1 is already defined by file web.yaml, which takes precedence; remove it there or choose another name"
    );
    assert_eq!(
        message(bench.delete("web", None).await.unwrap_err()),
        "pod default/web-edge1 comes from file web.yaml; remove it there"
    );
    assert_eq!(bench.put("cam", "x:2").await.unwrap(), Verb::Created, "a push comes before a URL");
    let (pusher, ..) = bench.running.as_ref().unwrap();
    let put = |namespace: &'static str, name: &'static str, text: Vec<u8>| async move {
        let stored = match pusher.pod(namespace, name, &text) {
            Ok(record) => pusher.put(record).await,
            Err(error) => Err(error),
        };
        stored.map(|stored| stored.record.key.to_string()).map_err(|error| error.to_string())
    };
    let two = [text("a", "x:1"), b"---\n".to_vec(), text("b", "x:1")].concat();
    let table = [
        ("default", "other", text("a", "x:1"), Err("the Pod's name is a, the request's is other")),
        ("default", "a", two, Err("the body holds 2 documents, not one Pod")),
        ("default", "a", Vec::new(), Err("the body holds no Pod")),
        ("lab", "a", text("a", "x:1"), Ok("lab/a-edge1")),
        ("default", "a-edge1", text("a", "x:1"), Ok("default/a-edge1")),
    ];
    for (namespace, name, text, expected) in table {
        let answer = put(namespace, name, text).await;
        assert_eq!(answer.as_deref().map_err(String::as_str), expected, "{name}");
    }
    let elsewhere = String::from_utf8(text("a", "x:1")).unwrap().replace("name: a}\n", "name: a, namespace: lab}\n");
    assert!(put("default", "a", elsewhere.into_bytes()).await.unwrap_err().contains("namespace is lab"));
    assert!(matches!(bench.put("a", "").await, Err(PushError::Invalid(faults)) if !faults.is_empty()));
    bench.stop().await;
}

fn object(kind: &str, name: &str, value: &str, more: &str) -> Vec<u8> {
    format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\ndata: {{k: {value}}}\n{more}").into_bytes()
}

fn map(name: &str) -> ObjectKey {
    ObjectKey::new(ObjectKind::ConfigMap, "default", name)
}

impl Bench {
    async fn put_object(&self, key: ObjectKey, text: Vec<u8>) -> Result<Verb, String> {
        let (pusher, ..) = self.running.as_ref().unwrap();
        let stored = match pusher.object(&key, &text) {
            Ok(record) => pusher.put_object(record).await,
            Err(error) => Err(error),
        };
        stored.map(|stored| stored.verb).map_err(|error| error.to_string())
    }

    async fn delete_object(&self, key: ObjectKey) -> Result<Vec<PodKey>, String> {
        let (pusher, ..) = self.running.as_ref().unwrap();
        pusher.delete_object(key).await.map(|deleted| deleted.referred_by).map_err(|error| error.to_string())
    }

    /// Every object as `key=value`, so that a failed comparison can be read.
    fn objects(&self) -> Vec<String> {
        let value = |object: &ObjectRecord| object.data["k"].bytes.expose_text().unwrap().to_owned();
        self.snapshot().objects.values().map(|object| format!("{}={}", object.key, value(object))).collect()
    }
}

#[tokio::test]
async fn objects_are_stored_as_pods_are_and_report_the_pods_that_refer_to_them() {
    let mut bench = Bench::new();
    bench.start().await;
    let put = async |bench: &Bench, value: &str| bench.put_object(map("m"), object("ConfigMap", "m", value, "")).await;
    assert_eq!(put(&bench, "one").await, Ok(Verb::Created));
    let written = std::fs::read(&bench.path).unwrap();
    assert_eq!(put(&bench, "one").await, Ok(Verb::Unchanged));
    assert!(std::fs::read(&bench.path).unwrap() == written, "and nothing is written");
    assert_eq!(put(&bench, "two").await, Ok(Verb::Configured));
    let secret = ObjectKey::new(ObjectKind::Secret, "lab", "m");
    let in_lab = bench.put_object(secret.clone(), object("Secret", "m", "aHVudGVyMg==", "immutable: true\n")).await;
    assert_eq!(in_lab, Ok(Verb::Created));
    bench.stop().await;
    bench.start().await;
    assert_eq!(bench.objects(), ["ConfigMap default/m=two", "Secret lab/m=hunter2"]);

    let refused = bench.put_object(secret.clone(), object("Secret", "m", "eA==", "immutable: true\n")).await;
    assert!(refused.unwrap_err().contains("Secret lab/m is immutable"));
    let web = String::from_utf8(text("web", "x:1")).unwrap();
    let web = web.replace("spec: {", "spec: {volumes: [{name: v, configMap: {name: m}}], ");
    let (pusher, ..) = bench.running.as_ref().unwrap();
    pusher.put(pusher.pod("default", "web", web.as_bytes()).unwrap()).await.unwrap();
    assert_eq!(bench.delete_object(map("m")).await, Ok(vec![PodKey::new("default", "web-edge1")]));
    assert_eq!(bench.delete_object(map("m")).await, Err("configmaps \"m\" not found".to_owned()));
    assert_eq!(bench.delete_object(secret).await, Ok(Vec::new()));
    bench.stop().await;
    bench.start().await;
    assert_eq!((bench.objects(), bench.shape()), (Vec::new(), vec!["web-edge1 x:1".to_owned()]));
    bench.stop().await;
}

#[tokio::test]
async fn a_job_that_is_deleted_and_applied_again_is_another_one() {
    let mut bench = Bench::new();
    bench.start().await;
    let key = ObjectKey::new(ObjectKind::Job, "default", "build");
    let pod = "{restartPolicy: Never, containers: [{name: a, image: i}]}";
    let job = |limit: u32| {
        let spec = format!("{{backoffLimit: {limit}, template: {{spec: {pod}}}}}");
        format!("{{apiVersion: batch/v1, kind: Job, metadata: {{name: build}}, spec: {spec}}}").into_bytes()
    };
    let number = |bench: &Bench| bench.snapshot().incarnations.number(&key);
    assert_eq!(bench.put_object(key.clone(), job(1)).await, Ok(Verb::Created));
    assert_eq!(bench.put_object(key.clone(), job(2)).await, Ok(Verb::Configured));
    assert_eq!(number(&bench), Some(1));
    bench.delete_object(key.clone()).await.unwrap();
    assert_eq!(bench.put_object(key.clone(), job(2)).await, Ok(Verb::Created));
    assert_eq!(number(&bench), Some(2));
    bench.stop().await;
    bench.start().await;
    assert_eq!(number(&bench), Some(1), "an agent that starts numbers them anew");
    bench.stop().await;
}

#[tokio::test]
async fn an_invalid_object_is_rejected_with_the_reason() {
    let mut bench = Bench::new();
    bench.start().await;
    let of_file =
        manifest::read(&object("ConfigMap", "f", "v", ""), "f.yaml", SourceKind::File, "edge1").objects.remove(0);
    let objects = imbl::OrdMap::unit(of_file.key.clone(), of_file);
    let snapshot = SourceSnapshot { objects, ready: true, ..SourceSnapshot::default() };
    bench.context.slots.publish(SourceKind::File, Arc::new(snapshot));
    let elsewhere = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m, namespace: lab}\n".to_vec();
    let two = [object("ConfigMap", "m", "v", ""), b"---\n".to_vec(), text("a", "x:1")].concat();
    let table = [
        (object("ConfigMap", "other", "v", ""), "the ConfigMap's name is other, the request's is m"),
        (object("Secret", "m", "dg==", ""), "the body holds no ConfigMap"),
        (two, "the body holds 2 documents, not one ConfigMap"),
        (elsewhere, "the ConfigMap's namespace is lab, the request's is default"),
        (object("ConfigMap", "m", "5", ""), "apply:4:8: data.k: must be a string, not a number; quote it"),
    ];
    for (text, expected) in table {
        assert_eq!(bench.put_object(map("m"), text).await, Err(expected.to_owned()));
    }
    let nowhere = ObjectKey::new(ObjectKind::ConfigMap, "No", "m");
    assert!(
        bench
            .put_object(nowhere, object("ConfigMap", "m", "v", ""))
            .await
            .unwrap_err()
            .contains("not a valid namespace")
    );
    let refused = bench.delete_object(map("f")).await;
    assert_eq!(refused, Err("ConfigMap default/f comes from file f.yaml; remove it there".to_owned()));
    // The object of another source with that name is another object for pushed pods.
    assert_eq!(bench.put_object(map("f"), object("ConfigMap", "f", "v", "")).await, Ok(Verb::Created));
    assert_eq!(bench.objects(), ["ConfigMap default/f=v"]);
    bench.stop().await;
}

#[tokio::test]
async fn a_push_that_cannot_be_saved_is_rejected() {
    let mut bench = Bench::new();
    bench.start().await;
    bench.put("web", "x:1").await.unwrap();
    // The directory of the database is gone, so that it cannot be reopened.
    drop(std::fs::remove_dir_all(bench.path.parent().unwrap()));
    std::fs::write(bench.path.parent().unwrap(), "").unwrap();
    bench.store.forget_database();
    let refused = bench.put("db", "x:1").await;
    assert!(matches!(refused, Err(PushError::NotPersisted { .. })), "{refused:?}");
    assert_eq!(bench.shape(), ["web-edge1 x:1"]);
    let refused = bench.delete("web", None).await;
    assert!(matches!(refused, Err(PushError::NotPersisted { .. })), "{refused:?}");
    assert_eq!(bench.shape(), ["web-edge1 x:1"]);
    bench.stop().await;
    std::fs::remove_file(bench.path.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn after_database_damage_unknown_pods_are_not_stopped() {
    let mut bench = Bench::new();
    bench.start().await;
    bench.put("web", "x:1").await.unwrap();
    bench.stop().await;
    bench.store.forget_database();
    let mut damaged = std::fs::read(&bench.path).unwrap();
    damaged[..64].fill(0);
    std::fs::write(&bench.path, &damaged).unwrap();
    bench.start().await;
    assert_eq!(bench.shape(), ["web-edge1 x:1"], "salvaged from the damaged file");
    assert!(!bench.snapshot().ready);
    bench.stop().await;
    std::fs::remove_file(bench.store.damaged().pop().unwrap()).unwrap();
    bench.start().await;
    assert!(bench.snapshot().ready);
    bench.stop().await;
}

#[tokio::test]
async fn database_damage_at_runtime_loses_nothing() {
    let mut bench = Bench::new();
    bench.start().await;
    bench.put("web", "x:1").await.unwrap();
    bench.store.forget_database();
    std::fs::write(&bench.path, "not a database").unwrap();
    bench.put("db", "x:1").await.unwrap();
    bench.put_object(map("m"), object("ConfigMap", "m", "v", "")).await.unwrap();
    bench.store.forget_database();
    std::fs::write(&bench.path, "not a database").unwrap();
    bench.put("db", "x:2").await.unwrap();
    bench.stop().await;
    bench.start().await;
    assert_eq!(bench.shape(), ["db-edge1 x:2", "web-edge1 x:1"]);
    assert_eq!(bench.objects(), ["ConfigMap default/m=v"]);
    bench.stop().await;
}

#[tokio::test]
async fn concurrent_pushes_are_handled_in_order() {
    let mut bench = Bench::new();
    bench.start().await;
    let (pusher, ..) = bench.running.as_ref().unwrap();
    let mut pushes = tokio::task::JoinSet::new();
    for n in 0..60 {
        let (pusher, name) = (pusher.clone(), format!("p{}", n % 20));
        pushes.spawn(async move {
            pusher.put(pusher.pod("default", &name, &text(&name, &format!("x:{n}"))).unwrap()).await.unwrap().verb
        });
    }
    let verbs = pushes.join_all().await;
    assert_eq!(verbs.iter().filter(|verb| **verb == Verb::Created).count(), 20);
    let published = bench.shape();
    bench.stop().await;
    bench.start().await;
    assert_eq!(bench.shape(), published, "the saved state is the last published one");
    bench.stop().await;
}
