//! A whole machine under QEMU's emulation: Debian with systemd and cgroup v2, which reboots and loses power for real.
//!
//! `cargo xtask test-vm` makes the image and names its directory in [`IMAGE_VARIABLE`]. A [`Disk`] is a separate layer
//! over that image; a [`Guest`] is one boot of it, or continues from a memory that was saved there. Commands reach the
//! guest through its second serial port, or what its [`Board`] has in place of that, where a shell answers each base64
//! line with an exit code and base64 output.

mod board;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

pub use self::board::{ARM_32, ARM_64, Board, PC};
use crate::process::{self, Daemon, tail};
use crate::wait;

/// Names the directory that holds `disk.img`, `vmlinuz` and `initrd.img`.
pub const IMAGE_VARIABLE: &str = "LIMPET_TEST_VM";
/// If it is set, the long tests run, too.
pub const ALL_VARIABLE: &str = "LIMPET_TEST_VM_ALL";
/// The end-to-end suites to run inside the machine, separated by colons.
pub const SUITES_VARIABLE: &str = "LIMPET_TEST_VM_SUITES";
/// Names the architecture of a gateway that takes the place of the usual machine.
pub const GATEWAY_VARIABLE: &str = "LIMPET_TEST_VM_GATEWAY";
/// The deb that is installed on the gateway.
pub const DEB_VARIABLE: &str = "LIMPET_TEST_VM_DEB";
pub const EMULATOR: &str = "qemu-system-x86_64";
/// The emulator of a TPM.
pub const TPM_EMULATOR: &str = "swtpm";
/// The memory of a machine that needs no more than usual, in MiB.
pub const DEFAULT_MEMORY_MIB: u32 = 1_536;
/// This machine's loopback, as a guest with a network card sees it.
pub const LOOPBACK: &str = "10.0.2.2";
/// The name of a machine's saved memory on its disk.
const KEPT: &str = "kept";
/// The first line of the guest's shell.
const GREETING: &str = "ready";
/// How long an emulated machine may take to boot, and for each command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);
/// The time between two runs of a command that observes: each takes an emulated processor much longer than a gateway's.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The directory of the image, if there is one.
pub fn image() -> Option<PathBuf> {
    std::env::var_os(IMAGE_VARIABLE).map(PathBuf::from)
}

/// A suite that runs inside the machine.
#[derive(Debug, Clone)]
pub struct Suite {
    /// Its executable.
    pub path: PathBuf,
    /// A part of the names of the cases that run; if it is empty, all run.
    pub cases: String,
}

/// The suites that [`SUITES_VARIABLE`] names: their paths, separated by colons, each with `=` and a part of the names
/// of its cases if not all run.
pub fn suites() -> Vec<Suite> {
    let named = std::env::var(SUITES_VARIABLE).unwrap_or_default();
    let suite = |text: &str| {
        let (path, cases) = text.split_once('=').unwrap_or((text, ""));
        Suite { path: PathBuf::from(path), cases: cases.to_owned() }
    };
    named.split(':').filter(|text| !text.is_empty()).map(suite).collect()
}

/// The guest's root disk. What the guest writes goes to a separate file, over a base that does not change.
#[derive(Debug)]
pub struct Disk {
    layer: PathBuf,
}

impl Disk {
    /// A new disk over the image.
    pub fn over_image(image: &Path, layer: &Path) -> Result<Self> {
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(image.join("disk.img")).arg(layer);
        process::checked(&mut command)?;
        Ok(Self { layer: layer.to_owned() })
    }

    /// A copy of this disk in its current state, including the saved memory if there is one.
    pub fn copy(&self, layer: &Path) -> Result<Self> {
        fs::copy(&self.layer, layer).with_context(|| format!("{}", layer.display()))?;
        Ok(Self { layer: layer.to_owned() })
    }
}

/// How a guest is booted.
#[derive(Debug, Clone)]
pub struct Boot<'a> {
    /// The image's directory, with kernel and initrd.
    pub image: &'a Path,
    /// A second, read-only disk with the files of the test, which the guest mounts at `/payload`.
    pub payload: &'a Path,
    /// The directory of the console's log and the control socket.
    pub dir: &'a Path,
    /// The time of the hardware clock, as in `2026-01-01T00:00:00`; `None` for the host's time.
    pub clock: Option<&'a str>,
    /// The kind of machine.
    pub board: &'static Board,
    /// The number of its processors.
    pub processors: u32,
    /// Its memory, in MiB.
    pub memory: u32,
    /// Further words of the kernel's command line; may be empty.
    pub kernel: &'a str,
    /// Whether it has a network card, behind which this machine's loopback is [`LOOPBACK`]. The guest sets its own
    /// address.
    pub network: bool,
    /// The directory with the state of its TPM 2.0, if it has one. Another directory is another TPM.
    pub tpm: Option<&'a Path>,
}

