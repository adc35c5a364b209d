//! What must hold for any response, for the fuzz target: its size is limited, it is rejected only with a reason, and
//! what is accepted is the same after a restart.

use limpet_model::{manifest, object};
use std::sync::Arc;

use super::body::{BodyFormat, MAX_BODY, read};
use limpet_core::source::view::{Contents, View};
use limpet_core::source::{Decoder, Health, SourceSnapshot};
use limpet_model::manifest::{Manifest, Restored};
use limpet_model::pod::Severity;
use limpet_model::source::SourceKind;

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);
const ORIGIN: &str = "https://fleet.example/pods";
const NODE: &str = "node";
/// The previous response of the URL.
const BEFORE: &[u8] = br#"{"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}},
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db"}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"a": "b"}}]}"#;

/// Handles `bytes` as a response. The first byte selects how it was sent, and the others are its body.
///
/// # Panics
///
/// A property does not hold.
pub fn check_answer(bytes: &[u8]) {
    let Some((&how, body)) = bytes.split_first() else { return };
    let encoding = [None, Some("gzip"), Some("identity"), Some("br")][usize::from(how & 3)];
    let form = BodyFormat { encoding: encoding.map(str::to_owned), open_ended: how & 4 != 0 };
    let read = form.decode(body.to_vec()).and_then(|bytes| {
        assert!(bytes.len() <= MAX_BODY, "{} bytes are taken", bytes.len());
        read(&bytes, DECODER, ORIGIN, NODE)
    });
    match read {
        Ok(manifest) => check_manifest(manifest),
        Err(failure) => assert!(!failure.reason.is_empty(), "rejected without a reason"),
    }
}

fn check_manifest(manifest: Manifest) {
    let origin: Arc<str> = Arc::from(ORIGIN);
    let before = DECODER.read(BEFORE, ORIGIN, SourceKind::Http, NODE);
    assert!(before.faults.is_empty() && before.pods.len() == 2, "{:?}", before.faults);
    let known: Vec<_> = before.pods.iter().map(|pod| pod.key.clone()).collect();
    let rejected = manifest.faults.iter().any(|fault| fault.severity == Severity::Error);
    let (unknown, named) = (manifest.unknown_pod_refused, manifest.refused.clone());
    assert!(rejected || !unknown && named.is_empty(), "rejected without a reason");

    let mut view = View::default();
    view.accept(&origin, before, Contents::default);
    view.accept(&origin, manifest, Contents::default);
    let snapshot = view.finish_update(true, Health::Good).unwrap_or_default();
    assert_eq!(rejected, !snapshot.rejected.is_empty(), "{:?}", snapshot.rejected);
    for key in &known {
        assert!(snapshot.pods.contains_key(key) || !unknown && !named.contains(key), "{key} ended by a refusal");
    }
    check_saved(&view, &origin, &snapshot);
}

/// What is saved to disk is restored as it was published.
fn check_saved(view: &View, origin: &str, snapshot: &SourceSnapshot) {
    let saved = view.contents(origin).map(|contents| contents.manifests()).unwrap_or_default();
    assert_eq!(saved.len(), snapshot.pods.len() + snapshot.objects.len());
    for manifest in saved {
        match (DECODER.restore)(&manifest, ORIGIN, SourceKind::Http, NODE) {
            Ok(Restored::Pod(pod)) => {
                let published = snapshot.pods.get(&pod.key);
                assert!(published.is_some_and(|now| **now == *pod && now.pod == pod.pod), "{} is another pod", pod.key);
            }
            Ok(Restored::Object(object)) => {
                let published: Option<&Arc<object::ObjectRecord>> = snapshot.objects.get(&object.key);
                assert!(published.is_some_and(|now| **now == object), "{} is another object", object.key);
            }
            Err(faults) => panic!("taken and cannot be read back: {faults:?}"),
        }
    }
}
