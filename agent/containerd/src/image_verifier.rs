//! containerd's image verifiers: programs that decide which images containerd itself pulls. limpet does not run them.

use std::path::PathBuf;

/// The type of containerd's plugins for them.
pub const PLUGIN_TYPE: &str = "io.containerd.image-verifier.v1";
/// The plugin that runs the programs of a directory.
pub const PLUGIN_ID: &str = "bindir";

/// The directory of the programs, as containerd's configuration has it.
pub fn directory(configuration: &str) -> PathBuf {
    let table: toml::Table = configuration.parse().unwrap_or_default();
    let configured = || table.get("plugins")?.get(format!("{PLUGIN_TYPE}.{PLUGIN_ID}"))?.get("bin_dir")?.as_str();
    configured().unwrap_or("/opt/containerd/image-verifier/bin").into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_directory_is_containerds() {
        for text in ["", "no toml", "[plugins.x]\nbin_dir = '/other'\n"] {
            assert_eq!(directory(text), Path::new("/opt/containerd/image-verifier/bin"), "{text}");
        }
        let text = "version = 3\n[plugins.'io.containerd.image-verifier.v1.bindir']\nbin_dir = '/verify'\n";
        assert_eq!(directory(text), Path::new("/verify"));
    }
}
