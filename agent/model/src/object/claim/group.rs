//! The group that owns the files of a PersistentVolume: an annotation of the volume, and an entry of the claim's
//! object. The containers of its pods are members of it besides their own groups.

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};

use super::object_name;
use crate::object::{Entry, ObjectKind, ObjectRecord, PodObjects, SecretBytes};
use crate::pod::PodRecord;

const ANNOTATION: &str = "pv.beta.kubernetes.io/gid";
const ENTRY: &str = "gid";

/// The claim's object, with the group of the volume if that has one.
pub fn added(mut object: ObjectRecord, volume: &PersistentVolume) -> ObjectRecord {
    let annotation = volume.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION));
    // Like kubelet, ignores what is not a number.
    if let Some(group) = annotation.and_then(|text| text.parse::<i32>().ok()).filter(|group| *group >= 0) {
        let bytes = SecretBytes::new(group.to_string().into_bytes());
        object.data.insert(ENTRY.to_owned(), Entry { bytes, binary: false });
    }
    object
}

/// The groups of the volumes of the pod's claims (kubelet's `GetExtraSupplementalGroupsForPod`).
pub fn of_pod(pod: &PodRecord, objects: &PodObjects) -> Vec<i64> {
    let group = |volume: &Volume| {
        let object = objects.get(ObjectKind::VolumeClaim, &object_name(pod, volume)?)?;
        object.data.get(ENTRY)?.bytes.expose_text()?.parse().ok()
    };
    pod.spec().volumes.iter().flatten().filter_map(group).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::ObjectKey;

    #[test]
    fn the_annotation_is_an_entry_if_it_is_a_group() {
        let entry = |annotation: &str| {
            let volume = json!({ "metadata": { "annotations": { ANNOTATION: annotation } } });
            let key = ObjectKey::new(ObjectKind::VolumeClaim, "n", "data@u-1");
            let object = ObjectRecord::of_texts(key, "apiserver", [("hostPath", "{}".to_owned())]);
            let object = added(object, &serde_json::from_value(volume).unwrap());
            object.data.get(ENTRY).and_then(|entry| entry.bytes.expose_text().map(str::to_owned))
        };
        assert_eq!(entry("4321").as_deref(), Some("4321"));
        assert_eq!([entry("-1"), entry("staff"), entry("4294967296")], [None, None, None]);
    }
}
