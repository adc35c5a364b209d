//! Makes a bundle: documents first, then layers, then the signature over all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use limpet_model::pod::Fault;
use limpet_signature::SecretKey;
use oci_spec::image::{Descriptor, ImageIndexBuilder, ImageManifestBuilder, MediaType, SCHEMA_VERSION};

use crate::announcement;
use crate::bundle::Bundle;
use crate::content::Content;
use crate::document::{
    ARTIFACT_TYPE, BundleConfig, BundledImage, CONFIG_TYPE, IMAGE_NAME, MANIFESTS_TYPE, NAME_RULE, SECRETS_TYPE,
    descriptor, digest, is_name,
};
use crate::envelope::{self, SIGNED_FROM};
use crate::error::BundleError;
use crate::image_archive::ImageSet;
use crate::layout::{INDEX, LAYOUT, MAX_DOCUMENT, MAX_LISTING, blob_name};
use crate::node_key::NodePublicKey;
use crate::sealed;
use crate::tar_writer::TarWriter;

/// What a bundle is made of.
#[derive(Debug)]
pub struct Recipe<'a> {
    /// The fleet or product that it is for.
    pub name: &'a str,
    /// The version that is shown to people. Only the serial decides which bundle is newer.
    pub version: &'a str,
    /// Higher than that of every bundle before.
    pub serial: u64,
    /// For how many of the nodes it is, in percent; `None`: for all.
    pub rollout: Option<u8>,
    /// The paths of the manifests, for messages, and their texts.
    pub manifests: Vec<(PathBuf, Vec<u8>)>,
    /// The archives with the images, each an OCI layout in a tar.
    pub images: &'a [PathBuf],
    /// A bundle that the nodes have: its layers are left out.
    pub from: Option<&'a Path>,
    /// The nodes to which its Secrets are sealed; empty: they are not sealed.
    pub seal_to: &'a [NodePublicKey],
    /// The key with which the bundle is signed.
    pub key: &'a SecretKey,
}

/// A bundle that was made.
#[derive(Debug)]
pub struct Created {
    /// The configuration that was written into the bundle.
    pub config: BundleConfig,
    /// How many documents it has.
    pub documents: usize,
    /// How many of them are sealed Secrets.
    pub sealed: usize,
    /// Layers in it, with their sizes.
    pub layers: BTreeMap<String, u64>,
    /// Layers that the nodes have to have.
    pub left_out: BTreeMap<String, u64>,
    /// The size of the file in bytes.
    pub size: u64,
    /// What the manifests contain that a node would take with a warning.
    pub warnings: Vec<Fault>,
    /// Images that no pod uses.
    pub unused: Vec<String>,
}

/// Writes a bundle beside `out` and renames it: a file of that name is always a whole one.
///
/// # Errors
/// Something of the recipe cannot be used. No file is left.
pub fn create(recipe: &Recipe<'_>, out: &Path) -> Result<Created, BundleError> {
    demand_text("--name", recipe.name, out)?;
    demand_text("--version", recipe.version, out)?;
    let images = ImageSet::open(recipe.images)?;
    let mut content = Content::default();
    for (path, text) in &recipe.manifests {
        content.add(text, path)?;
    }
    content.fix_images(&images.digests())?;
    let had = recipe.from.map(|from| layers_of(from, recipe.serial, out)).transpose()?.unwrap_or_default();
    let mut created = summary(recipe, &images, &content, &had);
    let layers = content_layers(recipe, content, out)?;
    created.sealed = layers.sealed;
    let documents = documents(&created.config, layers, &images, out)?;
    demand_layers(&images, &created.layers)?;
    let part = part(out);
    let written = write(recipe, &created, &documents, &images, &part).and_then(|size| {
        std::fs::rename(&part, out).map_err(BundleError::io("write", out))?;
        Ok(size)
    });
    match written {
        Ok(size) => created.size = size,
        Err(error) => {
            let _ = std::fs::remove_file(&part);
            return Err(error);
        }
    }
    Ok(created)
}

