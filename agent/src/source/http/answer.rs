//! What an answer's bytes stand for: unpacked, told from what holds no manifests, read. No I/O.

use std::io::Read;

use super::failure::Failure;
use limpet_core::source::Decoder;
use limpet_model::manifest::Manifest;
use limpet_model::source::SourceKind;

/// Bytes of an answer, as it comes and unpacked, as kubelet has it.
pub(super) const MAX_BODY: usize = 10 << 20;

/// How an answer's bytes came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// `Content-Encoding`, in lower case.
    pub(super) encoding: Option<String>,
    /// It ends where the connection ends: one that was cut looks the same.
    pub(super) open_ended: bool,
}

impl Form {
    /// Whether [`Self::unpack`] takes time.
    pub(super) fn is_packed(&self) -> bool {
        !matches!(self.encoding.as_deref(), None | Some("" | "identity"))
    }

    /// The bytes the server meant.
    pub(super) fn unpack(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
        match self.encoding.as_deref() {
            None | Some("" | "identity") => {
                if self.open_ended && !bytes.is_empty() && !is_json(&bytes) {
                    let reason = "an answer without Content-Length, which cannot be told from one that was cut";
                    return Err(Failure::refused(reason));
                }
                Ok(bytes)
            }
            Some("gzip" | "x-gzip") => gunzip(&bytes),
            Some(other) => Err(Failure::refused(format!("packed as {other}, which was not asked for"))),
        }
    }
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

fn gunzip(packed: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let limit = MAX_BODY as u64 + 1;
    flate2::read::MultiGzDecoder::new(packed)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::refused(format!("not to be unpacked: {error}")))?;
    if bytes.len() > MAX_BODY {
        return Err(Failure::refused(format!("an answer larger than {} MiB, unpacked", MAX_BODY >> 20)));
    }
    Ok(bytes)
}

/// What the answer holds. One that holds nothing counts only if it says so: an empty list does.
pub(super) fn read(bytes: &[u8], decoder: Decoder, origin: &str, node_name: &str) -> Result<Manifest, Failure> {
    if let Some(reason) = no_manifests(bytes) {
        return Err(Failure::refused(reason));
    }
    let manifest = (decoder.read)(bytes, origin, SourceKind::Http, node_name);
    let holds_nothing = manifest.pods.is_empty() && manifest.faults.is_empty();
    if holds_nothing && !contains(bytes, b"items") {
        return Err(Failure::refused("an answer that holds nothing; an empty list would remove the pods"));
    }
    Ok(manifest)
}

/// Why a whole answer is nothing to be read as manifests; `None`: it may be some.
fn no_manifests(bytes: &[u8]) -> Option<&'static str> {
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"<") {
        return Some("answered with a web page, not with manifests; is a login or proxy in the way?");
    }
    let says_something = |line: &[u8]| {
        let line = line.trim_ascii();
        !(line.is_empty() || line.starts_with(b"#") || line == b"---" || line == b"...")
    };
    let blank = !text.split(|byte| *byte == b'\n').any(says_something);
    blank.then_some("an empty answer; an empty list would remove the pods")
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}
