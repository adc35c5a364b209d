//! The objects a pod refers to.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ProjectedVolumeSource, Volume};

use crate::object::pod_certificate::PodCertificateDemand;
use crate::object::token::TokenDemand;
use crate::object::trust_bundle::TrustBundleDemand;
use crate::object::{ObjectKey, ObjectKind, ObjectState, PodObjects, claim, runtime_class, service};
use crate::pod::PodRecord;
use crate::pod::volume_kind::VolumeKind;

/// Every object the pod uses: environment, volumes, pull secrets, runtime class. All but the apiserver's own Service
/// are in its namespace.
pub fn references(pod: &PodRecord) -> BTreeSet<ObjectKey> {
    let mut objects = BTreeSet::new();
    let mut add = |kind, name: &str| {
        if !name.is_empty() {
            objects.insert(ObjectKey::new(kind, pod.key.namespace(), name));
        }
    };
    let spec = pod.spec();
    for container in pod.containers() {
        of_container(container, &mut add);
    }
    for volume in spec.volumes.iter().flatten() {
        of_volume(pod, volume, &mut add);
    }
    for secret in spec.image_pull_secrets.iter().flatten() {
        add(ObjectKind::Secret, &secret.name);
    }
    objects.extend(service::references(pod));
    objects.extend(runtime_class::reference(pod));
    objects
}

impl PodObjects {
    /// The pod's objects among all of its source's; `find` looks one up.
    pub fn collect<S: Into<ObjectState>>(pod: &PodRecord, find: impl Fn(&ObjectKey) -> S) -> Self {
        let with_state = |key: ObjectKey| {
            let state = find(&key).into();
            (key, state)
        };
        Self(references(pod).into_iter().map(with_state).collect())
    }

    /// The pod's objects before its source has reported any.
    pub fn unknown(pod: &PodRecord) -> Self {
        Self::collect(pod, |_| ObjectState::Unknown)
    }
}

/// The objects in the pod's volumes: their files are updated at once after an edit.
pub fn mounted(pod: &PodRecord) -> BTreeSet<ObjectKey> {
    let mut objects = BTreeSet::new();
    let mut add = |kind, name: &str| {
        objects.insert(ObjectKey::new(kind, pod.key.namespace(), name));
    };
    pod.spec().volumes.iter().flatten().for_each(|volume| of_volume(pod, volume, &mut add));
    objects
}

/// The objects that the pod's sandbox is made from: those in its volumes, and its runtime class.
pub fn of_sandbox(pod: &PodRecord) -> BTreeSet<ObjectKey> {
    let mut objects = mounted(pod);
    objects.extend(runtime_class::reference(pod));
    objects
}

/// The objects in the environment of one of the pod's containers, which is read when it starts.
pub fn in_environment(pod: &PodRecord, container: &Container) -> BTreeSet<ObjectKey> {
    let mut objects = BTreeSet::new();
    of_container(container, &mut |kind, name: &str| {
        objects.insert(ObjectKey::new(kind, pod.key.namespace(), name));
    });
    objects.extend(service::references(pod));
    objects
}

/// The Secrets that the pod's images are pulled with.
pub fn pull_secrets(pod: &PodRecord) -> BTreeSet<ObjectKey> {
    let secrets = pod.spec().image_pull_secrets.iter().flatten();
    secrets.map(|secret| ObjectKey::new(ObjectKind::Secret, pod.key.namespace(), secret.name.as_str())).collect()
}

fn of_container(container: &Container, add: &mut impl FnMut(ObjectKind, &str)) {
    for source in container.env_from.iter().flatten() {
        if let Some(map) = &source.config_map_ref {
            add(ObjectKind::ConfigMap, &map.name);
        }
        if let Some(secret) = &source.secret_ref {
            add(ObjectKind::Secret, &secret.name);
        }
    }
    for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        if let Some(map) = &source.config_map_key_ref {
            add(ObjectKind::ConfigMap, &map.name);
        }
        if let Some(secret) = &source.secret_key_ref {
            add(ObjectKind::Secret, &secret.name);
        }
    }
}

/// The Secret for the volume's iSCSI target.
pub fn iscsi_secret(volume: &Volume) -> Option<&str> {
    let disk = volume.iscsi.as_ref()?;
    let has_chap = disk.chap_auth_discovery == Some(true) || disk.chap_auth_session == Some(true);
    disk.secret_ref.as_ref().filter(|_| has_chap).map(|secret| secret.name.as_str())
}

