//! OCI images built from a static busybox, this machine's or another one's: small, without a network, and different where
//! a test needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{process, tools};

/// The first version of the image that most tests run; its `/version` is `1`.
pub const V1: &str = "registry.test/limpet/demo:v1";
/// The second version; its `/version` is `2`.
pub const V2: &str = "registry.test/limpet/demo:v2";

/// The image that holds a pod's namespaces in a CRI runtime.
pub const PAUSE: &str = "registry.test/limpet/pause:v1";

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
const GZIP_LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const ZSTD_LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const DOCKER_ZSTD_LAYER_TYPE: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";
/// The media type of the manifests built here.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// Bytes with their digest.
#[derive(Debug, Clone)]
pub struct Blob {
    /// Hexadecimal SHA-256.
    pub hex: String,
    /// The content.
    pub bytes: Vec<u8>,
}

impl Blob {
    /// The bytes with their digest.
    pub fn new(bytes: Vec<u8>) -> Self {
        let hex = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { hex, bytes }
    }

    /// `sha256:…`
    pub fn digest(&self) -> String {
        format!("sha256:{}", self.hex)
    }

    fn gzip(&self) -> Result<Self> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&self.bytes)?;
        Ok(Self::new(gzip.finish()?))
    }

    fn zstd(&self) -> Self {
        Self::new(compress_to_vec(self.bytes.as_slice(), CompressionLevel::Fastest))
    }

    pub(crate) fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": self.digest(), "size": self.bytes.len() })
    }
}

/// A built image.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its full name: `registry.test/limpet/demo:v1`.
    pub name: String,
    /// The image manifest.
    pub manifest: Blob,
    /// The image configuration.
    pub config: Blob,
    /// The layers as stored, lowest first.
    pub layers: Vec<Blob>,
    /// The digests of the unpacked layers.
    diff_ids: Vec<String>,
}

impl Image {
    /// `sha256:…` of the manifest.
    pub fn digest(&self) -> String {
        self.manifest.digest()
    }

    /// containerd's name for the snapshot of all layers.
    pub fn chain_id(&self) -> String {
        let chain = |below: String, layer: &String| Blob::new(format!("{below} {layer}").into_bytes()).digest();
        self.diff_ids.iter().cloned().reduce(|below, layer| chain(below, &layer)).unwrap_or_default()
    }

    /// The same layers with a configuration that claims those of another image.
    pub fn claiming(&self, other: &Self) -> Result<Self> {
        let mut config: Value = serde_json::from_slice(&self.config.bytes)?;
        config["rootfs"]["diff_ids"] = json!(other.diff_ids);
        let config = Blob::new(serde_json::to_vec(&config)?);
        let mut manifest: Value = serde_json::from_slice(&self.manifest.bytes)?;
        manifest["config"] = config.descriptor(CONFIG_TYPE);
        let manifest = Blob::new(serde_json::to_vec(&manifest)?);
        Ok(Self { manifest, config, diff_ids: other.diff_ids.clone(), ..self.clone() })
    }

    /// An index with the image for this machine, and one for another machine whose manifest does not exist.
    pub fn index(&self) -> Blob {
        let mut descriptor = self.manifest.descriptor(MANIFEST_TYPE);
        descriptor["platform"] = json!({ "os": "linux", "architecture": architecture() });
        index_of(&[foreign(), descriptor])
    }

    /// The same with a configuration for that system and architecture.
    pub fn for_platform(&self, os: &str, architecture: &str) -> Result<Self> {
        let mut config: Value = serde_json::from_slice(&self.config.bytes)?;
        (config["os"], config["architecture"]) = (os.into(), architecture.into());
        let config = Blob::new(serde_json::to_vec(&config)?);
        let mut manifest: Value = serde_json::from_slice(&self.manifest.bytes)?;
        manifest["config"] = config.descriptor(CONFIG_TYPE);
        Ok(Self { manifest: Blob::new(serde_json::to_vec(&manifest)?), config, ..self.clone() })
    }

    fn is_compressed(&self) -> bool {
        self.layers.iter().map(Blob::digest).ne(self.diff_ids.iter().cloned())
    }
}

/// An index of images, each with the system and the architecture that it is for; this machine's is `None`.
pub fn index_of_platforms(images: &[(&Image, Option<(&str, &str)>)]) -> Blob {
    let entry = |(image, platform): &(&Image, Option<(&str, &str)>)| {
        let (os, architecture) = platform.unwrap_or(("linux", architecture()));
        let mut entry = image.manifest.descriptor(MANIFEST_TYPE);
        entry["platform"] = json!({ "os": os, "architecture": architecture });
        entry
    };
    index_of(&images.iter().map(entry).collect::<Vec<_>>())
}

