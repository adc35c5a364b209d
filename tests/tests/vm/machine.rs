//! The machine after the README's installation, with pods running: the base of every test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use limpet_tests::sweep::Machines;
use limpet_tests::vm::{self, Board, Boot, Disk, Guest};
use limpet_tests::{agent, image, registry, tools};

use crate::gateway::Gateway;
use crate::pod::{self, SOON};
use crate::upgrades;

/// The README's commands, with the package's files at `/payload`, and images from an
/// archive as a box without a registry gets them.
const INSTALL: &str = "set -e
install /payload/limpet /payload/containerd-shim-limpet-v1 /usr/bin/
install -d -m 0700 /etc/limpet /etc/limpet/manifests
install -m 0600 /payload/deploy/config.yaml /etc/limpet/config.yaml
install -D /payload/deploy/10-limpet.conflist /etc/cni/net.d/10-limpet.conflist
install -m 0644 /payload/deploy/limpet.service /etc/systemd/system/
mkdir -p /var/lib/limpet/images && cp /payload/demo.tar /var/lib/limpet/images/
systemctl enable --now limpet";

/// Where the registry of the machine keeps its images, and the port it takes.
pub(crate) const REGISTRY: &str = "127.0.0.1:5000";
/// The size of the image that takes a while to pull.
const LARGE_IMAGE_BYTES: usize = 48 << 20;

/// The hardware of an emulated machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) board: &'static Board,
    pub(crate) processors: u32,
    /// How much memory it has, in MiB.
    pub(crate) memory: u32,
}

/// The model of all cases that are not about a gateway.
const USUAL: Model = Model { board: &vm::PC, processors: 2, memory: vm::DEFAULT_MEMORY_MIB };

/// A running machine whose memory is kept on its disk.
pub(crate) struct Machine {
    model: Model,
    image: PathBuf,
    dir: PathBuf,
    payload: PathBuf,
    running: Disk,
    forks: AtomicU32,
}

pub(crate) fn remove_work_dir() {
    fs::remove_dir_all(Machines::Vm.dir()).ok();
}

impl Machine {
    /// Installs limpet on a new machine, and starts a pod that stays and one that finishes.
    pub(crate) fn install() -> Result<Self> {
        let image = vm::image().context("no image")?;
        let dir = Machines::Vm.dir();
        let (payload, files) = (dir.join("payload.img"), dir.join("payload"));
        fs::create_dir_all(&files)?;
        let gateway = Gateway::chosen()?;
        match &gateway {
            None => write_files(&files)?,
            Some(gateway) => gateway.write_files(&image, &files)?,
        }
        vm::write_payload(&files, &payload)?;
        fs::remove_dir_all(&files).context("remove what is in the payload now")?;
        let model = gateway.as_ref().map_or(USUAL, |gateway| gateway.model);
        let disk = Disk::over_image(&image, &dir.join("running.qcow2"))?;
        let mut guest = Guest::boot(disk, &how(model, &image, &payload, &dir))?;
        guest.run(if gateway.is_some() { Gateway::INSTALL } else { INSTALL })?;
        guest.run("systemctl is-active limpet")?;
        guest.until(SOON, "the agent", "limpet pods", |_| Some(()))?;
        pod::start_one_that_stays_and_one_that_finishes(&mut guest)?;
        guest.run("sync")?;
        let running = guest.keep()?;
        Ok(Self { model, image, dir, payload, running, forks: AtomicU32::new(0) })
    }

    /// Resumes the base as it ran.
    pub(crate) fn resume(&self) -> Result<Guest> {
        Guest::resume(self.fork()?, &self.how(None))
    }

    /// Boots `disk`.
    pub(crate) fn boot(&self, disk: Disk) -> Result<Guest> {
        Guest::boot(disk, &self.how(None))
    }

    /// Boots `disk` with this time in the hardware clock.
    pub(crate) fn boot_at(&self, disk: Disk, clock: &str) -> Result<Guest> {
        Guest::boot(disk, &self.how(Some(clock)))
    }

    /// Boots the base with SELinux on, which does not enforce yet.
    pub(crate) fn boot_with_selinux(&self) -> Result<Guest> {
        Guest::boot(self.fork()?, &Boot { kernel: "security=selinux enforcing=0", ..self.how(None) })
    }

    /// Boots what was left of `disk`, or the base, with another payload, and memory for a control plane.
    pub(crate) fn boot_with(&self, disk: Option<Disk>, payload: &Path) -> Result<Guest> {
        let disk = disk.map_or_else(|| self.fork(), Ok)?;
        Guest::boot(disk, &Boot { payload, memory: 2 * vm::DEFAULT_MEMORY_MIB, ..self.how(None) })
    }

    /// Boots what was left of `disk`, or the base, with the TPM of that name.
    pub(crate) fn boot_with_tpm(&self, disk: Option<Disk>, name: &str) -> Result<Guest> {
        let (disk, state) = (disk.map_or_else(|| self.fork(), Ok)?, self.dir.join(name));
        Guest::boot(disk, &Boot { tpm: Some(&state), ..self.how(None) })
    }

    /// A disk that begins as the base.
    fn fork(&self) -> Result<Disk> {
        let number = self.forks.fetch_add(1, Ordering::Relaxed);
        self.running.copy(&self.dir.join(format!("{number}.qcow2")))
    }

    /// The directory of this machine's files on the host.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn how<'a>(&'a self, clock: Option<&'a str>) -> Boot<'a> {
        Boot { clock, ..how(self.model, &self.image, &self.payload, &self.dir) }
    }
}

fn how<'a>(model: Model, image: &'a Path, payload: &'a Path, dir: &'a Path) -> Boot<'a> {
    let Model { board, processors, memory } = model;
    Boot { board, processors, memory, ..Boot::new(image, payload, dir) }
}

/// Writes everything that a test needs: the package, images, a registry with an image, versions to upgrade to, the suites.
fn write_files(files: &Path) -> Result<()> {
    fs::create_dir_all(files.join("deploy"))?;
    let program = agent::static_program()?;
    fs::copy(&program, files.join("limpet"))?;
    fs::copy(program.with_file_name(agent::SHIM.0), files.join(agent::SHIM.0))?;
    upgrades::write_files(files)?;
    for entry in fs::read_dir(agent::workspace_dir().join("deploy"))? {
        let entry = entry?;
        // The directories hold what packages are made of.
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), files.join("deploy").join(entry.file_name()))?;
        }
    }
    let [first, second] = image::demo_images()?;
    image::write_oci_archive(&[&first, &second], &files.join("demo.tar"))?;
    if let Some(program) = tools::registry() {
        fs::copy(program, files.join("docker-registry"))?;
        let large =
            image::ImageBuilder::new("large").file("noise", image::noise("large", LARGE_IMAGE_BYTES), 0o644).build()?;
        registry::store(&files.join("registry"), &large, "large", "1")?;
    }
    for suite in vm::suites() {
        fs::copy(&suite.path, files.join(suite.path.file_name().context("a suite without a name")?))?;
    }
    Ok(())
}
