//! The node's images: their names, pins and last uses, the containers that need them, and their file system.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::snapshots::ListSnapshotsRequest;
use containerd_client::services::v1::{
    Image, ListContainersRequest, ListImagesRequest, PluginsRequest, UpdateImageRequest,
};
use containerd_client::types;
use jiff::Timestamp;
use prost_types::FieldMask;
use tokio::sync::watch;
use tonic::Code;

use super::content::{Labels, Store};
use super::error::{CallError, ImageError};
use super::platform::ImagePlatform;
use super::preload::PINNED_LABEL;
use super::{ImageName, Images};
use limpet_model::image::{LocalImage, StoredImage};

/// The label with the time of an image's last use. It is written when a use ends, not while it lasts.
const LAST_USED: &str = "limpet.io/last-used";

impl Images {
    /// Every image in containerd.
    ///
    /// # Errors
    /// `Runtime` when containerd does not answer.
    pub async fn stored(&self) -> Result<Vec<StoredImage>, ImageError> {
        let records = self.inner.store.all_images().await.map_err(|error| ImageError::call("*", error))?;
        let mut images = by_digest(records);
        let digests: HashSet<Arc<str>> = images.iter().map(|image| Arc::clone(&image.digest)).collect();
        let taken = self.inner.reservations.taken(|digest| digests.contains(digest));
        images.iter_mut().for_each(|image| image.taken = taken.get(&image.digest).copied());
        Ok(images)
    }

    /// The names of images that containers in containerd use, limpet's or other clients', if they have a root file
    /// system, running or not.
    ///
    /// # Errors
    ///
    /// `Runtime` if containerd does not answer.
    pub async fn of_containers(&self) -> Result<HashSet<String>, ImageError> {
        self.inner.store.images_of_containers().await.map_err(|error| ImageError::call("*", error))
    }

    /// The size of an image's documents and packed layers in bytes; `None` if a part is missing, or the image is for
    /// another platform.
    ///
    /// # Errors
    ///
    /// `Runtime` if containerd does not answer.
    pub async fn size(&self, image: &StoredImage) -> Result<Option<u64>, ImageError> {
        Ok(self.documents(image).await?.map(|local| local.size))
    }

