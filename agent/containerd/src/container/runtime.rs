//! The runtime of a container: containerd's shim and its options.

use std::path::{Path, PathBuf};

use containerd_client::services::v1::container::Runtime as RuntimeField;
use prost::Message;
use prost_types::Any;

use super::ContainersConfig;
use limpet_model::container::ContainerId;

/// containerd's shim for runc and compatible runtimes.
pub const RUNC_SHIM: &str = "io.containerd.runc.v2";
/// The program name of limpet's own shim.
pub const SHIM_PROGRAM: &str = "containerd-shim-limpet-v1";
/// The handler of containerd's default runtime, as RuntimeClasses name it.
pub const RUNC_HANDLER: &str = "runc";

/// What a `runtimeClassName` refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeClass {
    /// The shim's name in containerd: `io.containerd.runsc.v1`.
    pub runtime: String,
    /// The OCI runtime that [`RUNC_SHIM`] calls; `None`: the one of pods without a class.
    pub binary: Option<PathBuf>,
    /// The configuration file of another shim.
    pub config: Option<PathBuf>,
    /// [`RUNC_SHIM`]: changes the container's root with `chroot` instead of `pivot_root`, which is impossible on a
    /// ramfs.
    pub no_pivot_root: bool,
    /// [`RUNC_SHIM`]: containers keep the session keyring of their runtime.
    pub no_new_keyring: bool,
    /// Whether its containers run WebAssembly modules, where an image has one.
    pub wasm: bool,
    /// CDI devices of each container, by qualified name: `nvidia.com/gpu=all`.
    pub devices: Vec<String>,
}

impl RuntimeClass {
    /// A class with this shim and no options.
    pub fn with_runtime(runtime: impl Into<String>) -> Self {
        let runtime = runtime.into();
        Self {
            runtime,
            binary: None,
            config: None,
            no_pivot_root: false,
            no_new_keyring: false,
            wasm: false,
            devices: Vec::new(),
        }
    }
}

/// Options of [`RUNC_SHIM`], `containerd.runc.v1.Options`: the fields that limpet sets.
#[derive(Clone, PartialEq, Message)]
struct RuncOptions {
    #[prost(bool, tag = "1")]
    no_pivot_root: bool,
    #[prost(bool, tag = "2")]
    no_new_keyring: bool,
    #[prost(string, tag = "6")]
    binary_name: String,
    #[prost(bool, tag = "9")]
    systemd_cgroup: bool,
    /// The file in which limpet's shim records the container's exit.
    #[prost(string, tag = "1000")]
    exit_file: String,
}

/// Options of other shims, `runtimeoptions.v1.Options`.
#[derive(Clone, PartialEq, Message)]
struct FileOptions {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    config_path: String,
}

/// The binary that [`RUNC_SHIM`] calls for a container with or without a class; `None`: the shim's default.
pub(super) fn binary<'a>(class: Option<&'a RuntimeClass>, config: &'a ContainersConfig) -> Option<&'a Path> {
    class.and_then(|class| class.binary.as_deref()).or(config.runtime_binary.as_deref())
}

/// limpet's shim, if containers with this class use it: it replaces [`RUNC_SHIM`], with all options of the class.
pub(super) fn shim<'a>(class: Option<&RuntimeClass>, config: &'a ContainersConfig) -> Option<&'a Path> {
    config.shim.as_deref().filter(|_| class.is_none_or(|class| class.runtime == RUNC_SHIM))
}

