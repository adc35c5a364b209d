//! A whole node in its own directory: containerd, images, network and agent, set up and removed.

mod leftovers;
mod mark;
mod take_down;
mod unchanged;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

pub use self::mark::Mark;
pub use self::take_down::cgroups_below;
use self::take_down::{cgroup_dirs, lose_power, take_down};
pub(crate) use self::take_down::{cgroup_roots, mounts_below, sweep};
use crate::agent::{Agent, Settings};
use crate::cni::{self, Cni};
use crate::containerd::Containerd;
use crate::huge_page_pool::HugePagePool;
use crate::image::Image;
use crate::process::tail;
use crate::{image, manifest, wait};

/// What kind of node a test needs.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Whether CNI gives pods a network.
    pub cni: bool,
    /// Whether containerd runs at boot.
    pub containerd: bool,
    /// `1`, `2` or a directory of programs; otherwise the environment decides.
    pub containerd_choice: Option<String>,
    /// Whether the agent runs at boot.
    pub agent: bool,
    /// Whether the test needs a cluster, see [`crate::cluster`].
    pub cluster: bool,
    /// Whether containerd's CRI plugin is enabled beside the agent, with the node's network and a sandbox image.
    pub cri: bool,
    /// Whether crictl is needed.
    pub crictl: bool,
    /// containerd's snapshotter.
    pub snapshotter: &'static str,
    /// Whether the demo images are in containerd before the agent starts.
    pub images: bool,
    /// The size in bytes of a separate disk for the agent's root directory.
    pub root_size: Option<u64>,
    /// The size in bytes of a separate disk for containerd's root directory, which has the images.
    pub image_disk: Option<u64>,
    /// Further lines of the KubeletConfiguration.
    pub kubelet: Vec<String>,
    /// Further lines of the LimpetConfiguration.
    pub limpet: Vec<String>,
    /// The executable to run; cargo builds one if there is none.
    pub program: Option<PathBuf>,
    /// How much the agent logs: its `--v`.
    pub verbosity: u8,
    /// Whether the machine's memory must not change, so that no other test reserves huge pages while the node exists.
    pub keep_memory: bool,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            cni: false,
            containerd: true,
            containerd_choice: None,
            agent: true,
            cluster: false,
            cri: false,
            crictl: false,
            snapshotter: "overlayfs",
            images: true,
            root_size: None,
            image_disk: None,
            kubelet: Vec::new(),
            limpet: Vec::new(),
            program: None,
            verbosity: 4,
            keep_memory: false,
        }
    }
}

/// A booted node. Dropping it removes it; [`TestNode::finish`] also checks that nothing is left.
#[derive(Debug)]
pub struct TestNode {
    pub containerd: Containerd,
    pub agent: Agent,
    /// Its pod network, when it has one.
    pub cni: Option<Cni>,
    place: NodeLocation,
    /// Held while the machine's memory must not change.
    _memory: Option<File>,
}

/// The names by which everything that a node leaves on the machine can be found again.
#[derive(Debug, Clone)]
struct NodeLocation {
    name: String,
    dir: PathBuf,
}

/// The prefix of the nodes' directories, which are on a disk and have paths short enough for sockets.
const PREFIX: &str = "limpet-test-";
const PARENT: &str = "/var/tmp";

impl NodeLocation {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        Self::named(&format!("{PREFIX}{}-{number}", std::process::id()))
    }

    fn named(name: &str) -> Self {
        Self { name: name.to_owned(), dir: Path::new(PARENT).join(name) }
    }

    fn node_name(&self) -> String {
        format!("edge-{}", self.name.trim_start_matches(PREFIX))
    }

    /// The bridge of its pods: at most 15 characters.
    fn bridge(&self) -> String {
        format!("lt{}", self.name.trim_start_matches(PREFIX).replace('-', "x"))
    }

    /// The process that made it.
    fn owner(&self) -> Option<u32> {
        self.name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
    }
}

