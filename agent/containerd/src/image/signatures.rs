//! The signatures of an image: fetched from its registry, and stored in containerd's content store beside the image.
//!
//! Stored signatures are verified again on each use. A label on the image's own content refers to them, so they live
//! as long as the image, and a node without a network can verify the image.

use limpet_image_policy::signature::{
    self, MAX_MANIFESTS, Signature, SignatureForm, SignatureLayer, referrers_tag, signature_tag,
};
use limpet_image_policy::verdict::Evidence;

use super::content::{Labels, Store};
use super::error::{CallError, ImageError};
use super::registry::Session;

/// The labels of an image's content for its signature manifests, which containerd then keeps.
const LABEL: &str = "containerd.io/gc.ref.content.signature.";
/// The most bytes of signatures of one image.
const MAX_TOTAL: usize = 4 << 20;

/// A manifest with its signatures.
#[derive(Debug)]
struct SignatureManifest {
    /// Where it was found, for messages.
    place: String,
    digest: String,
    bytes: Vec<u8>,
    blobs: Vec<SignatureBlob>,
}

#[derive(Debug)]
struct SignatureBlob {
    digest: String,
    form: SignatureForm,
    bytes: Vec<u8>,
}

/// An image's signatures in the registry.
#[derive(Debug, Default)]
pub(super) struct FetchedSignatures {
    manifests: Vec<SignatureManifest>,
    /// Why some may be missing.
    problems: Vec<String>,
}

impl FetchedSignatures {
    /// No signatures, because of this error.
    pub(super) fn none(error: &ImageError) -> Self {
        Self { manifests: Vec::new(), problems: vec![error.cause()] }
    }

    /// Adds them to other evidence.
    pub(super) fn add_to(&self, evidence: &mut Evidence) {
        for manifest in &self.manifests {
            evidence.signatures.extend(manifest.blobs.iter().map(|blob| Signature {
                place: manifest.place.clone(),
                form: blob.form.clone(),
                blob: blob.bytes.clone(),
            }));
        }
        evidence.problems.extend(self.problems.iter().cloned());
    }

    fn size(&self) -> usize {
        self.manifests.iter().flat_map(|manifest| &manifest.blobs).map(|blob| blob.bytes.len()).sum()
    }
}

/// Fetches an image's signatures, by cosign's tag and by the referrers API.
///
/// # Errors
///
/// `Unauthorized`: other credentials may work. Every other failure is among the problems.
pub(super) async fn fetch(session: &Session, digest: &str) -> Result<FetchedSignatures, ImageError> {
    let mut fetched = FetchedSignatures::default();
    let tag = signature_tag(digest);
    match session.manifest(&tag).await {
        Ok(manifest) => add(session, &mut fetched, tag, manifest.digest, manifest.bytes).await,
        Err(ImageError::NotFound { .. }) => {}
        Err(error @ ImageError::Unauthorized { .. }) => return Err(error),
        Err(error) => fetched.problems.push(format!("{tag}: {}", error.cause())),
    }
    let referrers = match referrers(session, digest).await {
        Ok(referrers) => referrers,
        Err(cause) => {
            fetched.problems.push(format!("referrers: {cause}"));
            Vec::new()
        }
    };
    for referrer in referrers {
        match session.manifest(&referrer).await {
            Ok(manifest) => {
                let place = format!("referrer {}", short(&referrer));
                add(session, &mut fetched, place, manifest.digest, manifest.bytes).await;
            }
            Err(error) => fetched.problems.push(format!("referrer {}: {}", short(&referrer), error.cause())),
        }
    }
    fetched.problems.dedup();
    Ok(fetched)
}

/// The manifests that refer to the image and may be signatures.
async fn referrers(session: &Session, digest: &str) -> Result<Vec<String>, String> {
    let listed = match session.referrers(digest).await {
        Ok(list) => Ok(list),
        // A registry without this API has the list under a tag, and so may a mirror whose registry is unreachable.
        Err(_) => session.manifest(&referrers_tag(digest)).await.map(|list| list.bytes),
    };
    match listed {
        Ok(list) => signature::signature_referrers(&list),
        Err(ImageError::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.cause()),
    }
}

/// Fetches the signatures of a manifest.
async fn add(session: &Session, fetched: &mut FetchedSignatures, place: String, digest: String, bytes: Vec<u8>) {
    let layers = match signature::signature_layers(&bytes) {
        Ok(layers) => layers,
        Err(cause) => return fetched.problems.push(format!("{place} {cause}")),
    };
    let mut blobs = Vec::new();
    let mut total = fetched.size();
    for SignatureLayer { digest, size, form } in layers {
        total += usize::try_from(size).unwrap_or(usize::MAX);
        if total > MAX_TOTAL {
            fetched.problems.push(format!("{place}: more than {MAX_TOTAL} bytes of signatures"));
            break;
        }
        match session.small_blob(&digest).await {
            Ok(bytes) if bytes.len() as u64 == size => blobs.push(SignatureBlob { digest, form, bytes }),
            Ok(_) => fetched.problems.push(format!("{place}: {} has another size", short(&digest))),
            Err(error) => fetched.problems.push(format!("{place}: {}", error.cause())),
        }
    }
    fetched.manifests.push(SignatureManifest { place, digest, bytes, blobs });
}

/// Stores signatures beside the image, whose content the lease protects.
pub(super) async fn keep(
    store: &Store,
    digest: &str,
    signatures: &FetchedSignatures,
    lease: &str,
) -> Result<(), CallError> {
    let mut labels = Labels::new();
    for (number, manifest) in signatures.manifests.iter().enumerate() {
        let mut children = Labels::new();
        for (number, blob) in manifest.blobs.iter().enumerate() {
            store.put(&blob.digest, &blob.bytes, lease, Labels::new()).await?;
            children.insert(format!("containerd.io/gc.ref.content.l.{number}"), blob.digest.clone());
        }
        store.put(&manifest.digest, &manifest.bytes, lease, children).await?;
        labels.insert(format!("{LABEL}{number}"), manifest.digest.clone());
    }
    store.label(digest, labels).await
}

/// The signatures that are stored beside the image.
pub(super) async fn kept(store: &Store, digest: &str) -> Result<Evidence, CallError> {
    let mut evidence = Evidence::default();
    let Some((_, labels)) = store.info(digest).await? else { return Ok(evidence) };
    let mut manifests: Vec<_> = labels.into_iter().filter(|(key, _)| key.starts_with(LABEL)).collect();
    manifests.sort();
    for (_, manifest) in manifests.into_iter().take(MAX_MANIFESTS) {
        let Some(bytes) = store.read_document(&manifest).await? else { continue };
        for SignatureLayer { digest, form, .. } in signature::signature_layers(&bytes).unwrap_or_default() {
            if let Some(blob) = store.read_document(&digest).await? {
                evidence.signatures.push(Signature { place: format!("kept {}", short(&manifest)), form, blob });
            }
        }
    }
    Ok(evidence)
}

/// The beginning of a digest, for messages.
fn short(digest: &str) -> &str {
    digest.get(..19).unwrap_or(digest)
}