impl<'a> Boot<'a> {
    /// A machine with nothing special.
    pub fn new(image: &'a Path, payload: &'a Path, dir: &'a Path) -> Self {
        Self {
            image,
            payload,
            dir,
            clock: None,
            board: &PC,
            processors: 2,
            memory: DEFAULT_MEMORY_MIB,
            kernel: "",
            network: false,
            tpm: None,
        }
    }
}

/// A running machine.
#[derive(Debug)]
pub struct Guest {
    qemu: Daemon,
    _tpm: Option<Daemon>,
    control: BufReader<UnixStream>,
    console: PathBuf,
    monitor: PathBuf,
    disk: Disk,
}

/// The emulator's own command line.
struct Monitor {
    stream: UnixStream,
}

impl Monitor {
    const PROMPT: &'static [u8] = b"(qemu) ";

    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?;
        stream.set_read_timeout(Some(wait::patient(COMMAND_TIMEOUT)))?;
        let mut monitor = Self { stream };
        monitor.answer()?;
        Ok(monitor)
    }

    fn command(&mut self, command: &str) -> Result<()> {
        self.stream.write_all(format!("{command}\n").as_bytes())?;
        let answer = self.answer()?;
        ensure!(!answer.contains("Error"), "the emulator's monitor: {command}: {answer}");
        Ok(())
    }

    /// Its output until it prompts for the next command.
    fn answer(&mut self) -> Result<String> {
        let mut said = Vec::new();
        while !said.ends_with(Self::PROMPT) {
            let mut piece = [0; 4096];
            let read = self.stream.read(&mut piece).context("the emulator's monitor")?;
            ensure!(read > 0, "the emulator closed its monitor");
            said.extend_from_slice(&piece[..read]);
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}

impl Guest {
    /// Boots `disk` and waits until its shell answers.
    pub fn boot(disk: Disk, boot: &Boot<'_>) -> Result<Self> {
        let mut guest = Self::start(disk, boot, &[])?;
        let mut greeting = guest.line();
        if greeting.is_err() && guest.console().contains("Kernel panic") {
            // This is a fault of the emulation, which sometimes runs code that the kernel is just patching. Nothing is
            // mounted yet.
            eprintln!("the emulated kernel panicked while it booted: once more");
            guest = Self::start(guest.power_cut(), boot, &[])?;
            greeting = guest.line();
        }
        let greeting = greeting.context("boot")?;
        ensure!(greeting == GREETING, "the guest said {greeting:?} at its start\n{}", guest.console());
        Ok(guest)
    }

    /// Continues the machine that [`Self::keep`] saved on `disk`.
    pub fn resume(disk: Disk, boot: &Boot<'_>) -> Result<Self> {
        let mut guest = Self::start(disk, boot, &["-loadvm", KEPT])?;
        guest.run("true").context("resume")?;
        Ok(guest)
    }

    /// Stops the machine, and saves its memory on its disk.
    pub fn keep(mut self) -> Result<Disk> {
        let mut monitor = Monitor::connect(&self.monitor)?;
        monitor.command(&format!("savevm {KEPT}"))?;
        self.qemu.kill();
        Ok(self.disk)
    }

    fn start(disk: Disk, boot: &Boot<'_>, further: &[&str]) -> Result<Self> {
        let monitor = boot.dir.join("monitor.sock");
        let (console, socket) = (boot.dir.join("console.log"), boot.dir.join("control.sock"));
        fs::remove_file(&socket).ok();
        let board = boot.board;
        let mut command = board.command();
        command.args(["-smp", &boot.processors.to_string(), "-m", &boot.memory.to_string()]);
        match boot.network {
            true => command.args(["-netdev", "user,id=host", "-device", "virtio-net-pci,netdev=host"]),
            false => command.args(["-net", "none"]),
        };
        command.arg("-kernel").arg(boot.image.join("vmlinuz")).arg("-initrd").arg(boot.image.join("initrd.img"));
        let words =
            format!("console={} root=/dev/vda rw panic=1 quiet systemd.show_status=0 {}", board.console, boot.kernel);
        command.args(["-append", words.trim_end()]);
        command.arg("-drive").arg(format!("file={},format=qcow2,if=virtio", disk.layer.display()));
        command.arg("-drive").arg(format!("file={},format=raw,if=virtio,readonly=on", boot.payload.display()));
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.arg("-chardev").arg(format!("socket,id=control,path={},server=on,wait=on", socket.display()));
        command.args(board.control);
        command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display())).args(further);
        if let Some(clock) = boot.clock {
            command.arg("-rtc").arg(format!("base={clock}"));
        }
        let tpm = boot.tpm.map(|state| add_tpm(&mut command, state)).transpose()?;
        let mut qemu = Daemon::start(&mut command, &boot.dir.join("qemu.log"))?;
        let stream = wait::until(wait::SOON, "the emulator's control socket", || {
            UnixStream::connect(&socket).ok().map(Ok).or_else(|| {
                let ended = qemu.ended().ok().flatten()?;
                Some(Err(anyhow!("{} ended, {ended}: {}", board.emulator, qemu.log())))
            })
        })??;
        stream.set_read_timeout(Some(wait::patient(COMMAND_TIMEOUT)))?;
        Ok(Self { qemu, _tpm: tpm, control: BufReader::new(stream), console, monitor, disk })
    }

    /// Runs `script` in the guest's bash. An exit code other than 0 is an error that contains what it printed.
    pub fn run(&mut self, script: &str) -> Result<String> {
        let (code, output) = self.attempt(script)?;
        ensure!(code == 0, "{script}: exit {code}: {output}\n{}", self.console());
        Ok(output)
    }

    /// The same with any exit code.
    pub fn attempt(&mut self, script: &str) -> Result<(i32, String)> {
        let line = self.answer(script)?;
        decoded(&line).with_context(|| format!("{script}: {line:?}"))
    }

    fn answer(&mut self, script: &str) -> Result<String> {
        self.send(script)?;
        self.line().with_context(|| script.to_owned())
    }

    /// Starts `script` and does not wait for it, because the guest may end next.
    pub fn send(&mut self, script: &str) -> Result<()> {
        let line = format!("{}\n", BASE64.encode(script));
        self.control.get_mut().write_all(line.as_bytes()).context("the guest's control port")
    }

    /// Runs `script` until it succeeds and `accept` accepts its output.
    pub fn until<T>(
        &mut self,
        limit: Duration,
        what: &str,
        script: &str,
        accept: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let mut last = String::new();
        let answered = wait::until_every(POLL_INTERVAL, limit, what, || {
            let line = match self.answer(script) {
                Ok(line) => line,
                Err(error) => return Some(Err(error)),
            };
            // The emulated serial line sometimes loses a byte; the script is run again anyway.
            let (code, output) = decoded(&line).ok()?;
            let accepted = (code == 0).then(|| accept(&output)).flatten().map(Ok);
            last = output;
            accepted
        });
        answered.with_context(|| format!("{script} said last: {last}"))?
    }

    /// Cuts the power at once.
    pub fn power_cut(mut self) -> Disk {
        self.qemu.kill();
        self.disk
    }

    /// Waits until the guest has shut itself down.
    pub fn wait_off(mut self) -> Result<Disk> {
        let ended = self.qemu.wait(wait::patient(COMMAND_TIMEOUT)).with_context(|| self.console())?;
        ensure!(ended.success(), "the emulator: {ended}: {}", self.qemu.log());
        Ok(self.disk)
    }

    /// The last lines of the guest's console.
    pub fn console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        format!("console:\n{}", tail(&String::from_utf8_lossy(&text), 30))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.control.read_line(&mut line);
        match read {
            Ok(0) => bail!("the machine ended\n{}", self.console()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(error)
                .with_context(|| format!("no answer within {:?}\n{}", wait::patient(COMMAND_TIMEOUT), self.console())),
        }
    }
}

