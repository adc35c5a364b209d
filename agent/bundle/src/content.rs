//! The manifests of a bundle: read and validated as on a node, with the image of each container fixed to a digest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use limpet_model::image_name::{ImageName, Target};
use limpet_model::manifest;
use limpet_model::pod::{Fault, Severity};
use limpet_model::source::SourceKind;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::error::BundleError;

/// Pods are named by the node that runs them; for the checks before that, any valid name will do.
const ANY_NODE: &str = "node";
/// The kind of objects that can be sealed.
const SECRET: &str = "Secret";
/// The fields of a pod's spec that list containers.
const CONTAINERS: [&str; 2] = ["initContainers", "containers"];

/// The manifests of a bundle that is made.
#[derive(Debug, Default)]
pub(crate) struct Content {
    items: Vec<Value>,
    /// Warnings about what was read.
    pub(crate) warnings: Vec<Fault>,
    /// Normalized names, and digests, of the images that are used.
    pub(crate) used: BTreeSet<String>,
}

impl Content {
    /// Adds the documents of one file.
    ///
    /// # Errors
    /// Every fault of them.
    pub(crate) fn add(&mut self, text: &[u8], origin: &Path) -> Result<(), BundleError> {
        let read = manifest::read(text, &origin.display().to_string(), SourceKind::Bundle, ANY_NODE);
        let (errors, warnings): (Vec<_>, Vec<_>) =
            read.faults.into_iter().partition(|fault| fault.severity == Severity::Error);
        if !errors.is_empty() {
            return Err(BundleError::Manifests(errors));
        }
        self.warnings.extend(warnings);
        let pods = read.pods.iter().map(|pod| pod.manifest.clone());
        for manifest in pods.chain(read.objects.iter().map(|object| object.manifest())) {
            let item = serde_json::from_slice(&manifest);
            self.items.push(item.map_err(|error| BundleError::content(origin, error.to_string()))?);
        }
        Ok(())
    }

    /// Writes the digest of `images`, by normalized name, into every reference to one of them.
    ///
    /// # Errors
    /// An image is neither there nor named by its digest.
    pub(crate) fn fix_images(&mut self, images: &BTreeMap<String, String>) -> Result<(), BundleError> {
        let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
        for item in &mut self.items {
            let object = format!("{} {}", text(item, "/kind"), text(item, "/metadata/name"));
            references(item, &mut |reference| match fixed(reference, images) {
                Ok((fixed, image)) => {
                    *reference = fixed;
                    used.insert(image);
                }
                Err(cause) => faults.push(Fault::error("", format!("{object}: {cause}"))),
            });
        }
        self.used = used;
        if faults.is_empty() { Ok(()) } else { Err(BundleError::Manifests(faults)) }
    }

    /// The `List` of all of them.
    pub(crate) fn list(self) -> Vec<u8> {
        list(self.items)
    }

    /// The `List` of all but Secrets, and the Secrets.
    pub(crate) fn lists(self) -> (Vec<u8>, PlainSecrets) {
        let (secrets, others): (Vec<_>, Vec<_>) =
            self.items.into_iter().partition(|item| text(item, "/kind") == SECRET);
        let name = |item: &Value| {
            let namespace = item.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("default");
            format!("{namespace}/{}", text(item, "/metadata/name"))
        };
        let names = secrets.iter().map(name).collect();
        (list(others), PlainSecrets { names, list: Zeroizing::new(list(secrets)) })
    }

    /// How many documents there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

/// Secrets before they are sealed.
pub(crate) struct PlainSecrets {
    /// `namespace/name` of each.
    pub(crate) names: Vec<String>,
    pub(crate) list: Zeroizing<Vec<u8>>,
}

fn list(items: Vec<Value>) -> Vec<u8> {
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string().into_bytes()
}

fn text<'a>(item: &'a Value, pointer: &str) -> &'a str {
    item.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Calls `take` for every reference to an image: of containers and volumes, wherever a kind has its pod's spec.
fn references(value: &mut Value, take: &mut impl FnMut(&mut String)) {
    let Value::Object(members) = value else { return };
    for (name, member) in members {
        match member {
            Value::Array(containers) if CONTAINERS.contains(&name.as_str()) => {
                containers.iter_mut().for_each(|container| reference(container.get_mut("image"), take));
            }
            Value::Array(volumes) if name == "volumes" => {
                volumes.iter_mut().for_each(|volume| reference(volume.pointer_mut("/image/reference"), take));
            }
            _ => references(member, take),
        }
    }
}

fn reference(value: Option<&mut Value>, take: &mut impl FnMut(&mut String)) {
    if let Some(Value::String(text)) = value {
        take(text);
    }
}

/// The reference with a digest, and the name or digest by which the image is used.
fn fixed(reference: &str, images: &BTreeMap<String, String>) -> Result<(String, String), String> {
    let name = ImageName::parse(reference).map_err(|error| error.to_string())?;
    match (&name.target, images.get(&name.whole)) {
        (Target::Digest(digest), _) => Ok((reference.to_owned(), digest.clone())),
        (Target::Tag(_), Some(digest)) => Ok((format!("{reference}@{digest}"), name.whole)),
        (Target::Tag(_), None) => Err(format!(
            "the image {reference} is in no archive: add its archive with --image, or write its digest for nodes that can \
             pull it: {reference}@sha256:…"
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn fixed_list(text: &str) -> Result<String, String> {
        let images = BTreeMap::from([("docker.io/library/busybox:1".to_owned(), DIGEST.to_owned())]);
        let mut content = Content::default();
        let fixed = content.add(text.as_bytes(), Path::new("web.yaml")).and_then(|()| content.fix_images(&images));
        fixed.map_err(|error| error.to_string())?;
        Ok(String::from_utf8(content.list()).unwrap())
    }

    #[test]
    fn the_images_of_containers_volumes_and_templates_get_their_digest() {
        let list = fixed_list(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  \
               initContainers: [{name: i, image: busybox:1}]\n  containers: [{name: a, image: 'docker.io/library/busybox:1'}]\n  \
               volumes: [{name: v, image: {reference: 'busybox:1'}}]\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n  \
               template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: a, image: 'busybox:1'}]}\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {image: 'busybox:1'}\n",
        )
        .unwrap();
        assert_eq!(list.matches(&format!("busybox:1@{DIGEST}\"")).count(), 4, "{list}");
        assert!(list.contains("\"data\":{\"image\":\"busybox:1\"}"), "{list}");
    }

    #[test]
    fn an_image_that_is_nowhere_and_a_broken_manifest_are_refused() {
        let pod = |image: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: a, image: {image}}}]}}"
            )
        };
        let error = fixed_list(&pod("busybox:2")).unwrap_err();
        assert!(error.contains("Pod web: the image busybox:2 is in no archive"), "{error}");
        let by_digest = format!("nginx@{DIGEST}");
        assert!(fixed_list(&pod(&by_digest)).unwrap().contains(&by_digest));
        let error = fixed_list(&pod("busybox:1").replace("image", "imag")).unwrap_err();
        assert!(error.contains("web.yaml") && error.contains("imag"), "{error}");
    }
}
