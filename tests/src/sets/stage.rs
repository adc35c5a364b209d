//! What sets are given to, and what is seen of them there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::files::Set;
use super::lookup::Question;
use crate::containerd::Containerd;
use crate::process::{Daemon, tail};

/// A node that runs sets.
pub trait Stage {
    /// Gives it a version of a set in place of the one before.
    fn apply(&self, set: &Set, version: usize) -> Result<()>;
    /// All pods, of every namespace.
    fn pods(&self) -> Result<Vec<Value>>;
    /// All Services of sets.
    fn services(&self) -> Result<Vec<Service>>;
    /// The claims that there are, as `namespace/name`.
    fn claims(&self) -> Result<BTreeSet<String>>;
    /// The events that it has kept.
    fn events(&self) -> Result<Vec<Value>>;
    /// What the name server of its pods answers to each question.
    fn ask(&self, questions: &[Question]) -> Result<Vec<Vec<String>>>;
    /// Begins to write every change of a pod into that file, as a line of JSON.
    fn watch(&self, file: &Path) -> Result<Daemon>;
    /// Where its containers run.
    fn containerd(&self) -> &Containerd;
    /// The directory of what pods write.
    fn logs(&self) -> PathBuf;
    /// What stands for this run: texts, each with a name.
    fn aliases(&self) -> Vec<(String, String)>;
}

/// A Service with where it leads to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub kind: String,
    /// `None` for a headless one.
    pub addresses: Vec<String>,
    pub ports: Vec<ServicePort>,
}

/// One of its ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty if it has none.
    pub name: String,
    pub protocol: String,
    pub port: u64,
    /// The port of the node.
    pub node_port: Option<u64>,
    /// `address:port` of each.
    pub endpoints: BTreeSet<String>,
}

/// All that was seen at one time.
#[derive(Debug)]
pub struct Snapshot {
    pub pods: Vec<Value>,
    pub services: Vec<Service>,
    pub claims: BTreeSet<String>,
    pub events: Vec<Value>,
    /// The first process of each container, by containerd's id.
    pub processes: BTreeMap<String, u32>,
}

impl Snapshot {
    /// Reads everything from the stage now, one list after the other.
    pub fn take(stage: &dyn Stage) -> Result<Self> {
        let running = stage.containerd().tasks()?.into_iter().filter(|task| task.state == "RUNNING");
        Ok(Self {
            processes: running.map(|task| (task.id, task.pid)).collect(),
            pods: stage.pods()?,
            services: stage.services()?,
            claims: stage.claims()?,
            events: stage.events()?,
        })
    }

    /// The pods of a set.
    pub fn pods_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Value> {
        self.pods.iter().filter(move |pod| pod["metadata"]["namespace"] == *namespace)
    }

    /// The Services of a set.
    pub fn services_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Service> {
        self.services.iter().filter(move |service| service.namespace == *namespace)
    }
}

/// The pod in a line that [`Stage::watch`] has written, and whether it is gone; `None` in one that has no pod.
pub fn change(line: &str) -> Result<Option<(Value, bool)>> {
    let mut line: Value = serde_json::from_str(line).with_context(|| tail(line, 1))?;
    let is_gone = line["type"] == "DELETED";
    // The apiserver has the pod in `object`, limpet in `entry`.
    let pod = [&["object"][..], &["entry", "pod"]].into_iter().find_map(|path| {
        let at = path.iter().try_fold(&mut line, |value, key| value.get_mut(*key))?;
        Some(at.take())
    });
    Ok(pod.map(|pod| (pod, is_gone)))
}
