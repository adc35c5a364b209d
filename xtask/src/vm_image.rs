//! The images of `cargo xtask test-vm`: Debian 13 with systemd, containerd and a shell on the second serial port. This
//! one is a PC's, with everything that the cases need; [`other`] makes those of ARM boards.

pub(crate) mod other;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use limpet_tests::vm::{self, Board};
use limpet_tests::{process, tools};

use crate::apt::{self, Machine};

/// Counts changes of this file that make another image.
const VERSION: u32 = 8;
const SUITE: &str = "trixie";
const SIZE: &str = "3G";
const PACKAGES: [&str; 27] = [
    "systemd-sysv",
    "dbus",
    "udev",
    "containerd",
    "runc",
    "crun",
    "containernetworking-plugins",
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "iproute2",
    "iptables",
    "busybox-static",
    "kmod",
    "ca-certificates",
    "procps",
    "e2fsprogs",
    "btrfs-progs",
    "dmsetup",
    "apparmor",
    "selinux-policy-default",
    "nfs-common",
    "nfs-kernel-server",
    "open-iscsi",
    // By which systemd uses a TPM.
    "libtss2-esys-3.0.2-0t64",
    "libtss2-mu-4.0.1-0t64",
    "libtss2-rc0t64",
    "libtss2-tcti-device0t64",
];

/// What the emulator and the making of the image need: a package, and a program of it.
const INSTALLED: [(&str, &str); 5] = [
    ("qemu-system-x86", vm::EMULATOR),
    ("qemu-utils", "qemu-img"),
    ("swtpm", vm::TPM_EMULATOR),
    ("debootstrap", "debootstrap"),
    ("e2fsprogs", "mkfs.ext4"),
];

/// A root shell on the second serial port, after the lines that open it: one base64 line in, exit code and base64 output
/// out.
const SHELL: &str = r#"
mkdir -p /payload && mount -o ro /dev/vdb /payload
echo ready
while IFS= read -r line; do
    output=$(bash -c "$(printf %s "$line" | base64 -d)" 2>&1 < /dev/null)
    code=$?
    printf '%s %s\n' "$code" "$(printf %s "$output" | base64 -w0)"
done
"#;

/// Where the policy of SELinux has the labels of files.
const FILE_CONTEXTS: &str = "/etc/selinux/default/contexts/files/file_contexts";

const SHELL_UNIT: &str = "[Unit]\nDescription=shell on the second serial port\nAfter=basic.target\n\n\
    [Service]\nExecStart=/usr/local/sbin/serial-shell\nEnvironment=HOME=/root\nKillMode=process\nOOMScoreAdjust=-500\n\n\
    [Install]\nWantedBy=multi-user.target\n";

/// Why no machine can be emulated here.
pub(crate) fn obstacle() -> Result<Option<String>> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Some("the machine under emulation is an x86-64 one, and this is none".to_owned()));
    }
    let machine = Machine::read(Path::new("/"))?;
    let other = || format!("the image is made from Debian's own mirror, and this is {}", machine.name);
    Ok((!machine.is_debian()).then(other))
}

/// The directory of the image, made if it is not there yet (about four minutes).
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(obstacle) = obstacle()? {
        bail!("{obstacle}");
    }
    install(&INSTALLED)?;
    cached(&format!("vm-{SUITE}-{VERSION}"), make)
}

/// Installs the packages whose programs are missing.
fn install(needed: &[(&str, &str)]) -> Result<()> {
    let missing = needed.iter().filter(|(_, program)| tools::on_path(program).is_none());
    let missing: Vec<_> = missing.map(|(package, _)| *package).collect();
    if missing.is_empty() { Ok(()) } else { apt::install(&missing) }
}

