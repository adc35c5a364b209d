//! Which images a Node's status lists, as in kubelet: the largest first, each with a few names. Pure.

use limpet_model::image::StoredImage;

/// kubelet's limit of an image's names.
const MAX_NAMES: usize = 5;

/// An image in the status of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeImage {
    /// Its repositories with its digest, then its tags.
    pub names: Vec<String>,
    /// Bytes of its compressed layers and its documents.
    pub size: u64,
}

/// The images with their sizes as they are shown, at most `most`; `None` for all.
pub fn node_images(images: impl IntoIterator<Item = (StoredImage, u64)>, most: Option<usize>) -> Vec<NodeImage> {
    let image = |(image, size): (StoredImage, u64)| {
        let names = image.repo_digests().into_iter().chain(image.repo_tags().cloned());
        NodeImage { names: names.take(MAX_NAMES).collect(), size }
    };
    let mut all: Vec<NodeImage> = images.into_iter().map(image).filter(|image| !image.names.is_empty()).collect();
    // Images of one size have a fixed order, so that nothing seems to change.
    all.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.names.cmp(&b.names)));
    all.truncate(most.unwrap_or(usize::MAX));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(digest: &str, names: &[&str]) -> StoredImage {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        StoredImage { digest: format!("sha256:{digest}").into(), names, ..StoredImage::default() }
    }

    #[test]
    fn the_largest_come_first_with_their_digests_before_their_names() {
        let busybox = ["docker.io/library/busybox:1.36", "registry:5000/busybox:v1", "sha256:config"];
        let many = ["a/b:1", "a/b:2", "a/b:3", "a/b:4", "a/b:5"];
        let images = || [(image("a", &busybox), 10), (image("b", &many), 30), (image("c", &["x/y@sha256:c"]), 30)];
        let all = node_images(images(), None);
        assert_eq!(all.iter().map(|image| image.size).collect::<Vec<_>>(), [30, 30, 10]);
        assert_eq!(all[0].names, ["a/b@sha256:b", "a/b:1", "a/b:2", "a/b:3", "a/b:4"], "five names");
        assert_eq!(all[1].names, ["x/y@sha256:c"]);
        let digests = ["docker.io/library/busybox@sha256:a", "registry:5000/busybox@sha256:a"];
        assert_eq!(all[2].names, [&digests[..], &busybox[..2]].concat());
        assert_eq!(node_images(images(), Some(1)), all[..1]);
        assert_eq!(node_images([(image("d", &["sha256:config"]), 1)], None), [], "there is no name to request it by");
    }
}
