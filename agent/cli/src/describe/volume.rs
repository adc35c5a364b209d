//! The volumes in `limpet describe`.

use k8s_openapi::api::core::v1::Volume;

use crate::sheet::Sheet;

pub(super) fn describe(sheet: &mut Sheet, volumes: &[Volume]) {
    if volumes.is_empty() {
        return;
    }
    sheet.section("Volumes");
    sheet.indented(|sheet| volumes.iter().for_each(|volume| sheet.field(&volume.name, &kind(volume))));
}

/// The volume's type and settings in a phrase.
fn kind(volume: &Volume) -> String {
    if let Some(empty) = &volume.empty_dir {
        let medium = match empty.medium.as_deref() {
            Some(medium) if !medium.is_empty() => medium,
            _ => "disk",
        };
        let limit = empty.size_limit.as_ref().map(|limit| format!(", at most {}", limit.0)).unwrap_or_default();
        return format!("EmptyDir ({medium}{limit})");
    }
    if let Some(host) = &volume.host_path {
        return match host.type_.as_deref() {
            Some(kind) if !kind.is_empty() => format!("HostPath {} ({kind})", host.path),
            _ => format!("HostPath {}", host.path),
        };
    }
    if let Some(export) = &volume.nfs {
        let access = if export.read_only == Some(true) { ", read-only" } else { "" };
        return format!("NFS {}:{}{access}", export.server, export.path);
    }
    if let Some(disk) = &volume.iscsi {
        let access = if disk.read_only == Some(true) { ", read-only" } else { "" };
        return format!("iSCSI {} of {} at {}{access}", disk.lun, disk.iqn, disk.target_portal);
    }
    if let Some(csi) = &volume.csi {
        let access = if csi.read_only == Some(true) { ", read-only" } else { "" };
        return format!("CSI {}{access}", csi.driver);
    }
    if let Some(flex) = &volume.flex_volume {
        let access = if flex.read_only == Some(true) { ", read-only" } else { "" };
        return format!("FlexVolume {}{access}", flex.driver);
    }
    if let Some(map) = &volume.config_map {
        return format!("ConfigMap {}", map.name);
    }
    if let Some(secret) = &volume.secret {
        return format!("Secret {}", secret.secret_name.as_deref().unwrap_or_default());
    }
    if let Some(image) = &volume.image {
        return format!("Image {}", image.reference.as_deref().unwrap_or_default());
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let access = if claim.read_only == Some(true) { ", read-only" } else { "" };
        return format!("PersistentVolumeClaim {}{access}", claim.claim_name);
    }
    let kind = match volume {
        Volume { projected: Some(_), .. } => "Projected",
        Volume { downward_api: Some(_), .. } => "DownwardAPI",
        Volume { ephemeral: Some(_), .. } => "Ephemeral",
        _ => "other",
    };
    kind.to_owned()
}
