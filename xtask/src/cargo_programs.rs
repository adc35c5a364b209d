//! Programs that `cargo install` builds once into the cache: cargo's companions for `cargo xtask lint`, and mdBook for
//! `cargo xtask site`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use limpet_tests::{process, tools};

use crate::{apt, cargo};

/// A program on crates.io in a fixed version, so that its findings are the same everywhere.
pub(crate) struct CargoProgram {
    name: &'static str,
    version: &'static str,
    /// The features to build; its default ones are left out.
    features: &'static str,
}

pub(crate) const DENY: CargoProgram = CargoProgram { name: "cargo-deny", version: "0.20.2", features: "" };
pub(crate) const MACHETE: CargoProgram = CargoProgram { name: "cargo-machete", version: "0.9.2", features: "" };
pub(crate) const MDBOOK: CargoProgram = CargoProgram { name: "mdbook", version: "0.5.4", features: "search" };

impl CargoProgram {
    /// Returns the machine's own program if it has that version, else the one in the cache, which it builds if necessary.
    pub(crate) fn installed(&self) -> Result<PathBuf> {
        let root = tools::cache_dir().join("cargo-tools");
        let cached = root.join("bin").join(self.name);
        let has_version = |path: &PathBuf| {
            process::checked(Command::new(path).arg("--version")).is_ok_and(|output| output.contains(self.version))
        };
        if let Some(program) = [Some(cached.clone()), tools::on_path(self.name)].into_iter().flatten().find(has_version)
        {
            return Ok(program);
        }
        apt::say(&format!("building {} into {}", self.name, root.display()), || {
            // A short build matters more than the speed of a program that runs for seconds.
            let profile = [("LTO", "off"), ("CODEGEN_UNITS", "16"), ("OPT_LEVEL", "1")];
            let mut command = cargo::command(&["install", "--quiet", "--locked", "--force", "--no-default-features"]);
            command
                .args([self.name, "--features", self.features, "--version", self.version, "--root"])
                .arg(&root)
                .envs(profile.map(|(key, value)| (format!("CARGO_PROFILE_RELEASE_{key}"), value)));
            // The workspace's target directory has other settings.
            command.env("CARGO_TARGET_DIR", root.join("build")).current_dir("/");
            cargo::run(&mut command)
        })?;
        std::fs::remove_dir_all(root.join("build")).ok();
        Ok(cached)
    }
}
