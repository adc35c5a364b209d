//! Manifests that a source refuses, among others that are good.

use anyhow::Result;
use limpet_tests::TestNode;
use serde_json::json;

use crate::stage::{End, Update, all, beside, container_with, spec_with, try_all, web};

fn rejected(name: &'static str, text: String, why: &'static str) -> Update {
    Update { name, text, end: End::Rejected(why) }
}

pub(crate) fn manifests_that_are_refused(node: &mut TestNode) -> Result<()> {
    let settings = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" },
        "data": { "word": "bad" }, "immutable": true });
    let changed = all(&[web()]).replace(r#""word":"good""#, r#""word":"bad""#);
    try_all(
        node,
        vec![
            rejected("a field that does not exist", container_with(json!({ "livenesProbe": {} })), "livenesProbe"),
            rejected("a port that is none", container_with(json!({ "ports": [{ "containerPort": 80800 }] })), "80800"),
            rejected("no container", spec_with(json!({ "containers": [] })), "containers"),
            rejected("text that is no YAML", all(&[web()]) + "\n---\nkind: [Pod\n", "all.yaml"),
            rejected("an object that is there twice", beside(vec![settings]), "defined twice"),
            rejected("a change of what is immutable", changed, "immutable"),
            rejected(
                "a kind of another version",
                beside(vec![json!({ "apiVersion": "v9", "kind": "Pod", "metadata": { "name": "new" } })]),
                "v9",
            ),
        ],
    )
}
