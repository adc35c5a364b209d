//! Images in containerd: resolves an image's name to its configuration and snapshot, and writes the records and labels
//! that protect them from garbage collection.

use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{
    CreateImageRequest, GetImageRequest, Image, ListImagesRequest, UpdateImageRequest,
};
use containerd_client::types;
use oci_spec::image::{ImageConfiguration, ImageManifest};
use prost_types::FieldMask;
use tonic::Code;

use super::content::{Labels, Store};
use super::document::{self, Document};
use super::error::{CallError, ImageError};
use super::platform::{HostPlatform, ImagePlatform, is_wasm};
use super::unpack::Layer;
use limpet_model::image::LocalImage;

/// An index's label for its local manifest, which protects the manifest from garbage collection.
const REFERENCE: &str = "containerd.io/gc.ref.content.m.0";
const REFERENCE_OF_WASM: &str = "containerd.io/gc.ref.content.m.wasi";

/// The most indexes between a name and its manifest.
pub(super) const MAX_DEPTH: usize = 4;

/// An image's documents, all of them in the content store.
#[derive(Debug)]
pub(super) struct Resolved {
    /// Digests of the indexes, outermost first, each with the label and the digest of the entry that was chosen.
    indexes: Vec<(String, &'static str, String)>,
    manifest_digest: String,
    manifest: Box<ImageManifest>,
    config: ImageConfiguration,
    chain_ids: Vec<String>,
    documents_size: u64,
}

impl Resolved {
    fn layers(&self) -> Vec<Layer<'_>> {
        Layer::all(&self.manifest, &self.config, &self.chain_ids)
    }

    /// The chain id of the image's snapshot.
    fn chain_id(&self) -> &str {
        // Parsing has rejected a configuration without layers.
        self.chain_ids.last().map_or("", String::as_str)
    }

    /// The garbage collection labels by digest: containerd collects content without a reference from its parent.
    fn gc_labels(&self, snapshotter: &str) -> Vec<(String, Labels)> {
        let mut labels: Vec<_> = self
            .indexes
            .iter()
            .map(|(index, label, child)| (index.clone(), Labels::from([((*label).to_owned(), child.clone())])))
            .collect();
        let config = self.manifest.config().digest().to_string();
        let mut children = Labels::from([("containerd.io/gc.ref.content.config".to_owned(), config.clone())]);
        for (i, layer) in self.manifest.layers().iter().enumerate() {
            children.insert(format!("containerd.io/gc.ref.content.l.{i}"), layer.digest().to_string());
        }
        labels.push((self.manifest_digest.clone(), children));
        let key = format!("containerd.io/gc.ref.snapshot.{snapshotter}");
        labels.push((config, Labels::from([(key, self.chain_id().to_owned())])));
        labels
    }

    pub(super) fn into_local(self, name: &str, digest: &str) -> LocalImage {
        let layers: u64 = self.manifest.layers().iter().map(oci_spec::image::Descriptor::size).sum();
        LocalImage {
            name: name.into(),
            digest: digest.into(),
            chain_id: self.chain_id().into(),
            size: self.documents_size + layers,
            config: self.config,
        }
    }
}

impl Store {
    pub(super) fn images(&self) -> ImagesClient<tonic::transport::Channel> {
        ImagesClient::new(self.client.channel())
    }

    /// The record of a name.
    pub(super) async fn image(&self, name: &str) -> Result<Option<Image>, CallError> {
        match self.images().get(self.client.request(GetImageRequest { name: name.to_owned() })).await {
            Ok(response) => Ok(response.into_inner().image),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(CallError::new("Images.Get", name, &status)),
        }
    }

    /// The records that a containerd filter selects.
    pub(super) async fn list_images(&self, filter: &str) -> Result<Vec<Image>, CallError> {
        let request = self.client.request(ListImagesRequest { filters: vec![filter.to_owned()] });
        let listed = self.images().list(request).await;
        listed
            .map(|response| response.into_inner().images)
            .map_err(|status| CallError::new("Images.List", filter, &status))
    }

    /// Reads an image's documents. `None` if one is missing, so the image has to be pulled again.
    pub(super) async fn resolve(
        &self,
        image: &str,
        target: &str,
        wanted: ImagePlatform,
    ) -> Result<Option<Resolved>, ImageError> {
        let call = |error| ImageError::call(image, error);
        let content = |cause: String| ImageError::content(image, cause);
        let platform = HostPlatform::current();
        let (mut digest, mut indexes, mut documents_size) = (target.to_owned(), Vec::new(), 0);
        for _ in 0..=MAX_DEPTH {
            let Some(bytes) = self.read_document(&digest).await.map_err(call)? else { return Ok(None) };
            documents_size += bytes.len() as u64;
            match document::examine(bytes, Document::parse).await.1.map_err(content)? {
                Document::Index(index) => {
                    let chosen = platform.select(index.manifests(), wanted).map_err(content)?;
                    // Platforms have separate labels, because another pod may use the other platform's manifest.
                    let label = if is_wasm(chosen) { REFERENCE_OF_WASM } else { REFERENCE };
                    let chosen = chosen.digest().to_string();
                    indexes.push((std::mem::replace(&mut digest, chosen.clone()), label, chosen));
                }
                Document::Manifest(manifest) => {
                    let config_digest = manifest.config().digest().to_string();
                    let Some(bytes) = self.read_document(&config_digest).await.map_err(call)? else { return Ok(None) };
                    documents_size += bytes.len() as u64;
                    let parse = move |config: &[u8]| (document::parse_config(config, &manifest), manifest);
                    let (_, (config, manifest)) = document::examine(bytes, parse).await;
                    let config = config.map_err(content)?;
                    document::fits(&config, wanted).map_err(content)?;
                    let chain_ids = document::chain_ids(config.rootfs().diff_ids());
                    let manifest_digest = digest;
                    return Ok(Some(Resolved {
                        indexes,
                        manifest_digest,
                        manifest,
                        config,
                        chain_ids,
                        documents_size,
                    }));
                }
            }
        }
        Err(content(format!("more than {MAX_DEPTH} nested indexes")))
    }

