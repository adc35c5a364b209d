//! The archive of a support bundle: a bounded, gzip-compressed tar that is written as parts arrive.

use std::fmt::Display;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::redaction;

/// The most bytes of one document; the rest is cut off, which `CONTENTS` notes.
const MAX_ENTRY: usize = 4 << 20;
/// The most bytes of all documents before compression.
const MAX_TOTAL: usize = 128 << 20;

/// The text above the list of contents.
const PREFACE: &str = "\
A support bundle of limpet. It was made without Secrets, ConfigMaps, values of environment variables, values of
annotations, arguments of commands, request headers, kubeconfigs, TLS keys and credentials of registries; none of these
files was opened. Where such a value stood there is now <redacted>. Logs, events and messages hold what programs
printed: what looks like a credential was taken out of them.
";

pub(super) struct Archive<W: Write> {
    tar: tar::Builder<GzEncoder<W>>,
    /// The directory that holds everything.
    root: String,
    /// Seconds since the epoch, for every entry.
    at: u64,
    /// The most bytes of one document.
    max_entry: usize,
    /// The bytes that are left for further documents.
    left: usize,
    contents: Vec<String>,
    lacking: Vec<String>,
}

impl<W: Write> Archive<W> {
    /// An empty archive whose entries lie below the directory `root` and have the time `at`, in seconds since the epoch.
    pub(super) fn new(out: W, root: &str, at: u64) -> Self {
        let tar = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        let (contents, lacking) = (Vec::new(), Vec::new());
        Self { tar, root: root.to_owned(), at, max_entry: MAX_ENTRY, left: MAX_TOTAL, contents, lacking }
    }

    /// Adds text from programs or people after removing what looks like a credential.
    pub(super) fn text(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.add(path, text, redaction::text)
    }

    /// The same; if the text could not be read, notes it as missing.
    pub(super) fn text_or_why(&mut self, path: &str, text: Result<String, impl Display>) -> io::Result<()> {
        match text {
            Ok(text) => self.text(path, &text),
            Err(why) => {
                self.lacks(path, &why.to_string());
                Ok(())
            }
        }
    }

    /// Adds a document as JSON. Pods in it have passed [`redaction::pod`].
    pub(super) fn json(&mut self, path: &str, document: &Value) -> io::Result<()> {
        let text = serde_json::to_string_pretty(document).map_err(io::Error::other)?;
        self.add(path, &text, redaction::document)
    }

    /// Notes that a part is missing, and why.
    pub(super) fn lacks(&mut self, what: &str, why: &str) {
        self.lacking.push(format!("{what}: {why}"));
    }

    fn add(&mut self, path: &str, text: &str, redacted: fn(&str) -> String) -> io::Result<()> {
        // Cut before redaction, which takes time per byte, and between lines, because a partial credential would not
        // be recognized.
        let kept = match text.get(..text.floor_char_boundary(self.max_entry)) {
            Some(begin) if begin.len() < text.len() => &begin[..begin.rfind('\n').map_or(0, |end| end + 1)],
            _ => text,
        };
        let data = redacted(kept);
        if data.len() > self.left {
            self.lacks(path, "the archive is full");
            return Ok(());
        }
        self.left -= data.len();
        let cut = if kept.len() < text.len() { format!(", cut off; it had {}", text.len()) } else { String::new() };
        self.contents.push(format!("{path}  {} bytes{cut}", data.len()));
        self.append(path, data.as_bytes())
    }

    fn append(&mut self, path: &str, data: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o600);
        header.set_mtime(self.at);
        header.set_size(data.len() as u64);
        self.tar.append_data(&mut header, format!("{}/{path}", self.root), data)
    }

    /// Adds the list of contents and completes the archive; returns how many parts are missing.
    pub(super) fn finish(mut self) -> io::Result<usize> {
        let mut list = format!("{PREFACE}\n{}\n", self.contents.join("\n"));
        for lack in &self.lacking {
            list.push_str(&format!("missing: {}\n", redaction::text(lack)));
        }
        self.append("CONTENTS", list.as_bytes())?;
        self.tar.into_inner()?.finish()?.flush()?;
        Ok(self.lacking.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
        let mut tar = tar::Archive::new(GzDecoder::new(archive));
        let entry = |entry: io::Result<tar::Entry<'_, GzDecoder<&[u8]>>>| {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mode().unwrap(), 0o600);
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (entry.path().unwrap().to_string_lossy().into_owned(), text)
        };
        tar.entries().unwrap().map(entry).collect()
    }

    #[test]
    fn documents_are_bounded_and_listed() {
        let mut out = Vec::new();
        let mut archive = Archive::new(&mut out, "bundle", 7);
        archive.text("a.txt", "Authorization: Bearer abcdefghij").unwrap();
        archive.json("b.json", &serde_json::json!({ "url": "https://me:hunter2@x/" })).unwrap();
        archive.max_entry = 100;
        let long = format!("{}\n", "x".repeat(59)).repeat(2);
        archive.text("long", &long).unwrap();
        archive.lacks("c.txt", "no journal");
        archive.left = 50;
        archive.text("late", &long).unwrap();
        assert_eq!(archive.finish().unwrap(), 2);
        let files = unpacked(&out);
        assert_eq!(files["bundle/a.txt"], "Authorization: Bearer <redacted>");
        assert!(files["bundle/b.json"].contains("https://<redacted>@x/"));
        assert_eq!(files["bundle/long"].len(), 60);
        assert!(!files.contains_key("bundle/late"));
        let contents = &files["bundle/CONTENTS"];
        assert!(contents.contains("long  60 bytes, cut off; it had 120\n"), "{contents}");
        assert!(contents.ends_with("missing: c.txt: no journal\nmissing: late: the archive is full\n"), "{contents}");
    }
}
