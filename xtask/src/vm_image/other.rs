//! The images of machines with ARM processors, made on a PC. debootstrap unpacks the packages here; the machine itself,
//! emulated, configures them at its first boot. So nothing that runs ARM's programs has to be registered with this kernel.
//!
//! The kernel is given to the emulator, so its package is only unpacked, and its machine needs no tools that make an
//! initrd: one with a busybox and the modules by which the root is mounted is made here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::process::{self, Daemon, tail};
use limpet_tests::vm::{self, Board};
use limpet_tests::wait;

use super::{SUITE, bootstrap, cached, furnish, install, obstacle, put, write_disk};
use crate::apt::{self, Foreign, Machine};
use crate::architecture::Architecture;
use crate::initrd;

/// Counts changes of this file that make other images.
const VERSION: u32 = 1;
/// What a gateway has. The packages of busybox and of the registry are not installed: cases take their programs.
const PACKAGES: [&str; 11] = [
    "systemd-sysv",
    "dbus",
    "udev",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "kmod",
    "ca-certificates",
    "procps",
];
/// What is in the image beside the disk: a package, and its program.
const PROGRAMS: [(&str, &str); 2] =
    [("busybox-static", "usr/bin/busybox"), ("docker-registry", "usr/bin/docker-registry")];
/// How long an emulated machine may take to configure its packages: far longer than it takes.
const CONFIGURE_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The memory with which it does, in MiB.
const MEMORY: &str = "1024";
/// What the first boot prints at its end.
const CONFIGURED_MARKER: &str = "all packages are configured";

