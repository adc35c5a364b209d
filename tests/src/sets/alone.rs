//! limpet without a control plane as a stage of sets.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::files::Set;
use super::lookup::{self, Question};
use super::stage::{Service, ServicePort, Stage};
use crate::containerd::Containerd;
use crate::contender::Contender as _;
use crate::own_network::OwnNetwork;
use crate::process::Daemon;
use crate::{TestNode, manifest};

/// Where limpet answers names.
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 43, 0, 10);

/// A node whose manifest directory has a file for each set.
#[derive(Debug)]
pub struct Alone<'a> {
    node: &'a TestNode,
    network: OwnNetwork,
}

impl<'a> Alone<'a> {
    /// Starts the agent in a network of its own.
    pub fn start(node: &'a mut TestNode) -> Result<Self> {
        let network = OwnNetwork::start(node)?;
        network.answer_names()?;
        Ok(Self { node, network })
    }

    fn get(&self, path: &str) -> Result<Value> {
        serde_json::from_slice(&self.node.agent.get(path)?).with_context(|| path.to_owned())
    }
}

impl Stage for Alone<'_> {
    fn apply(&self, set: &Set, version: usize) -> Result<()> {
        let documents: Vec<_> = set.versions[version].iter().map(Value::to_string).collect();
        let directory = self.node.agent.settings().manifests();
        manifest::put(&directory, &format!("{}.yaml", set.name), &documents.join("\n---\n"))
    }

    fn pods(&self) -> Result<Vec<Value>> {
        self.node.agent.pods()
    }

    fn services(&self) -> Result<Vec<Service>> {
        let document = self.get("/limpet/v1/services")?;
        Ok(document["services"].as_array().into_iter().flatten().map(service).collect())
    }

    fn claims(&self) -> Result<BTreeSet<String>> {
        let all = self.node.agent.settings().root().join("persistent-volumes/file");
        let names = |dir: &Path| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
        };
        let of_namespace = |namespace: String| {
            let claims = names(&all.join(&namespace));
            claims.into_iter().map(move |claim| format!("{namespace}/{claim}"))
        };
        Ok(names(&all).into_iter().flat_map(of_namespace).collect())
    }

    fn events(&self) -> Result<Vec<Value>> {
        Ok(self.get("/limpet/v1/events")?["items"].as_array().cloned().unwrap_or_default())
    }

    fn ask(&self, questions: &[Question]) -> Result<Vec<Vec<String>>> {
        let server = SocketAddr::from((NAME_SERVER, 53));
        self.network.within(|| questions.iter().map(|question| lookup::ask(server, question)).collect())
    }

    fn watch(&self, file: &Path) -> Result<Daemon> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--no-buffer", "--unix-socket"])
            .arg(self.node.agent.settings().socket());
        Daemon::start(curl.arg("http://limpet/limpet/v1/pods?watch=1"), file)
    }

    fn containerd(&self) -> &Containerd {
        &self.node.containerd
    }

    fn logs(&self) -> PathBuf {
        self.node.agent.settings().pod_logs()
    }

    fn aliases(&self) -> Vec<(String, String)> {
        // A pod of a manifest has the node's name in its own.
        vec![(NAME_SERVER.to_string(), "NAME_SERVER".to_owned()), (self.node.name().to_owned(), "NODE".to_owned())]
    }
}

fn service(document: &Value) -> Service {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let port = |port: &Value| ServicePort {
        name: text(&port["name"]),
        protocol: text(&port["protocol"]),
        port: port["port"].as_u64().unwrap_or_default(),
        node_port: port["nodePort"].as_u64(),
        endpoints: texts(&port["endpoints"]).into_iter().collect(),
    };
    Service {
        namespace: text(&document["namespace"]),
        name: text(&document["name"]),
        kind: text(&document["type"]),
        addresses: texts(&document["clusterIPs"]),
        ports: document["ports"].as_array().into_iter().flatten().map(port).collect(),
    }
}