/// The directory of that name in the cache. If it is not there yet, `make` makes it: `image` in a directory for its work.
fn cached(name: &str, make: impl FnOnce(&Machine, &Path) -> Result<()>) -> Result<PathBuf> {
    let image = tools::cache_dir().join(name);
    if image.is_dir() {
        return Ok(image);
    }
    let machine = Machine::read(Path::new("/"))?;
    let work = tools::cache_dir().join(format!(".vm-{}", std::process::id()));
    let made = apt::say(&format!("making a machine of {SUITE} in {}", image.display()), || make(&machine, &work));
    if made.is_ok() {
        fs::rename(work.join("image"), &image).with_context(|| format!("{}", image.display()))?;
    }
    fs::remove_dir_all(&work).ok();
    made.map(|()| image)
}

fn make(machine: &Machine, work: &Path) -> Result<()> {
    let (root, image) = (work.join("root"), work.join("image"));
    fs::create_dir_all(&image).with_context(|| format!("{}", image.display()))?;
    process::checked(&mut bootstrap(machine, &PACKAGES, &[], &root))?;
    furnish(&root, &vm::PC)?;
    // Its test starts it.
    let server = root.join("etc/systemd/system/multi-user.target.wants/nfs-server.service");
    fs::remove_file(&server).with_context(|| format!("{}", server.display()))?;
    // Only what boots with SELinux looks at labels; emulated, it would take minutes to set them.
    process::checked(Command::new("chroot").arg(&root).args(["setfiles", "-F", FILE_CONTEXTS, "/"]))?;
    for (link, name) in [("vmlinuz", "vmlinuz"), ("initrd.img", "initrd.img")] {
        // The link points from the root directory: /boot/vmlinuz-6.12…
        let target = fs::read_link(root.join(link)).with_context(|| format!("{link} of the new machine"))?;
        let target = root.join(target.strip_prefix("/").unwrap_or(&target));
        fs::copy(&target, image.join(name)).with_context(|| format!("{}", target.display()))?;
    }
    write_disk(&root, &image)
}

/// The command that makes a Debian of these packages in `root`.
fn bootstrap(machine: &Machine, packages: &[&str], options: &[&str], root: &Path) -> Command {
    let mut command = Command::new("debootstrap");
    command.arg("--variant=minbase").arg(format!("--include={}", packages.join(","))).args(options);
    if let Some(keyring) = machine.keyring() {
        command.arg(format!("--keyring={keyring}"));
    }
    command.arg(SUITE).arg(root).arg(machine.mirror());
    command
}

/// Writes the disk of the image: a file system with what is in `root`.
fn write_disk(root: &Path, image: &Path) -> Result<()> {
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-O", "^metadata_csum", "-d"]).arg(root).arg(image.join("disk.img")).arg(SIZE);
    process::checked(&mut command).map(drop)
}

/// The shell, a name, and no periodic services.
fn furnish(root: &Path, board: &Board) -> Result<()> {
    let write = |path: &str, text: &str, mode: u32| put(&root.join(path), text, mode);
    write("etc/hostname", "gateway\n", 0o644)?;
    write("etc/hosts", "127.0.0.1 localhost gateway\n", 0o644)?;
    write("usr/local/sbin/serial-shell", &format!("#!/bin/bash\n{}{SHELL}", board.shell), 0o755)?;
    write("etc/systemd/system/serial-shell.service", SHELL_UNIT, 0o644)?;
    fs::create_dir_all(root.join("etc/systemd/system/multi-user.target.wants"))?;
    let link = |target: &str, name: &str| {
        let name = root.join("etc/systemd/system").join(name);
        symlink(target, &name).with_context(|| format!("{}", name.display()))
    };
    link("/etc/systemd/system/serial-shell.service", "multi-user.target.wants/serial-shell.service")?;
    for unit in [
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "e2scrub_reap.service",
        // It has the next boot with SELinux label everything once more.
        "selinux-autorelabel-mark.service",
    ] {
        link("/dev/null", unit)?;
    }
    Ok(())
}

/// Writes a file and the directories above it.
fn put(path: &Path, text: &str, mode: u32) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))?;
    fs::write(path, text).with_context(|| format!("{}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(|| format!("{}", path.display()))
}
