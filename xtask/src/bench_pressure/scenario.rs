//! What the scenarios are: the pods, what each takes, and the thresholds, which are the same for both contenders.

use anyhow::Result;
use limpet_tests::image::{Image, ImageBuilder, V1, noise};
use serde_json::{Value, json};

use super::record::FILLED;

/// The directory of the observer's FIFOs, and where containers find it.
pub(super) const WATCH: &str = "/run/pressure";
/// The node's name.
pub(super) const NODE: &str = "gateway";
/// A class of the priority 1000.
pub(super) const HIGH: &str = "high";
/// The name of the pod that uses too much.
pub(super) const HOG: &str = "hog";
/// How many process ids the pods use together, and how many there are.
const PROCESSES: (u32, u32) = (10_000, 12_000);
/// The size of an image, which needs it twice: packed and unpacked.
const IMAGE: usize = 12 << 20;

/// A situation in which limpet and kubelet are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// A pod fills the disk of the agent's root directory.
    Disk,
    /// A pod takes more and more memory.
    Memory,
    /// A pod starts 10,000 processes.
    Processes,
    /// The image store is above its threshold when a pod ends.
    Images,
    /// The pod that takes the memory is one of a manifest.
    ManifestHog,
}

impl Scenario {
    pub(super) const ALL: [Self; 5] = [Self::Disk, Self::Memory, Self::Processes, Self::Images, Self::ManifestHog];

    /// The name of its files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Images => "images",
            Self::ManifestHog => "manifest-hog",
        }
    }

    /// What it is called in the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Disk => "a full disk, `nodefs.available: 120Mi`",
            Self::Memory => "a memory hog, `memory.available: 2000Mi`",
            Self::Processes => "10,000 processes of 12,000, `pid.available: 6000`",
            Self::Images => "an image store above 75 %, to be below 60 %",
            Self::ManifestHog => "a memory hog of a manifest, `memory.available: 2000Mi`",
        }
    }

    /// The only hard threshold of the scenario.
    fn threshold(self) -> Value {
        match self {
            Self::Disk => json!({ "nodefs.available": "120Mi" }),
            Self::Memory | Self::ManifestHog => json!({ "memory.available": "2000Mi" }),
            Self::Processes => json!({ "pid.available": "6000" }),
            // This is never met. Without any threshold kubelet's defaults would apply.
            Self::Images => json!({ "memory.available": "50Mi" }),
        }
    }

    /// The KubeletConfiguration of both contenders.
    pub(super) fn configuration(self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": "/etc/agent/manifests",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "podLogsDir": "/node/logs",
            "resolvConf": "/etc/resolv.conf",
            "cgroupDriver": "cgroupfs",
            "failSwapOn": false,
            "address": "127.0.0.1",
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "evictionHard": self.threshold(),
            "evictionPressureTransitionPeriod": "30s",
            "imageGCHighThresholdPercent": if self == Self::Images { 75 } else { 100 },
            "imageGCLowThresholdPercent": 60,
            "imageMinimumGCAge": "1s",
            // kubelet ranks by its last measurement.
            "volumeStatsAggPeriod": "10s",
        })
    }

    /// The pods, those of the apiserver and those of manifests.
    pub(super) fn pods(self) -> [Vec<Value>; 2] {
        if self == Self::Images {
            return [vec![of_the_apiserver(simple("kept"), None)], vec![simple("first"), simple("second")]];
        }
        let hog = self.hog();
        let [mut api, mut manifests] = [Vec::new(), Vec::new()];
        for member in CAST {
            let pod = self.member(&member);
            match member.priority {
                Priority::Manifest => manifests.push(pod),
                Priority::None => api.push(of_the_apiserver(pod, None)),
                Priority::Class(class) => api.push(of_the_apiserver(pod, Some(class))),
            }
        }
        match self {
            Self::ManifestHog => manifests.push(hog),
            _ => api.push(of_the_apiserver(hog, Some(HIGH))),
        }
        [api, manifests]
    }

    /// The names of all pods.
    pub(super) fn names(self) -> Vec<String> {
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.pods().iter().flatten().map(name).collect()
    }

    fn member(self, member: &Member) -> Value {
        let take = match self {
            Self::Disk => format!("dd if=/dev/zero of=/data/part bs=1M count={} 2> /dev/null", member.takes),
            Self::Memory | Self::ManifestHog => allocate(member.takes),
            _ => format!("for i in $(seq {}); do sleep 100000 & done", member.takes),
        };
        let script = format!("trap 'exit 0' TERM; {take}; exec 9> /watch/{}; sleep 100000 & wait $!", member.name);
        let mut pod = pod(member.name, V1, &script);
        let storage =
            |mib: u32| if self == Self::Disk { json!({ "ephemeral-storage": format!("{mib}Mi") }) } else { json!({}) };
        let resources = &mut pod["spec"]["containers"][0]["resources"];
        match member.request {
            Request::None => {}
            Request::Little => {
                *resources = json!({ "requests": { "memory": "4Mi" } });
                merge(&mut resources["requests"], storage(4));
            }
            Request::All => {
                let all = json!({ "memory": "64Mi", "cpu": "500m" });
                *resources = json!({ "requests": all, "limits": all });
                merge(&mut resources["requests"], storage(64));
            }
        }
        pod
    }

    fn hog(self) -> Value {
        let fill = match self {
            Self::Disk => "dd if=/dev/zero of=/data/all bs=1M 2> /dev/null".to_owned(),
            Self::Memory | Self::ManifestHog => {
                format!("for i in $(seq 50); do {}; sleep 1; done", allocate(20))
            }
            // Each shell waits for a line that never comes, so it is nothing but a process.
            _ => {
                let each = PROCESSES.0 / 100 - 1;
                format!(
                    "for i in $(seq 100); do (for j in $(seq {each}); do (read -r x < /watch/never) & done; wait) & done"
                )
            }
        };
        let script = format!(
            "trap 'exit 0' TERM; exec 9> /watch/{HOG}; read -r x < /watch/begin; {fill}; exec 7> /watch/{FILLED}; sleep 100000 & wait $!"
        );
        let mut pod = pod(HOG, V1, &script);
        pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "memory": "4Mi" } });
        pod
    }

    /// The command that prints how much is left of what is short.
    pub(super) fn left(self) -> &'static str {
        match self {
            Self::Disk => "df --output=avail -m /node | tail -n 1 | sed 's/^ *//; s/$/ MiB of the disk/'",
            Self::Memory | Self::ManifestHog => {
                "awk '/MemAvailable/ { printf \"%d MiB of memory\\n\", $2 / 1024 }' /proc/meminfo"
            }
            Self::Processes => "cut -d ' ' -f 4 /proc/loadavg | sed 's|.*/||; s/$/ processes/'",
            Self::Images => "df --output=pcent /images | tail -n 1 | sed 's/^ *//; s/%/ % used/'",
        }
    }
}

