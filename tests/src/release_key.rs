//! A key of releases, and signatures by it in minisign's format, made by openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::process;

const KEY_ID: [u8; 8] = *b"limpet-k";
/// What the DER of an Ed25519 public key ends with.
const KEY_SIZE: usize = 32;

/// A key pair in a directory.
#[derive(Debug)]
pub struct ReleaseKey {
    private: PathBuf,
    public: PathBuf,
}

impl ReleaseKey {
    /// Makes a key pair: `NAME.key` and `NAME.pub`.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        let (private, public) = (dir.join(format!("{name}.key")), dir.join(format!("{name}.pub")));
        process::checked(Command::new("openssl").args(["genpkey", "-algorithm", "ED25519", "-out"]).arg(&private))?;
        let der = dir.join(format!("{name}.der"));
        let mut command = Command::new("openssl");
        command.args(["pkey", "-pubout", "-outform", "DER", "-in"]).arg(&private).arg("-out").arg(&der);
        process::checked(&mut command)?;
        let der = fs::read(&der).with_context(|| der.display().to_string())?;
        let key = &der[der.len().saturating_sub(KEY_SIZE)..];
        let encoded = STANDARD.encode([b"Ed", &KEY_ID[..], key].concat());
        fs::write(&public, format!("untrusted comment: minisign public key\n{encoded}\n"))?;
        Ok(Self { private, public })
    }

    /// The file of the public key.
    pub fn public(&self) -> &Path {
        &self.public
    }

    /// Writes `<file>.minisig`.
    pub fn sign(&self, file: &Path, comment: &str) -> Result<()> {
        let scratch = self.private.with_extension("hash");
        let mut hash = Command::new("openssl");
        hash.args(["dgst", "-blake2b512", "-binary", "-out"]).arg(&scratch).arg(file);
        process::checked(&mut hash)?;
        let signature = self.signature(&fs::read(&scratch)?)?;
        let global = self.signature(&[&signature[..], comment.as_bytes()].concat())?;
        let encoded = STANDARD.encode([b"ED", &KEY_ID[..], &signature].concat());
        let text = format!(
            "untrusted comment: signature\n{encoded}\ntrusted comment: {comment}\n{}\n",
            STANDARD.encode(global)
        );
        let mut name = file.as_os_str().to_owned();
        name.push(".minisig");
        fs::write(PathBuf::from(name), text).with_context(|| file.display().to_string())
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>> {
        let (input, output) = (self.private.with_extension("message"), self.private.with_extension("signature"));
        fs::write(&input, message)?;
        let mut command = Command::new("openssl");
        command.args(["pkeyutl", "-sign", "-rawin", "-inkey"]).arg(&self.private);
        process::checked(command.arg("-in").arg(&input).arg("-out").arg(&output))?;
        fs::read(&output).with_context(|| output.display().to_string())
    }
}
