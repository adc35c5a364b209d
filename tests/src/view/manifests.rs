//! The pods of the corpus: short in their files, and completed here.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::IMAGE;
use crate::agent::workspace_dir;

/// One pod.
#[derive(Debug, Clone)]
pub struct Case {
    /// The family and the pod's name.
    pub family: String,
    /// The pod's name in the manifest.
    pub name: String,
    /// The manifest, with names for what differs between runs: `NODE_DIR` for the node's directory, `MOST_MEMORY` for
    /// more than half of its memory, `LOOPBACK` for an address of its loopback device.
    pub manifest: Value,
    /// The pod that has to run before this one is created.
    pub after: Option<String>,
    /// What is done to it in the cluster once it exists.
    pub then: Option<Then>,
    /// Lines that its status must have before the pod is compared.
    pub until: Vec<String>,
    /// The same under a kubelet.
    pub until_of_kubelet: Vec<String>,
    /// Whether only its status is compared, because its containers may never run.
    pub status_alone: bool,
}

impl Case {
    /// The containers whose view is taken.
    pub fn viewers(&self) -> Vec<String> {
        if self.status_alone {
            return Vec::new();
        }
        let spec = &self.manifest["spec"];
        let all = ["initContainers", "containers"].into_iter().filter_map(|list| spec[list].as_array()).flatten();
        all.filter(|entry| is_viewer(entry)).filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect()
    }
}

/// What is done to a pod of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// It is deleted.
    Delete,
    /// It is evicted, as `kubectl drain` does.
    Evict,
    /// Its first container is resized to more than half of the node's memory.
    Resize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    metadata: Value,
    spec: Value,
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    then: Option<Then>,
    #[serde(default)]
    until: Vec<String>,
    /// Given if a kubelet's pod ends in another way.
    #[serde(default)]
    kubelet: Vec<String>,
}

/// The directory of the corpus.
pub fn dir() -> PathBuf {
    workspace_dir().join("tests/views")
}

/// The directory of the pods of a cluster.
pub fn dir_of_cluster() -> PathBuf {
    dir().join("cluster")
}

/// Every pod in the files of that directory, family by family, in the order they are written.
pub fn cases(dir: &Path) -> Result<Vec<Case>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    let mut cases: Vec<Case> = Vec::new();
    for path in &files {
        for case in family(path).with_context(|| format!("{}", path.display()))? {
            ensure!(cases.iter().all(|other| other.name != case.name), "{} is there twice", case.name);
            let before = |name: &String| cases.iter().any(|other| other.name == *name);
            ensure!(case.after.as_ref().is_none_or(before), "{} comes after a pod that is not before it", case.name);
            cases.push(case);
        }
    }
    Ok(cases)
}

fn family(path: &Path) -> Result<Vec<Case>> {
    let family = path.file_stem().and_then(|stem| stem.to_str()).context("a name in UTF-8")?;
    let entries: Vec<Entry> = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
    Ok(entries.into_iter().map(|entry| filled(family, entry)).collect())
}

/// Completes the manifest with what all pods have in common, which is not in the files.
fn filled(family: &str, entry: Entry) -> Case {
    let Entry { name, metadata, mut spec, after, then, until, kubelet } = entry;
    for (list, own_name) in [("initContainers", "init"), ("containers", "main")] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            fill(container, own_name, list == "initContainers");
        }
    }
    if spec["terminationGracePeriodSeconds"].is_null() {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    if spec["initContainers"].is_null() {
        spec.as_object_mut().map(|spec| spec.remove("initContainers"));
    }
    let mut metadata = if metadata.is_null() { json!({}) } else { metadata };
    metadata["name"] = json!(name);
    let manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    let status_alone = !until.is_empty();
    let until = if until.is_empty() { vec!["conditions[Ready].status = True".to_owned()] } else { until };
    let until_of_kubelet = if kubelet.is_empty() { until.clone() } else { kubelet };
    Case { family: family.to_owned(), name, manifest, after, then, until, until_of_kubelet, status_alone }
}

fn fill(container: &mut Value, name: &str, ends: bool) {
    let Some(keys) = container.as_object_mut() else { return };
    keys.entry("name").or_insert_with(|| json!(name));
    keys.entry("image").or_insert_with(|| json!(IMAGE));
    // An init container has to end, or the others would never start.
    if ends && !keys.contains_key("restartPolicy") && !keys.contains_key("command") {
        keys.insert("command".to_owned(), json!(["/bin/view", "once"]));
    }
}

fn is_viewer(container: &Value) -> bool {
    let of_view = container["image"].as_str().is_some_and(|image| image.contains("/view"));
    let command = container["command"].as_array().filter(|command| !command.is_empty());
    of_view && command.is_none_or(|command| command.iter().any(|word| word == "/bin/view"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_of_the_corpus_can_be_read() {
        let cases = cases(&dir()).unwrap();
        let of_ends = cases.iter().filter(|case| case.status_alone).count();
        assert!(cases.len() >= 200 && of_ends >= 80, "{} pods, {of_ends} of them for their statuses", cases.len());
        let of_cluster = super::cases(&dir_of_cluster()).unwrap();
        assert!(of_cluster.len() >= 50 && of_cluster.iter().any(|case| !case.status_alone), "{}", of_cluster.len());
    }

    #[test]
    fn an_init_container_ends_and_is_looked_at_unless_it_runs_something_else() {
        let spec = json!({
            "initContainers": [{}, { "name": "other", "command": ["/bin/true"] }],
            "containers": [{}, { "name": "side", "image": "registry.test/limpet/demo:v1" }],
        });
        let text = json!({ "name": "web", "spec": spec }).to_string();
        let case = filled("family", serde_json::from_str(&text).unwrap());
        assert_eq!(case.viewers(), ["init", "main"]);
        assert_eq!(case.manifest["spec"]["initContainers"][0]["command"], json!(["/bin/view", "once"]));
    }
}
