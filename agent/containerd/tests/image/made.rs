//! Generated test images: two layers, one of them of any size and not compressible.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A blob with its digest.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) size: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Blob {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { digest: sha256(&bytes), size: bytes.len() as u64, bytes }
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.size})
    }
}

pub(crate) struct Made {
    pub(crate) layers: Vec<Blob>,
    /// The layers as they are unpacked.
    tars: Vec<Vec<u8>>,
    pub(crate) config: Blob,
    pub(crate) manifest: Blob,
    pub(crate) index: Blob,
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn layer(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(*mode);
        tar.append_data(&mut header, name, *bytes).unwrap();
    }
    tar.into_inner().unwrap()
}

/// Incompressible bytes, the same for the same seed.
fn noise(seed: &str, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size + 32);
    let mut state = Sha256::digest(seed);
    while bytes.len() < size {
        state = Sha256::digest(state);
        bytes.extend_from_slice(&state);
    }
    bytes.truncate(size);
    bytes
}

impl Made {
    /// An image that is unique for its `seed`, with `size` bytes of noise.
    pub(crate) fn new(seed: &str, size: usize) -> Self {
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().find_map(|path| std::fs::read(path).ok());
        let busybox = busybox.unwrap_or_else(|| b"#!/bin/sh\n".to_vec());
        let noise = noise(seed, size);
        let tars = vec![layer(&[("bin/busybox", &busybox, 0o755)]), layer(&[("etc/made", &noise, 0o644)])];
        let layers: Vec<Blob> = tars
            .iter()
            .map(|tar| {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gzip.write_all(tar).unwrap();
                Blob::new(gzip.finish().unwrap())
            })
            .collect();
        let diff_ids: Vec<String> = tars.iter().map(|tar| sha256(tar)).collect();
        let config = Blob::new(
            json!({
                "architecture": architecture(), "os": "linux",
                "config": {"Cmd": ["sh"], "Env": ["PATH=/bin"], "Entrypoint": null},
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
            })
            .to_string()
            .into_bytes(),
        );
        let layer_type = "application/vnd.oci.image.layer.v1.tar+gzip";
        let descriptors: Vec<Value> = layers.iter().map(|layer| layer.descriptor(layer_type)).collect();
        let manifest = Blob::new(
            json!({
                "schemaVersion": 2, "mediaType": MANIFEST,
                "config": config.descriptor("application/vnd.oci.image.config.v1+json"), "layers": descriptors,
            })
            .to_string()
            .into_bytes(),
        );
        let mut own = manifest.descriptor(MANIFEST);
        own["platform"] = json!({"os": "linux", "architecture": architecture()});
        let index = Blob::new(
            json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [foreign(), own]}).to_string().into_bytes(),
        );
        Self { layers, tars, config, manifest, index }
    }

    pub(crate) fn index_digest(&self) -> String {
        self.index.digest.clone()
    }

    pub(crate) fn config_digest(&self) -> String {
        self.config.digest.clone()
    }

    pub(crate) fn chain_id(&self) -> String {
        let ids: Vec<String> = self.tars.iter().map(|tar| sha256(tar)).collect();
        sha256(format!("{} {}", ids[0], ids[1]).as_bytes())
    }

    /// In the format of `docker save` before version 25, one layer behind a link.
    pub(crate) fn docker_save(&self, path: &Path, name: &str) {
        let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, bytes).unwrap();
        };
        add("0/VERSION", b"1.0");
        add("0/layer.tar", &self.tars[0]);
        add("1/layer.tar", &self.tars[1]);
        let config = format!("{}.json", &self.config.digest[7..]);
        add(&config, &self.config.bytes);
        let list = json!([{"Config": config, "RepoTags": [name], "Layers": ["0/layer.tar", "2/layer.tar"]}]);
        add("manifest.json", list.to_string().as_bytes());
        let mut link = tar::Header::new_ustar();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        tar.append_link(&mut link, "2/layer.tar", "../1/layer.tar").unwrap();
        tar.finish().unwrap();
    }

    /// As an OCI layout: the image is the index, of which one manifest exists.
    pub(crate) fn oci_layout(&self, path: &Path, name: &str) {
        let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, bytes).unwrap();
        };
        add("oci-layout", br#"{"imageLayoutVersion": "1.0.0"}"#);
        for blob in self.layers.iter().chain([&self.config, &self.manifest, &self.index]) {
            add(&format!("blobs/sha256/{}", &blob.digest[7..]), &blob.bytes);
        }
        let mut descriptor = self.index.descriptor(INDEX);
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        add("index.json", json!({"schemaVersion": 2, "manifests": [descriptor]}).to_string().as_bytes());
        tar.finish().unwrap();
    }
}

/// An entry for another platform, whose manifest does not exist.
pub(crate) fn foreign() -> Value {
    json!({"mediaType": MANIFEST, "digest": sha256(b"foreign"), "size": 7,
        "platform": {"os": "linux", "architecture": "s390x"}})
}