/// An index without an image for this machine.
pub fn foreign_index() -> Blob {
    index_of(&[foreign()])
}

fn index_of(manifests: &[Value]) -> Blob {
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests });
    Blob::new(index.to_string().into_bytes())
}

/// An entry for another machine.
fn foreign() -> Value {
    let mut foreign = Blob::new(b"foreign".to_vec()).descriptor(MANIFEST_TYPE);
    foreign["platform"] = json!({ "os": "linux", "architecture": "s390x" });
    foreign
}

/// Bytes that do not compress, the same for the same `seed` (xorshift).
pub fn noise(seed: &str, size: usize) -> Vec<u8> {
    let digest = Sha256::digest(seed);
    let mut state = digest.iter().take(8).fold(1_u64, |state, byte| (state << 8) | u64::from(*byte)) | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..size.div_ceil(8)).flat_map(|_| word().to_le_bytes()).take(size).collect()
}

/// How layers are compressed.
#[derive(Debug, Clone, Copy)]
enum LayerCompression {
    Gzip,
    Zstd,
    DockerZstd,
}

/// A machine with another processor, for which an image is built.
#[derive(Debug, Clone)]
pub struct OtherMachine {
    /// Go's name for its architecture.
    pub architecture: &'static str,
    /// Its statically linked busybox, with at least the applets of this machine's.
    pub busybox: PathBuf,
}

/// What an image contains besides busybox.
#[derive(Debug, Default)]
pub struct ImageBuilder {
    name: String,
    machine: Option<OtherMachine>,
    files: Vec<(String, Vec<u8>, u32)>,
    links: Vec<(String, String)>,
    layers: Vec<(String, Vec<u8>)>,
    config: serde_json::Map<String, Value>,
    compression: Option<LayerCompression>,
    bare: bool,
}

impl ImageBuilder {
    /// An image called `name` (registry, repository and tag).
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Builds it for that machine; for `None`, for this one.
    pub fn machine(mut self, machine: Option<&OtherMachine>) -> Self {
        self.machine = machine.cloned();
        self
    }

