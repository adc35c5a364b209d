//! What runs before each bad update, and what has to be so after it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

/// `progressDeadline`.
const DEADLINE: Duration = Duration::from_secs(6);
/// By then what ran before runs again.
pub(crate) const LIMIT: Duration = Duration::from_secs(36);
/// The file with all manifests of the node.
pub(crate) const FILE: &str = "all.yaml";

/// The lines about generations, with further ones.
pub(crate) fn settings(further: &str) -> String {
    let deadline = DEADLINE.as_secs();
    format!(
        "generations: {{policy: {{file: all, bundle: all}}, progressDeadline: {deadline}s, minReadySeconds: 1, \
         maxRestarts: 0{further}}}"
    )
}

/// A change that does not work.
pub(crate) struct Update {
    pub(crate) name: &'static str,
    /// The text of the manifests.
    pub(crate) text: String,
    pub(crate) end: End,
}

/// How it ends, and what `limpet status` says of it, or `limpet sources` of what is rejected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// It was in effect, and is undone.
    Undone(&'static str),
    /// It never takes effect.
    Waits(&'static str),
    /// The source refuses it.
    Rejected(&'static str),
}

impl End {
    /// Commands, each with a part of its output.
    fn shown(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Undone(why) => [("status", "was undone, generation "), ("status", why)],
            Self::Waits(why) => [("status", "the newest version waits: "), ("status", why)],
            Self::Rejected(why) => [("status", "rejected, see: limpet sources"), ("sources", why)],
        }
    }
}

/// The pod `web` as it works, and what it is recognised by.
pub(crate) fn web() -> Value {
    labelled(pod("web", json!({ "containers": [shell("main", IDLE)] })), "good")
}

/// The pod that nobody changes.
fn sibling() -> Value {
    pod("sibling", json!({ "containers": [shell("main", IDLE)] }))
}

fn labelled(pod: Value, version: &str) -> Value {
    with(pod, json!({ "metadata": { "labels": { "version": version } } }))
}

/// These documents and those that nobody changes.
pub(crate) fn all(documents: &[Value]) -> String {
    let settings = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" },
        "data": { "word": "good" }, "immutable": true });
    let all = documents.iter().chain([&settings]).cloned().chain([sibling()]);
    all.map(|document| document.to_string()).collect::<Vec<_>>().join("\n---\n")
}

/// All, with a pod `web` whose container has these fields.
pub(crate) fn container_with(fields: Value) -> String {
    spec_with(json!({ "containers": [with(shell("main", IDLE), fields)] }))
}

/// All, with a pod `web` whose spec has these fields.
pub(crate) fn spec_with(fields: Value) -> String {
    let spec = with(json!({ "containers": [shell("main", IDLE)] }), fields);
    all(&[labelled(pod("web", spec), "bad")])
}

/// All, with these documents beside the pod `web` as it works.
pub(crate) fn beside(documents: Vec<Value>) -> String {
    all(&[vec![web()], documents].concat())
}

/// Has what works run, and then each update in turn.
pub(crate) fn try_all(node: &TestNode, updates: Vec<Update>) -> Result<()> {
    begin(node)?;
    for update in updates {
        attempt(node, &update).with_context(|| format!("the update {}", update.name))?;
    }
    Ok(())
}

/// Has what works run.
pub(crate) fn begin(node: &TestNode) -> Result<()> {
    begin_with(node, &all(&[web()]))
}

/// The same with other manifests, among which the pod `web` is.
pub(crate) fn begin_with(node: &TestNode, manifests: &str) -> Result<()> {
    node.drop_text(FILE, manifests)?;
    works(node)?;
    is_settled(node)
}

/// Has an update take place, and waits until it has ended, and what works runs.
pub(crate) fn attempt(node: &TestNode, update: &Update) -> Result<()> {
    attempt_during(node, update, |_| Ok(()))
}

/// The same while something else happens.
pub(crate) fn attempt_during(
    node: &TestNode,
    update: &Update,
    meanwhile: impl FnOnce(&TestNode) -> Result<()>,
) -> Result<()> {
    let before = container_id(&node.wait_running("sibling")?, "main")?;
    node.drop_text(FILE, &update.text)?;
    meanwhile(node)?;
    has_ended(node, update.end)?;
    works(node)?;
    let after = container_id(&node.wait_running("sibling")?, "main")?;
    ensure!(before == after, "the pod beside it was restarted");
    begin(node)
}

/// Waits until it is shown that the update has ended so.
pub(crate) fn has_ended(node: &TestNode, end: End) -> Result<()> {
    let shown = |command| node.agent.cli(&[command]).map(|reply| reply.stdout).unwrap_or_default();
    wait::until_true(LIMIT, &format!("{end:?}"), || {
        end.shown().iter().all(|(command, part)| shown(*command).contains(part))
    })
    .with_context(|| end.shown().map(|(command, _)| shown(command)).concat())
}

/// Waits until the pod `web` runs as it works.
pub(crate) fn works(node: &TestNode) -> Result<()> {
    let pod = || node.pod("web");
    wait::until_true(LIMIT, "the pod that ran before", || {
        pod().is_some_and(|pod| {
            pod["metadata"]["labels"]["version"] == "good" && container(&pod, "main")["ready"] == true
        })
    })
    .with_context(|| format!("{:#}", pod().unwrap_or_default()["status"]))
}

/// Whether the newest version of the file source, or of bundles, runs and is good.
pub(crate) fn is_good(node: &TestNode) -> bool {
    let checked = node.agent.cli(&["generations", "--check"]);
    checked.is_ok_and(|reply| reply.code == Some(0) && reply.stdout.contains("running, good"))
}

/// Waits until the newest version of every source runs and is good, and nothing needs attention.
fn is_settled(node: &TestNode) -> Result<()> {
    let status = || node.agent.cli(&["status"]);
    wait::until_true(LIMIT, "nothing that needs attention", || {
        is_good(node) && status().is_ok_and(|reply| reply.code == Some(0))
    })
    .with_context(|| status().map(|reply| reply.stdout).unwrap_or_default())
}
