//! A bundle whose signature was checked, as it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use limpet_signature::PublicKeys;
use oci_spec::image::Descriptor;
use zeroize::Zeroizing;

use crate::decision::AppliedBundle;
use crate::document::{
    ARTIFACT_TYPE, BundleConfig, CONFIG_TYPE, IMAGE_NAME, MANIFESTS_TYPE, NAME_RULE, SECRETS_TYPE, is_name,
};
use crate::envelope;
use crate::error::BundleError;
use crate::layout::{Budget, ImageParts, Layout, Listing};
use crate::node_key::{NodeKey, NodeKeyError};
use crate::sealed::{self, SealedSecrets, Unopened};

/// A bundle in a file.
#[derive(Debug)]
pub struct Bundle {
    /// Its name, version and serial, and the images that it brings.
    pub config: BundleConfig,
    /// What a node that has it keeps.
    pub identity: AppliedBundle,
    /// A `List` of Kubernetes, in JSON, without the Secrets that are sealed.
    pub manifests: Vec<u8>,
    /// The Secrets that are sealed to nodes, if some are.
    pub sealed: Option<SealedSecrets>,
    /// The file of the key that signed it; `None`: it was not checked.
    pub key: Option<PathBuf>,
    layout: Layout,
    images: Vec<(String, Descriptor)>,
}

/// An image of a bundle.
#[derive(Debug)]
pub struct ImageInBundle {
    /// The name under which containerd will have it, with its digest.
    pub name: String,
    /// Of its manifest or index.
    pub digest: String,
    /// Digests of the layers of all platforms, with their sizes.
    pub layers: Vec<(String, u64)>,
    /// Its indexes, manifests and configurations, by digest.
    pub documents: BTreeMap<String, Vec<u8>>,
}

impl Bundle {
    /// Opens a bundle of at most `limit` bytes that one of `keys` has signed. Errors call it `shown`.
    ///
    /// # Errors
    /// It is not to be used.
    pub fn open(path: &Path, shown: &Path, keys: &PublicKeys, limit: u64) -> Result<Self, BundleError> {
        let mut file = File::open(path).map_err(BundleError::io("read", path))?;
        let key = envelope::verify(&mut file, shown, keys, limit)?;
        Ok(Self { key: Some(key), ..Self::parse(file, shown)? })
    }

    /// Opens a bundle without a check of its signature: to look into it, and not to use it.
    ///
    /// # Errors
    /// It is none.
    pub fn open_unchecked(path: &Path) -> Result<Self, BundleError> {
        let mut file = File::open(path).map_err(BundleError::io("read", path))?;
        envelope::read_signature(&mut file, path, u64::MAX)?;
        Self::parse(file, path)
    }

    fn parse(file: File, path: &Path) -> Result<Self, BundleError> {
        let layout = Layout::open(file, path, false)?;
        let missing = |what: &str| BundleError::content(path, format!("it has no {what}"));
        let index = layout.index()?.ok_or_else(|| missing("index.json"))?;
        let is_own = |entry: &&Descriptor| {
            entry.artifact_type().as_ref().is_some_and(|artifact| artifact.to_string() == ARTIFACT_TYPE)
        };
        let bundle_entry = index.manifests().iter().find(is_own);
        let bundle_entry = bundle_entry.ok_or_else(|| {
            BundleError::content(path, "it is of a later version of limpet, or of another program: upgrade limpet")
        })?;
        let digest = bundle_entry.digest().to_string();
        let document = |digest: &str, what: &str| layout.document(digest)?.ok_or_else(|| missing(what));
        let unreadable = |error: serde_json::Error| BundleError::content(path, error.to_string());
        let listing = Listing::parse(&document(&digest, "manifest of its own")?);
        let Listing::Manifest(manifest) = listing.map_err(|error| BundleError::content(path, error))? else {
            return Err(missing("manifest of its own"));
        };
        let config = manifest.config();
        if config.media_type().to_string() != CONFIG_TYPE {
            return Err(missing("configuration that this version of limpet reads: upgrade limpet"));
        }
        let config: BundleConfig =
            serde_json::from_slice(&document(config.digest().as_ref(), "configuration")?).map_err(unreadable)?;
        if !is_name(&config.name) || !is_name(&config.version) {
            return Err(BundleError::content(path, format!("its name or version has not {NAME_RULE}")));
        }
        let listed = manifest.layers().iter().find(|layer| layer.media_type().to_string() == MANIFESTS_TYPE);
        let listed = listed.ok_or_else(|| missing("manifests"))?;
        let manifests = document(listed.digest().as_ref(), "manifests")?;
        let sealed = manifest.layers().iter().find(|layer| layer.media_type().to_string() == SECRETS_TYPE);
        let sealed = sealed.map(|sealed| document(sealed.digest().as_ref(), "Secrets")).transpose()?;
        let sealed = sealed.map(|sealed| serde_json::from_slice(&sealed)).transpose().map_err(unreadable)?;
        let name = |entry: &Descriptor| entry.annotations().as_ref()?.get(IMAGE_NAME).cloned();
        let images = index.manifests().iter().filter_map(|entry| Some((name(entry)?, entry.clone()))).collect();
        let identity = AppliedBundle::new(&config, &digest);
        Ok(Self { config, identity, manifests, sealed, key: None, layout, images })
    }

    /// The `List` of everything, with the Secrets that are sealed to the node. `key` is called if there are some.
    ///
    /// # Errors
    /// They are sealed to other nodes, or the key cannot be read.
    pub fn open_manifests(
        &self,
        key: impl FnOnce() -> Result<NodeKey, NodeKeyError>,
    ) -> Result<Zeroizing<Vec<u8>>, BundleError> {
        let path = &self.layout.path;
        let Some(sealed) = &self.sealed else { return Ok(Zeroizing::new(self.manifests.clone())) };
        let key = key()?;
        let purpose = sealed::purpose(&self.config.name, self.config.serial);
        let secrets = sealed.open(&key, &purpose).map_err(|unopened| match unopened {
            Unopened::ForOthers => BundleError::SealedToOthers { path: path.clone(), key: key.public().id() },
            Unopened::Changed => BundleError::content(
                path,
                "its Secrets cannot be opened with the key of this node, to which they are said to be sealed: they are of \
                 another bundle, or were changed; create it again",
            ),
        })?;
        // The error of the parser could show a part of a Secret.
        let unreadable =
            |_| BundleError::content(path, "its manifests, or the Secrets in it, are no list of Kubernetes");
        sealed::merged(&[&self.manifests, &secrets]).map_err(unreadable)
    }

    /// Its images, with the layers that each needs.
    ///
    /// # Errors
    /// A document of an image is missing or broken.
    pub fn images(&self) -> Result<Vec<ImageInBundle>, BundleError> {
        let mut budget = Budget::default();
        let image = |(name, target): &(String, Descriptor)| {
            let ImageParts { documents, layers } = self.layout.image(target, &mut budget)?;
            let layers = layers.into_iter().collect();
            Ok(ImageInBundle { name: name.clone(), digest: target.digest().to_string(), layers, documents })
        };
        self.images.iter().map(image).collect()
    }

    /// The digests of everything in the file.
    pub fn blobs(&self) -> BTreeSet<String> {
        self.layout.blobs.keys().cloned().collect()
    }

    /// Whether the layer is in the file.
    pub fn contains(&self, digest: &str) -> bool {
        self.layout.blobs.contains_key(digest)
    }
}
