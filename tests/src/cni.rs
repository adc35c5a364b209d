//! A node's own pod network: bridge, host-local and loopback, with a unique bridge name and subnet.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::claim::Subnet;
use crate::{process, tools};

/// The configuration of one node's pod network.
#[derive(Debug)]
pub struct Cni {
    /// The directory with the conflist.
    pub config_dir: PathBuf,
    /// Where host-local records the addresses that it has allocated.
    pub allocations: PathBuf,
    bridge: String,
    subnet: Subnet,
}

impl Cni {
    /// Writes the conflist below `dir`.
    pub fn prepare(dir: &Path, bridge: &str) -> Result<Self> {
        let subnet = Subnet::claim()?;
        let config_dir = dir.join("net.d");
        let allocations = dir.join("addresses");
        fs::create_dir_all(&config_dir).with_context(|| format!("{}", config_dir.display()))?;
        let conflist = json!({
            "cniVersion": "1.0.0",
            "name": bridge,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": bridge,
                    "isGateway": true,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": &allocations,
                        "ranges": [[{ "subnet": subnet.cidr() }]],
                        "routes": [{ "dst": "0.0.0.0/0" }],
                    },
                },
            ],
        });
        fs::write(config_dir.join("10-limpet.conflist"), serde_json::to_vec_pretty(&conflist)?)?;
        Ok(Self { config_dir, allocations, bridge: bridge.to_owned(), subnet })
    }

    /// Adds the plugin that forwards the node's ports to pods.
    pub fn forward_ports(&self) -> Result<()> {
        self.add_plugin(json!({ "type": "portmap", "capabilities": { "portMappings": true } }))
    }

    /// Makes the bridge take packets of a pod back to that pod.
    pub fn hairpin(&self) -> Result<()> {
        self.edit(|plugins| plugins[0]["hairpinMode"] = true.into())
    }

    /// Adds the plugin that limits how fast pods send and receive.
    pub fn limit_bandwidth(&self) -> Result<()> {
        self.add_plugin(json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }))
    }

    /// Makes pods get an address of each of these subnets.
    pub fn give_from(&self, subnets: &[String]) -> Result<()> {
        let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
        let everywhere = |subnet: &String| if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" };
        let routes: Vec<Value> = subnets.iter().map(|subnet| json!({ "dst": everywhere(subnet) })).collect();
        self.edit(|plugins| {
            plugins[0]["ipam"]["ranges"] = ranges.into();
            plugins[0]["ipam"]["routes"] = routes.into();
        })
    }

    fn add_plugin(&self, plugin: Value) -> Result<()> {
        self.edit(|plugins| plugins.push(plugin))
    }

    fn edit(&self, change: impl FnOnce(&mut Vec<Value>)) -> Result<()> {
        let file = self.config_dir.join("10-limpet.conflist");
        let mut conflist: Value = serde_json::from_slice(&fs::read(&file)?)?;
        change(conflist["plugins"].as_array_mut().context("no plugins")?);
        let partial = file.with_extension("partial");
        fs::write(&partial, serde_json::to_vec_pretty(&conflist)?)?;
        fs::rename(&partial, &file).with_context(|| format!("{}", file.display()))
    }

    /// The subnet of its pods: `10.x.y.0/24`.
    pub fn subnet(&self) -> String {
        self.subnet.cidr()
    }

    /// The subnet of IPv6 addresses that they can also have.
    pub fn subnet_v6(&self) -> String {
        self.subnet.cidr_v6()
    }

    /// The bridge that links all pods.
    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    /// The currently allocated addresses.
    pub fn allocated(&self) -> Vec<String> {
        let networks = fs::read_dir(&self.allocations).into_iter().flatten().flatten();
        let files = networks.flat_map(|network| fs::read_dir(network.path()).into_iter().flatten().flatten());
        files
            .filter_map(|file| file.file_name().into_string().ok())
            .filter(|name| name.parse::<IpAddr>().is_ok())
            .collect()
    }
}

/// The prefix of bridges that tests without a node make; the process's number follows.
pub(crate) const LONE_BRIDGE: &str = "ltb";

/// A name for a bridge of this process. A later run removes it if this process was killed.
pub fn lone_bridge() -> String {
    format!("{LONE_BRIDGE}{}", std::process::id())
}

/// Where the agent searches for plugins.
pub fn plugin_dirs() -> Vec<PathBuf> {
    tools::cni_plugins().into_iter().collect()
}

/// Removes the bridge if it exists.
pub fn remove_bridge(bridge: &str) {
    if let (true, Some(busybox)) = (bridge_exists(bridge), tools::busybox()) {
        process::checked(Command::new(busybox).args(["ip", "link", "delete", bridge])).ok();
    }
}

/// Removes what containerd's CRI plugin stores about the pods on `bridge`, in a directory that all containerds of a
/// machine share: CNI's results for the network and for each pod's loopback.
pub fn remove_cached_answers(bridge: &str) {
    let dir = Path::new("/var/lib/cni/results");
    let names =
        || fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let container_of =
        |name: &str| Some(name.strip_prefix(bridge)?.strip_prefix('-')?.strip_suffix("-eth0")?.to_owned());
    for id in names().filter_map(|name| container_of(&name)) {
        for name in names().filter(|name| name.contains(&id)) {
            fs::remove_file(dir.join(name)).ok();
        }
    }
}

/// Whether the bridge exists.
pub fn bridge_exists(bridge: &str) -> bool {
    Path::new("/sys/class/net").join(bridge).exists()
}
