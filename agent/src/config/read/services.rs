//! `services`: where the node's own Services have their addresses, and which ports of the node.

use std::ops::RangeInclusive;

use limpet_services::cidr::Cidr;
use limpet_services::settings::ServiceSettings;

use super::super::tree::{Entry, Map, Node, Value};
use super::ConfigDiagnostics;

const KEY: &str = "services";

impl ConfigDiagnostics {
    pub(super) fn services(&mut self, map: &Map<'_>, services: &mut ServiceSettings) {
        for Entry { key, position, node } in map.map(KEY) {
            let read = match key.as_str() {
                "clusterIPRanges" => ranges(node).map(|ranges| services.ranges = ranges),
                "nodePortRange" => ports(node).map(|ports| services.node_ports = ports),
                _ => Err("no such key; services has clusterIPRanges and nodePortRange".to_owned()),
            };
            if let Err(message) = read {
                self.error(Some(*position), &format!("{KEY}.{key}"), message);
            }
        }
    }
}

/// At least one range, and at most one of each family.
fn ranges(node: &Node) -> Result<Vec<Cidr>, String> {
    let Value::List(nodes) = &node.value else {
        return Err(format!("expected a list, found {}", node.value.kind()));
    };
    let mut ranges: Vec<Cidr> = Vec::new();
    for node in nodes {
        let Value::Text(text) = &node.value else {
            return Err(format!("expected text, found {}", node.value.kind()));
        };
        let range: Cidr = text.parse().map_err(|error| format!("{text:?} {error}"))?;
        if ranges.iter().any(|known| known.is_ipv4() == range.is_ipv4()) {
            return Err("has two ranges of one family".to_owned());
        }
        ranges.push(range);
    }
    if ranges.is_empty() { Err("needs a range".to_owned()) } else { Ok(ranges) }
}

fn ports(node: &Node) -> Result<RangeInclusive<u16>, String> {
    let Value::Text(text) = &node.value else {
        return Err(format!("expected text, found {}", node.value.kind()));
    };
    let bounds = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match bounds {
        Some((first, last)) if first > 0 && first < last => Ok(first..=last),
        _ => Err(format!("{text:?} is no range such as 30000-32767")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::super::tests::load_text;
    use super::*;

    /// What `tests/supported.yaml` has.
    pub(in super::super) fn ranged() -> ServiceSettings {
        let ranges = ["10.96.0.0/12", "fd00:96::/112"].map(|range| range.parse().unwrap()).to_vec();
        ServiceSettings { ranges, node_ports: 31_000..=31_999 }
    }

    #[test]
    fn every_mistake_is_named() {
        for (services, message) in [
            ("{clusterIPRanges: 10.43.0.0/16}", "services.clusterIPRanges: expected a list, found text"),
            ("{clusterIPRanges: []}", "services.clusterIPRanges: needs a range"),
            ("{clusterIPRanges: [10.43.0.1/16]}", "the range is 10.43.0.0/16"),
            ("{clusterIPRanges: [10.43.0.0/16, 10.44.0.0/16]}", "has two ranges of one family"),
            ("{nodePortRange: 32767-30000}", "services.nodePortRange: \"32767-30000\" is no range"),
            ("{ports: 1}", "services.ports: no such key"),
        ] {
            let text = format!("apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\nservices: {services}\n");
            let mistakes = load_text(&text, &[]).0.unwrap_err();
            assert!(mistakes[0].contains(message), "{services}: {mistakes:?}");
        }
    }
}
