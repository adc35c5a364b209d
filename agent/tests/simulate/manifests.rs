//! Random pods, and edits of them.

use serde_json::{Value, json};

/// A pod that a seed has made.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) name: String,
    policy: &'static str,
    inits: usize,
    /// Which of the init containers are sidecars.
    sidecars: Vec<bool>,
    mains: usize,
    /// The restart policy of each main container, if it has its own.
    policies: Vec<Option<&'static str>>,
    /// Whether an exit of each main container with another code than 0 restarts all of them.
    restarts_all: Vec<bool>,
    /// The first main container has the node's address in its environment.
    needs_address: bool,
    host_network: bool,
    grace: u32,
    /// Of two pods with a priority the lower one may end for the place of the other.
    priority: Option<u32>,
    /// `activeDeadlineSeconds`.
    deadline: Option<u32>,
    /// Changes with every edit that recreates the pod.
    generation: u32,
    /// Changes with every edit that touches no container.
    labels: u32,
    /// The probes of each main container, by their fields.
    probes: Vec<Vec<(&'static str, Value)>>,
    /// The image of each init container, then of each main container.
    images: Vec<u32>,
    /// The CPU limit of each main container in millicores; 0: none.
    cpus: Vec<u32>,
    /// Whether another limit restarts each main container.
    restarts: Vec<bool>,
    /// Whether each main container has a `postStart` and a `preStop` hook.
    hooks: Vec<(bool, bool)>,
}

/// Limits to choose from; none is rare, since a change of the QoS class recreates the pod.
pub(crate) const CPUS: [u32; 6] = [100, 200, 300, 400, 500, 0];

impl Made {
    pub(crate) fn new(rng: &mut fastrand::Rng, name: String) -> Self {
        let mains = rng.usize(1..3);
        let policy = if rng.u32(0..3) == 0 { ["Never", "OnFailure"][rng.usize(0..2)] } else { "Always" };
        let inits = if rng.bool() { rng.usize(1..4) } else { 0 };
        Self {
            name,
            policy,
            inits,
            sidecars: (0..inits).map(|_| rng.bool()).collect(),
            mains,
            policies: (0..mains)
                .map(|_| rng.choice([None, None, None, None, Some("Always"), Some("Never")]).flatten())
                .collect(),
            restarts_all: (0..mains).map(|_| rng.u32(0..8) == 0).collect(),
            needs_address: rng.u32(0..4) == 0,
            host_network: rng.bool(),
            grace: rng.u32(1..10),
            priority: (rng.u32(0..8) > 0).then(|| rng.u32(0..4)),
            deadline: (rng.u32(0..4) == 0).then(|| rng.u32(1..120)),
            generation: 0,
            labels: 0,
            // Few: a run settles for half an hour, in which a probe runs some hundred times.
            probes: if rng.u32(0..32) == 0 { (0..mains).map(|_| probes(rng)).collect() } else { Vec::new() },
            images: vec![0; inits + mains],
            cpus: (0..mains).map(|_| CPUS[rng.usize(..CPUS.len())]).collect(),
            restarts: (0..mains).map(|_| policy != "Never" && rng.u32(0..3) == 0).collect(),
            hooks: (0..mains).map(|_| (rng.u32(0..4) == 0, rng.u32(0..3) == 0)).collect(),
        }
    }

    pub(crate) fn edit(&mut self, rng: &mut fastrand::Rng) {
        match rng.u32(0..6) {
            0 => self.images[rng.usize(..self.inits + self.mains)] += 1,
            1 => self.cpus[rng.usize(0..self.mains)] = CPUS[rng.usize(..CPUS.len())],
            2 => self.labels += 1,
            3 => self.policy = ["Always", "OnFailure", "Never"][rng.usize(0..3)],
            _ => self.generation += 1,
        }
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        let generation = json!([{ "name": "GENERATION", "value": self.generation.to_string() }]);
        let container = |name: String, image: u32, cpu: u32| {
            let mut container = json!({
                "name": name, "image": format!("app:{image}"), "imagePullPolicy": "IfNotPresent", "env": generation,
            });
            if cpu > 0 {
                container["resources"] = json!({ "limits": { "cpu": format!("{cpu}m") } });
            }
            container
        };
        let with_policy = |mut container: Value, policy: Option<&str>| {
            if let Some(policy) = policy {
                container["restartPolicy"] = policy.into();
            }
            container
        };
        let init = |index: usize| {
            let sidecar = self.sidecars[index].then_some("Always");
            with_policy(container(format!("init-{index}"), self.images[index], 50), sidecar)
        };
        let main = |index: usize| {
            let image = self.images[self.inits + index];
            let mut main = container(format!("main-{index}"), image, self.cpus[index]);
            if self.restarts[index] && self.policy != "Never" {
                main["resizePolicy"] = json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]);
            }
            let (post_start, pre_stop) = self.hooks[index];
            for (name, _) in [("postStart", post_start), ("preStop", pre_stop)].iter().filter(|(_, has)| *has) {
                main["lifecycle"][*name] = json!({ "exec": { "command": ["/bin/true"] } });
            }
            let mut main = with_policy(main, self.policies[index]);
            if self.restarts_all[index] {
                main["restartPolicy"] = self.policies[index].unwrap_or("Never").into();
                let codes = json!({ "operator": "NotIn", "values": [0] });
                main["restartPolicyRules"] = json!([{ "action": "RestartAllContainers", "exitCodes": codes }]);
            }
            main
        };
        let inits: Vec<Value> = (0..self.inits).map(init).collect();
        let mut mains: Vec<Value> = (0..self.mains).map(main).collect();
        for (main, probes) in mains.iter_mut().zip(&self.probes) {
            probes.iter().for_each(|(field, probe)| main[*field] = probe.clone());
        }
        if let (true, Some(env)) = (self.needs_address, mains[0]["env"].as_array_mut()) {
            env.push(json!({ "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.hostIP" } } }));
        }
        let mut spec = json!({
            "restartPolicy": self.policy, "terminationGracePeriodSeconds": self.grace, "hostNetwork": self.host_network,
            "containers": mains,
        });
        if let Some(priority) = self.priority {
            spec["priority"] = priority.into();
        }
        if let Some(seconds) = self.deadline {
            spec["activeDeadlineSeconds"] = seconds.into();
        }
        if !inits.is_empty() {
            spec["initContainers"] = inits.into();
        }
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": self.name, "labels": { "edit": self.labels.to_string() } },
            "spec": spec,
        });
        pod.to_string().into_bytes()
    }
}

/// Some of the three probes.
fn probes(rng: &mut fastrand::Rng) -> Vec<(&'static str, Value)> {
    let mut probes = Vec::new();
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if rng.u32(0..3) > 0 {
            continue;
        }
        let mut probe = json!({
            "exec": { "command": ["probe"] },
            "initialDelaySeconds": rng.u32(0..5),
            "periodSeconds": rng.u32(1..20),
            "timeoutSeconds": rng.u32(1..30),
            "failureThreshold": rng.u32(1..4),
        });
        if field == "readinessProbe" {
            probe["successThreshold"] = rng.u32(1..4).into();
        } else if rng.bool() {
            probe["terminationGracePeriodSeconds"] = rng.u32(1..20).into();
        }
        probes.push((field, probe));
    }
    probes
}
