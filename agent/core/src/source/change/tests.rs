#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn pod(name: &str, image: &str, labels: &str, origin: &str) -> Arc<PodRecord> {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"l": labels}},
        "spec": {"containers": [{"name": "web", "image": image}]},
    });
    Arc::new(
        limpet_model::manifest::restore(manifest.to_string().as_bytes(), origin, SourceKind::File, "edge1").unwrap(),
    )
}

fn snapshot(pods: &[Arc<PodRecord>], rejected: &[(&str, &str, &[&Arc<PodRecord>])]) -> Arc<SourceSnapshot> {
    let rejections = rejected.iter().map(|(origin, message, kept)| {
        let origin: Arc<str> = Arc::from(*origin);
        let kept = kept.iter().map(|pod| pod.key.clone()).collect();
        let rejection =
            super::super::Rejection { origin: Arc::clone(&origin), faults: vec![Fault::error("", *message)], kept };
        (origin, Arc::new(rejection))
    });
    Arc::new(SourceSnapshot {
        pods: pods.iter().map(|pod| (pod.key.clone(), Arc::clone(pod))).collect(),
        rejected: rejections.collect(),
        ready: true,
        ..SourceSnapshot::default()
    })
}

fn restore(origin: &str, kept: &LastGood) -> Contents {
    let mut contents = Contents::default();
    for manifest in &kept.manifests {
        let pod = limpet_model::manifest::restore(manifest, origin, SourceKind::File, "edge1").unwrap();
        contents.pods.insert(pod.key.clone(), Arc::new(pod));
    }
    contents
}

/// `change pod: what; effect; by` of each change.
fn changes(log: &mut ChangeLog, after: &Arc<SourceSnapshot>) -> Vec<String> {
    let cp = Arc::new(Actor { pid: Some(7), user: Some("root".to_owned()), ..Actor::default() });
    let who = |origin: &str| (origin == "a.yaml").then(|| Arc::clone(&cp));
    let changes = log.changes(after, Timestamp::UNIX_EPOCH, restore, who);
    let line = |change: &Arc<ManifestChange>| {
        let pod = change.pod.as_deref().unwrap_or("-");
        format!("{} {pod}: {}; {}; {}", change.change, change.what(), change.effect(), change.by())
    };
    changes.iter().map(line).collect()
}

#[test]
fn each_change_names_the_parts_the_effect_and_the_actor() {
    let mut log = ChangeLog::new(SourceKind::File);
    let first = pod("web", "proxy:1.4", "a", "a.yaml");
    assert_eq!(
        changes(&mut log, &snapshot(&[Arc::clone(&first)], &[])),
        ["created default/web-edge1: created; ; root (pid 7)"]
    );
    assert_eq!(changes(&mut log, &snapshot(&[Arc::clone(&first)], &[])), [""; 0], "nothing changed");
    let two = pod("web", "proxy:1.5", "b", "a.yaml");
    assert_eq!(
        changes(&mut log, &snapshot(&[Arc::clone(&two)], &[])),
        ["edited default/web-edge1: labels, image of web 1.4 -> 1.5; restarted web; root (pid 7)"]
    );
    let rejected = [("a.yaml", "no such field", &[&two][..]), ("b.yaml", "not YAML", &[])];
    assert_eq!(
        changes(&mut log, &snapshot(&[Arc::clone(&two)], &rejected)),
        [
            "rejected default/web-edge1: rejected: no such field; ; root (pid 7)",
            "rejected -: rejected: not YAML; ; unknown",
        ]
    );
    let moved = pod("web", "proxy:1.5", "b", "b.yaml");
    assert_eq!(changes(&mut log, &snapshot(&[moved], &[])), ["edited default/web-edge1: origin; ; unknown"]);
    assert_eq!(changes(&mut log, &snapshot(&[], &[])), ["removed default/web-edge1: removed; ; unknown"]);
}

#[test]
fn after_a_restart_only_differences_to_the_last_good_manifests_are_changes() {
    let (same, edited, gone) = (
        pod("same", "i:1", "a", "same.yaml"),
        pod("edited", "i:1", "a", "a.yaml"),
        pod("gone", "i:1", "a", "gone.yaml"),
    );
    let mut log = ChangeLog::new(SourceKind::File);
    let kept = |pod: &Arc<PodRecord>| {
        (Arc::clone(&pod.origin), LastGood::new(vec![Arc::clone(&pod.manifest)], Timestamp::now()))
    };
    log.expect(&BTreeMap::from([kept(&same), kept(&edited), kept(&gone)]));
    let now = snapshot(&[same, pod("edited", "i:2", "a", "a.yaml"), pod("new", "i:1", "a", "a.yaml")], &[]);
    assert_eq!(
        changes(&mut log, &now),
        [
            "edited default/edited-edge1: image of web 1 -> 2; restarted web; root (pid 7)",
            "created default/new-edge1: created; ; root (pid 7)",
            "removed default/gone-edge1: removed; ; unknown",
        ]
    );
    assert_eq!(changes(&mut log, &now), [""; 0]);
}

#[test]
fn texts_are_bounded() {
    let long = "x".repeat(10_000);
    let old = pod("web", "i:1", "a", &long);
    let new = pod("web", &format!("{long}:2"), "a", &long);
    let change = ManifestChange::between(Some(&old), Some(&new), Timestamp::UNIX_EPOCH, None).unwrap();
    assert!(serde_json::to_vec(&change).unwrap().len() < 2_000);
}

#[test]
fn the_effect_names_what_is_restarted_and_what_is_resized() {
    let pod = |image: &str, cpu: &str| {
        let resources = json!({ "limits": { "cpu": cpu } });
        let spec = json!({ "containers": [
            { "name": "a", "image": image, "resources": { "limits": { "cpu": "1" } } },
            { "name": "b", "image": "b:1", "resources": resources },
        ]});
        let manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" }, "spec": spec });
        limpet_model::manifest::restore(manifest.to_string().as_bytes(), "w.yaml", SourceKind::File, "edge1").unwrap()
    };
    let old = pod("a:1", "1");
    for (new, effect) in [
        (pod("a:1", "2"), "resized in place b"),
        (pod("a:2", "2"), "restarted a; resized in place b"),
        (pod("a:2", "1"), "restarted a"),
    ] {
        let change = ManifestChange::between(Some(&old), Some(&new), Timestamp::UNIX_EPOCH, None).unwrap();
        assert_eq!(change.effect(), effect);
    }
}
