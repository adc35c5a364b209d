//! PersistentVolumeClaims as pods use them: the path on this node, the export of a server, the disk of an iSCSI
//! target, or the volume of a CSI driver behind a claim's volume.
//!
//! Each is kept as an object that a pod's volumes refer to, made from the claim and the PersistentVolume that it is
//! bound to. Supported are volumes whose data is on the node (`hostPath` and `local`), `nfs`, `iscsi`, and `csi` with
//! all that its driver needs.

pub mod group;
pub mod iscsi;
pub mod tokens;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, NFSVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Volume,
};

use crate::object::csi::{self, BLOCK, CsiVolume};
use crate::object::iscsi::IscsiVolume;
use crate::object::{Entry, ObjectKey, ObjectKind, ObjectRecord, PodObjects, SecretBytes};
use crate::pod::PodRecord;
use crate::source::SourceKind;

/// The entry with the volume's `hostPath`, as JSON.
const SOURCE: &str = "hostPath";
/// The entry with the volume's `local`, as JSON.
const LOCAL: &str = "local";
/// The entry with the volume's `nfs`, as JSON.
const NFS: &str = "nfs";
/// The entry with the volume's `mountOptions`, as JSON.
const MOUNT_OPTIONS: &str = "mountOptions";
/// The entry with the volume's mode, if that is not a file system.
const MODE: &str = "volumeMode";
/// The entry with the volume of a CSI driver, as JSON.
const CSI: &str = "csi";
/// The entry with the reason why the pod cannot have the volume.
const REFUSED: &str = "refused";

/// The volume of a claim on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedVolume {
    /// Where its data is.
    pub source: ClaimedSource,
    /// Whether containers get it as a block device (`volumeMode: Block`) and not as a directory.
    pub block: bool,
}

/// Where the data of a claim's volume is.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimedSource {
    /// On the node: the path and its required type.
    HostPath(HostPathVolumeSource),
    /// As above, but the path belongs to the volume alone: its files get the SELinux labels of the containers that
    /// mount it.
    Local(HostPathVolumeSource),
    Nfs {
        /// The server and its export.
        export: NFSVolumeSource,
        options: Vec<String>,
    },
    Iscsi(Box<IscsiVolume>),
    /// A CSI driver provides it.
    Csi(Box<CsiVolume>),
}

impl ClaimedSource {
    /// Its name in the Node's status, if a controller of the cluster has to attach it to the node.
    pub fn attached_as(&self) -> Option<String> {
        match self {
            Self::Csi(volume) => volume.settings.attach.then(|| volume.unique_name()),
            Self::Iscsi(volume) => Some(volume.unique_name()),
            Self::HostPath(_) | Self::Local(_) | Self::Nfs { .. } => None,
        }
    }
}

/// A call of a CSI driver that has its own Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CsiCall {
    /// `NodeStageVolume`.
    Stage,
    /// `NodePublishVolume`.
    Publish,
}

impl CsiCall {
    /// The prefix of the entries with the values of its Secret.
    fn prefix(self) -> &'static str {
        match self {
            Self::Stage => "nodeStageSecret/",
            Self::Publish => "nodePublishSecret/",
        }
    }

    /// Whether this entry of a claim's object is secret: a value of a Secret, that of a disk included, or a token.
    pub(super) fn is_secret(entry: &str) -> bool {
        let of_call = [Self::Stage, Self::Publish].iter().any(|call| entry.starts_with(call.prefix()));
        of_call || tokens::is_token(entry) || iscsi::is_secret(entry)
    }
}

/// The name of the claim that the volume refers to, if any. For an `ephemeral` volume it contains the pod's name. A
/// driver's inline volume also has an object, under a name that no claim can have.
pub fn name(pod: &PodRecord, volume: &Volume) -> Option<String> {
    if volume.csi.is_some() {
        return Some(format!("csi:{}", volume.name));
    }
    if volume.ephemeral.is_some() {
        return Some(format!("{}-{}", pod.key.name(), volume.name));
    }
    volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone())
}

