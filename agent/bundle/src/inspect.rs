//! What `limpet bundle inspect` shows. A Secret's values are not among it.

use std::collections::HashSet;

use limpet_cli::screen::printable;
use limpet_core::byte_size;
use serde::Serialize;
use serde_json::Value;

use crate::bundle::Bundle;
use crate::document::{BundleConfig, BundledImage};
use crate::error::BundleError;

/// The report about a bundle, which `--output` prints as a document.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    name: String,
    version: String,
    serial: u64,
    /// For how many of the nodes it is, in percent; missing: for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<u8>,
    digest: String,
    /// The file of the key; missing: the signature was not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed_with: Option<String>,
    /// Each object of the manifests as `kind namespace/name`.
    objects: Vec<String>,
    /// The keys of the nodes that can open its Secrets; empty: none is sealed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sealed_to: Vec<String>,
    images: Vec<BundledImage>,
    layers: Vec<LayerReport>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct LayerReport {
    digest: String,
    size: u64,
    /// Whether it is in the bundle; otherwise the node has to have it.
    included: bool,
}

/// What is shown of it.
///
/// # Errors
/// A document of an image is missing or broken.
pub(crate) fn report(bundle: &Bundle) -> Result<Report, BundleError> {
    let BundleConfig { name, version, serial, rollout, images } = bundle.config.clone();
    let mut known = HashSet::new();
    let layers = bundle.images()?.into_iter().flat_map(|image| image.layers);
    let layers = layers.filter(|(digest, _)| known.insert(digest.clone()));
    let layers = layers.map(|(digest, size)| LayerReport { included: bundle.contains(&digest), digest, size });
    let layers = layers.collect();
    let list: Value = serde_json::from_slice(&bundle.manifests).unwrap_or_default();
    let items = list.pointer("/items").and_then(Value::as_array);
    let sealed = bundle.sealed.iter().flat_map(|sealed| &sealed.names).map(|name| format!("Secret {name}, sealed"));
    let recipients = bundle.sealed.iter().flat_map(|sealed| &sealed.recipients);
    Ok(Report {
        name,
        version,
        serial,
        rollout,
        digest: bundle.identity.digest.clone(),
        signed_with: bundle.key.as_ref().map(|key| key.display().to_string()),
        objects: items.into_iter().flatten().map(object).chain(sealed).collect(),
        sealed_to: recipients.map(|recipient| recipient.key.clone()).collect(),
        images,
        layers,
    })
}

fn object(item: &Value) -> String {
    let text = |pointer: &str| item.pointer(pointer).and_then(Value::as_str);
    let (kind, name) = (text("/kind").unwrap_or_default(), text("/metadata/name").unwrap_or_default());
    format!("{kind} {}/{name}", text("/metadata/namespace").unwrap_or("default"))
}

/// Writes the report as text.
pub(crate) fn page(report: &Report) -> String {
    let Report { name, version, serial, rollout, digest, signed_with, objects, sealed_to, images, layers } = report;
    let stage = rollout.map_or_else(|| "all nodes".to_owned(), |percent| format!("the first {percent} % of the nodes"));
    let signed = signed_with.as_deref().map_or("not checked: use --key", |key| key);
    let lines = |title: &str, entries: &mut dyn Iterator<Item = String>| {
        let entries: String = entries.map(|entry| format!("  {}\n", printable(&entry))).collect();
        if entries.is_empty() { String::new() } else { format!("{title}:\n{entries}") }
    };
    let head = [
        ("Name", printable(name)),
        ("Version", printable(version)),
        ("Serial", serial.to_string()),
        ("For", stage),
        ("Digest", printable(digest)),
        ("Signed with", printable(signed)),
    ];
    let mut page: String = head.iter().map(|(title, value)| format!("{:<13}{value}\n", format!("{title}:"))).collect();
    page += &lines("Objects", &mut objects.iter().cloned());
    page += &lines("Sealed to the keys", &mut sealed_to.iter().cloned());
    page += &lines("Images", &mut images.iter().map(|image| format!("{}@{}", image.name, image.digest)));
    let layer = |layer: &LayerReport| {
        let place = if layer.included { "" } else { ", left out: the node must have it" };
        format!("{} {}{place}", layer.digest, byte_size::text(layer.size))
    };
    page + &lines("Layers", &mut layers.iter().map(layer))
}
