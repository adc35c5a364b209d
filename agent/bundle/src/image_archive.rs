//! The images that a bundle is made of: OCI layouts in tar files, as skopeo, buildx, podman and `docker save` write them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use limpet_model::image_name::{ImageName, normalize};
use oci_spec::image::Descriptor;

use crate::document::IMAGE_NAME;
use crate::error::BundleError;
use crate::layout::{Budget, ImageParts, Layout};

/// OCI's annotation with a name, which may be a tag alone.
const REFERENCE_NAME: &str = "org.opencontainers.image.ref.name";

/// One image of an archive.
#[derive(Debug)]
pub(crate) struct ArchivedImage {
    /// The normalized name, with its tag.
    pub(crate) name: String,
    /// The name with its digest, by which a node has it.
    pub(crate) pinned: String,
    pub(crate) target: Descriptor,
    pub(crate) parts: ImageParts,
}

/// An archive, and its images.
#[derive(Debug)]
pub(crate) struct ImageArchive {
    pub(crate) layout: Layout,
    pub(crate) images: Vec<ArchivedImage>,
}

impl ImageArchive {
    /// Reads the documents of an archive.
    ///
    /// # Errors
    /// It has no images with names, or a part of one is missing.
    pub(crate) fn open(path: &Path, budget: &mut Budget) -> Result<Self, BundleError> {
        let mut file = File::open(path).map_err(BundleError::io("read", path))?;
        let mut magic = [0; 4];
        let length = file.read(&mut magic).map_err(BundleError::io("read", path))?;
        if magic.starts_with(&[0x1f, 0x8b]) || magic == [0x28, 0xb5, 0x2f, 0xfd] || length < magic.len() {
            return Err(BundleError::content(
                path,
                "it is not a plain tar: decompress it first, layers stay compressed",
            ));
        }
        let layout = Layout::open(file, path, true)?;
        let index = layout.index()?.ok_or_else(|| {
            layout.broken(
                "it is no OCI layout: save it with docker 25 or newer, or convert it with skopeo copy docker-archive:FILE \
                 oci-archive:NEW:NAME"
                    .to_owned(),
            )
        })?;
        let mut by_name: BTreeMap<String, Descriptor> = BTreeMap::new();
        for entry in index.manifests() {
            if let Some(name) = name(entry).map_err(|error| layout.broken(error))? {
                by_name.insert(name, entry.clone());
            }
        }
        if by_name.is_empty() {
            return Err(layout.broken("no image in it has a name: save it by name and tag, not by its id".to_owned()));
        }
        let image = |(name, target): (String, Descriptor)| {
            let parts = layout.image(&target, budget)?;
            let parsed = ImageName::parse(&name).map_err(|error| layout.broken(error.to_string()))?;
            let pinned = format!("{}/{}@{}", parsed.host, parsed.repository, target.digest());
            Ok(ArchivedImage { name, pinned, target, parts })
        };
        let images = by_name.into_iter().map(image).collect::<Result<_, BundleError>>()?;
        Ok(Self { layout, images })
    }
}

/// The name of an entry; `None`: it has none.
fn name(entry: &Descriptor) -> Result<Option<String>, String> {
    let Some(annotations) = entry.annotations() else { return Ok(None) };
    let full = annotations.get(IMAGE_NAME);
    let name = full.or_else(|| annotations.get(REFERENCE_NAME).filter(|name| name.contains(['/', ':'])));
    name.map(|name| normalize(name)).transpose().map_err(|error| error.to_string())
}

/// The archives of a bundle as a whole.
#[derive(Debug, Default)]
pub(crate) struct ImageSet {
    pub(crate) archives: Vec<ImageArchive>,
}

impl ImageSet {
    /// Reads all archives.
    ///
    /// # Errors
    /// One cannot be used, or two have different images of one name.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, BundleError> {
        let mut budget = Budget::default();
        let archives = paths.iter().map(|path| ImageArchive::open(path, &mut budget));
        let archives = archives.collect::<Result<Vec<_>, _>>()?;
        let mut known: BTreeMap<&str, &str> = BTreeMap::new();
        for archive in &archives {
            for image in &archive.images {
                match known.insert(&image.name, image.target.digest().as_ref()) {
                    Some(other) if other != image.target.digest().as_ref() => {
                        return Err(archive.layout.broken(format!("another archive has another {}", image.name)));
                    }
                    _ => {}
                }
            }
        }
        Ok(Self { archives })
    }

    /// Every image once, although several archives may have it.
    pub(crate) fn images(&self) -> impl Iterator<Item = &ArchivedImage> {
        let mut seen = BTreeSet::new();
        self.archives.iter().flat_map(|archive| &archive.images).filter(move |image| seen.insert(&image.name))
    }

    /// The digest of each image, by the name that manifests have for it.
    pub(crate) fn digests(&self) -> BTreeMap<String, String> {
        self.images().map(|image| (image.name.clone(), image.target.digest().to_string())).collect()
    }
}
