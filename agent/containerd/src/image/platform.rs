//! Selects the manifest of an index for this node.

use oci_spec::image::{Descriptor, Platform};

/// The rank of a foreign platform whose programs the node's processor may also run.
const FOREIGN: u8 = 100;

/// The platform of modules for WebAssembly, as a runtime class names it.
pub const WASM: &str = "wasi/wasm";

/// Which manifest of an index to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ImagePlatform {
    /// The node's own.
    #[default]
    Node,
    /// WebAssembly's, else the node's own: a pod whose runtime class runs modules may also have other containers.
    Wasm,
    /// The node's own, else WebAssembly's: for images that are stored and not started.
    Any,
}

/// Whether programs for this system are WebAssembly modules: `wasi`, `wasip1`.
pub(super) fn is_wasm_system(os: &str) -> bool {
    os.to_ascii_lowercase().starts_with("wasi")
}

/// Whether it is a manifest for WebAssembly.
pub(super) fn is_wasm(descriptor: &Descriptor) -> bool {
    descriptor.platform().as_ref().is_some_and(|platform| is_wasm_system(&platform.os().to_string()))
}

/// The remedy for a pod whose image is a WebAssembly module.
pub(super) const WASM_REMEDY: &str =
    "it is for wasi/wasm: give the pod a runtimeClassName whose entry in runtimeClasses has `platform: wasi/wasm`";

/// The node's platform, in the form of image indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPlatform {
    /// Go's name of the architecture: `amd64`, `arm64`, `arm`.
    pub(super) architecture: &'static str,
    /// The ARM version; 0 elsewhere.
    pub(super) arm_version: u8,
}

impl HostPlatform {
    /// The platform this program was built for; the kernel reports the version of a 32-bit ARM.
    pub(super) fn current() -> Self {
        Self::from_names(std::env::consts::ARCH, &rustix::system::uname().machine().to_string_lossy())
    }

    fn from_names(architecture: &'static str, machine: &str) -> Self {
        let architecture = match architecture {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        let arm_version = match (architecture, machine) {
            ("arm64", _) => 8,
            ("arm", "armv5tel" | "armv5tejl") => 5,
            ("arm", "armv6l") => 6,
            // armv7l, and an arm64 kernel under a 32-bit userland.
            ("arm", _) => 7,
            _ => 0,
        };
        Self { architecture, arm_version }
    }

    /// How well `platform` matches, smaller is better; `None` if it does not.
    fn rank(&self, platform: &Platform) -> Option<u8> {
        let os = platform.os().to_string();
        if !os.is_empty() && !os.eq_ignore_ascii_case("linux") {
            return None;
        }
        let variant = platform.variant().as_deref().unwrap_or_default();
        let (architecture, variant) = normal(&platform.architecture().to_string(), variant);
        match (self.architecture, architecture.as_str(), variant.as_str()) {
            ("arm", "arm", variant) => self.arm_gap(variant),
            ("arm64", "arm64", variant) => self.arm_gap(variant),
            ("amd64", "amd64", "v1") => Some(1),
            // As in containerd, the older instruction set is the last resort.
            ("amd64", "386", "") => Some(FOREIGN),
            ("arm64", "arm", variant) => self.arm_gap(variant).map(|gap| FOREIGN.saturating_add(gap)),
            // v2 to v4 of amd64 need instructions the node may lack.
            (host, other, "") if host == other => Some(0),
            _ => None,
        }
    }

    fn arm_gap(&self, variant: &str) -> Option<u8> {
        let version: u8 = variant.strip_prefix('v')?.parse().ok()?;
        self.arm_version.checked_sub(version)
    }

    /// The manifest to use.
    ///
    /// # Errors
    ///
    /// None matches; the message says what would help.
    pub(super) fn select<'a>(
        &self,
        manifests: &'a [Descriptor],
        wanted: ImagePlatform,
    ) -> Result<&'a Descriptor, String> {
        let (node, wasm) = (self.choose(manifests), manifests.iter().find(|descriptor| is_wasm(descriptor)));
        let chosen = match wanted {
            ImagePlatform::Node => node,
            ImagePlatform::Wasm => wasm.or(node),
            ImagePlatform::Any => node.or(wasm),
        };
        chosen.ok_or_else(|| match (wanted, wasm) {
            (ImagePlatform::Node, Some(_)) => format!("no manifest for {self}; {WASM_REMEDY}"),
            (ImagePlatform::Node, None) => format!("no manifest for {self}"),
            (ImagePlatform::Wasm | ImagePlatform::Any, _) => format!("no manifest for {WASM} or {self}"),
        })
    }

    /// The manifest for this node; entries without a platform are used only when no other matches.
    pub(super) fn choose<'a>(&self, manifests: &'a [Descriptor]) -> Option<&'a Descriptor> {
        let ranked = manifests.iter().filter_map(|descriptor| match descriptor.platform() {
            Some(platform) => self.rank(platform).map(|rank| (rank, descriptor)),
            None => Some((u8::MAX, descriptor)),
        });
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, descriptor)| descriptor)
    }
}

