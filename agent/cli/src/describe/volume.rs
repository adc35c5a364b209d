//! The volumes in `limpet describe`.

use k8s_openapi::api::core::v1::Volume;
use limpet_model::pod::volume_kind::VolumeKind;

use crate::sheet::Sheet;

pub(super) fn describe(sheet: &mut Sheet, volumes: &[Volume]) {
    if volumes.is_empty() {
        return;
    }
    sheet.section("Volumes");
    sheet.indented(|sheet| volumes.iter().for_each(|volume| sheet.field(&volume.name, &kind(volume))));
}

/// The volumes of a template, below a label.
pub(super) fn list(sheet: &mut Sheet, volumes: &[Volume]) {
    sheet.list("Volumes", volumes.iter().map(|volume| format!("{}: {}", volume.name, kind(volume))));
}

/// The volume's type and settings in a phrase.
fn kind(volume: &Volume) -> String {
    let access = |read_only: Option<bool>| if read_only == Some(true) { ", read-only" } else { "" };
    match VolumeKind::find(volume) {
        Some(VolumeKind::EmptyDir(empty)) => {
            let medium = match empty.medium.as_deref() {
                Some(medium) if !medium.is_empty() => medium,
                _ => "disk",
            };
            let limit = empty.size_limit.as_ref().map(|limit| format!(", at most {}", limit.0)).unwrap_or_default();
            format!("EmptyDir ({medium}{limit})")
        }
        Some(VolumeKind::HostPath(host)) => match host.type_.as_deref() {
            Some(kind) if !kind.is_empty() => format!("HostPath {} ({kind})", host.path),
            _ => format!("HostPath {}", host.path),
        },
        Some(VolumeKind::Nfs(export)) => {
            format!("NFS {}:{}{}", export.server, export.path, access(export.read_only))
        }
        Some(VolumeKind::Iscsi(disk)) => {
            format!("iSCSI {} of {} at {}{}", disk.lun, disk.iqn, disk.target_portal, access(disk.read_only))
        }
        Some(VolumeKind::Csi(csi)) => format!("CSI {}{}", csi.driver, access(csi.read_only)),
        Some(VolumeKind::FlexVolume(flex)) => format!("FlexVolume {}{}", flex.driver, access(flex.read_only)),
        Some(VolumeKind::ConfigMap(map)) => format!("ConfigMap {}", map.name),
        Some(VolumeKind::Secret(secret)) => {
            format!("Secret {}", secret.secret_name.as_deref().unwrap_or_default())
        }
        Some(VolumeKind::Image(image)) => format!("Image {}", image.reference.as_deref().unwrap_or_default()),
        Some(VolumeKind::PersistentVolumeClaim(claim)) => {
            format!("PersistentVolumeClaim {}{}", claim.claim_name, access(claim.read_only))
        }
        Some(VolumeKind::Projected(_)) => "Projected".to_owned(),
        Some(VolumeKind::DownwardApi(_)) => "DownwardAPI".to_owned(),
        Some(VolumeKind::Ephemeral(_)) => "Ephemeral".to_owned(),
        None => "other".to_owned(),
    }
}
