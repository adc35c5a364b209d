//! Parses the families of a page in Prometheus' text format.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) kind: String,
    pub(super) help: String,
    /// The names of the samples' labels, except those of buckets.
    pub(super) labels: BTreeSet<String>,
}

pub(super) fn families(page: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").map(|rest| rest.split_once(' ').unwrap_or((rest, "")))
        {
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let (name, labels) = sample(line);
            let family = ["", "_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).filter(|name| families.contains_key(*name)));
            let family = family.and_then(|name| families.get_mut(name));
            family.unwrap_or_else(|| panic!("{line} is of no family")).labels.extend(labels);
        }
    }
    families
}

/// A sample's name and label names.
fn sample(line: &str) -> (&str, BTreeSet<String>) {
    let end = line.find(['{', ' ']).unwrap_or(line.len());
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeSet::new();
    while let Some((label, value)) = rest.trim_start_matches(['{', ',']).split_once("=\"") {
        if !matches!(label, "le" | "quantile") {
            labels.insert(label.to_owned());
        }
        let mut escaped = false;
        let end = value.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        rest = &value[end.map_or(value.len(), |end| end + 1)..];
    }
    (name, labels)
}
