//! Removes from texts what is secret among a pod's objects.

use crate::object::claim::CsiCall;
use crate::object::{ObjectKind, PodObjects, pod_certificate};

impl PodObjects {
    /// `text` without the values of Secrets, because an error of another program may quote a command that contains
    /// one. Values of fewer than four bytes are kept: they are too short to be secret, and occur in ordinary words.
    pub fn redact(&self, text: String) -> String {
        let entries =
            self.iter().flat_map(|object| object.data.iter().map(|(name, entry)| (object.key.kind, name, entry)));
        let secrets = entries.filter(|(kind, name, _)| match kind {
            ObjectKind::Secret | ObjectKind::ServiceAccountToken => true,
            ObjectKind::PodCertificate => pod_certificate::is_secret(name),
            ObjectKind::VolumeClaim => CsiCall::is_secret(name),
            ObjectKind::ConfigMap
            | ObjectKind::ServiceVariables
            | ObjectKind::TrustBundle
            | ObjectKind::RuntimeClass
            | ObjectKind::Deployment
            | ObjectKind::ReplicaSet
            | ObjectKind::DaemonSet
            | ObjectKind::StatefulSet
            | ObjectKind::Job
            | ObjectKind::PersistentVolumeClaim
            | ObjectKind::CronJob
            | ObjectKind::Service => false,
        });
        let values = secrets.filter_map(|(_, _, entry)| entry.bytes.expose_text());
        values.filter(|value| value.len() >= 4).fold(text, |text, value| match text.contains(value) {
            true => text.replace(value, "***"),
            false => text,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::json;

    use crate::object::ObjectState;
    use crate::object::redaction::*;

    #[test]
    fn values_of_secrets_are_redacted_from_a_text() {
        let decode = |kind: ObjectKind, data: serde_json::Value| {
            let field = if kind == ObjectKind::Secret { "stringData" } else { "data" };
            let value = json!({"metadata": {"name": "o"}, field: data});
            let object = super::super::decode(&value, kind, Arc::from("f.yaml")).0.unwrap();
            (object.key.clone(), ObjectState::Known(Arc::new(object)))
        };
        let objects = PodObjects(BTreeMap::from([
            decode(ObjectKind::Secret, json!({"a": "hunter2", "short": "ab"})),
            decode(ObjectKind::ConfigMap, json!({"a": "plain"})),
        ]));
        let text = "exec: \"hunter2\" not found, about plain hunter2".to_owned();
        assert_eq!(objects.redact(text), "exec: \"***\" not found, about plain ***");
        assert!(objects.iter().count() == 2 && !format!("{objects:?}").contains("hunter2"));
    }
}