/// The first process of the initrd. A disk that debootstrap has left half done is configured first.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
busybox mount -t devtmpfs dev /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
for module in /modules/*; do busybox insmod $module; done
until busybox mount -o rw /dev/vda /root; do busybox sleep 1; done
if test -d /root/debootstrap; then
    busybox mount -o move /dev /root/dev
    busybox chroot /root /usr/local/sbin/configure && busybox mount -o remount,ro /root && echo @MARKER@
    busybox poweroff -f
fi
busybox umount /proc /sys
busybox mount -o move /dev /root/dev
exec busybox switch_root /root /sbin/init
"#;

/// The second stage of debootstrap.
const CONFIGURE: &str = "#!/bin/sh
set -e
/debootstrap/debootstrap --second-stage
depmod $(uname -r)
rm -rf /var/cache/apt/archives/*.deb /etc/dpkg/dpkg.cfg.d/image
";

/// A kernel of Debian, and what an initrd needs of it.
struct Kernel {
    /// The package that depends on the newest of its kind.
    package: &'static str,
    /// The modules by which the root is mounted, below `kernel/`, in the order in which they are loaded.
    modules: &'static [&'static str],
}

/// Where ARM's machines boot from.
static ARM_64: Kernel = Kernel { package: "linux-image-cloud-arm64", modules: &["drivers/block/virtio_blk"] };
static ARM_32: Kernel = Kernel {
    package: "linux-image-armmp",
    modules: &[
        "drivers/block/virtio_blk",
        "lib/crc16",
        "crypto/crc32c_generic",
        "fs/mbcache",
        "fs/jbd2/jbd2",
        "fs/ext4/ext4",
    ],
};

/// The directory of the image for an architecture, made if it is not there yet. Emulated, the packages take some ten
/// minutes to be configured.
pub(crate) fn ensure(architecture: Architecture) -> Result<PathBuf> {
    if let Some(obstacle) = obstacle()? {
        bail!("{obstacle}");
    }
    let (board, kernel) = match architecture {
        Architecture::Aarch64 => (&vm::ARM_64, &ARM_64),
        Architecture::Armv7 => (&vm::ARM_32, &ARM_32),
        other => bail!("there is no image for {}", other.name()),
    };
    install(&[
        ("qemu-system-arm", board.emulator),
        ("qemu-utils", "qemu-img"),
        ("debootstrap", "debootstrap"),
        ("e2fsprogs", "mkfs.ext4"),
        ("xz-utils", "xz"),
    ])?;
    let debian = architecture.debian();
    cached(&format!("vm-{SUITE}-{debian}-{VERSION}"), |machine, work| make(machine, board, kernel, debian, work))
}

fn make(machine: &Machine, board: &Board, kernel: &Kernel, debian: &str, work: &Path) -> Result<()> {
    let (root, image) = (work.join("root"), work.join("image"));
    fs::create_dir_all(&image).with_context(|| format!("{}", image.display()))?;
    process::checked(&mut bootstrap(machine, &PACKAGES, &["--foreign", &format!("--arch={debian}")], &root))?;
    let unpacked = work.join("kernel");
    apt::unpack_dependencies_for(Some(debian), machine, SUITE, kernel.package, &["linux-image-"], &unpacked)?;
    let modules = add_kernel(&unpacked, &root, &image)?;
    add_programs(machine, debian, &work.join("programs"), &image)?;
    furnish(&root, board)?;
    put(&root.join("usr/local/sbin/configure"), CONFIGURE, 0o755)?;
    // Nothing has to survive a power cut yet.
    put(&root.join("etc/dpkg/dpkg.cfg.d/image"), "force-unsafe-io\n", 0o644)?;
    write_initrd(&image.join("busybox"), &modules, kernel.modules, &work.join("initrd"), &image)?;
    write_disk(&root, &image)?;
    configure(board, &image, work)
}

/// Adds the kernel to the image, and its modules to the root. Returns the directory of the modules.
fn add_kernel(unpacked: &Path, root: &Path, image: &Path) -> Result<PathBuf> {
    let (modules, boot) = (unpacked.join("usr/lib/modules"), unpacked.join("boot"));
    let release = only_entry(&modules, "")?;
    let target = root.join("usr/lib/modules");
    fs::create_dir_all(&target).with_context(|| format!("{}", target.display()))?;
    process::checked(Command::new("cp").arg("-a").arg(&release).arg(&target))?;
    let vmlinuz = only_entry(&boot, "vmlinuz-")?;
    fs::copy(&vmlinuz, image.join("vmlinuz")).with_context(|| format!("{}", vmlinuz.display()))?;
    Ok(release.join("kernel"))
}

/// The only entry of a directory whose name begins so.
fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("{}", directory.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let begins = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    paths.find(begins).with_context(|| format!("{} has no {prefix}…", directory.display()))
}

fn add_programs(machine: &Machine, debian: &str, unpacked: &Path, image: &Path) -> Result<()> {
    let packages = PROGRAMS.map(|(package, _)| package);
    let foreign = Foreign { suite: SUITE, with_security_updates: false, architecture: debian, packages: &packages };
    apt::unpack_foreign(machine, &foreign, unpacked)?;
    for (_, program) in PROGRAMS {
        let from = unpacked.join(program);
        fs::copy(&from, image.join(from.file_name().unwrap_or_default()))
            .with_context(|| format!("{}", from.display()))?;
    }
    Ok(())
}

/// Writes the initrd from the tree `tree`, which is made: a busybox, [`INIT`] and modules.
fn write_initrd(busybox: &Path, modules: &Path, names: &[&str], tree: &Path, image: &Path) -> Result<()> {
    for directory in ["bin", "dev", "modules", "proc", "root", "sys"] {
        fs::create_dir_all(tree.join(directory)).with_context(|| format!("{}", tree.display()))?;
    }
    fs::copy(busybox, tree.join("bin/busybox")).with_context(|| format!("{}", busybox.display()))?;
    put(&tree.join("init"), &INIT.replace("@MARKER@", CONFIGURED_MARKER), 0o755)?;
    for (number, name) in names.iter().enumerate() {
        let packed = modules.join(format!("{name}.ko.xz"));
        let output = process::run(Command::new("xz").arg("-dc").arg(&packed), b"")?;
        ensure!(output.status.success(), "xz -dc {}: {}", packed.display(), output.status);
        // They are loaded in the order of their names.
        fs::write(tree.join(format!("modules/{number}.ko")), output.stdout)?;
    }
    initrd::write(tree, &image.join("initrd.img"))
}

/// Boots the machine for the first time, and waits until it has configured its packages.
fn configure(board: &Board, image: &Path, work: &Path) -> Result<()> {
    let mut command = board.command();
    command.args(["-smp", "2", "-m", MEMORY, "-net", "none", "-monitor", "none"]);
    command.arg("-kernel").arg(image.join("vmlinuz")).arg("-initrd").arg(image.join("initrd.img"));
    command.arg("-append").arg(format!("console={} loglevel=1 panic=1", board.console));
    command.arg("-drive").arg(format!("file={},format=raw,if=virtio,cache=unsafe", image.join("disk.img").display()));
    let console = work.join("console");
    command.arg("-serial").arg(format!("file:{}", console.display()));
    let mut emulator = Daemon::start(&mut command, &work.join("qemu.log"))?;
    let ended = emulator.wait(wait::patient(CONFIGURE_TIMEOUT));
    let said = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).replace('\r', "");
    let evidence = || format!("{}{}", emulator.log(), tail(&said, 30));
    let ended = ended.with_context(evidence)?;
    ensure!(said.contains(CONFIGURED_MARKER), "the packages were not configured; {ended}: {}", evidence());
    Ok(())
}