fn demand_text(flag: &str, text: &str, out: &Path) -> Result<(), BundleError> {
    if is_name(text) { Ok(()) } else { Err(BundleError::content(out, format!("{flag} must have {NAME_RULE}"))) }
}

/// Every layer that a bundle has, or that it takes for granted. The bundle that is made has to be newer, and another file.
fn layers_of(path: &Path, serial: u64, out: &Path) -> Result<BTreeSet<String>, BundleError> {
    let bundle = Bundle::open_unchecked(path)?;
    let has = bundle.config.serial;
    let same = |path: &Path| path.canonicalize().ok();
    if same(path).is_some_and(|path| same(out) == Some(path)) {
        let cause = "it is the bundle of --from, whose layers are left out: write to another file";
        return Err(BundleError::content(out, cause));
    }
    if has >= serial {
        let cause = format!("nodes that have it, with the serial {has}, refuse {serial}: use a higher --serial");
        return Err(BundleError::content(path, cause));
    }
    let images = bundle.images()?;
    Ok(images.into_iter().flat_map(|image| image.layers).map(|(digest, _)| digest).collect())
}

fn summary(recipe: &Recipe<'_>, images: &ImageSet, content: &Content, had: &BTreeSet<String>) -> Created {
    let all: BTreeMap<String, u64> = images.images().flat_map(|image| image.parts.layers.clone()).collect();
    let (left_out, layers) = all.into_iter().partition(|(digest, _)| had.contains(digest));
    let bundled = |(name, digest): (String, String)| BundledImage { name, digest };
    let is_unused = |image: &BundledImage| !content.used.contains(&image.name) && !content.used.contains(&image.digest);
    let mut bundled: Vec<BundledImage> = images.digests().into_iter().map(bundled).collect();
    bundled.sort();
    Created {
        unused: bundled.iter().filter(|image| is_unused(image)).map(|image| image.name.clone()).collect(),
        config: BundleConfig {
            name: recipe.name.to_owned(),
            version: recipe.version.to_owned(),
            serial: recipe.serial,
            rollout: recipe.rollout,
            images: bundled,
        },
        documents: content.len(),
        sealed: 0,
        layers,
        left_out,
        size: 0,
        warnings: content.warnings.clone(),
    }
}

/// Every document of the layout: `index.json`, and blobs by digest.
struct Documents {
    index: Vec<u8>,
    blobs: BTreeMap<String, Vec<u8>>,
}

