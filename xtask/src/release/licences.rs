//! The licences of all that is linked into the executable: one text, in which each licence text stands once, after the
//! names of the crates that it covers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::crates::LinkedCrate;

/// The prefixes of files that have a licence, or a text that it requires to be passed on.
const FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
/// The limit of a licence's length, which none reaches.
const MAX_BYTES: u64 = 256 << 10;

/// The text for an executable of these crates.
pub(super) fn text(linked: &[LinkedCrate]) -> Result<String> {
    let mut covered: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for linked in linked.iter().filter(|linked| linked.is_published) {
        let name = format!("{} {} ({})", linked.name, linked.version, linked.licence);
        for text in texts(linked)? {
            covered.entry(text).or_default().push(name.clone());
        }
    }
    for (name, text) in toolchain()? {
        covered.entry(text).or_default().push(name.to_owned());
    }
    let mut sections: Vec<_> = covered.into_iter().map(|(text, names)| (names, text)).collect();
    sections.sort();
    let head = "limpet is licensed under Apache-2.0. It is linked with the following, under these licences.\n";
    let sections =
        sections.into_iter().map(|(names, text)| format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join("\n")));
    Ok(std::iter::once(head.to_owned()).chain(sections).collect())
}

/// The texts that come with a crate, or else those of the licences that it names.
fn texts(linked: &LinkedCrate) -> Result<Vec<String>> {
    let mut files: Vec<PathBuf> = entries(&linked.directory)?;
    files.sort();
    let mut texts = Vec::new();
    for file in files {
        let text = fs::read(&file).with_context(|| format!("{}", file.display()))?;
        texts.push(normal(&String::from_utf8_lossy(&text)));
    }
    if texts.is_empty() {
        texts = named(&linked.licence).with_context(|| format!("{} {}", linked.name, linked.version))?;
    }
    Ok(texts)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("{}", directory.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let metadata = entry.metadata()?;
        if metadata.is_file() && metadata.len() <= MAX_BYTES && FILES.iter().any(|prefix| name.starts_with(prefix)) {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// The texts of the licences in an expression: `MIT OR Apache-2.0`.
fn named(expression: &str) -> Result<Vec<String>> {
    let expression = spdx::Expression::parse(expression).with_context(|| format!("licence {expression}"))?;
    let ids = expression.requirements().filter_map(|required| required.req.license.id());
    Ok(ids.map(|id| normal(id.text())).collect())
}

/// The text with uniform ends of lines, so that files that differ only in these are equal.
fn normal(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// The licences of what is linked and is not a crate: Rust's standard library, the C library, gcc's. They are the same
/// for all architectures.
fn toolchain() -> Result<Vec<(&'static str, String)>> {
    let glibc = "the GNU C library (LGPL-2.1-or-later; its source is that of Debian's package glibc)";
    let gcc = "libgcc (GPL-3.0-or-later WITH GCC-exception-3.1; its source is that of Debian's package gcc)";
    let files = [
        (glibc, "/usr/share/doc/libc6/copyright"),
        (glibc, "/usr/share/common-licenses/LGPL-2.1"),
        (gcc, "/usr/share/doc/libgcc-s1/copyright"),
    ];
    let mut texts: Vec<_> = named("MIT OR Apache-2.0")?
        .into_iter()
        .map(|text| ("Rust's standard library (MIT OR Apache-2.0)", text))
        .collect();
    for (name, file) in files {
        let text =
            fs::read_to_string(file).with_context(|| format!("{file}: releases are made on Debian or Ubuntu"))?;
        texts.push((name, normal(&text)));
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_a_file_has_the_texts_that_it_names() {
        let texts = named("MIT OR Apache-2.0").unwrap_or_else(|error| panic!("{error:#}"));
        assert!(texts.iter().any(|text| text.starts_with("MIT License")), "{texts:?}");
        assert_eq!(texts.len(), 2);
        assert!(named("no licence at all").is_err());
    }

    #[test]
    fn ends_of_lines_make_no_difference() {
        assert_eq!(normal("a \r\nb\r\n\n"), normal("a\nb"));
    }
}
