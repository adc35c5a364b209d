//! The software bill of materials: CycloneDX 1.5, as JSON.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::crates::{LinkedCrate, ROOTS};
use crate::architecture::Architecture;

/// The document for one architecture, made at the time `made`.
pub(super) fn document(linked: &[LinkedCrate], architecture: Architecture, made: Timestamp) -> String {
    let (root, others): (Vec<_>, Vec<_>) = linked.iter().partition(|linked| linked.name == ROOTS[0]);
    let mut main = root.first().map_or(Value::Null, |root| component(root));
    main["type"] = "application".into();
    main["properties"] = json!([{ "name": "limpet:target", "value": architecture.target() }]);
    let dependencies: Vec<_> = linked.iter().map(|used| dependency(used, linked)).collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "timestamp": made.to_string(), "component": main },
        "components": others.into_iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    format!("{document:#}\n")
}

fn component(linked: &LinkedCrate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(linked),
        "name": linked.name,
        "version": linked.version.to_string(),
        "licenses": [{ "expression": linked.licence }],
    });
    if linked.is_published {
        component["purl"] = reference(linked).into();
    }
    component
}

/// The package's URL, which also is its name within the document.
fn reference(linked: &LinkedCrate) -> String {
    // The `+` before a version's metadata has another meaning in URLs.
    let version = linked.version.to_string().replace('+', "%2B");
    format!("pkg:cargo/{}@{version}", linked.name)
}

fn dependency(linked: &LinkedCrate, all: &[LinkedCrate]) -> Value {
    let used: Vec<_> = linked.dependencies.iter().map(|place| reference(&all[*place])).collect();
    json!({ "ref": reference(linked), "dependsOn": used })
}

#[cfg(test)]
mod tests {
    use semver::Version;

    use super::*;

    #[test]
    fn crates_are_components_and_limpet_is_their_subject() {
        let linked = |name: &str, is_published, dependencies| LinkedCrate {
            name: name.to_owned(),
            version: Version::new(1, 2, 3),
            licence: "MIT".to_owned(),
            directory: "/".into(),
            is_published,
            dependencies,
        };
        let crates = [linked("limpet", false, vec![1]), linked("serde", true, Vec::new())];
        let document: Value = serde_json::from_str(&document(&crates, Architecture::Armv7, Timestamp::UNIX_EPOCH))
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(document["metadata"]["component"]["name"], "limpet");
        assert_eq!(document["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(document["components"][0]["purl"], "pkg:cargo/serde@1.2.3");
        assert_eq!(document["dependencies"][0]["dependsOn"], json!(["pkg:cargo/serde@1.2.3"]));
    }
}
