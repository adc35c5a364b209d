//! The images that a container needs: its own, and those that it mounts as volumes.

use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, PodSpec};

use super::PodRecord;
use crate::image_name::normalize;

/// The image volumes that a container mounts, each once, in the order of the pod's volumes.
pub fn image_volumes<'a>(
    spec: &'a PodSpec,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let volumes =
        spec.volumes.iter().flatten().filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)));
    volumes.filter(|(name, _)| mounts.iter().any(|mount| mount.name == *name))
}

/// The references of the images that a container needs, its own first.
pub fn images<'a>(spec: &'a PodSpec, container: &'a Container) -> impl Iterator<Item = &'a str> {
    let volumes = image_volumes(spec, container).filter_map(|(_, source)| source.reference.as_deref());
    container.image.as_deref().into_iter().chain(volumes)
}

/// The normalised names of all images that a pod needs.
pub fn normalized_images(record: &PodRecord) -> impl Iterator<Item = String> {
    let spec = record.spec();
    record.containers().flat_map(|container| images(spec, container)).filter_map(|image| normalize(image).ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_needs_its_image_and_those_it_mounts() {
        let spec: PodSpec = serde_json::from_value(json!({
            "containers": [
                {"name": "a", "image": "app", "volumeMounts": [
                    {"name": "model", "mountPath": "/m"}, {"name": "model", "mountPath": "/n"}, {"name": "dir", "mountPath": "/d"},
                ]},
                {"name": "b", "image": "app"},
            ],
            "volumes": [
                {"name": "dir", "emptyDir": {}}, {"name": "other", "image": {"reference": "other"}},
                {"name": "model", "image": {"reference": "model"}},
            ],
        }))
        .unwrap();
        let images_of = |index: usize| images(&spec, &spec.containers[index]).collect::<Vec<_>>();
        assert_eq!((images_of(0), images_of(1)), (vec!["app", "model"], vec!["app"]));
    }
}
