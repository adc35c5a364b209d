//! Validation of volumes that are remote file systems, or provided by a driver.

use k8s_openapi::api::core::v1::{
    AzureFileVolumeSource, CSIVolumeSource, CephFSVolumeSource, FlexVolumeSource, FlockerVolumeSource,
    GlusterfsVolumeSource, NFSVolumeSource, PortworxVolumeSource, QuobyteVolumeSource, ScaleIOVolumeSource,
    StorageOSVolumeSource,
};

use crate::pod::name::is_dns_subdomain;
use crate::pod::validate::field::{At, Faults, text};

const MAX_DRIVER: usize = 63;
const MAX_TENANT: usize = 64;

pub(super) fn nfs(at: &At<'_>, source: &NFSVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("server"), &source.server);
    faults.not_empty(&at.field("path"), &source.path);
    if !source.path.starts_with('/') {
        faults.invalid(&at.field("path"), &source.path, "must be an absolute path");
    }
}

pub(super) fn glusterfs(at: &At<'_>, source: &GlusterfsVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("endpoints"), &source.endpoints);
    faults.not_empty(&at.field("path"), &source.path);
}

pub(super) fn flocker(at: &At<'_>, source: &FlockerVolumeSource, faults: &mut Faults) {
    let (name, id) = (text(&source.dataset_name), text(&source.dataset_uuid));
    match (name.is_empty(), id.is_empty()) {
        (true, true) => faults.required(at, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            faults.invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously");
        }
        _ => {}
    }
    if name.contains('/') {
        faults.invalid(&at.field("datasetName"), name, "must not contain '/'");
    }
}

pub(super) fn quobyte(at: &At<'_>, source: &QuobyteVolumeSource, faults: &mut Faults) {
    let rule = "must be a host:port pair or multiple pairs separated by commas";
    if source.registry.is_empty() {
        faults.required(&at.field("registry"), rule);
    } else if text(&source.tenant).len() > MAX_TENANT {
        faults.required(&at.field("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for pair in source.registry.split(',').filter(|pair| !is_host_and_port(pair)) {
            faults.invalid(&at.field("registry"), pair, rule);
        }
    }
    faults.not_empty(&at.field("volume"), &source.volume);
}

/// `host:port`, an IPv6 address in brackets.
fn is_host_and_port(pair: &str) -> bool {
    match pair.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").is_some_and(|(host, port)| !host.contains('[') && !port.contains(':')),
        None => pair.matches(':').count() == 1 && !pair.contains(['[', ']']),
    }
}

pub(super) fn flex(at: &At<'_>, source: &FlexVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("driver"), &source.driver);
    for (key, _) in source.options.iter().flatten() {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            faults.invalid(&at.field("options").key(key), key, detail);
        }
    }
}

pub(super) fn storage_os(at: &At<'_>, source: &StorageOSVolumeSource, faults: &mut Faults) {
    faults.required_dns_label(&at.field("volumeName"), text(&source.volume_name));
    let namespace = text(&source.volume_namespace);
    if !namespace.is_empty() {
        faults.dns_label(&at.field("volumeNamespace"), namespace);
    }
    if let Some(secret) = &source.secret_ref {
        faults.not_empty(&at.field("secretRef").field("name"), &secret.name);
    }
}

pub(super) fn csi(at: &At<'_>, source: &CSIVolumeSource, faults: &mut Faults) {
    let at_driver = at.field("driver");
    faults.not_empty(&at_driver, &source.driver);
    if source.driver.len() > MAX_DRIVER {
        faults.too_long(&at_driver, MAX_DRIVER);
    }
    if !source.driver.is_empty() && !is_dns_subdomain(&source.driver.to_lowercase()) {
        faults.dns_subdomain(&at_driver, &source.driver);
    }
    if let Some(secret) = &source.node_publish_secret_ref {
        faults.required_dns_subdomain(&at.field("nodePublishSecretRef").field("name"), &secret.name);
    }
}

pub(super) fn cephfs(at: &At<'_>, source: &CephFSVolumeSource, faults: &mut Faults) {
    if source.monitors.is_empty() {
        faults.required(&at.field("monitors"), "");
    }
}

pub(super) fn azure_file(at: &At<'_>, source: &AzureFileVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("secretName"), &source.secret_name);
    faults.not_empty(&at.field("shareName"), &source.share_name);
}

pub(super) fn portworx(at: &At<'_>, source: &PortworxVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("volumeID"), &source.volume_id);
}

pub(super) fn scale_io(at: &At<'_>, source: &ScaleIOVolumeSource, faults: &mut Faults) {
    faults.not_empty(&at.field("gateway"), &source.gateway);
    faults.not_empty(&at.field("system"), &source.system);
    faults.not_empty(&at.field("volumeName"), text(&source.volume_name));
}
