use serde_json::json;

use super::*;

fn document(change: &Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    for (field, value) in change.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "shop"}, "spec": spec})
}

fn claim(change: Value) -> LocalClaim {
    read(&document(&change), FieldValidation::Strict).0.unwrap().1
}

#[test]
fn what_a_node_does_not_provide_is_refused() {
    let faults = |change: Value| {
        let (_, faults) = read(&document(&change), FieldValidation::Strict);
        faults.finish().into_iter().map(|fault| (fault.path, fault.message)).collect::<Vec<_>>()
    };
    for change in [
        json!({}),
        json!({"storageClassName": "local-path"}),
        json!({"accessModes": ["ReadWriteMany", "ReadOnlyMany"], "volumeMode": "Filesystem"}),
        json!({"resources": {"requests": {"storage": "1Gi"}, "limits": {"storage": "2Gi"}}}),
    ] {
        assert_eq!(faults(change.clone()), [], "{change}");
    }
    let table = [
        (json!({"storageClassName": ""}), "spec.storageClassName", "an empty name asks for"),
        (json!({"storageClassName": "ssd"}), "spec.storageClassName", "storageclass.storage.k8s.io \"ssd\" not found"),
        (json!({"volumeName": "pv"}), "spec.volumeName", "not supported"),
        (json!({"selector": {"matchLabels": {"a": "b"}}}), "spec.selector", "not supported"),
        (json!({"volumeMode": "Block"}), "spec.volumeMode", "Block is not supported"),
        (json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}), "spec.dataSource", "not supported"),
        (json!({"volumeAttributesClassName": "fast"}), "spec.volumeAttributesClassName", "not supported"),
        (json!({"accessModes": []}), "spec.accessModes", "Required value: at least 1 access mode is required"),
        (json!({"resources": {}}), "spec.resources[storage]", "Required value"),
        (json!({"acessModes": []}), "spec.acessModes", "no such field"),
        (json!({"accessModes": 7}), "spec.accessModes", "has the wrong type"),
    ];
    for (change, path, message) in table {
        let reported = faults(change.clone());
        assert!(reported.iter().any(|(at, text)| at == path && text.starts_with(message)), "{change}: {reported:?}");
    }
}

#[test]
fn a_claim_may_grow_and_nothing_else() {
    let before = claim(json!({}));
    let key = ObjectKey::new(ObjectKind::PersistentVolumeClaim, "shop", "data");
    let forbidden = |change: Value| forbidden(&key, &before, &claim(change)).map(|fault| fault.path);
    let size = |size: &str| json!({"resources": {"requests": {"storage": size}}});
    assert_eq!(forbidden(json!({})), None);
    assert_eq!(forbidden(size("2Gi")), None);
    assert_eq!(forbidden(json!({"storageClassName": "local-path"})), None);
    assert_eq!(forbidden(size("1Mi")), Some("spec.resources.requests.storage".to_owned()));
    assert_eq!(forbidden(json!({"accessModes": ["ReadWriteMany"]})), Some("spec".to_owned()));
    assert_eq!((before.size, before.single_pod), (1 << 30, false));
    assert!(claim(json!({"accessModes": ["ReadWriteOncePod"]})).single_pod);
}

#[test]
fn what_is_stored_is_read_again() {
    let before = claim(json!({}));
    let (key, after) = restore(&serde_json::from_slice(&before.manifest).unwrap()).unwrap();
    assert_eq!((key.to_string(), after), ("PersistentVolumeClaim shop/data".to_owned(), before));
    let damaged = restore(&json!({"metadata": {"name": "data"}})).unwrap_err();
    assert_eq!(damaged[0].message, "stored persistentvolumeclaim: damaged");
}

#[test]
fn a_directory_is_below_its_source_and_namespace() {
    let path = directory(Path::new("/v"), "file", "shop", "data");
    assert_eq!(path, Path::new("/v/file/shop/data/data"));
}
