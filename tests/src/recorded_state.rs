//! Root directories as agents of each release have left them, below `tests/states`: one archive for each release,
//! made by `cargo xtask record-state` at the release, and never changed.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::TestNode;
use crate::agent::workspace_dir;
use crate::manifest::{IDLE, pod, shell, simple, with};
use crate::node::NodeOptions;

/// The name of the node that has left the directories. It is part of the pods' names.
pub const NODE_NAME: &str = "edge-recorded";
/// The pod of a file, and the one that was applied, with a ConfigMap that was applied too.
pub const PODS: [&str; 2] = ["from-file", "applied"];
/// The value in the ConfigMap, and where its container finds it.
pub const VALUE: (&str, &str) = ("recorded value", "/etc/settings/value");

/// The archives, oldest first.
pub fn archives() -> Result<Vec<PathBuf>> {
    let directory = directory();
    let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let mut archives = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    archives.sort();
    ensure!(!archives.is_empty(), "{} is empty", directory.display());
    Ok(archives)
}

fn directory() -> PathBuf {
    workspace_dir().join("tests/states")
}

/// Unpacks `archive` into the root directory `root`.
pub fn unpack(archive: &Path, root: &Path) -> Result<()> {
    let file = File::open(archive).with_context(|| archive.display().to_string())?;
    tar::Archive::new(GzDecoder::new(file)).unpack(root).with_context(|| root.display().to_string())
}

/// Runs the pods on a separate node, stops its agent, and packs what it has left for `release`. Returns the archive.
pub fn record(release: &str) -> Result<PathBuf> {
    let mut node = TestNode::boot(&NodeOptions { agent: false, ..NodeOptions::default() })?;
    node.agent.reconfigure(|settings| settings.node_name = NODE_NAME.to_owned())?;
    node.agent.start()?;
    let left = leave_state(&mut node, release).map_err(|error| error.context(node.evidence()))?;
    node.finish()?;
    Ok(left)
}

fn leave_state(node: &mut TestNode, release: &str) -> Result<PathBuf> {
    let [from_file, applied] = PODS;
    node.apply(&simple(from_file, IDLE))?;
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" }, "data": { "value": VALUE.0 }
    });
    let mount = json!({ "volumeMounts": [{ "name": "settings", "mountPath": "/etc/settings" }] });
    let spec = json!({
        "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }],
        "containers": [with(shell("main", IDLE), mount)],
    });
    for document in [settings, pod(applied, spec)] {
        node.agent.cli_with_input(&["apply", "-f", "-"], document.to_string().as_bytes())?.success()?;
    }
    PODS.iter().try_for_each(|pod| node.wait_running(pod).map(drop))?;
    node.agent.terminate()?;
    let archive = directory().join(format!("{release}.tar.gz"));
    fs::create_dir_all(directory())?;
    pack(&node.agent.settings().root(), &archive)?;
    Ok(archive)
}

/// The files of `root`, without those that are mounted in it.
fn pack(root: &Path, archive: &Path) -> Result<()> {
    let encoder = GzEncoder::new(File::create(archive)?, Compression::best());
    let mut builder = tar::Builder::new(encoder);
    let device = fs::symlink_metadata(root)?.dev();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        let mut entries = fs::read_dir(&directory)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, metadata) = (entry.path(), fs::symlink_metadata(entry.path())?);
            let name = path.strip_prefix(root)?.to_owned();
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                left.push(path);
            } else if metadata.is_file() {
                builder.append_path_with_name(&path, &name).with_context(|| path.display().to_string())?;
            }
        }
    }
    builder.into_inner()?.finish()?;
    Ok(())
}
