//! The state that agents of other releases have left: it is read, or refused and not changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::recorded_state::{self, NODE_NAME, PODS, VALUE};

pub(crate) fn the_state_of_every_release_is_read(node: &mut TestNode) -> Result<()> {
    node.agent.reconfigure(|settings| settings.node_name = NODE_NAME.to_owned())?;
    for archive in recorded_state::archives()? {
        let read = read_state(node, &archive);
        read.with_context(|| format!("the state in {}", archive.display()))?;
    }
    Ok(())
}

fn read_state(node: &mut TestNode, archive: &Path) -> Result<()> {
    recorded_state::unpack(archive, &node.agent.settings().root())?;
    node.agent.start()?;
    for pod in PODS {
        node.wait_running(pod)?;
    }
    let [from_file, applied] = PODS;
    let value = node.exec(applied, "main", &["/bin/cat", VALUE.1])?;
    ensure!(value == VALUE.0, "the ConfigMap has {value:?}");
    let history = node.agent.cli(&["history", &node.full_name(from_file)])?.success()?;
    ensure!(history.contains("created"), "{history}");
    node.agent.cli(&["delete", &node.full_name(applied)])?.success()?;
    node.wait_gone(applied)?;
    // An empty directory counts as one that was not mounted; its pod ends once the directory has another one.
    node.apply(&simple("other", IDLE))?;
    node.wait_gone(from_file)?;
    node.remove("other")?;
    node.wait_gone("other")?;
    node.agent.terminate()?;
    let root = node.agent.settings().root();
    fs::remove_dir_all(&root)?;
    fs::create_dir(&root)?;
    Ok(())
}

pub(crate) fn state_of_an_unknown_version_is_refused_and_not_changed(node: &mut TestNode) -> Result<()> {
    node.agent.reconfigure(|settings| settings.node_name = NODE_NAME.to_owned())?;
    let root = node.agent.settings().root();
    let newest = recorded_state::archives()?.pop().context("no archive")?;
    recorded_state::unpack(&newest, &root)?;
    let version = root.join("state-version");
    fs::write(&version, r#"{"version":99,"readableFrom":99,"writtenBy":"99.1.0"}"#)?;
    let before = files(&root)?;
    let log = node.agent.log_size();
    ensure!(node.agent.start().is_err(), "the agent has started");
    let said = node.agent.log_from(log);
    let path = version.display().to_string();
    for part in [path.as_str(), "has version 99", "reads up to version", "Install limpet 99.1.0 again"] {
        ensure!(said.contains(part), "{part:?} is missing: {said}");
    }
    ensure!(files(&root)? == before, "the root directory was changed");
    ensure!(fs::read_dir(node.agent.settings().run())?.next().is_none(), "the run directory was changed");
    Ok(())
}

/// The content of every file.
fn files(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let (mut files, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else {
                let content = fs::read(&path)?;
                files.insert(path, content);
            }
        }
    }
    Ok(files)
}
