//! OCI images built from the machine's static busybox: small, without a network, different where a test needs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{process, tools};

/// The first version of the image most tests run; `/version` in it says `1`.
pub const V1: &str = "registry.test/limpet/demo:v1";
/// The second version; `/version` in it says `2`.
pub const V2: &str = "registry.test/limpet/demo:v2";

/// What holds a pod's namespaces where a CRI runtime runs it.
pub const PAUSE: &str = "registry.test/limpet/pause:v1";

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
/// The media type of the manifests built here.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// Bytes and the digest they are known by.
#[derive(Debug, Clone)]
pub struct Blob {
    /// Hexadecimal SHA-256.
    pub hex: String,
    /// The content.
    pub bytes: Vec<u8>,
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        let hex = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { hex, bytes }
    }

    /// `sha256:…`
    pub fn digest(&self) -> String {
        format!("sha256:{}", self.hex)
    }

    fn descriptor(&self, media_type: &str) -> Value {
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
    /// The layers, lowest first, uncompressed.
    pub layers: Vec<Blob>,
}

/// What an image is to hold beside busybox.
#[derive(Debug, Default)]
pub struct ImageBuilder {
    name: String,
    files: Vec<(String, Vec<u8>, u32)>,
    config: serde_json::Map<String, Value>,
}

impl ImageBuilder {
    /// An image called `name` (registry, repository and tag).
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Adds a file; `path` is relative to the root.
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.files.push((path.trim_start_matches('/').to_owned(), content.into(), mode));
        self
    }

    /// Sets a key of the image's configuration: `Cmd`, `Env`, `User`, `WorkingDir`…
    pub fn config(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    /// Builds it.
    pub fn build(self) -> Result<Image> {
        let mut layers = vec![busybox_layer()?];
        if !self.files.is_empty() {
            let mut layer = Layer::default();
            for (path, content, mode) in &self.files {
                layer.file(path, content, *mode)?;
            }
            layers.push(layer.finish()?);
        }
        let mut config = self.config;
        config.entry("Cmd").or_insert_with(|| json!(["/bin/sh"]));
        config.entry("Env").or_insert_with(|| json!(["PATH=/usr/bin:/bin"]));
        let diff_ids: Vec<_> = layers.iter().map(Blob::digest).collect();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = Blob::new(serde_json::to_vec(&config)?);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config.descriptor(CONFIG_TYPE),
            "layers": layers.iter().map(|layer| layer.descriptor(LAYER_TYPE)).collect::<Vec<_>>(),
        });
        Ok(Image { name: self.name, manifest: Blob::new(serde_json::to_vec(&manifest)?), config, layers })
    }
}

/// The two versions of the demo image.
pub fn demo_images() -> Result<[Image; 2]> {
    let version = |name, number: &str| {
        ImageBuilder::new(name)
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
    let manifests: Vec<_> = images
        .iter()
        .map(|image| {
            let mut descriptor = image.manifest.descriptor(MANIFEST_TYPE);
            descriptor["annotations"] = json!({
                "io.containerd.image.name": image.name,
                "org.opencontainers.image.ref.name": image.name.rsplit(':').next(),
            });
            descriptor
        })
        .collect();
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    let mut archive = Layer::default();
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    archive.file("index.json", &serde_json::to_vec(&index)?, 0o644)?;
    let mut written = BTreeSet::new();
    for image in images {
        for blob in [&image.manifest, &image.config].into_iter().chain(&image.layers) {
            if written.insert(&blob.hex) {
                archive.file(&format!("blobs/sha256/{}", blob.hex), &blob.bytes, 0o644)?;
            }
        }
    }
    archive.write_to(path)
}

/// Writes `images` as `docker save` does.
pub fn write_docker_archive(images: &[&Image], path: &Path) -> Result<()> {
    let mut archive = Layer::default();
    let mut entries = Vec::new();
    let mut written = BTreeSet::new();
    for image in images {
        archive.file(&format!("{}.json", image.config.hex), &image.config.bytes, 0o644)?;
        let layers: Vec<_> = image.layers.iter().map(|layer| format!("{}/layer.tar", layer.hex)).collect();
        for (layer, file) in image.layers.iter().zip(&layers) {
            if written.insert(file.clone()) {
                archive.file(file, &layer.bytes, 0o644)?;
            }
        }
        let config = format!("{}.json", image.config.hex);
        entries.push(json!({ "Config": config, "RepoTags": [image.name], "Layers": layers }));
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

/// busybox, a link for each of its applets, and the few files programs expect. The same bytes every time.
fn busybox_layer() -> Result<Blob> {
    static LAYER: OnceLock<Blob> = OnceLock::new();
    if let Some(layer) = LAYER.get() {
        return Ok(layer.clone());
    }
    let busybox = tools::busybox().context("no statically linked busybox here; run: cargo xtask setup")?;
    let mut layer = Layer::default();
    for dir in ["bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "var"] {
        layer.directory(dir, if dir == "tmp" { 0o1777 } else { 0o755 })?;
    }
    layer.file("bin/busybox", &fs::read(&busybox)?, 0o755)?;
    for applet in process::checked(Command::new(&busybox).arg("--list"))?.lines().filter(|name| *name != "busybox") {
        layer.symlink(&format!("bin/{applet}"), "busybox")?;
    }
    layer.file("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/tmp:/bin/sh\n", 0o644)?;
    layer.file("etc/group", b"root:x:0:\napp:x:1000:\nserial:x:2000:app\nvideo:x:2001:app,other\n", 0o644)?;
    Ok(LAYER.get_or_init(|| Blob::new(layer.into_bytes().unwrap_or_default())).clone())
}

/// A tar stream in the making, with nothing in it that depends on when it was made.
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

    /// Writes the stream beside `path` and renames it there, so that nobody reads half of it.
    fn write_to(self, path: &Path) -> Result<()> {
        let name = path.file_name().context("an archive needs a file name")?.to_string_lossy().into_owned();
        let partial = path.with_file_name(format!(".{name}.partial"));
        fs::write(&partial, self.into_bytes()?).with_context(|| format!("{}", partial.display()))?;
        fs::rename(&partial, path).with_context(|| format!("{}", path.display()))
    }
}
