//! Podman, which benches compare with the agent: `podman play kube` for each pod, by Debian's packages, which are
//! unpacked beside the machine. All its files are within the node's directory.
//!
//! It is no daemon: a pod is started and removed by a command, and kept by a conmon for each container and one for the
//! pod's pause process.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::node::{TestNode, cgroup_roots};
use crate::{footprint, image, process, tools};

/// Whether benches measure Podman, too: `cargo xtask bench --podman` sets it to 1.
pub const PODMAN_VARIABLE: &str = "LIMPET_BENCH_PODMAN";

/// What it has mounted, or started, is below this directory.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
    node_name: String,
    /// The directories into which the packages were unpacked.
    packages: Vec<PathBuf>,
    /// Commands that are under way.
    commands: Mutex<Vec<Child>>,
}

impl Podman {
    /// Writes its configuration, and gives it the images of the benches.
    pub fn prepare(node: &TestNode) -> Result<Self> {
        let packages = tools::podman_packages().context("Podman is not here: cargo xtask bench --podman fetches it")?;
        let dir = node.dir().join("podman");
        for name in ["manifests", "home/.config/containers", "lib", "net", "tmp"] {
            fs::create_dir_all(dir.join(name)).with_context(|| format!("{}", dir.display()))?;
        }
        let podman = Self { node_name: format!("podman-{}", node.name()), dir, packages, commands: Mutex::default() };
        let write = |name: &str, text: String| fs::write(podman.dir.join(name), text).with_context(|| name.to_owned());
        podman.link_libraries()?;
        podman.write_monitor()?;
        write("containers.conf", podman.configuration()?)?;
        let at = podman.dir.display();
        write(
            "storage.conf",
            format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"{at}/graph\"\nrunroot = \"{at}/run\"\n"),
        )?;
        write(
            "home/.config/containers/policy.json",
            r#"{"default": [{"type": "insecureAcceptAnything"}]}"#.to_owned(),
        )?;
        for image in image::demo_images()? {
            let archive = podman.dir.join("image.tar");
            image::write_oci_archive(&[&image], &archive)?;
            let loaded = process::checked(podman.command().arg("load").arg("--input").arg(&archive))?;
            let loaded = loaded.trim().rsplit(' ').next().context("podman load names no image")?.to_owned();
            process::checked(podman.command().arg("tag").arg(loaded).arg(&image.name))?;
        }
        Ok(podman)
    }

    /// Its defaults, except for places, for what needs a package of its own, and for limits that the machine may be below.
    fn configuration(&self) -> Result<String> {
        let at = self.dir.display();
        let init = self.file("usr/libexec/podman/catatonit")?;
        let runc = tools::on_path("runc").context("runc is not on the search path")?;
        let plugins = tools::cni_plugins().context("there are no CNI plugins")?;
        Ok(format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n\
             [engine]\nconmon_path = [\"{}\"]\ninit_path = \"{}\"\nhelper_binaries_dir = [\"{}\"]\n\
             cgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\ninfra_image = \"\"\nruntime = \"runc\"\n\
             tmp_dir = \"{at}/tmp\"\nstatic_dir = \"{at}/static\"\nvolume_path = \"{at}/volumes\"\n\
             [engine.runtimes]\nrunc = [\"{}\"]\n\
             [network]\ncni_plugin_dirs = [\"{}\"]\nnetwork_config_dir = \"{at}/net\"\n",
            self.monitor().display(),
            init.display(),
            init.parent().unwrap_or(&init).display(),
            runc.display(),
            plugins.display(),
        ))
    }

    /// Writes what Podman executes as conmon. When a container ends, conmon runs Podman, which restarts it: without this
    /// environment that Podman would find neither its libraries nor its storage.
    fn write_monitor(&self) -> Result<()> {
        let conmon = self.file("usr/bin/conmon")?;
        let variables = self.environment().map(|(name, path)| format!("{name}='{}' ", path.display())).concat();
        let script = format!("#!/bin/sh\n{variables}exec '{}' \"$@\"\n", conmon.display());
        fs::write(self.monitor(), script).context("conmon")?;
        fs::set_permissions(self.monitor(), Permissions::from_mode(0o755)).context("conmon")
    }

    fn monitor(&self) -> PathBuf {
        self.dir.join("conmon")
    }

    /// Links the libraries of the packages into a directory of its own: the names of theirs may have a colon, which
    /// separates directories.
    fn link_libraries(&self) -> Result<()> {
        let files = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let architectures = self.packages.iter().flat_map(|package| files(&package.join("usr/lib")));
        for library in architectures.flat_map(|dir| files(&dir)).filter(|path| path.to_string_lossy().contains(".so."))
        {
            let name = library.file_name().unwrap_or_default();
            let link = self.dir.join("lib").join(name);
            symlink(&library, &link).with_context(|| format!("{}", link.display()))?;
        }
        Ok(())
    }

    fn file(&self, relative: &str) -> Result<PathBuf> {
        let mut files = self.packages.iter().map(|package| package.join(relative));
        files.find(|file| file.is_file()).with_context(|| format!("no package has {relative}"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.packages[0].join("usr/bin/podman"));
        command.envs(self.environment());
        command
    }

    fn environment(&self) -> [(&'static str, PathBuf); 4] {
        [
            ("LD_LIBRARY_PATH", self.dir.join("lib")),
            ("CONTAINERS_CONF", self.dir.join("containers.conf")),
            ("CONTAINERS_STORAGE_CONF", self.dir.join("storage.conf")),
            ("HOME", self.dir.join("home")),
        ]
    }

    /// Begins a command, whose failure the next one reports.
    fn begin(&self, command: &mut Command) -> Result<()> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        reap(&mut commands, &self.log())?;
        let log = File::options().create(true).append(true).open(self.log())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        commands.push(command.spawn().context("run podman")?);
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.dir.join("podman.log")
    }
}