impl TestNode {
    /// A node with everything running and the demo images present.
    pub fn boot(options: &NodeOptions) -> Result<Self> {
        let memory = options.keep_memory.then(HugePagePool::keep_size).transpose()?;
        let place = NodeLocation::new();
        let dir = place.dir.clone();
        let guard = Guard(Some(place.clone()));
        fs::create_dir_all(dir.join("cni-none")).with_context(|| format!("{}", dir.display()))?;
        let cni = options.cni.then(|| Cni::prepare(&dir.join("cni"), &place.bridge())).transpose()?;
        let cni_config = cni.as_ref().map_or(dir.join("cni-none"), |cni| cni.config_dir.clone());
        let cri = options.cri.then_some(cni_config.as_path());
        let mut containerd = Containerd::prepare(&dir.join("ctd"), cri, options.containerd_choice.as_deref())?;
        containerd.snapshotter = options.snapshotter;
        let settings = Settings {
            dir: dir.clone(),
            node_name: place.node_name(),
            endpoint: containerd.socket(),
            cgroup: format!("/{}", place.name),
            certs_d: containerd.certs_d(),
            cni_config,
            verbosity: options.verbosity,
            cni_plugins: cni::plugin_dirs(),
            snapshotter: options.snapshotter,
            flags: Vec::new(),
            environment: Vec::new(),
            kubelet: options.kubelet.clone(),
            kubelet_configuration: None,
            limpet: options.limpet.clone(),
        };
        if let Some(size) = options.image_disk {
            small_disk(&containerd.root(), size)?;
        }
        if let Some(size) = options.root_size {
            small_disk(&settings.root(), size)?;
        }
        make_cgroup(&place.name)?;
        let agent = Agent::prepare(options.program.clone(), settings)?;
        if options.containerd {
            containerd.start()?;
        }
        guard.disarm();
        let mut node = Self { containerd, agent, cni, place, _memory: memory };
        if options.containerd && options.images {
            node.import_demo_images()?;
        }
        if options.containerd && options.cri {
            node.import(&[&image::pause_image()?])?;
        }
        if options.agent {
            node.agent.start()?;
        }
        Ok(node)
    }

    /// Imports both versions of the demo image into containerd.
    pub fn import_demo_images(&self) -> Result<()> {
        let [first, second] = image::demo_images()?;
        self.import(&[&first, &second])
    }

    /// Imports images into containerd.
    pub fn import(&self, images: &[&Image]) -> Result<()> {
        let archive = self.dir().join("images.tar");
        image::write_oci_archive(images, &archive)?;
        self.containerd.import(&archive)
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.agent.settings().node_name
    }

    /// The name a static pod has on this node.
    pub fn full_name(&self, pod: &str) -> String {
        format!("{pod}-{}", self.name())
    }

    /// The node's own directory.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// The name of the cgroup that holds all its pods.
    pub fn cgroup(&self) -> &str {
        &self.place.name
    }