/// The layers of the bundle's own manifest, by media type.
struct ContentLayers {
    layers: Vec<(&'static str, Vec<u8>)>,
    /// How many Secrets are sealed.
    sealed: usize,
}

fn content_layers(recipe: &Recipe<'_>, content: Content, out: &Path) -> Result<ContentLayers, BundleError> {
    if recipe.seal_to.is_empty() {
        return Ok(ContentLayers { layers: vec![(MANIFESTS_TYPE, content.list())], sealed: 0 });
    }
    let (list, secrets) = content.lists();
    let mut layers = vec![(MANIFESTS_TYPE, list)];
    let sealed = secrets.names.len();
    if sealed > 0 {
        let purpose = sealed::purpose(recipe.name, recipe.serial);
        let sealed = sealed::seal(&secrets.list, secrets.names, recipe.seal_to, &purpose);
        let unsealed = || BundleError::content(out, "its Secrets cannot be sealed: a key of --seal-to cannot be used");
        let json = |error: serde_json::Error| BundleError::content(out, error.to_string());
        layers.push((SECRETS_TYPE, serde_json::to_vec(&sealed.ok_or_else(unsealed)?).map_err(json)?));
    }
    Ok(ContentLayers { layers, sealed })
}

fn documents(
    config: &BundleConfig,
    content: ContentLayers,
    images: &ImageSet,
    out: &Path,
) -> Result<Documents, BundleError> {
    let broken = |error: String| BundleError::content(out, error);
    let json = |error: serde_json::Error| BundleError::content(out, error.to_string());
    let oci = |error: oci_spec::OciSpecError| BundleError::content(out, error.to_string());
    let mut blobs = BTreeMap::new();
    let mut store = |media_type: &str, bytes: Vec<u8>| {
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(format!("its documents of the type {media_type} have more than {} MiB", MAX_DOCUMENT >> 20));
        }
        let descriptor = descriptor(media_type, &bytes)?;
        blobs.insert(digest(&bytes), bytes);
        Ok(descriptor)
    };
    let config = store(CONFIG_TYPE, serde_json::to_vec(config).map_err(json)?).map_err(broken)?;
    let layers = content.layers.into_iter().map(|(media_type, bytes)| store(media_type, bytes).map_err(broken));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .artifact_type(MediaType::from(ARTIFACT_TYPE))
        .config(config)
        .layers(layers)
        .build()
        .map_err(oci)?;
    let mut descriptor =
        store(MediaType::ImageManifest.as_ref(), serde_json::to_vec(&manifest).map_err(json)?).map_err(broken)?;
    descriptor.set_artifact_type(Some(MediaType::from(ARTIFACT_TYPE)));
    let mut entries = vec![descriptor];
    for image in images.images() {
        blobs.extend(image.parts.documents.clone());
        entries.push(named(&image.target, &image.pinned));
    }
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(entries)
        .build()
        .map_err(oci)?;
    let index = serde_json::to_vec(&index).map_err(json)?;
    match index.len() as u64 > MAX_LISTING {
        true => Err(broken(format!("its images are too many for an index of {} MiB", MAX_LISTING >> 20))),
        false => Ok(Documents { index, blobs }),
    }
}

fn named(target: &Descriptor, name: &str) -> Descriptor {
    let mut target = target.clone();
    target.set_annotations(Some(HashMap::from([(IMAGE_NAME.to_owned(), name.to_owned())])));
    target
}

/// Checks that the archives have every layer that is to be in the bundle.
fn demand_layers(images: &ImageSet, layers: &BTreeMap<String, u64>) -> Result<(), BundleError> {
    for digest in layers.keys() {
        let holders = images.archives.iter();
        let mut lacking = holders
            .clone()
            .filter(|archive| archive.images.iter().any(|image| image.parts.layers.contains_key(digest)));
        let is_here = images.archives.iter().any(|archive| archive.layout.blobs.contains_key(digest));
        if let (false, Some(archive)) = (is_here, lacking.next()) {
            let cause = format!("the layer {digest} is not in it: save the image again, with all of its platforms");
            return Err(archive.layout.broken(cause));
        }
    }
    Ok(())
}

fn part(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Returns the size of the file.
fn write(
    recipe: &Recipe<'_>,
    created: &Created,
    documents: &Documents,
    images: &ImageSet,
    path: &Path,
) -> Result<u64, BundleError> {
    let failed = |source| BundleError::io("write", path)(source);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).map_err(failed)?;
    file.seek(SeekFrom::Start(SIGNED_FROM)).map_err(failed)?;
    let mut tar = TarWriter::new(file, path);
    tar.entry(LAYOUT.0, LAYOUT.1)?;
    tar.entry(INDEX, &documents.index)?;
    for (digest, bytes) in &documents.blobs {
        tar.entry(&blob_name(digest), bytes)?;
    }
    for digest in created.layers.keys() {
        let holder = images.archives.iter().find_map(|archive| Some((archive, archive.layout.blobs.get(digest)?)));
        // Every layer was seen to be in an archive.
        let Some((archive, extent)) = holder else { continue };
        tar.header(&blob_name(digest), extent.size)?;
        archive.layout.copy(digest, *extent, &mut tar.file)?;
        tar.pad(extent.size)?;
    }
    let mut file = tar.finish()?;
    let comment = announcement::comment(recipe.name, recipe.version, recipe.serial, recipe.rollout);
    envelope::sign(&mut file, path, recipe.key, &comment)?;
    file.sync_all().map_err(failed)?;
    Ok(file.metadata().map_err(failed)?.len())
}
