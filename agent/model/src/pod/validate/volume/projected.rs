//! Validation of projected volumes: files of several sources in one directory.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, PodCertificateProjection, ProjectedVolumeSource, ServiceAccountTokenProjection,
    VolumeProjection,
};

use crate::pod::name::{is_dns_label, is_dns_subdomain, is_qualified_name};
use crate::pod::validate::field::{At, Faults, items, text};
use crate::pod::validate::selector;
use crate::pod::validate::volume::file;

const KEY_TYPES: [&str; 6] = ["ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"];
const TEN_MINUTES: i64 = 600;
const HOUR: i32 = 3600;
const DAY: i32 = 24 * HOUR;

pub(super) fn projected(at: &At<'_>, source: &ProjectedVolumeSource, faults: &mut Faults) {
    file::defaults(at, source.default_mode, source.default_user, faults);
    let list = at.field("sources");
    let mut paths = Paths::default();
    for (index, source) in items(&source.sources) {
        projection(&list.index(index), source, &mut paths, faults);
    }
}

/// The file paths of a volume, which must be unique.
#[derive(Default)]
struct Paths<'a>(BTreeSet<&'a str>);

impl<'a> Paths<'a> {
    fn add(&mut self, at: &At<'_>, path: &'a str, faults: &mut Faults) {
        if !path.is_empty() && !self.0.insert(path) {
            faults.invalid(at, path, "conflicting duplicate paths");
        }
    }
}

fn projection<'a>(at: &At<'_>, source: &'a VolumeProjection, paths: &mut Paths<'a>, faults: &mut Faults) {
    let mut count = 0;
    let of_keys = [
        ("secret", source.secret.as_ref().map(|source| (&source.name, &source.items))),
        ("configMap", source.config_map.as_ref().map(|source| (&source.name, &source.items))),
    ];
    for (field, source) in of_keys {
        let Some((name, keys)) = source else { continue };
        count += 1;
        let at = at.field(field);
        faults.not_empty(&at.field("name"), name);
        let list = at.field("items");
        file::keys(&list, keys.as_deref(), faults);
        items(keys).for_each(|(index, key)| paths.add(&list.index(index).field("path"), &key.path, faults));
    }
    if let Some(source) = &source.downward_api {
        count += 1;
        let at = at.field("downwardAPI");
        let list = at.field("items");
        file::files(&list, source.items.as_deref(), faults);
        items(&source.items).for_each(|(index, file)| paths.add(&list.index(index).field("path"), &file.path, faults));
    }
    if let Some(source) = &source.service_account_token {
        count += 1;
        token(&at.field("serviceAccountToken"), source, faults);
    }
    if let Some(source) = &source.cluster_trust_bundle {
        count += 1;
        let at = at.field("clusterTrustBundle");
        trust_bundle(&at, source, faults);
        paths.add(&at.field("path"), &source.path, faults);
    }
    if let Some(source) = &source.pod_certificate {
        count += 1;
        certificate(&at.field("podCertificate"), source, paths, faults);
    }
    if count > 1 {
        faults.forbidden(at, "may not specify more than 1 volume type per source");
    }
}

fn token(at: &At<'_>, source: &ServiceAccountTokenProjection, faults: &mut Faults) {
    let at_seconds = at.field("expirationSeconds");
    match source.expiration_seconds {
        None => faults.required(&at_seconds, ""),
        Some(seconds) if seconds < TEN_MINUTES => {
            faults.invalid(&at_seconds, seconds, "may not specify a duration less than 10 minutes");
        }
        Some(seconds) if seconds > 1 << 32 => {
            faults.invalid(&at_seconds, seconds, "may not specify a duration larger than 2^32 seconds");
        }
        Some(_) => {}
    }
    faults.not_empty(&at.field("path"), &source.path);
    faults.file_in_volume(&at.field("path"), &source.path);
    faults.id(&at.field("user"), source.user);
}

fn trust_bundle(at: &At<'_>, source: &ClusterTrustBundleProjection, faults: &mut Faults) {
    match (source.name.as_deref(), source.signer_name.as_deref()) {
        (Some(_), Some(_)) => faults.invalid(at, "", "only one of name and signerName may be used"),
        (Some(name), None) => {
            if name.is_empty() {
                faults.required(&at.field("name"), "must be a valid object name");
            }
            // The name of a signer's bundle begins with the signer's name.
            let own_part = name.rsplit_once(':').map_or(name, |(_, own_part)| own_part);
            if !is_dns_subdomain(own_part) {
                faults.invalid(&at.field("name"), name, "not a valid clustertrustbundlename");
            }
            if source.label_selector.is_some() {
                let detail = "labelSelector must be unset if name is specified";
                faults.invalid(&at.field("labelSelector"), "", detail);
            }
        }
        (None, Some(signer)) => {
            signer_name(&at.field("signerName"), signer, faults);
            selector::labels(&at.field("labelSelector"), source.label_selector.as_ref(), faults);
        }
        (None, None) => faults.required(at, "either name or signerName must be specified"),
    }
    faults.not_empty(&at.field("path"), &source.path);
    faults.file_in_volume(&at.field("path"), &source.path);
    faults.id(&at.field("user"), source.user);
}

fn certificate<'a>(at: &At<'_>, source: &'a PodCertificateProjection, paths: &mut Paths<'a>, faults: &mut Faults) {
    signer_name(&at.field("signerName"), &source.signer_name, faults);
    super::super::metadata::annotations(&at.field("userAnnotations"), source.user_annotations.as_ref(), faults);
    for (key, _) in source.user_annotations.iter().flatten() {
        if is_qualified_name(&key.to_lowercase()) && !key.contains('/') {
            let detail = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            faults.invalid(&at.field("userAnnotations").key(key), key, detail);
        }
    }
    faults.id(&at.field("user"), source.user);
    faults.if_set_one_of(&at.field("keyType"), Some(&source.key_type), &KEY_TYPES);
    if let Some(seconds) = source.max_expiration_seconds {
        let at = at.field("maxExpirationSeconds");
        let host = source.signer_name.split('/').next().unwrap_or_default();
        let is_kubernetes = host == "kubernetes.io" || host.ends_with(".kubernetes.io");
        let most = if is_kubernetes { DAY } else { 91 * DAY };
        if seconds < HOUR {
            faults.invalid(&at, seconds, "if provided, maxExpirationSeconds must be >= 3600");
        } else if seconds > most {
            faults.invalid(&at, seconds, &format!("if provided, maxExpirationSeconds must be <= {most}"));
        }
    }
    let mut count = 0;
    for (field, path) in [
        ("credentialBundlePath", &source.credential_bundle_path),
        ("keyPath", &source.key_path),
        ("certificateChainPath", &source.certificate_chain_path),
    ] {
        let path = text(path);
        if !path.is_empty() {
            count += 1;
            faults.file_in_volume(&at.field(field), path);
            paths.add(&at.field(field), path, faults);
        }
    }
    if count == 0 {
        faults.required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath");
    }
}

/// `example.com/signer`.
fn signer_name(at: &At<'_>, name: &str, faults: &mut Faults) {
    if name.is_empty() {
        return faults.required(at, "");
    }
    let good = name.split_once('/').is_some_and(|(domain, path)| {
        let labels = domain.split('.').all(is_dns_label) && domain.contains('.') && domain.len() <= 253;
        labels && path.split('.').all(is_dns_subdomain)
    });
    if !good {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        faults.invalid(at, name, detail);
    }
}
