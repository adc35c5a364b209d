//! Validation of volumes created on the node: directories, and files from objects or from the pod.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, GitRepoVolumeSource,
    HostPathVolumeSource, ImageVolumeSource, KeyToPath, SecretVolumeSource,
};

use crate::pod::quantity;
use crate::pod::validate::container::pull_policy;
use crate::pod::validate::env::{FieldTarget, field_ref, resource_ref};
use crate::pod::validate::field::{At, Faults, text};

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

pub(super) fn empty_dir(at: &At<'_>, source: &EmptyDirVolumeSource, faults: &mut Faults) {
    if let Some(limit) = &source.size_limit {
        let at = at.field("sizeLimit");
        match quantity::parse(&limit.0) {
            Ok(amount) if amount.nanos() < 0 => {
                faults.forbidden(&at, "SizeLimit field must be a valid resource quantity");
            }
            Ok(_) => {}
            Err(error) => faults.malformed(&at, &limit.0, &error.to_string(), "as in 64Mi or 1Gi"),
        }
    }
    if let Some(mode) = source.mode.filter(|mode| !(0..=0o1777).contains(mode)) {
        let detail = "must be a number between 0 and 01777 (octal), both inclusive";
        faults.invalid(&at.field("mode"), mode, detail);
    }
}

pub(super) fn host_path(at: &At<'_>, source: &HostPathVolumeSource, faults: &mut Faults) {
    if source.path.is_empty() {
        return faults.required(&at.field("path"), "");
    }
    faults.no_backsteps(&at.field("path"), &source.path);
    if !source.path.starts_with('/') {
        faults.invalid(&at.field("path"), &source.path, "must be an absolute path");
    }
    faults.if_set_one_of(&at.field("type"), source.type_.as_deref(), &HOST_PATH_TYPES);
}

pub(super) fn git_repo(at: &At<'_>, source: &GitRepoVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("repository"), &source.repository);
    faults.descending_path(&at.field("directory"), text(&source.directory));
}

pub(super) fn image(at: &At<'_>, source: &ImageVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("reference"), text(&source.reference));
    pull_policy(&at.field("pullPolicy"), source.pull_policy.as_deref(), faults);
}

pub(super) fn secret(at: &At<'_>, source: &SecretVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("secretName"), text(&source.secret_name));
    defaults(at, source.default_mode, source.default_user, faults);
    keys(&at.field("items"), source.items.as_deref(), faults);
}

pub(super) fn config_map(at: &At<'_>, source: &ConfigMapVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("name"), &source.name);
    defaults(at, source.default_mode, source.default_user, faults);
    keys(&at.field("items"), source.items.as_deref(), faults);
}

/// Default mode and owner of files.
pub(super) fn defaults(at: &At<'_>, mode: Option<i32>, user: Option<i64>, faults: &mut Faults) {
    faults.file_mode(&at.field("defaultMode"), mode);
    faults.id(&at.field("defaultUser"), user);
}

/// The mapping of keys to files.
pub(super) fn keys(at: &At<'_>, keys: Option<&[KeyToPath]>, faults: &mut Faults) {
    for (index, key) in keys.unwrap_or_default().iter().enumerate() {
        let item = at.index(index);
        faults.not_empty(&item.field("key"), &key.key);
        faults.not_empty(&item.field("path"), &key.path);
        faults.file_in_volume(&item.field("path"), &key.path);
        faults.file_mode(&item.field("mode"), key.mode);
        faults.id(&item.field("user"), key.user);
    }
}

pub(super) fn downward_api(at: &At<'_>, source: &DownwardAPIVolumeSource, faults: &mut Faults) {
    defaults(at, source.default_mode, source.default_user, faults);
    files(&at.field("items"), source.items.as_deref(), faults);
}

/// Files with fields of the pod.
pub(super) fn files(at: &At<'_>, files: Option<&[DownwardAPIVolumeFile]>, faults: &mut Faults) {
    for (index, file) in files.unwrap_or_default().iter().enumerate() {
        let item = at.index(index);
        faults.not_empty(&item.field("path"), &file.path);
        faults.file_in_volume(&item.field("path"), &file.path);
        match (&file.field_ref, &file.resource_field_ref) {
            (Some(field), other) => {
                field_ref(&item.field("fieldRef"), field, FieldTarget::File, faults);
                if other.is_some() {
                    let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                    faults.invalid(&item, "resource", detail);
                }
            }
            (None, Some(resource)) => {
                resource_ref(&item.field("resourceFieldRef"), resource, FieldTarget::File, faults)
            }
            (None, None) => faults.required(&item, "one of fieldRef and resourceFieldRef is required"),
        }
        faults.file_mode(&item.field("mode"), file.mode);
        faults.id(&item.field("user"), file.user);
    }
}