/// The Secret for the driver of a flexVolume. Like kubelet, ignores a reference without a name.
pub fn flex_secret(volume: &Volume) -> Option<&str> {
    let secret = volume.flex_volume.as_ref()?.secret_ref.as_ref();
    secret.map(|secret| secret.name.as_str()).filter(|name| !name.is_empty())
}

fn of_volume(pod: &PodRecord, volume: &Volume, add: &mut impl FnMut(ObjectKind, &str)) {
    let Some(kind) = VolumeKind::find(volume) else { return };
    match kind {
        VolumeKind::ConfigMap(map) => add(ObjectKind::ConfigMap, &map.name),
        VolumeKind::Secret(secret) => add(ObjectKind::Secret, secret.secret_name.as_deref().unwrap_or_default()),
        VolumeKind::Projected(projected) => of_projected(pod, volume, projected, add),
        VolumeKind::Iscsi(_) => iscsi_secret(volume).into_iter().for_each(|name| add(ObjectKind::Secret, name)),
        VolumeKind::FlexVolume(_) => flex_secret(volume).into_iter().for_each(|name| add(ObjectKind::Secret, name)),
        VolumeKind::Csi(_) | VolumeKind::PersistentVolumeClaim(_) | VolumeKind::Ephemeral(_) => {
            if let Some(name) = claim::local_name(pod, volume) {
                add(ObjectKind::PersistentVolumeClaim, name);
            }
            if let Some(name) = claim::object_name(pod, volume) {
                add(ObjectKind::VolumeClaim, &name);
            }
        }
        VolumeKind::EmptyDir(_) | VolumeKind::HostPath(_) | VolumeKind::Nfs(_) => {}
        VolumeKind::Image(_) | VolumeKind::DownwardApi(_) => {}
    }
}

fn of_projected(
    pod: &PodRecord,
    volume: &Volume,
    projected: &ProjectedVolumeSource,
    add: &mut impl FnMut(ObjectKind, &str),
) {
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        if let Some(map) = &source.config_map {
            add(ObjectKind::ConfigMap, &map.name);
        }
        if let Some(secret) = &source.secret {
            add(ObjectKind::Secret, &secret.name);
        }
        if let Some(token) = &source.service_account_token {
            add(ObjectKind::ServiceAccountToken, &TokenDemand::new(pod, token).name());
        }
        if let Some(demand) = source.cluster_trust_bundle.as_ref().and_then(TrustBundleDemand::from_projection) {
            add(ObjectKind::TrustBundle, &demand.name());
        }
        if source.pod_certificate.is_some() {
            add(ObjectKind::PodCertificate, &PodCertificateDemand::new(pod, volume, index).name());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use crate::object::reference::*;
    use crate::source::SourceKind;

    #[test]
    fn every_field_that_refers_to_an_object() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {
            "initContainers": [{"name": "i", "image": "x", "envFrom": [{"secretRef": {"name": "init"}}]}],
            "containers": [{"name": "c", "image": "x", "envFrom": [{"configMapRef": {"name": "a"}}], "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "b", "key": "k"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}},
            ]}],
            "volumes": [
                {"name": "v", "configMap": {"name": "c"}},
                {"name": "w", "secret": {"secretName": "d"}},
                {"name": "x", "projected": {"sources": [{"configMap": {"name": "e"}}, {"secret": {"name": "f"}}]}},
                {"name": "y", "emptyDir": {}},
                {"name": "z", "iscsi": {"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.test:a", "lun": 0,
                    "chapAuthSession": true, "secretRef": {"name": "chap"}}},
                {"name": "f", "flexVolume": {"driver": "fstab/cifs", "secretRef": {"name": "cifs"}}},
            ],
            "imagePullSecrets": [{"name": "pull"}, {}],
        }});
        let pod = crate::manifest::restore(pod.to_string().as_bytes(), "p.yaml", SourceKind::File, "node").unwrap();
        let names: Vec<String> = references(&pod).iter().map(ToString::to_string).collect();
        let wanted = [
            "ConfigMap n/a",
            "ConfigMap n/b",
            "ConfigMap n/c",
            "ConfigMap n/e",
            "Secret n/b",
            "Secret n/chap",
            "Secret n/cifs",
            "Secret n/d",
            "Secret n/f",
            "Secret n/init",
            "Secret n/pull",
        ];
        assert_eq!(names, wanted);

        let names = |keys: BTreeSet<ObjectKey>| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(in_environment(&pod, &pod.spec().containers[0])), [wanted[0], wanted[1], wanted[4]]);
        assert_eq!(names(mounted(&pod)), [wanted[2], wanted[3], wanted[5], wanted[6], wanted[7], wanted[8]]);
        assert!(names(pull_secrets(&pod)).contains(&wanted[10].to_owned()));
    }
}
