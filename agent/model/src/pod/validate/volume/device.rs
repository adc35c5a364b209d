//! Validation of volumes that are block devices of a cloud or a storage network.

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CinderVolumeSource, FCVolumeSource,
    GCEPersistentDiskVolumeSource, ISCSIVolumeSource, PhotonPersistentDiskVolumeSource, RBDVolumeSource,
    VsphereVirtualDiskVolumeSource,
};

use crate::pod::validate::field::{At, Faults};

const CACHING_MODES: [&str; 3] = ["None", "ReadOnly", "ReadWrite"];
const DISK_KINDS: [&str; 3] = ["Dedicated", "Managed", "Shared"];
const MANAGED_URI: &str =
    "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
const BLOB_URI: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";

fn partition(at: &At<'_>, partition: Option<i32>, faults: &mut Faults) {
    if let Some(number) = partition.filter(|number| !(0..=255).contains(number)) {
        faults.invalid(&at.field("partition"), number, "must be between 1 and 255, inclusive");
    }
}

pub(super) fn gce_persistent_disk(at: &At<'_>, source: &GCEPersistentDiskVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("pdName"), &source.pd_name);
    partition(at, source.partition, faults);
}

pub(super) fn aws_elastic_block_store(at: &At<'_>, source: &AWSElasticBlockStoreVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("volumeID"), &source.volume_id);
    partition(at, source.partition, faults);
}

pub(super) fn iscsi(at: &At<'_>, source: &ISCSIVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("targetPortal"), &source.target_portal);
    match source.iqn.as_str() {
        "" => faults.required(&at.field("iqn"), ""),
        name => iscsi_name(&at.field("iqn"), name, faults),
    }
    faults.in_range(&at.field("lun"), i64::from(source.lun), 0, 255);
    let authenticates = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    if authenticates && source.secret_ref.is_none() {
        faults.required(&at.field("secretRef"), "");
    }
    if let Some(name) = source.initiator_name.as_deref() {
        iscsi_name(&at.field("initiatorName"), name, faults);
    }
}

/// An iSCSI qualified name: `iqn.2001-04.com.example:storage`, `eui.` and 16, `naa.` and 32 characters.
fn iscsi_name(at: &At<'_>, name: &str, faults: &mut Faults) {
    let plain =
        |text: &str, count: usize| text.len() == count + 1 && text[1..].bytes().all(|b| b.is_ascii_alphanumeric());
    let good = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => name.is_ascii() && plain(&name[3..], 16),
        Some("naa") => name.is_ascii() && plain(&name[3..], 32),
        _ => return faults.invalid(at, name, "must be valid format starting with iqn, eui, or naa"),
    };
    if !good {
        faults.invalid(at, name, "must be valid format");
    }
}

/// `iqn.`, year and month, a reversed domain, a colon and a name.
fn is_iqn(name: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = name.strip_prefix("iqn.") else { return false };
    let (Some(date), Some(rest)) = (rest.get(..7), rest.get(7..).and_then(|rest| rest.strip_prefix('.'))) else {
        return false;
    };
    let dated = digits(&date[..4]) && &date[4..5] == "-" && digits(&date[5..]);
    let Some((domain, name)) = rest.split_once(':') else { return false };
    let in_domain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let in_own = |c: char| !c.is_whitespace() && !matches!(c, ',' | ';' | '*' | '&' | '$' | '|');
    dated && !domain.is_empty() && domain.bytes().all(in_domain) && !name.is_empty() && name.chars().all(in_own)
}

pub(super) fn fc(at: &At<'_>, source: &FCVolumeSource, faults: &mut Faults) {
    let names = source.target_wwns.as_deref().unwrap_or_default();
    let ids = source.wwids.as_deref().unwrap_or_default();
    let at_names = at.field("targetWWNs");
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => faults.required(&at_names, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            faults.invalid(&at_names, names, "targetWWNs and wwids can not be specified simultaneously");
        }
        _ => {}
    }
    match source.lun {
        _ if names.is_empty() => {}
        None => faults.required(&at.field("lun"), "lun is required if targetWWNs is specified"),
        Some(lun) => faults.in_range(&at.field("lun"), i64::from(lun), 0, 255),
    }
}

pub(super) fn rbd(at: &At<'_>, source: &RBDVolumeSource, faults: &mut Faults) {
    if source.monitors.is_empty() {
        faults.required(&at.field("monitors"), "");
    }
    faults.not_empty(&at.field("image"), &source.image);
}

pub(super) fn cinder(at: &At<'_>, source: &CinderVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("volumeID"), &source.volume_id);
    if let Some(secret) = &source.secret_ref {
        faults.not_empty(&at.field("secretRef").field("name"), &secret.name);
    }
}

pub(super) fn azure_disk(at: &At<'_>, source: &AzureDiskVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("diskName"), &source.disk_name);
    faults.not_empty(&at.field("diskURI"), &source.disk_uri);
    faults.if_set_one_of(&at.field("cachingMode"), source.caching_mode.as_deref(), &CACHING_MODES);
    faults.if_set_one_of(&at.field("kind"), source.kind.as_deref(), &DISK_KINDS);
    let at_uri = at.field("diskURI");
    match source.kind.as_deref() {
        Some("Managed") if !source.disk_uri.starts_with("/subscriptions/") => {
            faults.unsupported(&at_uri, &source.disk_uri, &[MANAGED_URI]);
        }
        Some(kind) if kind != "Managed" && !source.disk_uri.starts_with("https://") => {
            faults.unsupported(&at_uri, &source.disk_uri, &[BLOB_URI]);
        }
        _ => {}
    }
}

pub(super) fn vsphere(at: &At<'_>, source: &VsphereVirtualDiskVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("volumePath"), &source.volume_path);
}

pub(super) fn photon(at: &At<'_>, source: &PhotonPersistentDiskVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("pdID"), &source.pd_id);
}