/// Whether a volume of the pod may be one of a CSI driver.
pub fn may_need_driver(pod: &PodRecord) -> bool {
    pod.spec().volumes.iter().flatten().any(|volume| object_name(pod, volume).is_some())
}

/// The pod's volumes of CSI drivers, as far as they are known, each with its object.
pub fn csi_volumes<'a>(
    pod: &'a PodRecord,
    objects: &'a PodObjects,
) -> impl Iterator<Item = (&'a Volume, Box<CsiVolume>, &'a ObjectRecord)> {
    pod.spec().volumes.iter().flatten().filter_map(move |volume| {
        let object = &**objects.get(ObjectKind::VolumeClaim, &object_name(pod, volume)?)?;
        match source(object).ok()?.source {
            ClaimedSource::Csi(csi) => Some((volume, csi, object)),
            _ => None,
        }
    })
}

/// Whether a driver of a volume of the pod has `requiresRepublish`.
pub fn is_republished(pod: &PodRecord, objects: &PodObjects) -> bool {
    csi_volumes(pod, objects).any(|(_, volume, _)| volume.settings.republish)
}

/// Whether the pod uses the object of that name only read-only.
pub fn is_read_only(pod: &PodRecord, object: &str) -> bool {
    let mut users =
        pod.spec().volumes.iter().flatten().filter(|volume| object_name(pod, volume).as_deref() == Some(object));
    users.all(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true)))
}

/// The claim of a manifest that the volume of a pod of the node's own refers to.
pub fn local_name<'a>(pod: &PodRecord, volume: &'a Volume) -> Option<&'a str> {
    let claim = volume.persistent_volume_claim.as_ref().filter(|_| pod.source != SourceKind::Api)?;
    Some(&claim.claim_name)
}

/// The claims of manifests that the pod refers to.
pub fn local_names(pod: &PodRecord) -> impl Iterator<Item = &str> {
    pod.spec().volumes.iter().flatten().filter_map(|volume| local_name(pod, volume))
}

/// The name of the object with what the volume's claim is bound to. It differs for each pod, so that a successor of
/// the same name, which may have another claim of the same name, does not inherit it.
pub fn object_name(pod: &PodRecord, volume: &Volume) -> Option<String> {
    if local_name(pod, volume).is_some() {
        return None;
    }
    Some(format!("{}@{}", name(pod, volume)?, pod.uid))
}

/// The name of the claim that the object of that name is about.
pub fn of_object(object: &str) -> &str {
    object.split_once('@').map_or(object, |(claim, _)| claim)
}

/// The finalizer of a claim that pods use.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The name of the PersistentVolume that a claim is bound to, by kubelet's conditions.
///
/// # Errors
///
/// The pod cannot have it, or not yet; kubelet's message.
pub fn volume_name(claim: &PersistentVolumeClaim, pod: &PodRecord, volume: &Volume) -> Result<String, String> {
    let metadata = &claim.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let owned = || metadata.owner_references.iter().flatten().any(|owner| owner.uid == pod.uid.as_str());
    if volume.ephemeral.is_some() && !owned() {
        return Err(format!("PVC {}/{name} was not created for the pod", pod.key.namespace()));
    }
    // While it is protected, a pod that already uses it may go on, for example after the node's agent was replaced.
    let is_protected = metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION);
    if metadata.deletion_timestamp.is_some() && !is_protected {
        return Err(format!("PVC {name} is being deleted"));
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = spec.volume_name.filter(|volume| bound && !volume.is_empty());
    volume.ok_or_else(|| format!("PVC {name} is not bound"))
}