    /// Its cgroups and all below them, in every hierarchy.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        take_down::cgroups_below(self.cgroup())
    }

    /// The name of its pods' bridge.
    pub fn bridge(&self) -> String {
        self.place.bridge()
    }

    /// The directories in which pods leave files: the agent's, and those of containerd and its shims for tasks.
    pub fn pod_dirs(&self) -> Vec<PathBuf> {
        let settings = self.agent.settings();
        let bundles =
            ["state", "root"].map(|dir| self.dir().join("ctd").join(dir).join("io.containerd.runtime.v2.task"));
        let cni = self.cni.iter().map(|cni| cni.allocations.clone());
        let dirs = [settings.root(), settings.run(), settings.pod_logs(), settings.container_logs()];
        dirs.into_iter().chain(bundles).chain(cni).collect()
    }

    /// runc's state of its containers, which all containerds of a machine share.
    pub fn runc_states(&self) -> Vec<PathBuf> {
        take_down::runc_states(self.dir())
    }

    /// Makes a cgroup below it, in every hierarchy.
    pub fn make_cgroup(&self, name: &str) -> Result<()> {
        make_cgroup(&format!("{}/{name}", self.cgroup()))
    }

    /// Writes a manifest as careful tools do: under another name, then renamed.
    pub fn drop_text(&self, file: &str, text: &str) -> Result<()> {
        manifest::put(&self.agent.settings().manifests(), file, text)
    }

    /// The same for a manifest as a value. The file is named like the pod.
    pub fn apply(&self, manifest: &Value) -> Result<()> {
        let name = manifest["metadata"]["name"].as_str().context("a manifest needs a name")?;
        self.drop_text(&format!("{name}.yaml"), &serde_json::to_string_pretty(manifest)?)
    }

    /// Removes the manifest of the pod `name`.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.agent.settings().manifests().join(format!("{name}.yaml"));
        fs::remove_file(&path).with_context(|| format!("{}", path.display()))
    }

    /// All pods as `limpet pods -o json` shows them.
    pub fn pods(&self) -> Result<Vec<Value>> {
        let text = self.agent.cli(&["pods", "-o", "json"])?.success()?;
        let list: Value = serde_json::from_str(&text).context("limpet pods -o json")?;
        match (&list["kind"], &list["items"]) {
            (Value::String(kind), Value::Array(items)) if kind == "PodList" => Ok(items.clone()),
            _ => bail!("not a PodList: {text}"),
        }
    }

    /// The pod whose manifest is called `name`, if the agent shows it.
    pub fn pod(&self, name: &str) -> Option<Value> {
        let full = self.full_name(name);
        self.pods().ok()?.into_iter().find(|pod| pod["metadata"]["name"] == full.as_str())
    }

    /// Waits until the agent shows the pod `name` as `accept` requires; `what` describes that.
    pub fn wait_pod(&self, name: &str, what: &str, accept: impl Fn(&Value) -> bool) -> Result<Value> {
        let what = format!("pod {name}: {what}");
        wait::until(wait::SOON, &what, || self.pod(name).filter(|pod| accept(pod))).with_context(|| {
            format!("the pod now: {}", self.pod(name).map_or_else(|| "gone".into(), |p| p["status"].to_string()))
        })
    }

    /// Waits until every container of the pod `name` runs and is ready.
    pub fn wait_running(&self, name: &str) -> Result<Value> {
        self.wait_pod(name, "running", |pod| {
            let all = containers(pod);
            pod["status"]["phase"] == "Running"
                && !all.is_empty()
                && all.iter().all(|c| c["state"]["running"].is_object())
        })
    }

    /// Waits until the pod `name` is no longer shown.
    pub fn wait_gone(&self, name: &str) -> Result<()> {
        let full = self.full_name(name);
        wait::until_true(wait::SOON, &format!("the end of pod {name}"), || {
            self.pods().is_ok_and(|pods| pods.iter().all(|pod| pod["metadata"]["name"] != full.as_str()))
        })
    }

    /// Runs a command in a container and returns what it printed.
    pub fn exec(&self, pod: &str, container: &str, command: &[&str]) -> Result<String> {
        let full = self.full_name(pod);
        let args = [&["exec", &full, "-c", container, "--"], command].concat();
        self.agent.cli(&args)?.success()
    }

    /// What a container has logged.
    pub fn logs(&self, pod: &str, container: &str) -> Result<String> {
        self.agent.cli(&["logs", &self.full_name(pod), "-c", container])?.success()
    }

    /// Waits until a container has logged `text`, and returns the log.
    pub fn wait_logged(&self, pod: &str, container: &str, text: &str) -> Result<String> {
        wait::until(wait::SOON, &format!("{text:?} in the log of {pod}/{container}"), || {
            self.logs(pod, container).ok().filter(|log| log.contains(text))
        })
    }

    /// Waits until the BPF programs are loaded, or finally refused. They are loaded when a first burst of starts is
    /// over.
    pub fn wait_bpf_programs(&self) -> Result<()> {
        wait::until_true(wait::SOON, "the BPF programs, or why there are none", || {
            self.agent.log().contains("BPF programs")
        })
    }

    /// The output of `limpet events`.
    pub fn events(&self) -> Result<String> {
        self.agent.cli(&["events"])?.success()
    }

    /// Waits until an event that contains `text` is shown.
    pub fn wait_event(&self, text: &str) -> Result<()> {
        wait::until_true(wait::SOON, &format!("an event with {text:?}"), || {
            self.events().is_ok_and(|events| events.contains(text))
        })
    }

    /// The cgroups of its pods, each with those of its containers below it, by name.
    pub fn pod_cgroups(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut cgroups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let name = |dir: &Path| dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        for dir in take_down::cgroups_below(self.cgroup()) {
            let parent = dir.parent().map(name).unwrap_or_default();
            if name(&dir).starts_with("pod") {
                cgroups.entry(name(&dir)).or_default();
            } else if parent.starts_with("pod") {
                cgroups.entry(parent).or_default().insert(name(&dir));
            }
        }
        cgroups
    }

    /// What helps to understand a failure: the ends of the logs, the pods and the events.
    pub fn evidence(&self) -> String {
        let said = |args: &[&str]| match self.agent.cli(args) {
            Ok(reply) => format!("{}{}", reply.stdout, reply.stderr),
            Err(error) => format!("{error:#}\n"),
        };
        if self.agent.log().is_empty() {
            return format!("--- containerd's log\n{}\n", tail(&self.containerd.log(), 20));
        }
        format!(
            "--- limpet pods\n{}--- limpet events\n{}--- the agent's log\n{}\n--- containerd's log\n{}\n",
            said(&["pods"]),
            tail(&said(&["events"]), 20) + "\n",
            tail(&self.agent.log(), 60),
            tail(&self.containerd.log(), 8),
        )
    }

    /// Ends every process of the node at once and removes what a machine has in memory, as a power cut does. What is on
    /// disk stays. containerd and the agent can be started again then.
    pub fn lose_power(&mut self) -> Result<()> {
        self.agent.kill();
        self.containerd.kill();
        let left = lose_power(&self.place);
        ensure!(left.is_empty(), "left on the machine: {}", left.join(", "));
        for dir in [self.containerd.state(), self.agent.settings().run()] {
            fs::remove_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
            fs::create_dir_all(&dir)?;
        }
        make_cgroup(&self.place.name)
    }

    /// Removes the node and checks that nothing of it is left on the machine.
    pub fn finish(mut self) -> Result<()> {
        let left = self.stop();
        if left.is_empty() { Ok(()) } else { bail!("left on the machine: {}", left.join(", ")) }
    }

    fn stop(&mut self) -> Vec<String> {
        self.agent.kill();
        self.containerd.kill();
        take_down(&self.place)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if self.place.dir.exists() {
            for left in self.stop() {
                eprintln!("left on the machine: {left}");
            }
        }
    }
}

