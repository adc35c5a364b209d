//! Defaults of volumes.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, DownwardAPIVolumeFile, EmptyDirVolumeSource, ProjectedVolumeSource, Volume,
};

use crate::pod::default::{container, pull_policy, set, text};

/// Mode of files that come from objects: 0644.
const FILE_MODE: i32 = 0o644;
const HOUR: i64 = 3600;

/// Sets the defaults of a volume.
pub(super) fn volume(volume: &mut Volume) {
    // A volume without a source is an empty directory.
    if *volume == (Volume { name: volume.name.clone(), ..Volume::default() }) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
        return;
    }
    volume.host_path.iter_mut().for_each(|source| set(&mut source.type_, String::new()));
    volume.secret.iter_mut().for_each(|source| set(&mut source.default_mode, FILE_MODE));
    volume.config_map.iter_mut().for_each(|source| set(&mut source.default_mode, FILE_MODE));
    if let Some(source) = &mut volume.downward_api {
        set(&mut source.default_mode, FILE_MODE);
        source.items.iter_mut().flatten().for_each(file);
    }
    volume.projected.iter_mut().for_each(projected);
    if let Some(source) = &mut volume.image {
        text(&mut source.pull_policy, pull_policy(source.reference.as_deref()));
    }
    if let Some(source) = &mut volume.ephemeral
        && let Some(template) = &mut source.volume_claim_template
    {
        set(&mut template.spec.volume_mode, "Filesystem".to_owned());
    }
    of_others(volume);
}

/// Volumes of cloud providers and storage systems.
fn of_others(volume: &mut Volume) {
    volume.iscsi.iter_mut().for_each(|source| text(&mut source.iscsi_interface, "default"));
    if let Some(source) = &mut volume.rbd {
        text(&mut source.pool, "rbd");
        text(&mut source.user, "admin");
        text(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut volume.scale_io {
        text(&mut source.storage_mode, "ThinProvisioned");
        text(&mut source.fs_type, "xfs");
    }
    if let Some(AzureDiskVolumeSource { caching_mode, fs_type, read_only, kind, .. }) = &mut volume.azure_disk {
        set(caching_mode, "ReadWrite".to_owned());
        set(fs_type, "ext4".to_owned());
        set(read_only, false);
        set(kind, "Shared".to_owned());
    }
}

fn projected(source: &mut ProjectedVolumeSource) {
    set(&mut source.default_mode, FILE_MODE);
    for source in source.sources.iter_mut().flatten() {
        source.downward_api.iter_mut().flat_map(|source| source.items.iter_mut().flatten()).for_each(file);
        source.service_account_token.iter_mut().for_each(|token| set(&mut token.expiration_seconds, HOUR));
    }
}

fn file(file: &mut DownwardAPIVolumeFile) {
    file.field_ref.iter_mut().for_each(container::field);
}