/// The object for a claim and the PersistentVolume that it is bound to.
///
/// # Errors
/// Why the pod cannot use that volume.
pub fn record(
    key: ObjectKey,
    origin: &str,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<ObjectRecord, String> {
    check_bound(&key, claim, volume)?;
    let name = volume.metadata.name.clone().unwrap_or_default();
    let spec = volume.spec.clone().unwrap_or_default();
    let block = spec.volume_mode.as_deref() == Some(BLOCK);
    let source = entries(&name, &spec, block)?;
    let mode = block.then(|| (MODE, BLOCK.to_owned()));
    Ok(ObjectRecord::of_texts(key, origin, source.into_iter().chain(mode)))
}

/// Refuses a volume that belongs to another claim.
///
/// # Errors
///
/// It does; a message.
pub fn check_bound(key: &ObjectKey, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), String> {
    let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
    if owner == claim.metadata.uid.as_deref() {
        return Ok(());
    }
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    Err(format!("PV {name} is not bound to PVC {}", of_object(&key.name)))
}

/// The object for a volume of a CSI driver, with the values of the Secrets of its calls.
///
/// # Errors
///
/// It cannot be encoded.
pub fn csi_record(
    key: ObjectKey,
    origin: &str,
    volume: &CsiVolume,
    secrets: Vec<(CsiCall, BTreeMap<String, SecretBytes>)>,
) -> Result<ObjectRecord, String> {
    let text = serde_json::to_string(volume).map_err(|error| error.to_string())?;
    let mut record = ObjectRecord::of_texts(key, origin, [(CSI, text)]);
    for (call, values) in secrets {
        let entry =
            |(name, bytes): (String, SecretBytes)| (format!("{}{name}", call.prefix()), Entry { bytes, binary: false });
        record.data.extend(values.into_iter().map(entry));
    }
    Ok(record)
}

/// The values of the Secret of a call, from a claim's object.
pub fn csi_secret(object: &ObjectRecord, call: CsiCall) -> BTreeMap<String, String> {
    let value = |(name, entry): (&String, &Entry)| {
        Some((name.strip_prefix(call.prefix())?.to_owned(), entry.bytes.expose_text()?.to_owned()))
    };
    object.data.iter().filter_map(value).collect()
}

/// The entries that say where the data of the volume `name` is.
fn entries(name: &str, spec: &PersistentVolumeSpec, block: bool) -> Result<Vec<(&'static str, String)>, String> {
    let path = match (&spec.host_path, &spec.local, &spec.nfs) {
        (Some(source), ..) => &source.path,
        (_, Some(local), _) => &local.path,
        (.., Some(export)) => &export.path,
        _ => return Err(format!("PV {name} is neither hostPath, local, nfs, iscsi nor csi; use one of these")),
    };
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(format!("PV {name} has a path that is not absolute: {path}"));
    }
    let text = |value: serde_json::Result<String>| value.map_err(|error| error.to_string());
    let mut source = match (&spec.host_path, &spec.nfs) {
        (Some(source), _) => source.clone(),
        (_, Some(_)) if block => return Err(format!("PV {name} is nfs, which has no block devices")),
        (_, Some(export)) => {
            let options = text(serde_json::to_string(spec.mount_options.as_deref().unwrap_or_default()))?;
            return Ok(vec![(NFS, text(serde_json::to_string(export))?), (MOUNT_OPTIONS, options)]);
        }
        // A device would have to be mounted first.
        _ => HostPathVolumeSource { path: path.clone(), type_: Some("Directory".to_owned()) },
    };
    if block {
        source.type_ = Some("BlockDevice".to_owned());
    }
    let entry = if spec.host_path.is_some() { SOURCE } else { LOCAL };
    Ok(vec![(entry, text(serde_json::to_string(&source))?)])
}

/// The object for a claim that no pod can use here.
pub fn refusal(key: ObjectKey, origin: &str, why: String) -> ObjectRecord {
    ObjectRecord::of_texts(key, origin, [(REFUSED, why)])
}

