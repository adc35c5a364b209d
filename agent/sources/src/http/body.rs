//! Decodes a response body: decompresses it, recognizes bodies without manifests, and reads the manifests. No I/O.

use std::io::Read;

use super::failure::Failure;
use limpet_core::source::Decoder;
use limpet_model::manifest::Manifest;
use limpet_model::pod::encoding;
use limpet_model::source::SourceKind;

/// The limit of a response body, compressed and decompressed, as in kubelet.
pub(super) const MAX_BODY: usize = 10 << 20;

/// How a response body was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BodyFormat {
    /// `Content-Encoding`, in lower case because its names are compared without regard to case.
    pub(super) encoding: Option<String>,
    /// Whether its end is only the end of the connection, so that a truncated body looks the same.
    pub(super) open_ended: bool,
}

impl BodyFormat {
    /// Whether the body is its own content, with nothing to decompress or to check.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.encoding.as_deref(), None | Some("" | "identity")) && !self.open_ended
    }

    /// Decompresses the body, and refuses one that may be truncated.
    pub(super) fn decode(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
        match self.encoding.as_deref() {
            None | Some("" | "identity") => {
                if self.open_ended && !bytes.is_empty() && !is_json(&bytes) {
                    let reason = "a response without Content-Length, which may be truncated";
                    return Err(Failure::bad_response(reason));
                }
                Ok(bytes)
            }
            Some("gzip" | "x-gzip") => gunzip(&bytes),
            Some(other) => Err(Failure::bad_response(format!("compressed as {other}, which was not requested"))),
        }
    }
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

fn gunzip(compressed: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let limit = MAX_BODY as u64 + 1;
    flate2::read::MultiGzDecoder::new(compressed)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::bad_response(format!("cannot decompress: {error}")))?;
    if bytes.len() > MAX_BODY {
        return Err(Failure::bad_response(format!("a response larger than {} MiB, decompressed", MAX_BODY >> 20)));
    }
    Ok(bytes)
}

/// The manifests in a body. An empty result counts only if the body is explicit about it, as an empty list is.
pub(super) fn read(bytes: &[u8], decoder: Decoder, origin: &str, node_name: &str) -> Result<Manifest, Failure> {
    let bytes = &*encoding::utf8(bytes);
    if let Some(reason) = no_manifests(bytes) {
        return Err(Failure::bad_response(reason));
    }
    let manifest = decoder.read(bytes, origin, SourceKind::Http, node_name);
    let has_workloads = manifest.objects.iter().any(|object| object.key.kind.is_workload());
    let holds_nothing =
        manifest.pods.is_empty() && !has_workloads && manifest.left_out == 0 && manifest.faults.is_empty();
    if holds_nothing && !contains(bytes, b"items") {
        return Err(Failure::bad_response("a response that holds nothing; an empty list would remove the pods"));
    }
    Ok(manifest)
}

/// Why a complete body cannot be manifests; `None` if it may be.
fn no_manifests(bytes: &[u8]) -> Option<&'static str> {
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"<") {
        return Some("answered with a web page, not with manifests; is a login or proxy in the way?");
    }
    let has_content = |line: &[u8]| {
        let line = line.trim_ascii();
        !(line.is_empty() || line.starts_with(b"#") || line == b"---" || line == b"...")
    };
    let blank = !text.split(|byte| *byte == b'\n').any(has_content);
    blank.then_some("an empty response; an empty list would remove the pods")
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}
