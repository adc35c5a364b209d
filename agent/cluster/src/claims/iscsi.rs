//! Disks of iSCSI targets: waits until the cluster has attached them to the node, and reads the Secret that a target
//! requires.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, SecretReference};

use super::csi::secret;
use super::{Attachments, ClaimLookup, bound_volume, is_attached};
use crate::link::Link;
use limpet_apiserver_client::RequestError;
use limpet_model::manifest::api::ORIGIN;
use limpet_model::object::iscsi::IscsiVolume;
use limpet_model::object::{ObjectKey, SecretBytes, claim};
use limpet_plugins::csi::InUse;

/// The disk that a claim is bound to. It counts as in use from here on. If its access mode is `ReadWriteOnce`, it
/// waits for the controller that attaches it to one node at a time.
pub(super) async fn persistent(
    link: &Link,
    key: &ObjectKey,
    bound: (&PersistentVolumeClaim, &PersistentVolume),
    attachments: &Attachments,
    in_use: &mut Option<InUse>,
) -> Result<ClaimLookup, RequestError> {
    let (name, spec) = match bound_volume(key, bound) {
        Ok(object) => object,
        Err(why) => return Ok(ClaimLookup::refused(key, why)),
    };
    let Some(source) = &spec.iscsi else { return Ok(ClaimLookup::refused(key, format!("PV {name} is not iscsi"))) };
    let volume = IscsiVolume::persistent(&name, source, &spec);
    let unique = volume.unique_name();
    in_use.get_or_insert_with(|| attachments.in_use.begin(unique.clone()));
    if !is_attached(&attachments.seen.borrow(), &unique) {
        let why = format!(
            "volume {name} is not attached to this node yet: the cluster's attach/detach controller does that, a ReadWriteOnce \
             volume's once no other node has it"
        );
        return Ok(ClaimLookup { attaching: Some(unique), ..ClaimLookup::refused(key, why) });
    }
    let reference = source.secret_ref.as_ref().filter(|_| volume.has_chap()).map(|reference| SecretReference {
        name: reference.name.clone(),
        namespace: reference.namespace.clone().or_else(|| Some(key.namespace.to_string())),
    });
    let values: BTreeMap<String, SecretBytes> = match secret(link, "secretRef", reference.as_ref()).await? {
        Ok(values) => values,
        Err(why) => return Ok(ClaimLookup::refused(key, format!("PV {name}: {why}"))),
    };
    let object = claim::iscsi::record(key.clone(), ORIGIN, &volume, values);
    Ok(object.map_or_else(
        |why| ClaimLookup::refused(key, why),
        |object| ClaimLookup { object: Some(object), attaching: None },
    ))
}