/// The volume of a claim's object on the node.
///
/// # Errors
///
/// Why the pod cannot have one.
pub fn source(object: &ObjectRecord) -> Result<ClaimedVolume, String> {
    let text = |name: &str| object.data.get(name).and_then(|entry| entry.bytes.expose_text());
    if let Some(why) = text(REFUSED) {
        return Err(why.to_owned());
    }
    let unreadable = |error: serde_json::Error| format!("{}: {error}", object.key);
    if let Some(volume) = text(CSI) {
        let volume: Box<CsiVolume> = serde_json::from_str(volume).map_err(unreadable)?;
        csi::check(&volume.name, &volume.driver, &volume.handle)?;
        return Ok(ClaimedVolume { block: volume.block, source: ClaimedSource::Csi(volume) });
    }
    if let Some(volume) = text(iscsi::ISCSI) {
        let volume: Box<IscsiVolume> = serde_json::from_str(volume).map_err(unreadable)?;
        return Ok(ClaimedVolume { block: volume.block, source: ClaimedSource::Iscsi(volume) });
    }
    let source = match text(NFS) {
        Some(export) => ClaimedSource::Nfs {
            export: serde_json::from_str(export).map_err(unreadable)?,
            options: serde_json::from_str(text(MOUNT_OPTIONS).unwrap_or("[]")).map_err(unreadable)?,
        },
        None => match text(LOCAL) {
            Some(source) => ClaimedSource::Local(serde_json::from_str(source).map_err(unreadable)?),
            None => {
                let source = text(SOURCE).unwrap_or_default();
                ClaimedSource::HostPath(serde_json::from_str(source).map_err(unreadable)?)
            }
        },
    };
    Ok(ClaimedVolume { source, block: text(MODE) == Some(BLOCK) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::object::ObjectKind;
    use crate::source::SourceKind;

    fn pod() -> PodRecord {
        let pod = json!({"metadata": {"name": "web", "namespace": "n", "uid": "u-1"}, "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "tmp", "ephemeral": {}}],
        }});
        crate::manifest::restore(pod.to_string().as_bytes(), "apiserver", SourceKind::Api, "node").unwrap()
    }

    fn claim(change: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "data", "uid": "c-1"}, "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"}});
        for (field, value) in change.as_object().unwrap() {
            claim[field] = value.clone();
        }
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn a_claim_is_read_on_once_it_is_bound() {
        let pod = pod();
        let volumes = pod.spec().volumes.clone().unwrap();
        let name_of = |volume: usize, change: Value| volume_name(&claim(change), &pod, &volumes[volume]);
        assert_eq!(name_of(0, json!({})), Ok("pv".to_owned()));
        assert_eq!(name_of(0, json!({"status": {"phase": "Pending"}})), Err("PVC data is not bound".to_owned()));
        assert_eq!(name_of(0, json!({"spec": {}})), Err("PVC data is not bound".to_owned()));
        let deleted = json!({"metadata": {"name": "data", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(name_of(0, deleted), Err("PVC data is being deleted".to_owned()));
        let block = json!({"spec": {"volumeName": "pv", "volumeMode": "Block"}});
        assert_eq!(name_of(0, block), Ok("pv".to_owned()));
        let others = json!({"metadata": {"name": "web-tmp", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod",
            "name": "web", "uid": "u-0"}]}});
        assert_eq!(name_of(1, others), Err("PVC n/web-tmp was not created for the pod".to_owned()));
        assert_eq!(object_name(&pod, &volumes[1]).as_deref(), Some("web-tmp@u-1"));
        assert_eq!((of_object("web-tmp@u-1"), of_object("data")), ("web-tmp", "data"));
    }

    #[test]
    fn a_volume_of_a_csi_driver_is_kept_with_its_secrets() {
        let key = ObjectKey::new(ObjectKind::VolumeClaim, "n", "data@u-1");
        let spec = json!({"csi": {"driver": "d", "volumeHandle": "h"}, "accessModes": ["ReadWriteOnce"]});
        let volume = CsiVolume::persistent("pv", &serde_json::from_value(spec).unwrap(), None).unwrap().unwrap();
        let secret = |text: &str| BTreeMap::from([("key".to_owned(), SecretBytes::new(text.as_bytes().to_vec()))]);
        let secrets = vec![(CsiCall::Stage, secret("hunter2")), (CsiCall::Publish, secret("hunter3"))];
        let record = csi_record(key, "apiserver", &volume, secrets).unwrap();
        let manifest: Value = serde_json::from_slice(&record.manifest()).unwrap();
        let restored = crate::object::restore(&manifest, "apiserver").unwrap().unwrap();
        assert_eq!(restored, record);
        let claimed = source(&restored).unwrap();
        assert_eq!(claimed, ClaimedVolume { source: ClaimedSource::Csi(Box::new(volume)), block: false });
        assert_eq!(csi_secret(&restored, CsiCall::Stage)["key"], "hunter2");
        assert_eq!(csi_secret(&restored, CsiCall::Publish)["key"], "hunter3");
    }

    #[test]
    fn a_volume_on_the_node_is_a_path_and_every_other_is_refused_by_name() {
        let key = || ObjectKey::new(ObjectKind::VolumeClaim, "n", "data@u-1");
        let check_spec = |spec: Value, uid: &str| {
            let mut volume = json!({"metadata": {"name": "pv"}, "spec": spec});
            volume["spec"]["claimRef"] = json!({"uid": uid});
            record(key(), "apiserver", &claim(json!({})), &serde_json::from_value(volume).unwrap())
        };
        let path = |spec: Value| {
            let record = check_spec(spec, "c-1")?;
            let manifest: Value = serde_json::from_slice(&record.manifest()).unwrap();
            assert_eq!(crate::object::restore(&manifest, "apiserver").unwrap().unwrap(), record);
            source(&record).map(|claimed| match claimed.source {
                ClaimedSource::HostPath(source) | ClaimedSource::Local(source) => {
                    let kind = source.type_.unwrap_or_default();
                    assert_eq!(claimed.block, kind == "BlockDevice");
                    (source.path, kind)
                }
                ClaimedSource::Nfs { export, options } => {
                    (format!("{}:{}", export.server, export.path), options.join(","))
                }
                ClaimedSource::Iscsi(volume) => (volume.iqn, volume.fs_type),
                ClaimedSource::Csi(volume) => (volume.driver, volume.handle),
            })
        };
        let host = json!({"hostPath": {"path": "/srv/a", "type": "DirectoryOrCreate"}});
        assert_eq!(path(host), Ok(("/srv/a".to_owned(), "DirectoryOrCreate".to_owned())));
        assert_eq!(path(json!({"local": {"path": "/mnt/b"}})), Ok(("/mnt/b".to_owned(), "Directory".to_owned())));
        let kept = check_spec(json!({"local": {"path": "/mnt/b"}}), "c-1").unwrap();
        assert!(matches!(source(&kept).unwrap().source, ClaimedSource::Local(_)));
        for kind in ["hostPath", "local"] {
            let device = json!({"volumeMode": "Block", kind: {"path": "/dev/b"}});
            assert_eq!(path(device), Ok(("/dev/b".to_owned(), "BlockDevice".to_owned())));
        }
        let relative = json!({"hostPath": {"path": "/srv/../etc"}});
        assert_eq!(path(relative), Err("PV pv has a path that is not absolute: /srv/../etc".to_owned()));
        let nfs = json!({"nfs": {"server": "s", "path": "/"}, "mountOptions": ["nfsvers=4.1", "hard"]});
        assert_eq!(path(nfs), Ok(("s:/".to_owned(), "nfsvers=4.1,hard".to_owned())));
        let block = json!({"nfs": {"server": "s", "path": "/"}, "volumeMode": "Block"});
        assert_eq!(path(block), Err("PV pv is nfs, which has no block devices".to_owned()));
        let cloud = json!({"rbd": {"image": "i", "monitors": []}});
        assert_eq!(
            path(cloud),
            Err("PV pv is neither hostPath, local, nfs, iscsi nor csi; use one of these".to_owned())
        );
        let foreign = check_spec(json!({"hostPath": {"path": "/srv/a"}}), "c-2");
        assert_eq!(foreign, Err("PV pv is not bound to PVC data".to_owned()));
    }
}
