//! The images of a kubeadm cluster, made of programs that were built from their sources.

use std::fs;
use std::path::{Path, PathBuf};

use crate::image::{Image, ImageBuilder, linked};
use crate::{TestNode, tools};
use anyhow::{Context as _, Result};
use serde_json::json;

/// The image repository in kubeadm's configuration. Nothing answers there, because all images are imported.
pub const REPOSITORY: &str = "registry.test/kubeadm";
/// The release of kubeadm and of what it sets up.
pub const VERSION: &str = "v1.37.1";

/// Imports the images that every node of the cluster runs into this node's containerd.
pub fn import(node: &TestNode) -> Result<()> {
    let proxy = image("kube-proxy", VERSION, &kubernetes("kube-proxy")?)?;
    // containerd's own plugin for kubelet would need it; kubeadm insists on it.
    let pause = ImageBuilder::new(&format!("{REPOSITORY}/pause:3.10.2")).build()?;
    node.import(&[&with_iptables(proxy)?.build()?, &pause])?;
    node.import_demo_images()
}

/// The same for a node with a control plane.
pub fn import_control_plane(node: &TestNode) -> Result<()> {
    control_plane()?.iter().try_for_each(|image| node.import(&[image]))
}

/// What the static pods of a control plane run.
pub fn control_plane() -> Result<[Image; 4]> {
    let of_kubernetes = |name| image(name, VERSION, &kubernetes(name)?)?.build();
    let etcd = tools::kubeadms_etcd().context("no etcd; run: cargo xtask nightly kubeadm")?;
    Ok([
        of_kubernetes("kube-apiserver")?,
        of_kubernetes("kube-controller-manager")?,
        of_kubernetes("kube-scheduler")?,
        image("etcd", "3.7.0-0", &etcd)?.build()?,
    ])
}

/// The same for a node that runs the cluster's name servers.
pub fn import_name_server(node: &TestNode) -> Result<()> {
    let coredns = tools::coredns().context("no coredns; run: cargo xtask nightly kubeadm")?;
    node.import(&[&coredns_image(&coredns)?.build()?])
}

fn kubernetes(name: &str) -> Result<PathBuf> {
    tools::kubernetes(name).with_context(|| format!("no {name}; run: cargo xtask nightly kubeadm"))
}

/// An image with a static program on its search path.
fn image(name: &str, tag: &str, program: &Path) -> Result<ImageBuilder> {
    let path = format!("usr/local/bin/{name}");
    let content = fs::read(program).with_context(|| format!("{}", program.display()))?;
    let builder = ImageBuilder::new(&format!("{REPOSITORY}/{name}:{tag}")).file(&path, content, 0o755);
    Ok(builder.config("Env", json!(["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/bin"])))
}

/// The image has an entry point, because its pods have arguments but no command.
fn coredns_image(program: &Path) -> Result<ImageBuilder> {
    Ok(image("coredns", "v1.14.6", program)?.config("Entrypoint", json!(["/usr/local/bin/coredns"])))
}

/// Adds the machine's own iptables, by which kube-proxy forwards.
fn with_iptables(mut builder: ImageBuilder) -> Result<ImageBuilder> {
    let program = fs::canonicalize(tools::on_path("iptables").context("no iptables")?)?;
    let content = fs::read(&program)?;
    for name in ["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"] {
        builder = builder.file(&format!("usr/sbin/{name}"), content.clone(), 0o755);
    }
    let mut libraries = linked(&[program])?;
    let xtables =
        libraries.iter().find(|path| path.to_string_lossy().contains("libxtables")).context("no libxtables")?;
    // iptables looks for its extensions in the directory with which it was compiled, which the linker may know by a
    // link.
    let extensions = fs::canonicalize(xtables.with_file_name("xtables"))?;
    let entries = fs::read_dir(&extensions).with_context(|| format!("{}", extensions.display()))?;
    let extensions = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    libraries.extend(linked(&extensions)?);
    libraries.extend(extensions);
    libraries.sort();
    libraries.dedup();
    for library in libraries {
        let content = fs::read(&library).with_context(|| format!("{}", library.display()))?;
        builder = builder.file(&library.to_string_lossy(), content, 0o755);
    }
    Ok(builder)
}