    /// Adds a file; `path` is relative to the root.
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.files.push((path.trim_start_matches('/').to_owned(), content.into(), mode));
        self
    }

    /// Adds a program of this machine, with the libraries that it needs; `path` is relative to the root.
    pub fn machine_program(mut self, path: &str, name: &str) -> Result<Self> {
        let program = tools::on_path(name).with_context(|| format!("no {name} here"))?;
        let content = fs::read(&program).with_context(|| format!("{}", program.display()))?;
        self = self.file(path, content, 0o755);
        for library in linked(&[program])? {
            let content = fs::read(&library).with_context(|| format!("{}", library.display()))?;
            self = self.file(&library.to_string_lossy(), content, 0o755);
        }
        Ok(self)
    }

    /// Adds a symbolic link to `target`; `path` is relative to the root.
    pub fn symlink(mut self, path: &str, target: &str) -> Self {
        self.links.push((path.to_owned(), target.to_owned()));
        self
    }

    /// Adds a layer above all others that consists of a file; `path` is relative to the root.
    pub fn layer(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.layers.push((path.to_owned(), content.into()));
        self
    }

    /// Sets a key of the image's configuration: `Cmd`, `Env`, `User`, `WorkingDir`…
    pub fn config(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    /// Leaves out busybox, so that there are only the added files.
    pub fn bare(mut self) -> Self {
        self.bare = true;
        self
    }

    /// Stores its layers compressed.
    pub fn gzip(mut self) -> Self {
        self.compression = Some(LayerCompression::Gzip);
        self
    }

    /// Stores its layers compressed with zstd, as OCI's layers or, with `docker`, as docker's.
    pub fn zstd(mut self, docker: bool) -> Self {
        self.compression = Some(if docker { LayerCompression::DockerZstd } else { LayerCompression::Zstd });
        self
    }

    pub fn build(self) -> Result<Image> {
        let mut layers = match &self.machine {
            _ if self.bare => Vec::new(),
            None => vec![busybox_layer()?],
            Some(machine) => vec![layer_with(&machine.busybox)?],
        };
        if !self.files.is_empty() || !self.links.is_empty() {
            let mut layer = Layer::default();
            for (path, content, mode) in &self.files {
                layer.file(path, content, *mode)?;
            }
            for (path, target) in &self.links {
                layer.symlink(path, target)?;
            }
            layers.push(layer.finish()?);
        }
        for (path, content) in &self.layers {
            let mut layer = Layer::default();
            layer.file(path, content, 0o644)?;
            layers.push(layer.finish()?);
        }
        let mut config = self.config;
        config.entry("Cmd").or_insert_with(|| json!(["/bin/sh"]));
        config.entry("Env").or_insert_with(|| json!(["PATH=/usr/bin:/bin"]));
        let diff_ids: Vec<_> = layers.iter().map(Blob::digest).collect();
        let config = json!({
            "architecture": self.machine.map_or_else(architecture, |machine| machine.architecture),
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = Blob::new(serde_json::to_vec(&config)?);
        let (layers, layer_type) = match self.compression {
            None => (layers, LAYER_TYPE),
            Some(LayerCompression::Gzip) => {
                (layers.iter().map(Blob::gzip).collect::<Result<Vec<_>>>()?, GZIP_LAYER_TYPE)
            }
            Some(LayerCompression::Zstd) => (layers.iter().map(Blob::zstd).collect(), ZSTD_LAYER_TYPE),
            Some(LayerCompression::DockerZstd) => (layers.iter().map(Blob::zstd).collect(), DOCKER_ZSTD_LAYER_TYPE),
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config.descriptor(CONFIG_TYPE),
            "layers": layers.iter().map(|layer| layer.descriptor(layer_type)).collect::<Vec<_>>(),
        });
        let manifest = Blob::new(serde_json::to_vec(&manifest)?);
        Ok(Image { name: self.name, manifest, config, layers, diff_ids })
    }
}

/// The libraries that programs or other libraries need.
pub(crate) fn linked(files: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let said = process::output("ldd", files)?;
    let paths = said.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    Ok(paths.map(PathBuf::from).collect())
}

/// The two versions of the demo image.
pub fn demo_images() -> Result<[Image; 2]> {
    demo_images_for(None)
}

/// The same for another machine, if one is given.
pub fn demo_images_for(machine: Option<&OtherMachine>) -> Result<[Image; 2]> {
    let version = |name, number: &str| {
        ImageBuilder::new(name)
            .machine(machine)
            .file("version", format!("{number}\n"), 0o644)
            .config("Env", json!(["PATH=/usr/bin:/bin", format!("VERSION={number}")]))
            .build()
    };
    Ok([version(V1, "1")?, version(V2, "2")?])
}

/// The image of pause containers.
pub fn pause_image() -> Result<Image> {
    ImageBuilder::new(PAUSE).config("Cmd", json!(["/bin/sleep", "2147483647"])).build()
}

/// Writes `images` as one OCI layout archive.
pub fn write_oci_archive(images: &[&Image], path: &Path) -> Result<()> {
    let roots = images.iter().map(|image| {
        let mut descriptor = image.manifest.descriptor(MANIFEST_TYPE);
        descriptor["annotations"] = json!({
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rsplit(':').next(),
        });
        (image.manifest.clone(), descriptor)
    });
    write_layout(images, &roots.collect::<Vec<_>>(), path)
}

/// The same with each image behind its index, and named only in OCI's way.
pub fn write_oci_archive_of_indexes(images: &[&Image], path: &Path) -> Result<()> {
    let roots = images.iter().map(|image| {
        let mut descriptor = image.index().descriptor(INDEX_TYPE);
        descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": image.name });
        (image.index(), descriptor)
    });
    write_layout(images, &roots.collect::<Vec<_>>(), path)
}

/// `roots` are the entries of the archive's own index, each with its annotations.
fn write_layout(images: &[&Image], roots: &[(Blob, Value)], path: &Path) -> Result<()> {
    let descriptors: Vec<_> = roots.iter().map(|(_, descriptor)| descriptor.clone()).collect();
    let mut archive = Layer::default();
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    archive.file("index.json", &index_of(&descriptors).bytes, 0o644)?;
    let blobs = images.iter().flat_map(|image| [&image.manifest, &image.config].into_iter().chain(&image.layers));
    let mut written = BTreeSet::new();
    for blob in roots.iter().map(|(root, _)| root).chain(blobs) {
        if written.insert(&blob.hex) {
            archive.file(&format!("blobs/sha256/{}", blob.hex), &blob.bytes, 0o644)?;
        }
    }
    archive.write_to(path)
}

/// Writes `images` as `docker save` did before version 25: a layer that was written before becomes a link.
pub fn write_docker_archive(images: &[&Image], path: &Path) -> Result<()> {
    let mut archive = Layer::default();
    let mut entries = Vec::new();
    let mut written = BTreeMap::new();
    for image in images {
        ensure!(!image.is_compressed(), "docker save does not compress the layers of {}", image.name);
        archive.file(&format!("{}.json", image.config.hex), &image.config.bytes, 0o644)?;
        let mut files = Vec::new();
        for (number, layer) in image.layers.iter().enumerate() {
            let file = format!("{}-{number}/layer.tar", image.config.hex);
            match written.get(&layer.hex) {
                Some(first) => archive.symlink(&file, &format!("../{first}"))?,
                None => {
                    archive.file(&file, &layer.bytes, 0o644)?;
                    written.insert(&layer.hex, file.clone());
                }
            }
            files.push(file);
        }
        let config = format!("{}.json", image.config.hex);
        entries.push(json!({ "Config": config, "RepoTags": [image.name], "Layers": files }));
    }
    archive.file("manifest.json", &serde_json::to_vec(&entries)?, 0o644)?;
    archive.write_to(path)
}

/// Writes `images` like crane, ko, kaniko and others that share a library: files named by their digests, the list
/// last.
pub fn write_crane_archive(images: &[&Image], path: &Path) -> Result<()> {
    let mut archive = Layer::default();
    let mut entries = Vec::new();
    let mut written = BTreeSet::new();
    for image in images {
        archive.file(&image.config.digest(), &image.config.bytes, 0o644)?;
        let files: Vec<_> = image.layers.iter().map(|layer| format!("{}.tar.gz", layer.hex)).collect();
        for (file, layer) in files.iter().zip(&image.layers) {
            if written.insert(&layer.hex) {
                archive.file(file, &layer.bytes, 0o644)?;
            }
        }
        entries.push(json!({ "Config": image.config.digest(), "RepoTags": [image.name], "Layers": files }));
    }
    archive.file("manifest.json", &serde_json::to_vec(&entries)?, 0o644)?;
    archive.write_to(path)
}

/// Go's name for this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// The layer with this machine's busybox; its bytes are always the same.
fn busybox_layer() -> Result<Blob> {
    static LAYER: OnceLock<Blob> = OnceLock::new();
    if let Some(layer) = LAYER.get() {
        return Ok(layer.clone());
    }
    let layer = layer_with(&machine_busybox()?)?;
    Ok(LAYER.get_or_init(|| layer).clone())
}

fn machine_busybox() -> Result<PathBuf> {
    tools::busybox().context("no statically linked busybox here; run: cargo xtask setup")
}

/// `busybox`, a link for each applet of this machine's one, and the few files that programs expect.
fn layer_with(busybox: &Path) -> Result<Blob> {
    let mut layer = Layer::default();
    for dir in ["bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "var"] {
        layer.directory(dir, if dir == "tmp" { 0o1777 } else { 0o755 })?;
    }
    layer.file("bin/busybox", &fs::read(busybox).with_context(|| format!("{}", busybox.display()))?, 0o755)?;
    let applets = process::checked(Command::new(machine_busybox()?).arg("--list"))?;
    for applet in applets.lines().filter(|name| *name != "busybox") {
        layer.symlink(&format!("bin/{applet}"), "busybox")?;
    }
    layer.file("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/tmp:/bin/sh\n", 0o644)?;
    layer.file("etc/group", b"root:x:0:\napp:x:1000:\nserial:x:2000:app\nvideo:x:2001:app,other\n", 0o644)?;
    layer.finish()
}

/// A tar stream that is being built, and does not depend on the time.
struct Layer {
    tar: tar::Builder<Vec<u8>>,
}

impl Default for Layer {
    fn default() -> Self {
        Self { tar: tar::Builder::new(Vec::new()) }
    }
}

impl Layer {
    fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header
    }

    fn file(&mut self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        let mut header = Self::header(tar::EntryType::Regular, mode, content.len());
        self.tar.append_data(&mut header, path, content).with_context(|| format!("add {path}"))
    }

    fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        let mut header = Self::header(tar::EntryType::Directory, mode, 0);
        self.tar.append_data(&mut header, format!("{path}/"), &[][..]).with_context(|| format!("add {path}"))
    }

    fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        let mut header = Self::header(tar::EntryType::Symlink, 0o777, 0);
        self.tar.append_link(&mut header, path, target).with_context(|| format!("add {path}"))
    }

    fn into_bytes(self) -> Result<Vec<u8>> {
        self.tar.into_inner().context("finish a tar stream")
    }

    fn finish(self) -> Result<Blob> {
        self.into_bytes().map(Blob::new)
    }

    /// Writes the stream beside `path` and renames it, so that no reader sees half of it.
    fn write_to(self, path: &Path) -> Result<()> {
        let name = path.file_name().context("an archive needs a file name")?.to_string_lossy().into_owned();
        let partial = path.with_file_name(format!(".{name}.partial"));
        fs::write(&partial, self.into_bytes()?).with_context(|| format!("{}", partial.display()))?;
        fs::rename(&partial, path).with_context(|| format!("{}", path.display()))
    }
}
