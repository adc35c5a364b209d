//! The kinds of machines that QEMU emulates: a PC, and ARM's virtual boards.

use std::process::Command;

/// A kind of machine, without its memory and disks.
#[derive(Debug)]
pub struct Board {
    /// The architecture, as in names of files: `aarch64`.
    pub architecture: &'static str,
    /// Go's name for it, by which images are chosen.
    pub image_architecture: &'static str,
    /// The program of QEMU that emulates this architecture.
    pub emulator: &'static str,
    /// The machine and its processor, as arguments.
    pub(super) machine: &'static [&'static str],
    /// The kernel's name for the first serial port, which is its console.
    pub console: &'static str,
    /// The lines of bash by which the guest's shell opens its port.
    pub shell: &'static str,
    /// What connects that port to the character device `control`, as arguments.
    pub(super) control: &'static [&'static str],
}

/// A 64-bit PC. cx16 is off, because QEMU 7.2 sometimes emulates cmpxchg16b wrongly.
pub static PC: Board = Board {
    architecture: "x86_64",
    image_architecture: "amd64",
    emulator: super::EMULATOR,
    machine: &["-cpu", "max,-cx16"],
    console: "ttyS0",
    shell: "stty -F /dev/ttyS1 raw -echo\nexec < /dev/ttyS1 > /dev/ttyS1",
    control: &["-serial", "chardev:control"],
};

/// A board with 64-bit processors as many gateways have them.
pub static ARM_64: Board = Board {
    architecture: "aarch64",
    image_architecture: "arm64",
    emulator: "qemu-system-aarch64",
    machine: &["-machine", "virt", "-cpu", "cortex-a72"],
    console: "ttyAMA0",
    shell: VIRTIO_SHELL,
    control: VIRTIO_CONTROL,
};

/// A board with 32-bit processors. Debian's kernel for these has no addresses above 4 GiB.
pub static ARM_32: Board = Board {
    architecture: "armv7",
    image_architecture: "arm",
    emulator: "qemu-system-arm",
    machine: &["-machine", "virt,highmem=off", "-cpu", "cortex-a15"],
    console: "ttyAMA0",
    shell: VIRTIO_SHELL,
    control: VIRTIO_CONTROL,
};

/// These boards have no second serial port. One of virtio, whose link udev makes, can be opened only once at a time.
const VIRTIO_SHELL: &str = "port=/dev/virtio-ports/control\nuntil test -e $port; do sleep 0.2; done\nexec <> $port >&0";
const VIRTIO_CONTROL: &[&str] =
    &["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=control"];

impl Board {
    /// The emulator with this machine and nothing else, not started. The machine that would boot again ends instead.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.emulator);
        command.args(["-accel", "tcg,thread=multi"]).args(self.machine).args(["-display", "none", "-no-reboot"]);
        command
    }
}
