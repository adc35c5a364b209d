//! The pod that faults hit, its life in phases, and what must be true after each of them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, image, process};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::inventory;

/// The steps of a pod's life, in order. `restart` is the agent's: it changes nothing about the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Start,
    Image,
    Crash,
    Recreate,
    Restart,
    Delete,
}

pub(crate) const PHASES: [Phase; 6] =
    [Phase::Start, Phase::Image, Phase::Crash, Phase::Recreate, Phase::Restart, Phase::Delete];

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Image => "image",
            Self::Crash => "crash",
            Self::Recreate => "recreate",
            Self::Restart => "restart",
            Self::Delete => "delete",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        PHASES.into_iter().find(|phase| phase.name() == name)
    }
}

/// What kind of pod it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has an init container and two that continue, in its own network.
    Lasting,
    /// It has an init container and one that ends and never runs again.
    Once,
}

/// A pod and what is known of its life so far.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) name: String,
    kind: Kind,
    number: u32,
    /// Makes its UIDs differ from other nodes', because runc's state belongs to the machine, and knows containers by
    /// ids made of them.
    node_part: String,
    shared: PathBuf,
    /// Counts the edits that recreate the pod.
    generation: u32,
    second_image: bool,
    there: bool,
    begun: bool,
    /// The instance that was last killed, which another one has to replace.
    crashed: Option<String>,
    /// The runs that must have happened, in any order.
    expected: Vec<String>,
    /// Whether the agent is known to have accepted the manifest.
    pub(crate) accepted: bool,
    /// Whether there may be more restarts, because a process that a container needs was killed.
    pub(crate) lenient: bool,
}

impl Subject {
    /// A pod that does not exist yet. Its UID is written in its manifest and follows from `number`.
    pub(crate) fn new(node: &TestNode, name: &str, kind: Kind, number: u32) -> Result<Self> {
        let shared = node.dir().join("shared").join(name);
        fs::create_dir_all(&shared)?;
        Ok(Self {
            name: name.to_owned(),
            kind,
            number,
            node_part: inventory::pod_digits(node.name())[..8].to_owned(),
            shared,
            generation: 0,
            second_image: false,
            there: false,
            begun: false,
            crashed: None,
            expected: Vec::new(),
            accepted: false,
            lenient: false,
        })
    }

    /// The ends of its containers' ids: of all its incarnations so far, and of the one after the next edit that
    /// recreates it.
    pub(crate) fn digits(&self) -> Vec<String> {
        (0..=self.generation + 1).map(|generation| inventory::pod_digits(&self.uid(generation))).collect()
    }

    fn uid(&self, generation: u32) -> String {
        format!("{}-0000-4000-8{generation:03x}-{:012x}", self.node_part, self.number)
    }