/// Removes what a failed boot has set up so far.
struct Guard(Option<NodeLocation>);

impl Guard {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(place) = &self.0 {
            take_down(place);
        }
    }
}

fn make_cgroup(name: &str) -> Result<()> {
    let mut dirs = cgroup_dirs(name).into_iter();
    dirs.try_for_each(|dir| fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display())))
}

/// Mounts a disk of `size` bytes at `path`.
fn small_disk(path: &Path, size: u64) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("{}", path.display()))?;
    // As many inodes as ext4 has on a disk of this size, which is one per 4 KiB.
    let options = std::ffi::CString::new(format!("size={size},nr_inodes={}", size >> 12))?;
    rustix::mount::mount("limpet-test", path, "tmpfs", rustix::mount::MountFlags::empty(), &*options)
        .with_context(|| format!("mount a small disk at {}", path.display()))
}

/// The statuses of a pod's containers, without init containers.
pub fn containers(pod: &Value) -> &[Value] {
    pod["status"]["containerStatuses"].as_array().map_or(&[], Vec::as_slice)
}

/// The status of the container `name`, which may be an init container; null if there is none.
pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let init = pod["status"]["initContainerStatuses"].as_array().map_or(&[][..], Vec::as_slice);
    containers(pod).iter().chain(init).find(|status| status["name"] == name).unwrap_or(&Value::Null)
}

/// containerd's id of the container `name`.
pub fn container_id(pod: &Value, name: &str) -> Result<String> {
    let id = container(pod, name)["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://"));
    id.map(str::to_owned).with_context(|| format!("container {name} has no id: {}", pod["status"]))
}