/// The usual names of an architecture and its variant, normalized as in containerd. Without a variant, arm is v7 and
/// arm64 is v8.
fn normal(architecture: &str, variant: &str) -> (String, String) {
    let (architecture, mut variant) = (architecture.to_ascii_lowercase(), variant.to_ascii_lowercase());
    let (architecture, usual) = match architecture.as_str() {
        "i386" => return ("386".to_owned(), String::new()),
        "armhf" => return ("arm".to_owned(), "v7".to_owned()),
        "armel" => return ("arm".to_owned(), "v6".to_owned()),
        "x86_64" | "x86-64" => ("amd64".to_owned(), ""),
        "aarch64" | "arm64" => ("arm64".to_owned(), "v8"),
        "arm" => (architecture, "v7"),
        _ => (architecture, ""),
    };
    if variant.is_empty() {
        usual.clone_into(&mut variant);
    } else if variant.bytes().all(|byte| byte.is_ascii_digit()) {
        variant.insert(0, 'v');
    }
    (architecture, variant)
}

impl std::fmt::Display for HostPlatform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "linux/{}", self.architecture)?;
        if self.architecture == "arm" { write!(f, "/v{}", self.arm_version) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn manifests(platforms: &[&str]) -> Vec<Descriptor> {
        let entry = |(i, platform): (usize, &&str)| {
            let mut parts = platform.split('/');
            let mut json = serde_json::json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json", "size": i, "digest": format!("sha256:{i:064}"),
            });
            if !platform.is_empty() {
                json["platform"] = serde_json::json!({"os": parts.next(), "architecture": parts.next()});
                if let Some(variant) = parts.next() {
                    json["platform"]["variant"] = variant.into();
                }
            }
            serde_json::from_value(json).unwrap()
        };
        platforms.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn modules_are_for_pods_whose_runtime_class_says_so() {
        use ImagePlatform::{Any, Node, Wasm};
        let host = HostPlatform::from_names("x86_64", "x86_64");
        let table: &[(&[&str], ImagePlatform, Result<u64, &str>)] = &[
            (&["linux/amd64", "wasi/wasm"], Node, Ok(0)),
            (&["linux/amd64", "wasi/wasm"], Wasm, Ok(1)),
            (&["linux/amd64", "wasip1/wasm32"], Wasm, Ok(1)),
            (&["wasi/wasm", "linux/amd64"], Any, Ok(1)),
            (&["wasi/wasm"], Any, Ok(0)),
            // A normal container beside a module.
            (&["linux/amd64"], Wasm, Ok(0)),
            (&["wasi/wasm"], Node, Err("platform: wasi/wasm")),
            (&["linux/arm64"], Node, Err("no manifest for linux/amd64")),
            (&["linux/arm64"], Wasm, Err("no manifest for wasi/wasm or linux/amd64")),
        ];
        for (offered, wanted, result) in table {
            let offered = manifests(offered);
            match (host.select(&offered, *wanted), result) {
                (Ok(chosen), Ok(size)) => assert_eq!(chosen.size(), *size, "{offered:?} {wanted:?}"),
                (Err(error), Err(why)) => assert!(error.contains(why), "{error}"),
                (chosen, _) => panic!("{offered:?} {wanted:?}: {chosen:?}"),
            }
        }
    }

    #[test]
    fn the_best_of_an_index_is_chosen() {
        let table: &[(&str, &str, &[&str], Option<u64>)] = &[
            ("x86_64", "x86_64", &["linux/arm64", "linux/amd64", "linux/amd64/v3"], Some(1)),
            ("x86_64", "x86_64", &["windows/amd64", "linux/arm64/v8"], None),
            ("x86_64", "x86_64", &["unknown/unknown", "linux/amd64"], Some(1)),
            ("x86_64", "x86_64", &["linux/amd64/v3"], None),
            ("x86_64", "x86_64", &["linux/amd64/v1"], Some(0)),
            ("x86_64", "x86_64", &["", "linux/amd64"], Some(1)),
            ("x86_64", "x86_64", &[""], Some(0)),
            ("aarch64", "aarch64", &["linux/arm/v7", "linux/arm64/v8"], Some(1)),
            ("aarch64", "aarch64", &["linux/arm64/v9", "linux/arm64"], Some(1)),
            ("arm", "armv7l", &["linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/arm64"], Some(2)),
            ("arm", "armv6l", &["linux/arm/v5", "linux/arm/v7", "linux/arm/v6"], Some(2)),
            ("arm", "armv6l", &["linux/arm/v7"], None),
            ("arm", "aarch64", &["linux/arm64", "linux/arm/v6"], Some(1)),
            ("riscv64", "riscv64", &["linux/riscv64"], Some(0)),
            ("x86_64", "x86_64", &["Linux/x86_64"], Some(0)),
            ("x86_64", "x86_64", &["/amd64"], Some(0)),
            ("x86_64", "x86_64", &["linux/386", "linux/amd64"], Some(1)),
            ("x86_64", "x86_64", &["linux/arm64", "linux/386"], Some(1)),
            ("aarch64", "aarch64", &["linux/arm/v6", "linux/arm/v7", "linux/amd64"], Some(1)),
            ("aarch64", "aarch64", &["linux/aarch64/8"], Some(0)),
            ("arm", "armv7l", &["linux/armel", "linux/armhf"], Some(1)),
            ("arm", "armv7l", &["linux/arm/5", "linux/arm/6"], Some(1)),
        ];
        for (architecture, machine, offered, wanted) in table {
            let offered = manifests(offered);
            let chosen = HostPlatform::from_names(architecture, machine).choose(&offered).map(Descriptor::size);
            assert_eq!(chosen, *wanted, "{architecture} {machine} {offered:?}");
        }
    }
}