    /// An image's documents; `None` if one is missing, or the image is for another platform. The image need not be
    /// unpacked.
    ///
    /// # Errors
    ///
    /// `Runtime` if containerd does not answer.
    pub async fn documents(&self, image: &StoredImage) -> Result<Option<LocalImage>, ImageError> {
        let name = image.names.first().map_or("*", String::as_str);
        match self.inner.store.resolve(name, &image.digest, ImagePlatform::Any).await {
            Ok(resolved) => Ok(resolved.map(|resolved| resolved.into_local(name, &image.digest))),
            Err(ImageError::Content { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pins an image under all its names, which protects it from removal, or unpins it. Returns false if no image has
    /// that name.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Runtime` if containerd does not answer.
    pub async fn pin(&self, reference: &str, pinned: bool) -> Result<bool, ImageError> {
        let name = ImageName::parse(reference)?;
        let Some(digest) = self.target(&name).await? else { return Ok(false) };
        let stored = self.stored().await?;
        let value = if pinned { PINNED_LABEL.1 } else { "" };
        for name in stored.iter().filter(|image| *image.digest == *digest).flat_map(|image| &image.names) {
            let labels = Labels::from([(PINNED_LABEL.0.to_owned(), value.to_owned())]);
            self.inner.store.label_image(name, labels).await.map_err(|error| ImageError::call(name, error))?;
        }
        Ok(true)
    }

    /// Records when an image was last used, on one of its names.
    ///
    /// # Errors
    ///
    /// `Runtime` if containerd does not answer.
    pub async fn record_last_use(&self, name: &str, at: Timestamp) -> Result<(), ImageError> {
        let labels = Labels::from([(LAST_USED.to_owned(), at.to_string())]);
        self.inner.store.label_image(name, labels).await.map_err(|error| ImageError::call(name, error))
    }

    /// The directory of the snapshots, whose file system is measured for images.
    ///
    /// # Errors
    ///
    /// `Runtime` if containerd does not answer, or has no such snapshotter.
    pub async fn directory(&self) -> Result<PathBuf, ImageError> {
        self.inner.store.snapshotter_root().await.map_err(|error| ImageError::call("*", error))
    }

    /// Notifies that a pod or container has gone, so an image may no longer be needed.
    pub fn released(&self) {
        self.inner.changed.notify_one();
    }

    /// Changes when this agent has stored or removed an image.
    pub fn contents(&self) -> watch::Receiver<u64> {
        self.inner.contents.subscribe()
    }

    /// Notifies that disk usage was measured: the agent is awake, and the images' disk may have filled.
    pub fn note_measurement(&self) {
        self.inner.measured.notify_one();
    }

    /// Resolves after a measurement. Only one task may wait.
    pub async fn measured(&self) {
        self.inner.measured.notified().await;
    }

    /// Whether an image could not be stored since the last call because the disk was full.
    pub fn ran_out_of_space(&self) -> bool {
        self.inner.ran_out.swap(false, Ordering::Relaxed)
    }

    /// Resolves when an image was stored, did not fit on the disk, or may no longer be needed. Only one task may
    /// wait.
    pub async fn changed(&self) {
        self.inner.changed.notified().await;
    }
}

/// Groups records by digest, one image each, in the order of digests.
fn by_digest(records: Vec<Image>) -> Vec<StoredImage> {
    let mut images: BTreeMap<String, StoredImage> = BTreeMap::new();
    for record in records {
        let Some(target) = record.target else { continue };
        let image = images.entry(target.digest.clone()).or_default();
        image.digest = target.digest.into();
        image.pinned |= record.labels.get(PINNED_LABEL.0).is_some_and(|value| value == PINNED_LABEL.1);
        let created = record.created_at.and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        image.created = [image.created, created].into_iter().flatten().min();
        let used = record.labels.get(LAST_USED).and_then(|at| at.parse().ok());
        image.last_used = image.last_used.max(used);
        image.names.push(record.name);
    }
    images.into_values().collect()
}

impl Store {
    async fn all_images(&self) -> Result<Vec<Image>, CallError> {
        let listed = self.images().list(self.client.request(ListImagesRequest::default())).await;
        listed
            .map(|response| response.into_inner().images)
            .map_err(|status| CallError::new("Images.List", "*", &status))
    }

    async fn images_of_containers(&self) -> Result<HashSet<String>, CallError> {
        let failed = |status: tonic::Status| CallError::new("Containers.ListStream", "*", &status);
        let mut containers = ContainersClient::new(self.client.channel()).max_decoding_message_size(64 << 20);
        // Streamed, because a single answer may exceed containerd's limit for messages.
        let listed = containers.list_stream(self.client.request(ListContainersRequest::default())).await;
        let mut stream = listed.map_err(failed)?.into_inner();
        let mut containers = Vec::new();
        while let Some(message) = stream.message().await.map_err(failed)? {
            containers.extend(message.container.map(|container| (container.snapshot_key, container.image)));
        }
        let snapshots = self.writable_snapshots().await?;
        let stand = containers.into_iter().filter(|(snapshot, _)| snapshots.contains(snapshot));
        Ok(stand.map(|(_, image)| image).collect())
    }

    async fn writable_snapshots(&self) -> Result<HashSet<String>, CallError> {
        let failed = |status: tonic::Status| CallError::new("Snapshots.List", "*", &status);
        let filters = vec!["kind==active".to_owned()];
        let message = ListSnapshotsRequest { snapshotter: self.snapshotter.to_string(), filters };
        let mut pages = self.snapshots().list(self.client.request(message)).await.map_err(failed)?.into_inner();
        let mut keys = HashSet::new();
        while let Some(page) = pages.message().await.map_err(failed)? {
            keys.extend(page.info.into_iter().map(|snapshot| snapshot.name));
        }
        Ok(keys)
    }

    pub(super) async fn label_image(&self, name: &str, labels: Labels) -> Result<(), CallError> {
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        // containerd crashes on an update without a target, whatever the mask names.
        let target = Some(types::Descriptor::default());
        let image = Image { name: name.to_owned(), labels, target, ..Default::default() };
        let request =
            UpdateImageRequest { image: Some(image), update_mask: Some(FieldMask { paths }), ..Default::default() };
        match self.images().update(self.client.request(request)).await {
            Err(status) if status.code() != Code::NotFound => Err(CallError::new("Images.Update", name, &status)),
            _ => Ok(()),
        }
    }

    async fn snapshotter_root(&self) -> Result<PathBuf, CallError> {
        let filters = vec![format!("type==io.containerd.snapshotter.v1,id=={}", self.snapshotter)];
        let request = self.client.request(PluginsRequest { filters });
        let listed = IntrospectionClient::new(self.client.channel()).plugins(request).await;
        let failed = |status: &tonic::Status| CallError::new("Introspection.Plugins", &self.snapshotter, status);
        let plugins = listed.map_err(|status| failed(&status))?.into_inner().plugins;
        let root = plugins.into_iter().find_map(|mut plugin| plugin.exports.remove("root"));
        root.map(PathBuf::from).ok_or_else(|| failed(&tonic::Status::not_found("the snapshotter names no directory")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use containerd_client::types::Descriptor;

    use super::*;

    fn record(name: &str, digest: &str, second: i64, labels: &[(&str, &str)]) -> Image {
        Image {
            name: name.to_owned(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            target: Some(Descriptor { digest: digest.to_owned(), ..Default::default() }),
            created_at: Some(prost_types::Timestamp { seconds: second, nanos: 0 }),
            ..Default::default()
        }
    }

    #[test]
    fn names_of_one_digest_are_one_image() {
        let used = "2027-01-15T08:00:00Z";
        let records = vec![
            record("app:v1", "sha256:a", 20, &[(LAST_USED, used)]),
            record("app:latest", "sha256:a", 10, &[(LAST_USED, "no time")]),
            record("sha256:config", "sha256:a", 30, &[]),
            record("kept:v1", "sha256:b", 5, &[PINNED_LABEL]),
            record("not-kept:v1", "sha256:c", 5, &[(PINNED_LABEL.0, "")]),
            Image { name: "without-target".to_owned(), ..Default::default() },
        ];
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let image = |digest: &str, names: &[&str], pinned, created, last_used| StoredImage {
            digest: digest.into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            pinned,
            created,
            last_used,
            taken: None,
        };
        let wanted = [
            image("sha256:a", &["app:v1", "app:latest", "sha256:config"], false, at(10), Some(used.parse().unwrap())),
            image("sha256:b", &["kept:v1"], true, at(5), None),
            image("sha256:c", &["not-kept:v1"], false, at(5), None),
        ];
        assert_eq!(by_digest(records), wanted);
    }
}
