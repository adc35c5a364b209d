//! RuntimeClasses of a cluster, which give the handler for the `runtimeClassName` of an API pod.
//!
//! This is kubelet's rule (`pkg/kubelet/runtimeclass`). The node's configuration maps handlers to runtimes. A pod of
//! another source names the node's runtime class itself, so it needs no apiserver.

use crate::object::{ObjectKey, ObjectKind, ObjectRecord};
use crate::pod::PodRecord;

/// The key of the handler among the object's data.
const HANDLER: &str = "handler";

/// The RuntimeClass that an API pod refers to. The key has the pod's namespace, although the object has none.
pub fn reference(pod: &PodRecord) -> Option<ObjectKey> {
    let name = class_name(pod).filter(|_| pod.source.traits().has_cluster)?;
    Some(ObjectKey::new(ObjectKind::RuntimeClass, pod.key.namespace(), name))
}

/// The pod's `runtimeClassName`; an empty one counts as absent.
pub fn class_name(pod: &PodRecord) -> Option<&str> {
    pod.spec().runtime_class_name.as_deref().filter(|name| !name.is_empty())
}

/// A RuntimeClass with this handler as an object.
pub fn record(key: ObjectKey, origin: &str, handler: &str) -> ObjectRecord {
    ObjectRecord::of_texts(key, origin, [(HANDLER, handler.to_owned())])
}

/// The handler of the object.
pub fn handler(record: &ObjectRecord) -> Option<&str> {
    record.data.get(HANDLER)?.bytes.expose_text()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::source::SourceKind;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pods_of_the_apiserver_alone_refer_to_a_class() {
        let reference = |source: SourceKind, class: Value| {
            let pod = json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {
                "runtimeClassName": class, "containers": [{"name": "c", "image": "i"}],
            }});
            reference(&crate::manifest::restore(pod.to_string().as_bytes(), "o", source, "node").unwrap())
        };
        let key = || ObjectKey::new(ObjectKind::RuntimeClass, "n", "gvisor");
        assert_eq!(reference(SourceKind::Api, json!("gvisor")), Some(key()));
        assert_eq!(reference(SourceKind::File, json!("gvisor")), None);
        assert_eq!(reference(SourceKind::Api, Value::Null), None);

        let object = record(key(), "apiserver", "runsc");
        let stored: Value = serde_json::from_slice(&object.manifest()).unwrap();
        let restored = crate::object::restore(&stored, "apiserver").unwrap().unwrap();
        assert_eq!((handler(&restored), &restored), (Some("runsc"), &object));
    }
}
