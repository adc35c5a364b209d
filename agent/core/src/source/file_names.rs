//! The names of files in the manifest directory: which are read, and which an editor has left.
//!
//! kubelet reads every file without a leading dot, and so does limpet, including backups of editors, patch and
//! package managers. These mostly contain an old version of a pod beside them, so they come after all other files,
//! and are reported.

/// vim creates a file of this name to test a directory, and removes it again.
const TRIAL: &str = "4913";
/// The ends of the names of leftovers, after the last dot.
const LEFTOVER_ENDINGS: [&str; 21] = [
    "bak",
    "backup",
    "dpkg-bak",
    "dpkg-dist",
    "dpkg-new",
    "dpkg-old",
    "dpkg-tmp",
    "old",
    "orig",
    "rej",
    "rpmnew",
    "rpmorig",
    "rpmsave",
    "save",
    "swo",
    "swp",
    "swx",
    "tmp",
    "ucf-dist",
    "ucf-new",
    "ucf-old",
];

/// Whether a file of that name is read: every one without a leading dot.
pub fn is_read(name: &str) -> bool {
    !name.starts_with('.') && name != TRIAL
}

/// Whether a file of that name is an editor's or a tool's leftover.
pub fn is_leftover(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    // `a~` and `a.~1~` are backups, `#a#` is saved by emacs while it is edited.
    name.ends_with('~') || (name.starts_with('#') && name.ends_with('#')) || LEFTOVER_ENDINGS.contains(&ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_without_a_leading_dot_is_read() {
        for name in ["a.yaml", "a.json", "kube-proxy.manifest", "a", "a.conf", "README.md", "a.yaml~", "#a#", "a.YAML"]
        {
            assert!(is_read(name), "{name}");
        }
        for name in [".a.yaml", "..data", ".", ".a.yaml.swp", ".#a.yaml", "4913"] {
            assert!(!is_read(name), "{name}");
        }
    }

    #[test]
    fn leftovers_are_told_by_their_names() {
        for name in
            ["a.yaml~", "a.yaml.~1~", "#a.yaml#", "a.swp", "a.yaml.bak", "a.yaml.orig", "a.yaml.rpmnew", "a.tmp"]
        {
            assert!(is_leftover(name), "{name}");
        }
        for name in
            ["a", "a.yaml", "kube-proxy.manifest", "~a.yaml", "#a.yaml", "old", "bak.yaml", "README.md", "a.conf"]
        {
            assert!(!is_leftover(name), "{name}");
        }
    }
}
