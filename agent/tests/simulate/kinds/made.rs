//! The workloads that a seed makes, and their manifests.

use serde_json::{Value, json};

/// What the workloads of one life are. One life has few kinds, so that each of them meets every fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Focus {
    /// Deployments and DaemonSets.
    Replicated,
    StatefulSets,
    Jobs,
    /// CronJobs, on a node whose clock is set and moved.
    CronJobs,
}

impl Focus {
    pub(super) fn draw(rng: &mut fastrand::Rng) -> Self {
        match rng.u32(0..6) {
            0..=2 => Self::Replicated,
            3 => Self::StatefulSets,
            4 => Self::Jobs,
            _ => Self::CronJobs,
        }
    }

    fn kind(self, rng: &mut fastrand::Rng) -> &'static str {
        match self {
            Self::Replicated if rng.u32(0..4) == 0 => "DaemonSet",
            Self::Replicated => "Deployment",
            Self::StatefulSets => "StatefulSet",
            Self::Jobs => "Job",
            Self::CronJobs => "CronJob",
        }
    }
}

/// A workload that a seed has made.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) kind: &'static str,
    /// Distinguishes it from an earlier one of its name.
    pub(super) incarnation: u32,
    /// The number of pods; of a Job's completions, which is not 0.
    pub(super) replicas: u32,
    pub(super) surge: u32,
    pub(super) unavailable: u32,
    pub(super) parallelism: u32,
    /// A Deployment ends the old pods first.
    pub(super) recreates: bool,
    /// A StatefulSet starts all pods at once.
    pub(super) is_parallel: bool,
    pub(super) is_indexed: bool,
    pub(super) min_ready: u32,
    pub(super) concurrency: &'static str,
    /// Changes with each edit of the template.
    pub(super) version: u32,
}

impl Made {
    pub(super) fn new(rng: &mut fastrand::Rng, focus: Focus, incarnation: u32) -> Self {
        let surge = rng.u32(0..3);
        let kind = focus.kind(rng);
        Self {
            kind,
            incarnation,
            replicas: if kind == "Job" { rng.u32(1..5) } else { rng.u32(0..4) },
            surge,
            unavailable: if surge == 0 { rng.u32(1..3) } else { rng.u32(0..3) },
            parallelism: rng.u32(1..4),
            recreates: rng.u32(0..4) == 0,
            is_parallel: rng.bool(),
            is_indexed: rng.bool(),
            min_ready: if rng.bool() { 0 } else { rng.u32(1..30) },
            concurrency: rng.choice(["Allow", "Forbid", "Replace"]).unwrap_or("Allow"),
            version: 0,
        }
    }

    /// Whether its pods run to an end.
    pub(super) fn runs_to_end(&self) -> bool {
        matches!(self.kind, "Job" | "CronJob")
    }

    /// Whether an old pod ends before its successor begins.
    pub(super) fn ends_first(&self) -> bool {
        self.kind == "DaemonSet" || (self.kind == "Deployment" && self.recreates)
    }

    /// How many pods there are to be, and how many there may be.
    pub(super) fn pods(&self) -> (usize, usize) {
        let replicas = if self.kind == "DaemonSet" { 1 } else { self.replicas };
        let surge = if self.ends_first() || self.kind == "StatefulSet" { 0 } else { self.surge };
        (replicas as usize, (replicas + surge) as usize)
    }

    pub(super) fn text(&self, name: &str) -> Vec<u8> {
        let group = if self.runs_to_end() { "batch/v1" } else { "apps/v1" };
        let metadata = json!({ "name": name });
        let document = json!({ "apiVersion": group, "kind": self.kind, "metadata": metadata, "spec": self.spec(name) });
        document.to_string().into_bytes()
    }

    fn spec(&self, name: &str) -> Value {
        match self.kind {
            "Job" => self.job(name),
            "CronJob" => {
                let mut job = self.job(name);
                (job["completions"], job["parallelism"], job["backoffLimit"]) = (json!(1), json!(1), json!(0));
                job["completionMode"] = json!("NonIndexed");
                json!({
                    "schedule": "*/5 * * * *", "concurrencyPolicy": self.concurrency, "jobTemplate": { "spec": job },
                })
            }
            _ => self.replicated(name),
        }
    }

    fn template(&self, name: &str) -> Value {
        json!({
            "metadata": { "labels": {
                "app": name, "version": self.version.to_string(), "incarnation": self.incarnation.to_string(),
            } },
            "spec": { "terminationGracePeriodSeconds": 3, "containers": [
                { "name": "main", "image": "app:1", "imagePullPolicy": "IfNotPresent" },
            ] },
        })
    }

    fn replicated(&self, name: &str) -> Value {
        let mut spec = json!({
            "selector": { "matchLabels": { "app": name } },
            "template": self.template(name), "minReadySeconds": self.min_ready,
        });
        if self.kind != "DaemonSet" {
            spec["replicas"] = json!(self.replicas);
        }
        if self.kind == "Deployment" {
            spec["strategy"] = match self.recreates {
                true => json!({ "type": "Recreate" }),
                false => json!({ "rollingUpdate": { "maxSurge": self.surge, "maxUnavailable": self.unavailable } }),
            };
        }
        if self.kind == "StatefulSet" {
            spec["serviceName"] = json!(name);
            spec["podManagementPolicy"] = json!(if self.is_parallel { "Parallel" } else { "OrderedReady" });
        }
        spec
    }

    fn job(&self, name: &str) -> Value {
        let mut template = self.template(name);
        template["spec"]["restartPolicy"] = json!("Never");
        json!({
            "completions": self.replicas, "parallelism": self.parallelism, "backoffLimit": 1_000,
            "completionMode": if self.is_indexed { "Indexed" } else { "NonIndexed" }, "template": template,
        })
    }
}