    /// Whether the image of a record is complete, unpacked or not.
    pub(super) async fn is_complete(&self, name: &str, digest: &str) -> Result<bool, ImageError> {
        let call = |error| ImageError::call(name, error);
        let Some(resolved) = self.resolve(name, digest, ImagePlatform::Any).await? else { return Ok(false) };
        Ok(self.has_snapshot(resolved.chain_id()).await.map_err(call)?
            || self.has_layers(&resolved).await.map_err(call)?)
    }

    async fn has_layers(&self, resolved: &Resolved) -> Result<bool, CallError> {
        for layer in resolved.manifest.layers() {
            if self.info(layer.digest().as_ref()).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The image of a record. Unpacks it if its snapshot is missing but its layers exist.
    pub(super) async fn local(
        &self,
        name: &str,
        digest: &str,
        wanted: ImagePlatform,
    ) -> Result<Option<LocalImage>, ImageError> {
        let call = |error| ImageError::call(name, error);
        let Some(resolved) = self.resolve(name, digest, wanted).await? else { return Ok(None) };
        if !self.has_snapshot(resolved.chain_id()).await.map_err(call)? {
            if !self.has_layers(&resolved).await.map_err(call)? {
                return Ok(None);
            }
            tracing::info!(image = name, "the image's content exists without its snapshot; unpacking it");
            let lease = lease_id("unpack", name);
            self.create_lease(&lease, name).await.map_err(call)?;
            let unpacked = self.reference_and_unpack(&resolved, &lease).await;
            self.delete_lease(&lease).await.map_err(call)?;
            unpacked.map_err(call)?;
        }
        Ok(Some(resolved.into_local(name, digest)))
    }

    /// The last steps of a pull or an import, once all content is stored under `lease`: references, snapshots, the
    /// record.
    pub(super) async fn finish(
        &self,
        name: &str,
        target: &types::Descriptor,
        labels: Labels,
        lease: &str,
        wanted: ImagePlatform,
    ) -> Result<LocalImage, ImageError> {
        let call = |error| ImageError::call(name, error);
        let resolved = self.resolve(name, &target.digest, wanted).await?;
        let resolved = resolved.ok_or_else(|| ImageError::content(name, "a part of it is missing"))?;
        self.reference_and_unpack(&resolved, lease).await.map_err(call)?;
        self.record(name, target, labels).await.map_err(call)?;
        Ok(resolved.into_local(name, &target.digest))
    }

    async fn reference_and_unpack(&self, resolved: &Resolved, lease: &str) -> Result<(), CallError> {
        // References come first, because they protect layers that another image has already unpacked.
        for (digest, labels) in resolved.gc_labels(&self.snapshotter) {
            self.label(&digest, labels).await?;
        }
        self.unpack(&resolved.layers(), lease).await
    }

    async fn record(&self, name: &str, target: &types::Descriptor, labels: Labels) -> Result<(), CallError> {
        let paths = labels.keys().map(|key| format!("labels.{key}")).chain(["target".to_owned()]).collect();
        let image = Image { name: name.to_owned(), labels, target: Some(target.clone()), ..Default::default() };
        let request = CreateImageRequest { image: Some(image.clone()), ..Default::default() };
        match self.images().create(self.client.request(request)).await {
            Ok(_) => return Ok(()),
            Err(status) if status.code() == Code::AlreadyExists => {}
            Err(status) => return Err(CallError::new("Images.Create", name, &status)),
        }
        // Labels of other clients, such as the pin, are not changed.
        let request =
            UpdateImageRequest { image: Some(image), update_mask: Some(FieldMask { paths }), ..Default::default() };
        let updated = self.images().update(self.client.request(request)).await;
        updated.map(drop).map_err(|status| CallError::new("Images.Update", name, &status))
    }
}

/// The id of a lease for a job on an image, which is the same after a restart.
pub(super) fn lease_id(job: &str, subject: &str) -> String {
    let digest = document::sha256(subject.as_bytes());
    format!("limpet-{job}-{}", digest.get(7..23).unwrap_or_default())
}
