//! Which names in a manifest directory are read, and which are passed over with or without a word.

/// What a name says about its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameClass {
    /// Read as a manifest.
    Manifest,
    /// An editor's or a tool's leftover: never meant to be read.
    Leftover,
    /// Not read; worth a word if its content looks like a manifest.
    Other,
}

/// Judges a file's name.
pub(super) fn class(name: &str) -> NameClass {
    // 4913 is the name vim tries a directory with.
    let leftover = name.starts_with('.') || name.ends_with('~') || name.starts_with('#') || name == "4913";
    match name.rsplit_once('.') {
        _ if leftover => NameClass::Leftover,
        Some((_, "swp" | "swx" | "tmp")) => NameClass::Leftover,
        Some((_, "yaml" | "yml" | "json")) => NameClass::Manifest,
        _ => NameClass::Other,
    }
}

/// Whether the beginning of a file reads like a Kubernetes object.
pub(super) fn looks_like_manifest(beginning: &[u8]) -> bool {
    let text = String::from_utf8_lossy(beginning);
    text.contains("apiVersion") && text.contains("kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_by_their_ends() {
        for name in ["a.yaml", "a.yml", "a.json", "a.b.yaml", "~a.yaml"] {
            assert_eq!(class(name), NameClass::Manifest, "{name}");
        }
        for name in [".a.yaml", "..data", "a.yaml~", "4913", ".a.yaml.swp", "a.swp", "#a.yaml#", ".", "a.yaml.tmp"] {
            assert_eq!(class(name), NameClass::Leftover, "{name}");
        }
        for name in ["a", "a.yaml.bak", "a.manifest", "a.YAML", "yaml", "README.md", "a.yaml.rpmnew"] {
            assert_eq!(class(name), NameClass::Other, "{name}");
        }
        assert!(looks_like_manifest(b"apiVersion: v1\nkind: Pod\n"));
        assert!(!looks_like_manifest(b"# manifests of this box\n"));
    }
}
