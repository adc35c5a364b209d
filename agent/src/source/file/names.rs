//! Which names in a manifest directory are read, and which are skipped with or without a log message.

/// The class of a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameClass {
    /// Read as a manifest.
    Manifest,
    /// An editor's or a tool's temporary file: never read.
    Temporary,
    /// Not read; logged if its content looks like a manifest.
    Other,
}

/// Classifies a file name.
pub(super) fn class(name: &str) -> NameClass {
    // vim creates a file named 4913 to test a directory.
    let temporary = name.starts_with('.') || name.ends_with('~') || name.starts_with('#') || name == "4913";
    match name.rsplit_once('.') {
        _ if temporary => NameClass::Temporary,
        Some((_, "swp" | "swx" | "tmp")) => NameClass::Temporary,
        Some((_, "yaml" | "yml" | "json")) => NameClass::Manifest,
        _ => NameClass::Other,
    }
}

/// Whether the start of a file looks like a Kubernetes object.
pub(super) fn looks_like_manifest(beginning: &[u8]) -> bool {
    let text = String::from_utf8_lossy(beginning);
    text.contains("apiVersion") && text.contains("kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_classified_by_prefix_and_suffix() {
        for name in ["a.yaml", "a.yml", "a.json", "a.b.yaml", "~a.yaml"] {
            assert_eq!(class(name), NameClass::Manifest, "{name}");
        }
        for name in [".a.yaml", "..data", "a.yaml~", "4913", ".a.yaml.swp", "a.swp", "#a.yaml#", ".", "a.yaml.tmp"] {
            assert_eq!(class(name), NameClass::Temporary, "{name}");
        }
        for name in ["a", "a.yaml.bak", "a.manifest", "a.YAML", "yaml", "README.md", "a.yaml.rpmnew"] {
            assert_eq!(class(name), NameClass::Other, "{name}");
        }
        assert!(looks_like_manifest(b"apiVersion: v1\nkind: Pod\n"));
        assert!(!looks_like_manifest(b"# manifests of this box\n"));
    }
}