/// The priority of a pod, or that it is one of a manifest, which kubelet never ends.
#[derive(Debug, Clone, Copy)]
enum Priority {
    None,
    Class(&'static str),
    Manifest,
}

/// How much of what is short a pod requests.
#[derive(Debug, Clone, Copy)]
enum Request {
    /// Nothing: BestEffort.
    None,
    /// Less than it takes: Burstable.
    Little,
    /// More than it takes, and it is its limit: Guaranteed.
    All,
}

/// A pod beside the hog, which uses so many MiB, or processes.
#[derive(Debug, Clone, Copy)]
struct Member {
    name: &'static str,
    priority: Priority,
    request: Request,
    takes: u32,
}

const CAST: [Member; 5] = [
    Member { name: "low-more", priority: Priority::None, request: Request::None, takes: 48 },
    Member { name: "low-less", priority: Priority::None, request: Request::Little, takes: 32 },
    Member { name: "guaranteed", priority: Priority::None, request: Request::All, takes: 24 },
    Member { name: "critical", priority: Priority::Class("system-node-critical"), request: Request::None, takes: 24 },
    Member { name: "static", priority: Priority::Manifest, request: Request::None, takes: 24 },
];

/// The name of the pinned image, which no pod uses.
pub(super) const PINNED: &str = "registry.test/pinned:1";

/// The images that are present from the beginning, and those that are imported later.
pub(super) fn images() -> Result<[Vec<Image>; 2]> {
    let build = |name: &&str| {
        ImageBuilder::new(&format!("registry.test/{name}:1")).file("noise", noise(name, IMAGE), 0o644).build()
    };
    let first = ["kept", "first", "second", "pinned"].iter().map(build).collect::<Result<_>>()?;
    Ok([first, ["unused-a", "unused-b"].iter().map(build).collect::<Result<_>>()?])
}

/// The kernel's limit of processes.
pub(super) fn threads_max() -> u32 {
    PROCESSES.1
}

/// The command that allocates so many MiB of memory: a reader whose output finds no room.
fn allocate(mib: u32) -> String {
    format!("{{ dd if=/dev/zero bs={mib}M count=1 2> /dev/null | sleep 100000 & }}")
}

/// A pod whose image has the same name.
fn simple(name: &str) -> Value {
    let image = format!("registry.test/{name}:1");
    pod(name, &image, &format!("trap 'exit 0' TERM; exec 9> /watch/{name}; sleep 100000 & wait $!"))
}

fn pod(name: &str, image: &str, script: &str) -> Value {
    let mounts = json!([{ "name": "watch", "mountPath": "/watch" }, { "name": "data", "mountPath": "/data" }]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "main",
                "image": image,
                "command": ["/bin/sh", "-c", script],
                "imagePullPolicy": "IfNotPresent",
                "volumeMounts": mounts,
            }],
            "volumes": [
                { "name": "watch", "hostPath": { "path": WATCH } },
                { "name": "data", "emptyDir": {} },
            ],
        },
    })
}

/// The pod as the apiserver gives it to the node, without a scheduler.
fn of_the_apiserver(mut pod: Value, class: Option<&str>) -> Value {
    merge(&mut pod["spec"], json!({ "nodeName": NODE, "automountServiceAccountToken": false }));
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = json!(class);
    }
    pod
}

fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hog_is_of_a_manifest_in_one_scenario_alone() {
        for scenario in Scenario::ALL {
            let [api, manifests] = scenario.pods();
            let has = |pods: &[Value]| pods.iter().any(|pod| pod["metadata"]["name"] == HOG);
            assert_eq!(has(&manifests), scenario == Scenario::ManifestHog);
            assert_eq!(has(&api), !matches!(scenario, Scenario::ManifestHog | Scenario::Images));
        }
    }

    #[test]
    fn storage_is_requested_where_the_disk_is_short() {
        for (scenario, expected) in [(Scenario::Disk, json!("4Mi")), (Scenario::Memory, Value::Null)] {
            let [api, _] = scenario.pods();
            let less = api.iter().find(|pod| pod["metadata"]["name"] == "low-less").cloned().unwrap_or_default();
            let requests = &less["spec"]["containers"][0]["resources"]["requests"];
            assert_eq!((&requests["memory"], &requests["ephemeral-storage"]), (&json!("4Mi"), &expected));
        }
    }
}