/// The exit code and the output in a line of the guest.
fn decoded(line: &str) -> Result<(i32, String)> {
    let (code, output) = line.split_once(' ').unwrap_or((line, ""));
    let bytes = BASE64.decode(output).context("an odd answer")?;
    Ok((code.parse()?, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Starts a TPM, and configures the emulator to use it.
fn add_tpm(command: &mut Command, state: &Path) -> Result<Daemon> {
    fs::create_dir_all(state).with_context(|| format!("{}", state.display()))?;
    let socket = state.join("control.sock");
    fs::remove_file(&socket).ok();
    let mut swtpm = Command::new(TPM_EMULATOR);
    swtpm.args(["socket", "--tpm2", "--tpmstate"]).arg(format!("dir={}", state.display()));
    swtpm.arg("--ctrl").arg(format!("type=unixio,path={}", socket.display()));
    let tpm = Daemon::start(&mut swtpm, &state.join("log"))?;
    wait::until_true(wait::SOON, "the TPM's socket", || socket.exists()).with_context(|| tpm.log())?;
    command.arg("-chardev").arg(format!("socket,id=tpm,path={}", socket.display()));
    command.args(["-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-tis,tpmdev=tpm0"]);
    Ok(tpm)
}

/// Writes everything below `dir` into a file system image at `path`.
pub fn write_payload(dir: &Path, path: &Path) -> Result<()> {
    let size = size_of(dir)? / (1 << 20) + 64;
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-O", "^has_journal,^metadata_csum", "-d"]).arg(dir).arg(path).arg(format!("{size}M"));
    process::checked(&mut command).map(drop)
}

fn size_of(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}
