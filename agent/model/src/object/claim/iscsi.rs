//! The object for a claim on a disk of an iSCSI target, with the values of its Secret.

use std::collections::BTreeMap;

use crate::object::iscsi::IscsiVolume;
use crate::object::{Entry, ObjectKey, ObjectRecord, SecretBytes};

/// The entry with the disk, as JSON.
pub(super) const ISCSI: &str = "iscsi";
/// The prefix of the entries with the values of its Secret.
const SECRET: &str = "iscsiSecret/";

/// Whether the entry of a claim's object is of a disk's Secret.
pub(super) fn is_secret(entry: &str) -> bool {
    entry.starts_with(SECRET)
}

/// The object for a claim on the disk.
///
/// # Errors
///
/// It cannot be encoded.
pub fn record(
    key: ObjectKey,
    origin: &str,
    volume: &IscsiVolume,
    secret: BTreeMap<String, SecretBytes>,
) -> Result<ObjectRecord, String> {
    let text = serde_json::to_string(volume).map_err(|error| error.to_string())?;
    let mut record = ObjectRecord::of_texts(key, origin, [(ISCSI, text)]);
    let entry = |(name, bytes): (String, SecretBytes)| (format!("{SECRET}{name}"), Entry { bytes, binary: false });
    record.data.extend(secret.into_iter().map(entry));
    Ok(record)
}

/// The values of the disk's Secret, from a claim's object.
pub fn secret(object: &ObjectRecord) -> BTreeMap<String, SecretBytes> {
    let value = |(name, entry): (&String, &Entry)| Some((name.strip_prefix(SECRET)?.to_owned(), entry.bytes.clone()));
    object.data.iter().filter_map(value).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::object::ObjectKind;
    use crate::object::claim::{ClaimedSource, ClaimedVolume, source};

    #[test]
    fn a_disk_is_kept_with_its_secret() {
        let key = ObjectKey::new(ObjectKind::VolumeClaim, "n", "data@u-1");
        let spec = json!({"volumeMode": "Block", "iscsi": {"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.test:a", "lun": 0}});
        let spec: k8s_openapi::api::core::v1::PersistentVolumeSpec = serde_json::from_value(spec).unwrap();
        let volume = IscsiVolume::persistent("pv", spec.iscsi.as_ref().unwrap(), &spec);
        let values = BTreeMap::from([("node.session.auth.password".to_owned(), SecretBytes::new(b"hunter2".to_vec()))]);
        let object = record(key, "apiserver", &volume, values.clone()).unwrap();
        let manifest: Value = serde_json::from_slice(&object.manifest()).unwrap();
        let restored = crate::object::restore(&manifest, "apiserver").unwrap().unwrap();
        let claimed = source(&restored).unwrap();
        let name = "kubernetes.io/iscsi/192.0.2.1:iqn.2001-04.test:a:0";
        assert_eq!(claimed.source.attached_as().as_deref(), Some(name));
        assert_eq!(claimed, ClaimedVolume { source: ClaimedSource::Iscsi(Box::new(volume)), block: true });
        assert_eq!(secret(&restored), values);
        assert!(restored.data.keys().filter(|entry| is_secret(entry)).count() == 1);
    }
}
