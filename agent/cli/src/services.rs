//! `limpet services`: the Services of the node's own sources, their addresses, and where they lead to.

use super::error::CliError;
use super::output::DocumentFormat;
use super::screen::{Screen, Tone, printable};
use super::table::{Cell, Table};
use limpet_wire::services::{ServiceDocument, ServicePortDocument, ServicesDocument};
use limpet_wire::socket_client::SocketClient;

/// How many endpoints of a Service the table shows.
const SHOWN: usize = 3;

/// Arguments of `limpet services`.
#[derive(Debug, clap::Args)]
pub struct ServicesArgs {
    /// Output format
    #[arg(short, long, value_name = "FORM")]
    output: Option<Output>,
}

/// How Services are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Json,
    Yaml,
    /// Namespaces and names, for scripts
    Name,
}

/// Lists the Services.
///
/// # Errors
/// When the agent cannot be reached.
pub(super) async fn run(client: &SocketClient, args: ServicesArgs, screen: Screen) -> Result<u8, CliError> {
    let document: ServicesDocument = client.get_json("/limpet/v1/services").await?;
    let text = match args.output {
        Some(Output::Json) => DocumentFormat::Json.render(&document)?,
        Some(Output::Yaml) => DocumentFormat::Yaml.render(&document)?,
        Some(Output::Name) => document.services.iter().map(full_name).collect(),
        None if document.services.is_empty() => {
            screen.remark("No source has a Service.")?;
            return Ok(0);
        }
        None => render(&document, &screen),
    };
    screen.print(&text)?;
    Ok(0)
}

fn full_name(service: &ServiceDocument) -> String {
    format!("{}/{}\n", printable(&service.namespace), printable(&service.name))
}

fn render(document: &ServicesDocument, screen: &Screen) -> String {
    let rows: Vec<Vec<Cell>> = document.services.iter().map(row).collect();
    let header = vec!["NAMESPACE", "NAME", "TYPE", "CLUSTER-IP", "PORTS", "ENDPOINTS", "SOURCE", "NOTE"];
    let mut text = Table::new(header).render(screen, &rows);
    if let Some(why) = &document.unserved {
        text.push_str(&format!("\n{}\n", screen.paint(Tone::Bad, &format!("not served: {}", printable(why)))));
    }
    text
}

fn row(service: &ServiceDocument) -> Vec<Cell> {
    let address = match &service.external_name {
        Some(name) => name.clone(),
        None if service.cluster_ips.is_empty() => "-".to_owned(),
        None => service.cluster_ips.join(","),
    };
    let ports: Vec<String> = service.ports.iter().map(port).collect();
    vec![
        Cell::from(service.namespace.as_str()),
        Cell::from(service.name.as_str()),
        Cell::from(service.r#type.as_str()),
        Cell::from(address),
        Cell::from(if ports.is_empty() { "-".to_owned() } else { ports.join(",") }),
        endpoints(service),
        Cell::from(format!("{} {}", service.source, service.origin).trim_end()),
        Cell::toned(service.fault.clone().unwrap_or_default(), Tone::Bad),
    ]
}

/// `80:30080/TCP`, as kubectl has it.
fn port(port: &ServicePortDocument) -> String {
    let node_port = port.node_port.map(|number| format!(":{number}")).unwrap_or_default();
    format!("{}{node_port}/{}", port.port, port.protocol)
}

fn endpoints(service: &ServiceDocument) -> Cell {
    let mut all: Vec<&str> = service.ports.iter().flat_map(|port| &port.endpoints).map(String::as_str).collect();
    if service.ports.is_empty() {
        all = service.pods.iter().map(String::as_str).collect();
    }
    match all.len() {
        0 if service.external_name.is_some() => Cell::from("-"),
        0 => Cell::toned("none", Tone::Warn),
        count if count > SHOWN => Cell::from(format!("{} + {} more", all[..SHOWN].join(","), count - SHOWN)),
        _ => Cell::from(all.join(",")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_are_shown_with_their_endpoints_and_what_is_wrong() {
        let ends = ["10.1.0.2:8080", "10.1.0.3:8080", "10.1.0.4:8080", "10.1.0.5:8080"];
        let document: ServicesDocument = serde_json::from_value(json!({
            "unserved": "the kernel lacks nf_tables",
            "services": [
                {"namespace": "shop", "name": "web", "source": "file", "origin": "web.yaml", "type": "NodePort",
                 "clusterIPs": ["10.43.0.9"], "pods": ["shop/a"],
                 "ports": [{"protocol": "TCP", "port": 80, "nodePort": 30080, "endpoints": ends}]},
                {"namespace": "shop", "name": "mail", "source": "push", "origin": "", "type": "ExternalName",
                 "clusterIPs": [], "externalName": "mail.example.com", "pods": [], "ports": []},
                {"namespace": "shop", "name": "db", "source": "file", "origin": "db.yaml", "type": "ClusterIP",
                 "clusterIPs": ["None"], "pods": [], "ports": [], "fault": "no address"},
            ],
        }))
        .unwrap();
        let text = render(&document, &Screen { color: false, quiet: false });
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = ["shop", "web", "NodePort", "10.43.0.9", "80:30080/TCP"];
        assert_eq!(lines[1][..5], expected);
        assert!(text.contains("10.1.0.4:8080 + 1 more") && !text.contains("10.1.0.5"), "{text}");
        assert_eq!(lines[2], ["shop", "mail", "ExternalName", "mail.example.com", "-", "-", "push"]);
        assert_eq!(lines[3], ["shop", "db", "ClusterIP", "None", "-", "none", "file", "db.yaml", "no", "address"]);
        assert!(text.ends_with("\nnot served: the kernel lacks nf_tables\n"), "{text}");
    }
}