/// The runtime of container `id` with `class`, or without one. `wrapper` is a program that [`RUNC_SHIM`] calls
/// instead of its binary.
pub(super) fn runtime(
    id: &ContainerId,
    class: Option<&RuntimeClass>,
    wrapper: Option<&Path>,
    config: &ContainersConfig,
) -> RuntimeField {
    let text = |path: Option<&Path>| path.map(Path::to_string_lossy).unwrap_or_default().into_owned();
    let name = class.map_or(RUNC_SHIM, |class| class.runtime.as_str());
    let shim = shim(class, config);
    let options = if name == RUNC_SHIM {
        let binary = wrapper.or_else(|| binary(class, config));
        let options = RuncOptions {
            no_pivot_root: class.is_some_and(|class| class.no_pivot_root),
            no_new_keyring: class.is_some_and(|class| class.no_new_keyring),
            binary_name: text(binary),
            systemd_cgroup: config.systemd_cgroup,
            exit_file: text(shim.map(|_| config.exit_dir.join(id.as_str())).as_deref()),
        };
        Some(Any { type_url: "containerd.runc.v1.Options".to_owned(), value: options.encode_to_vec() })
    } else {
        // A shim defines the type of its options: `io.containerd.runsc.v1.options`.
        class.and_then(|class| class.config.as_deref()).map(|config| {
            let options = FileOptions { type_url: format!("{name}.options"), config_path: text(Some(config)) };
            Any { type_url: "runtimeoptions.v1.Options".to_owned(), value: options.encode_to_vec() }
        })
    };
    // containerd accepts a shim's path instead of a name.
    RuntimeField { name: shim.map_or_else(|| name.to_owned(), |shim| text(Some(shim))), options }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_class_says_which_shim_and_which_binary() {
        let config = ContainersConfig {
            snapshotter: "overlayfs".to_owned(),
            runtime_binary: Some("/usr/bin/runc".into()),
            systemd_cgroup: true,
            attach_dir: PathBuf::new(),
            shim: None,
            exit_dir: "/run/limpet/exits".into(),
        };
        let id = ContainerId::new("c1");
        let class = |runtime: &str, binary: Option<&str>, config: Option<&str>| RuntimeClass {
            binary: binary.map(PathBuf::from),
            config: config.map(PathBuf::from),
            ..RuntimeClass::with_runtime(runtime)
        };
        let runc = |class: Option<&RuntimeClass>| {
            let field = runtime(&id, class, None, &config);
            (field.name, RuncOptions::decode(&*field.options.unwrap().value).unwrap())
        };
        let runc_options = |binary: &str| RuncOptions {
            binary_name: binary.to_owned(),
            systemd_cgroup: true,
            ..RuncOptions::default()
        };
        assert_eq!(runc(None), (RUNC_SHIM.to_owned(), runc_options("/usr/bin/runc")));
        assert_eq!(runc(Some(&class(RUNC_SHIM, None, None))).1, runc_options("/usr/bin/runc"));
        assert_eq!(runc(Some(&class(RUNC_SHIM, Some("/usr/bin/crun"), None))).1, runc_options("/usr/bin/crun"));
        let on_ramfs =
            RuntimeClass { no_pivot_root: true, no_new_keyring: true, ..RuntimeClass::with_runtime(RUNC_SHIM) };
        let without = RuncOptions { no_pivot_root: true, no_new_keyring: true, ..runc_options("/usr/bin/runc") };
        assert_eq!(runc(Some(&on_ramfs)).1, without);
        let runsc = class("io.containerd.runsc.v1", None, Some("/etc/runsc.toml"));
        let wrapped = runtime(&id, None, Some(Path::new("/run/runtime")), &config);
        assert_eq!(RuncOptions::decode(&*wrapped.options.unwrap().value).unwrap(), runc_options("/run/runtime"));
        let field = runtime(&id, Some(&runsc), None, &config);
        let options = FileOptions::decode(&*field.options.unwrap().value).unwrap();
        assert_eq!((field.name.as_str(), options.config_path.as_str()), ("io.containerd.runsc.v1", "/etc/runsc.toml"));
        assert_eq!(options.type_url, "io.containerd.runsc.v1.options");
        assert_eq!(runtime(&id, Some(&class("io.containerd.kata.v2", None, None)), None, &config).options, None);
        // limpet's shim replaces runc's shim only.
        let config = ContainersConfig { shim: Some("/usr/bin/shim".into()), ..config.clone() };
        let field = runtime(&id, Some(&class(RUNC_SHIM, None, None)), None, &config);
        assert_eq!(field.name, "/usr/bin/shim");
        let options = RuncOptions { exit_file: "/run/limpet/exits/c1".to_owned(), ..runc_options("/usr/bin/runc") };
        assert_eq!(RuncOptions::decode(&*field.options.unwrap().value).unwrap(), options);
        assert_eq!(runtime(&id, Some(&runsc), None, &config).name, "io.containerd.runsc.v1");
    }
}