    fn manifest(&self) -> Value {
        let noted = |name: &str, then: &str| {
            let script = format!("echo {}-{name} >> /shared/runs; {then}", self.generation);
            with(shell(name, &script), json!({ "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }] }))
        };
        let (policy, mut containers) = match self.kind {
            Kind::Lasting => ("Always", vec![noted("main", IDLE), noted("side", IDLE)]),
            Kind::Once => ("Never", vec![noted("main", "true")]),
        };
        if self.second_image {
            containers[0]["image"] = image::V2.into();
        }
        let uid = json!({ "metadata": { "uid": self.uid(self.generation) } });
        let manifest = pod(
            &self.name,
            json!({
                "hostNetwork": false,
                "restartPolicy": policy,
                "initContainers": [noted("init", "true")],
                "containers": containers,
                "volumes": [{ "name": "shared", "hostPath": { "path": &self.shared } }],
            }),
        );
        with(manifest, uid)
    }

    fn expect(&mut self, names: &[&str]) {
        self.expected.extend(names.iter().map(|name| format!("{}-{name}", self.generation)));
    }

    /// Whether this kind of pod goes through the phase.
    pub(crate) fn goes_through(&self, phase: Phase) -> bool {
        self.kind == Kind::Lasting || !matches!(phase, Phase::Image | Phase::Crash)
    }

    /// Begins a phase: changes the manifest, or kills the process.
    pub(crate) fn begin(&mut self, node: &TestNode, phase: Phase) -> Result<()> {
        if self.lenient {
            // What an earlier phase began may never have run.
            self.expected.clear();
        }
        self.accepted = false;
        match phase {
            Phase::Start | Phase::Recreate => {
                if phase == Phase::Start {
                    self.second_image = false;
                    self.expected.clear();
                    fs::write(self.shared.join("runs"), "")?;
                }
                // A pod that comes back after its deletion is another one, even if its absence was not observed.
                self.generation += u32::from(self.begun);
                (self.there, self.begun) = (true, true);
                let names = if self.kind == Kind::Lasting { &["init", "main", "side"][..] } else { &["init", "main"] };
                self.expect(names);
                node.apply(&self.manifest())
            }
            Phase::Image => {
                self.second_image = true;
                self.expect(&["main"]);
                node.apply(&self.manifest())
            }
            Phase::Crash => {
                self.expect(&["main"]);
                let pod = node.pod(&self.name).context("the pod to crash is not there")?;
                let id = container_id(&pod, "main")?;
                self.crashed = Some(id.clone());
                let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task")?;
                process::signal_pid(task.pid, Signal::KILL);
                Ok(())
            }
            Phase::Restart => Ok(()),
            Phase::Delete => {
                self.there = false;
                node.remove(&self.name)
            }
        }
    }

    /// Whether its manifest exists.
    pub(crate) fn is_there(&self) -> bool {
        self.there
    }

    /// Writes a broken manifest, after which what runs continues.
    pub(crate) fn break_manifest(&self, node: &TestNode) -> Result<()> {
        node.drop_text(&format!("{}.yaml", self.name), "apiVersion: v1\nkind: Pod\nmetadata: [")
    }

    /// Whether the agent shows the pod as it should be, and it has run as often as it should have.
    pub(crate) fn judge(&self, pods: &[Value], node: &TestNode) -> Result<()> {
        let full = node.full_name(&self.name);
        let pod = pods.iter().find(|pod| pod["metadata"]["name"] == full.as_str());
        self.judge_runs()?;
        let Some(pod) = pod else {
            if self.there {
                bail!("pod {} is not shown", self.name);
            }
            return Ok(());
        };
        if !self.there {
            bail!("pod {} is still shown", self.name);
        }
        self.judge_status(pod)
    }

    fn judge_status(&self, pod: &Value) -> Result<()> {
        let status = &pod["status"];
        let phase = if self.kind == Kind::Once { "Succeeded" } else { "Running" };
        if status["phase"] != phase {
            bail!("pod {}: {status}", self.name);
        }
        if self.kind == Kind::Once {
            return Ok(());
        }
        let current = |name: &str| {
            let container = container(pod, name);
            let script = &pod["spec"]["containers"][0]["command"][2];
            let this_generation =
                script.as_str().is_some_and(|text| text.contains(&format!("echo {}-", self.generation)));
            container["state"]["running"].is_object() && this_generation
        };
        let image = if self.second_image { image::V2 } else { image::V1 };
        let crashed = container_id(pod, "main").ok() == self.crashed;
        if !current("main") || !current("side") || crashed || container(pod, "main")["image"] != image {
            bail!("pod {}: {status}", self.name);
        }
        Ok(())
    }

    /// Containers note each run before they do anything else.
    fn judge_runs(&self) -> Result<()> {
        let mut seen = inventory::runs(&self.shared.join("runs"))?;
        let mut expected = self.expected.clone();
        seen.sort();
        expected.sort();
        let enough = if self.lenient { expected.iter().all(|run| seen.contains(run)) } else { seen == expected };
        if !enough {
            bail!("pod {} ran {seen:?}, and should have run {expected:?}", self.name);
        }
        Ok(())
    }

    /// Judges only what follows from here on, because what was hit may have run more often than planned.
    pub(crate) fn forgive(&mut self) -> Result<()> {
        if self.lenient {
            self.expected = inventory::runs(&self.shared.join("runs"))?;
            self.lenient = false;
        }
        Ok(())
    }
}

/// Whether the agent shows the pods as they should be, and no others.
pub(crate) fn judge(node: &TestNode, subjects: &[&Subject], pods: &[Value]) -> Result<()> {
    for subject in subjects {
        subject.judge(pods, node)?;
    }
    let wanted: Vec<String> = subjects.iter().map(|subject| node.full_name(&subject.name)).collect();
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match pods.iter().map(name).find(|name| !wanted.contains(name)) {
        Some(name) => bail!("a pod that nobody wants: {name}"),
        None => Ok(()),
    }
}
