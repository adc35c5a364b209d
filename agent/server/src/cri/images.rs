//! CRI's image service: containerd's images under the names and digests that containers show.

use std::collections::HashMap;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use serde_json::json;
use tonic::{Request, Response, Status};

use super::identity::nanoseconds;
use super::{Answer, CriState, refusal};
use limpet_containerd::image::ImageError;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::file_system;
use limpet_model::image::{ALGORITHM, LocalImage, StoredImage};
use limpet_model::image_name::normalize;
use limpet_node_api::runtime as cri;
use limpet_node_api::runtime::image_service_server::ImageService;

/// The fewest digits that select an image.
const MIN_DIGITS: usize = 4;

pub(super) struct Images(pub(super) CriState);

#[tonic::async_trait]
impl ImageService for Images {
    type StreamImagesStream = BoxStream<'static, Result<cri::StreamImagesResponse, Status>>;

    async fn list_images(&self, request: Request<cri::ListImagesRequest>) -> Answer<cri::ListImagesResponse> {
        let images = self.images(request.into_inner().filter).await?;
        Ok(Response::new(cri::ListImagesResponse { images }))
    }

    async fn stream_images(&self, request: Request<cri::StreamImagesRequest>) -> Answer<Self::StreamImagesStream> {
        let images = self.images(request.into_inner().filter).await?;
        let response = |image| Ok(cri::StreamImagesResponse { images: vec![image] });
        Ok(Response::new(stream::iter(images.into_iter().map(response)).boxed()))
    }

    async fn image_status(&self, request: Request<cri::ImageStatusRequest>) -> Answer<cri::ImageStatusResponse> {
        let cri::ImageStatusRequest { image, verbose } = request.into_inner();
        let name = image.map(|image| image.image).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Status::invalid_argument("the request names no image"))?;
        let mut images = self.stored().await?;
        images.retain(|image| is_called(image, &name));
        let Some(stored) = images.first() else { return Ok(Response::new(cri::ImageStatusResponse::default())) };
        let documents = self.documents(stored).await?;
        let info = documents.as_ref().filter(|_| verbose).map(info).unwrap_or_default();
        Ok(Response::new(cri::ImageStatusResponse { image: Some(image_of(stored, documents.as_ref())), info }))
    }

    async fn image_fs_info(&self, _: Request<cri::ImageFsInfoRequest>) -> Answer<cri::ImageFsInfoResponse> {
        let directory = self.0.images.directory().await.map_err(|error| failed(&error))?;
        let measured = directory.clone();
        let space = blocking::run(directory.clone(), DEADLINE, move |_| file_system::space(&measured)).await;
        let space = space.and_then(|space| space).map_err(|error| Status::internal(error.to_string()))?;
        let value = |value| Some(cri::UInt64Value { value });
        let usage = cri::FilesystemUsage {
            timestamp: nanoseconds(jiff::Timestamp::now()),
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: directory.to_string_lossy().into_owned() }),
            used_bytes: value(space.capacity.saturating_sub(space.free)),
            inodes_used: value(space.inodes.saturating_sub(space.inodes_free)),
        };
        // Containers' writable layers are in the same file system as image layers.
        let (images, containers) = (vec![usage.clone()], vec![usage]);
        Ok(Response::new(cri::ImageFsInfoResponse { image_filesystems: images, container_filesystems: containers }))
    }

    async fn pull_image(&self, _: Request<cri::PullImageRequest>) -> Answer<cri::PullImageResponse> {
        Err(refusal::pulls())
    }

    async fn remove_image(&self, _: Request<cri::RemoveImageRequest>) -> Answer<cri::RemoveImageResponse> {
        Err(refusal::removes_images())
    }
}

impl Images {
    async fn images(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>, Status> {
        let name = filter.and_then(|filter| filter.image).map(|image| image.image).filter(|name| !name.is_empty());
        let mut images = Vec::new();
        for stored in self.stored().await? {
            if name.as_ref().is_none_or(|name| is_called(&stored, name)) {
                images.push(image_of(&stored, self.documents(&stored).await?.as_ref()));
            }
        }
        Ok(images)
    }

    async fn stored(&self) -> Result<Vec<StoredImage>, Status> {
        self.0.images.stored().await.map_err(|error| failed(&error))
    }

    async fn documents(&self, image: &StoredImage) -> Result<Option<LocalImage>, Status> {
        self.0.images.documents(image).await.map_err(|error| failed(&error))
    }
}

/// Whether `name` refers to the image: one of its names, its digest, or the first digits of it.
fn is_called(image: &StoredImage, name: &str) -> bool {
    let digits = image.digest.trim_start_matches(ALGORITHM);
    let first = name.trim_start_matches(ALGORITHM);
    let by_name =
        || normalize(name).is_ok_and(|name| image.names.contains(&name) || image.repo_digests().contains(&name));
    (first.len() >= MIN_DIGITS && digits.starts_with(first)) || by_name()
}

fn image_of(image: &StoredImage, documents: Option<&LocalImage>) -> cri::Image {
    let config = documents.and_then(|local| local.config.config().as_ref());
    let user = config.and_then(|config| config.user().as_deref()).unwrap_or_default();
    let user = user.split(':').next().unwrap_or_default();
    let uid = user.parse::<i64>().ok();
    cri::Image {
        id: image.digest.to_string(),
        repo_tags: image.repo_tags().cloned().collect(),
        repo_digests: image.repo_digests().into_iter().collect(),
        size: documents.map_or(0, |local| local.size),
        uid: uid.map(|value| cri::Int64Value { value }),
        username: if uid.is_some() { String::new() } else { user.to_owned() },
        spec: None,
        pinned: image.pinned,
    }
}

fn info(local: &LocalImage) -> HashMap<String, String> {
    let info = json!({ "chainID": &*local.chain_id, "imageSpec": local.config });
    HashMap::from([("info".to_owned(), info.to_string())])
}

fn failed(error: &ImageError) -> Status {
    match error {
        error if error.is_invalid_name() => Status::invalid_argument(error.to_string()),
        error if error.is_runtime_unavailable() => Status::unavailable(error.to_string()),
        _ => Status::internal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn image() -> StoredImage {
        let names = ["docker.io/library/busybox:1.36", "registry:5000/tools/busybox:v1", "sha256:aa"];
        StoredImage { digest: DIGEST.into(), names: names.map(str::to_owned).to_vec(), ..StoredImage::default() }
    }

    #[test]
    fn an_image_has_its_names_as_tags_and_as_digests() {
        let shown = image_of(&image(), None);
        assert_eq!(shown.id, DIGEST);
        assert_eq!(shown.repo_tags, ["docker.io/library/busybox:1.36", "registry:5000/tools/busybox:v1"]);
        let digests = ["docker.io/library/busybox", "registry:5000/tools/busybox"];
        assert_eq!(shown.repo_digests, digests.map(|name| format!("{name}@{DIGEST}")));
    }

    #[test]
    fn an_image_is_found_by_name_digest_and_first_digits() {
        let with_digest = format!("busybox@{DIGEST}");
        let table = [
            ("busybox:1.36", true),
            ("docker.io/library/busybox:1.36", true),
            (with_digest.as_str(), true),
            (DIGEST, true),
            ("sha256:0123", true),
            ("012345678", true),
            ("01", false),
            ("sha256:", false),
            ("s", false),
            ("busybox", false),
            ("busybox:1.37", false),
            ("1234", false),
        ];
        for (name, wanted) in table {
            assert_eq!(is_called(&image(), name), wanted, "{name}");
        }
    }
}
