//! A bundle as an artifact of a registry: its manifest is asked for, and its one layer is the file.

use limpet_bundle::announcement::ANNOUNCEMENT_BYTES;
use limpet_bundle::{ARTIFACT_TYPE, LAYER_TYPE};
use limpet_containerd::image::{ImageError, Images};

use super::foresight::Foresight;
use super::part::Part;
use super::{Fetched, Whole, unwritable};
use crate::http::failure::Failure;

#[derive(Debug)]
pub(super) struct RegistryOrigin {
    images: Images,
    reference: String,
}

impl RegistryOrigin {
    pub(super) fn new(images: Images, reference: &str) -> Self {
        Self { images, reference: reference.to_owned() }
    }

    /// One exchange. What was received of a layer that breaks off is kept.
    pub(super) async fn fetch(&self, part: &mut Part, foresight: &Foresight) -> Result<Fetched, Failure> {
        let artifact = self.images.artifact(&self.reference, LAYER_TYPE).await.map_err(|error| failure(&error))?;
        if part.complete() == Some(artifact.layer()) {
            return Ok(Fetched::Known);
        }
        let begun =
            part.partial().await.filter(|(version, size)| version == artifact.layer() && *size < artifact.size());
        // The first bytes alone are requested again: they say whether the rest is needed.
        let begun = begun.filter(|(_, size)| *size > ANNOUNCEMENT_BYTES as u64);
        let version = artifact.layer().to_owned();
        let mut only_first = begun.is_none();
        let requested = match begun {
            Some((_, size)) => artifact.read(size).await,
            None => artifact.read_first(ANNOUNCEMENT_BYTES as u64).await,
        };
        let mut layer = requested.map_err(|error| failure(&error))?;
        let (mut size, resumed) = (layer.offset(), layer.offset() > 0);
        let mut writer = part.write_from(Some(version.clone()), size).await.map_err(|error| unwritable(&error))?;
        let mut first = foresight.begin(size);
        loop {
            match layer.chunk().await {
                Ok(Some(bytes)) => {
                    if let Some(why) = first.take(&bytes).await {
                        return Ok(Fetched::NotNeeded { version: Some(version), why });
                    }
                    size += bytes.len() as u64;
                    writer = writer.write(&bytes).await.map_err(|error| unwritable(&error))?;
                }
                Ok(None) if std::mem::take(&mut only_first) && size < artifact.size() => {
                    // The first bytes do not say that the rest is not needed.
                    writer.finish().await.map_err(|error| unwritable(&error))?;
                    layer = artifact.read(size).await.map_err(|error| failure(&error))?;
                    size = layer.offset();
                    writer = part.write_from(Some(version.clone()), size).await.map_err(|error| unwritable(&error))?;
                }
                Ok(None) => {
                    writer.finish().await.map_err(|error| unwritable(&error))?;
                    return Ok(Fetched::Whole(Whole { version: Some(version), resumed }));
                }
                Err(cause) => {
                    writer.finish().await.map_err(|error| unwritable(&error))?;
                    return Err(Failure::unreachable(cause));
                }
            }
        }
    }
}

fn failure(error: &ImageError) -> Failure {
    match error {
        ImageError::Content { .. } => Failure::bad_response(format!(
            "{error}: push the bundle with oras push --artifact-type {ARTIFACT_TYPE} REFERENCE FILE:{LAYER_TYPE}"
        )),
        error if error.is_transient() => Failure::unreachable(error.to_string()),
        error => Failure::bad_response(error.to_string()),
    }
}