/// Collects the commands that have ended.
fn reap(commands: &mut Vec<Child>, log: &Path) -> Result<()> {
    let mut failed = None;
    commands.retain_mut(|command| match command.try_wait() {
        Ok(None) => true,
        Ok(Some(status)) if status.success() => false,
        _ => {
            failed = Some(());
            false
        }
    });
    let text = fs::read_to_string(log).unwrap_or_default();
    ensure!(failed.is_none(), "podman failed; its log ends with:\n{}", process::tail(&text, 15));
    Ok(())
}

impl Podman {
    /// The name in results of its node.
    pub fn name(&self) -> &str {
        &self.node_name
    }

    /// The directory of its manifests.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// Waits for the commands that are under way.
    pub fn finish_commands(&mut self) -> Result<()> {
        let mut commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
        commands.iter_mut().try_for_each(|command| command.wait().map(drop)).context("wait for podman")
    }

    /// Its pods, as those of an API.
    pub fn pods(&self) -> Result<Vec<Value>> {
        let text = process::checked(self.command().args(["pod", "ps", "--format", "json"]))?;
        let pods: Vec<Value> = serde_json::from_str(&text).context("podman pod ps")?;
        let pod = |pod: &Value| {
            let containers = pod["Containers"].as_array().map_or(&[][..], Vec::as_slice);
            let statuses = containers.iter().map(|container| json!({ "ready": container["Status"] == "running" }));
            json!({
                "metadata": { "name": pod["Name"] },
                "status": { "phase": pod["Status"], "containerStatuses": statuses.collect::<Vec<_>>() },
            })
        };
        Ok(pods.iter().map(pod).collect())
    }

    /// The file of a pod's manifest.
    fn manifest(&self, pod: &Value) -> Result<PathBuf> {
        let name = pod["metadata"]["name"].as_str().context("a manifest needs a name")?;
        Ok(self.manifests().join(format!("{name}.yaml")))
    }

    fn write_manifest(&self, pod: &Value) -> Result<PathBuf> {
        let file = self.manifest(pod)?;
        fs::write(&file, pod.to_string()).with_context(|| format!("{}", file.display()))?;
        Ok(file)
    }

    /// Begins to start a pod, or to replace it.
    pub fn apply(&self, pod: &Value) -> Result<()> {
        let replaces = self.manifest(pod)?.exists();
        let file = self.write_manifest(pod)?;
        let mut command = self.command();
        command.args(["play", "kube"]).args(replaces.then_some("--replace")).arg(&file);
        self.begin(&mut command)
    }

    /// Pulls an image from a registry without TLS.
    pub fn pull(&self, image: &str) -> Result<()> {
        process::checked(self.command().args(["pull", "--tls-verify=false", image])).map(drop)
    }

    /// Starts a pod in place of the one of its name, and waits for the command.
    pub fn replace(&self, pod: &Value) -> Result<()> {
        let file = self.write_manifest(pod)?;
        process::checked(self.command().args(["play", "kube", "--replace"]).arg(&file)).map(drop)
    }

    /// Begins to remove a pod.
    pub fn remove(&self, name: &str) -> Result<()> {
        let file = self.manifests().join(format!("{name}.yaml"));
        fs::remove_file(&file).with_context(|| format!("{}", file.display()))?;
        // `play kube --down` takes the manifest, too, and the default of 10 s for a process that ignores SIGTERM.
        self.begin(self.command().args(["pod", "rm", "--force", "--time", "2", name]))
    }

    /// The first processes of its containers, which are in cgroups that all of Podman's have.
    pub fn contained(&self) -> Vec<u32> {
        process::children(&footprint::pids(&self.dir, "conmon"))
    }

    /// Removes what a machine has in memory, after its power was lost, and forgets the commands that it has ended.
    pub fn forget_boot(&self) -> Result<()> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.drain(..).for_each(|mut command| drop(command.wait()));
        for name in ["run", "tmp"] {
            let dir = self.dir.join(name);
            fs::remove_dir_all(&dir).or_else(|error| if dir.exists() { Err(error) } else { Ok(()) })?;
            fs::create_dir_all(&dir)?;
        }
        Ok(())
    }

    /// The processes that keep its pods: each conmon, and each pause process.
    pub fn keepers(&self) -> Vec<(&'static str, Vec<u32>)> {
        let monitors = footprint::pids(&self.dir, "conmon");
        let mut pauses = process::children(&monitors);
        pauses
            .retain(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "catatonit"));
        vec![("conmon", monitors), ("pause", pauses)]
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // What stays is found by the node, which removes its processes and mounts.
        let _ = process::checked(self.command().args(["pod", "rm", "--all", "--force", "--time", "0"]));
        let _ = process::checked(self.command().args(["rmi", "--all", "--force"]));
        // Another Podman's, if it is not empty.
        cgroup_roots().iter().for_each(|root| drop(fs::remove_dir(root.join("libpod_parent"))));
    }
}
