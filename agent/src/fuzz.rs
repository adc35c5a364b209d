//! The functions of the fuzz targets in `agent/fuzz`, whose seeds the tests replay: they feed bytes to a decoder and
//! check properties that must hold for any input.

use limpet_model::manifest;
use limpet_model::pod::Severity;
use limpet_model::source::SourceKind;
use limpet_server::stream_check;
use limpet_sources::http;
use limpet_wire::spdy::frame;

/// Reads any bytes as a manifest. An accepted manifest can be stored and restored as the same pod; a rejected one has
/// a reason.
///
/// # Panics
///
/// That does not hold.
pub fn manifest(bytes: &[u8]) {
    let (source, node) = (SourceKind::Push, "node");
    let read = manifest::read(bytes, "fuzz", source, node);
    let errors = read.faults.iter().any(|fault| fault.severity == Severity::Error);
    assert!(errors || (read.refused.is_empty() && !read.unknown_pod_refused), "rejected without a reason");
    for record in &read.pods {
        let back = manifest::restore(&record.manifest, "fuzz", source, node);
        let Ok(back) = back else { panic!("{} is accepted and cannot be restored: {back:?}", record.key) };
        assert_eq!((&back.key, &back.uid, back.fingerprint), (&record.key, &record.uid, record.fingerprint));
        assert_eq!(back.pod, record.pod, "{} is restored as another pod", record.key);
        assert_eq!(back.manifest, record.manifest, "the canonical form is not stable");
    }
}

/// Reads any bytes as a URL's response; the first byte selects how it was sent. Its size is limited, it is rejected
/// only with a reason, a rejection stops no pod, and what is accepted is the same after a restart.
///
/// # Panics
///
/// That does not hold.
pub fn answer(bytes: &[u8]) {
    http::check_answer(bytes);
}

/// Reads any bytes as a database record. What is decoded encodes to the same bytes.
///
/// # Panics
///
/// That does not hold.
pub fn record(bytes: &[u8]) {
    limpet_store::check_record(bytes);
}

/// Reads any bytes as frames of a SPDY connection. The frames are the same however the bytes arrive, and bounded.
///
/// # Panics
///
/// That does not hold.
pub fn spdy(bytes: &[u8]) {
    frame::check(bytes);
}

/// Reads any bytes as those of a WebSocket's client, in a protocol that the first byte selects. The messages are the
/// same however the bytes arrive, and what they mean for commands and for ports is bounded.
///
/// # Panics
///
/// That does not hold.
pub fn websocket(bytes: &[u8]) {
    stream_check::check(bytes);
}

/// Reads any bytes as the file of a bundle: its first bytes, its signature, and the rest as if that were valid. What no key
/// has signed is refused, and what is read is bounded.
///
/// # Panics
///
/// That does not hold.
pub fn bundle(bytes: &[u8]) {
    limpet_bundle::check::check_file(bytes);
}

/// Reads any lines as the documents of a bundle that is signed: `@a` in one is the digest of the first, and the last is
/// `index.json`. What is read is bounded, and a refusal has a reason.
///
/// # Panics
///
/// That does not hold.
pub fn bundle_documents(bytes: &[u8]) {
    limpet_bundle::check::check_documents(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Replays every seed of a target; fails if there are none.
    #[allow(clippy::unwrap_used)]
    fn replay(target: &str, feed: fn(&[u8])) {
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
        let dir = Path::new(&here).join("fuzz/seeds").join(target);
        let seeds: Vec<_> = dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!seeds.is_empty(), "{}", dir.display());
        for seed in seeds {
            feed(&std::fs::read(&seed).unwrap());
        }
    }

    #[test]
    fn the_seeds_of_the_fuzz_targets_hold() {
        replay("manifest", super::manifest);
        replay("record", super::record);
        replay("answer", super::answer);
        replay("spdy", super::spdy);
        replay("websocket", super::websocket);
        replay("bundle", super::bundle);
        replay("bundle-documents", super::bundle_documents);
    }
}
