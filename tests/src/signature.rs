//! Signs images as cosign does, in both of its forms, with keys and signatures that openssl makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::image::{Blob, Image, MANIFEST_TYPE};
use crate::process;
use crate::registry::Registry;

const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// A signer with a key pair in a directory.
#[derive(Debug)]
pub struct Signer {
    private: PathBuf,
    public: PathBuf,
}

/// What a registry keeps of a signature.
#[derive(Debug)]
pub struct SignatureArtifact {
    pub manifest: Blob,
    /// What it refers to.
    pub blobs: Vec<Blob>,
}

impl Signer {
    /// Makes a key pair of the curve P-256: `NAME.key` and `NAME.pub`.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        let (private, public) = (dir.join(format!("{name}.key")), dir.join(format!("{name}.pub")));
        let mut command = Command::new("openssl");
        command.args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]).arg(&private);
        process::checked(&mut command)?;
        process::checked(
            Command::new("openssl").args(["pkey", "-pubout", "-in"]).arg(&private).arg("-out").arg(&public),
        )?;
        Ok(Self { private, public })
    }

    /// The file of the public key.
    pub fn public(&self) -> &Path {
        &self.public
    }

    fn sign(&self, message: &[u8]) -> Result<String> {
        let (file, signature) = (self.private.with_extension("message"), self.private.with_extension("signature"));
        fs::write(&file, message).with_context(|| format!("{}", file.display()))?;
        let mut command = Command::new("openssl");
        command.args(["dgst", "-sha256", "-sign"]).arg(&self.private).arg("-out").arg(&signature).arg(&file);
        process::checked(&mut command)?;
        Ok(STANDARD.encode(fs::read(&signature).with_context(|| format!("{}", signature.display()))?))
    }

    /// A signature as by cosign 2: a payload of simple signing. `claimed` is the digest that it contains afterwards,
    /// instead of the signed one.
    pub fn payload(&self, image: &Image, claimed: Option<&Image>) -> Result<SignatureArtifact> {
        let payload = |image: &Image| {
            json!({
                "critical": {
                    "identity": { "docker-reference": image.name },
                    "image": { "docker-manifest-digest": image.digest() },
                    "type": "cosign container image signature"
                },
                "optional": null
            })
        };
        let signature = self.sign(payload(image).to_string().as_bytes())?;
        let blob = Blob::new(payload(claimed.unwrap_or(image)).to_string().into_bytes());
        let mut layer = blob.descriptor("application/vnd.dev.cosign.simplesigning.v1+json");
        layer["annotations"] = json!({ "dev.cosignproject.cosign/signature": signature });
        Ok(artifact(&layer, blob, &Value::Null))
    }

    /// A signature as by cosign 3: a sigstore bundle that refers to the image.
    pub fn bundle(&self, image: &Image) -> Result<SignatureArtifact> {
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{ "digest": { "sha256": image.manifest.hex } }],
            "predicateType": "https://sigstore.dev/cosign/sign/v1",
            "predicate": {}
        });
        let (kind, payload) = ("application/vnd.in-toto+json", statement.to_string());
        let signature = self.sign(format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len()).as_bytes())?;
        let bundle = json!({
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": { "publicKey": { "hint": "" } },
            "dsseEnvelope": {
                "payload": STANDARD.encode(&payload),
                "payloadType": kind,
                "signatures": [{ "sig": signature }]
            }
        });
        let blob = Blob::new(bundle.to_string().into_bytes());
        Ok(artifact(&blob.descriptor(BUNDLE_TYPE), blob, &image.manifest.descriptor(MANIFEST_TYPE)))
    }
}

fn artifact(layer: &Value, blob: Blob, subject: &Value) -> SignatureArtifact {
    let empty = Blob::new(b"{}".to_vec());
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": empty.descriptor("application/vnd.oci.empty.v1+json"),
        "layers": [layer],
    });
    if !subject.is_null() {
        manifest["artifactType"] = BUNDLE_TYPE.into();
        manifest["subject"] = subject.clone();
    }
    SignatureArtifact { manifest: Blob::new(manifest.to_string().into_bytes()), blobs: vec![empty, blob] }
}

impl SignatureArtifact {
    /// Uploads it under cosign's tag for an image.
    pub fn tag(&self, registry: &Registry, repository: &str, image: &Image) -> Result<()> {
        registry.add_artifact(&self.manifest, &self.blobs, repository, &format!("sha256-{}.sig", image.manifest.hex))
    }

    /// Uploads it as the one that refers to an image, in a registry without the referrers API.
    pub fn refer(&self, registry: &Registry, repository: &str, image: &Image) -> Result<()> {
        registry.add_artifact(&self.manifest, &self.blobs, repository, &format!("untagged-{}", self.manifest.hex))?;
        registry.add_index(&self.referrers(), repository, &format!("sha256-{}", image.manifest.hex))
    }

    /// The list of referrers with this one.
    pub fn referrers(&self) -> Blob {
        let mut entry = self.manifest.descriptor(MANIFEST_TYPE);
        entry["artifactType"] = BUNDLE_TYPE.into();
        Blob::new(
            json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.index.v1+json",
                "manifests": [entry],
            })
            .to_string()
            .into_bytes(),
        )
    }
}
