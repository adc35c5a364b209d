//! The lines of a Service: its addresses and ports, and where they lead to.

use limpet_wire::services::ServiceDocument;
use serde_json::Value;

use super::text;
use crate::screen::{Screen, Tone, printable};
use crate::sheet::Sheet;

pub(super) fn describe(sheet: &mut Sheet, spec: &Value, served: Option<&ServiceDocument>, screen: &Screen) {
    let labels: Vec<String> = spec["selector"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", text(value, "")))
        .collect();
    sheet.field("Selector", if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") }.as_str());
    let Some(served) = served else {
        sheet.field("Type", &text(&spec["type"], "ClusterIP"));
        return;
    };
    sheet.field("Type", &served.r#type);
    sheet.optional("External Name", served.external_name.as_deref());
    sheet.optional("IPs", Some(&served.cluster_ips.join(", ")));
    for port in &served.ports {
        let name = port.name.as_deref().unwrap_or("<unset>");
        sheet.field("Port", &format!("{name} {}/{}", port.port, port.protocol));
        sheet.indented(|sheet| {
            let of_number =
                |known: &&Value| known["port"] == port.port && text(&known["protocol"], "TCP") == port.protocol;
            let declared = spec["ports"].as_array().into_iter().flatten().find(of_number).unwrap_or(&Value::Null);
            let target = text(&declared["targetPort"], &port.port.to_string());
            sheet.field("Target", &format!("{target}/{}", port.protocol));
            if let Some(number) = port.node_port {
                sheet.field("Node Port", &format!("{number}/{}", port.protocol));
            }
            match port.endpoints.is_empty() {
                true => sheet.painted("Endpoints", &screen.paint(Tone::Warn, "<none>")),
                false => sheet.field("Endpoints", &port.endpoints.join(", ")),
            }
        });
    }
    sheet.field("Session Affinity", &text(&spec["sessionAffinity"], "None"));
    sheet.optional("External Policy", spec["externalTrafficPolicy"].as_str());
    if let Some(fault) = &served.fault {
        sheet.painted("Not Served", &screen.paint(Tone::Bad, &printable(fault)));
    }
    sheet.list("Pods", &served.pods);
}
