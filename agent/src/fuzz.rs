//! What the fuzz targets of `agent/fuzz` feed, and the ordinary tests replay their seeds with: bytes from outside, and
//! what must hold of them whatever they are.

use crate::source::http;
use crate::store;
use limpet_model::manifest;
use limpet_model::pod::Severity;
use limpet_model::source::SourceKind;

/// Any bytes as a manifest. What is taken can be kept and comes back as the same pod; what is refused has a reason.
///
/// # Panics
/// When that does not hold.
pub fn manifest(bytes: &[u8]) {
    let (source, node) = (SourceKind::Push, "node");
    let read = manifest::read(bytes, "fuzz", source, node);
    let errors = read.faults.iter().any(|fault| fault.severity == Severity::Error);
    assert!(errors || (read.refused.is_empty() && !read.unknown_pod_refused), "refused without a reason");
    for record in &read.pods {
        let back = manifest::restore(&record.manifest, "fuzz", source, node);
        let Ok(back) = back else { panic!("{} is taken and cannot be read back: {back:?}", record.key) };
        assert_eq!((&back.key, &back.uid, back.fingerprint), (&record.key, &record.uid, record.fingerprint));
        assert_eq!(back.pod, record.pod, "{} is another pod when it is read back", record.key);
        assert_eq!(back.manifest, record.manifest, "the canonical form is not stable");
    }
}

/// Any bytes as a URL's answer; the first one says how it came. It is bounded, refused only with a reason, ends nothing
/// by being refused, and what is taken comes back the same after a restart.
///
/// # Panics
/// When that does not hold.
pub fn answer(bytes: &[u8]) {
    http::check_answer(bytes);
}

/// Any bytes as a record of the database: what is read is what would be written.
///
/// # Panics
/// When that does not hold.
pub fn record(bytes: &[u8]) {
    store::check_record(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Feeds every seed of a target; none is no test.
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
    }
}
