//! `cargo xtask test-kernels`: the BPF programs in stock kernels, under QEMU's emulation.
//!
//! The test `kernels` of limpet-bpf, linked statically, is the first process of a machine that has nothing else. A kernel
//! that panics, hangs or says less than all of it has failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::process::{self, Daemon, tail};
use limpet_tests::{tools, vm};

use crate::apt::{self, Machine};
use crate::{cargo, setup, vm_image};

/// Which kernels to boot.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only these: 5.10, 6.1, 6.12, newest.
    #[arg(value_name = "KERNEL")]
    kernels: Vec<String>,
}

/// A stock kernel.
struct Kernel {
    name: &'static str,
    /// The suite that has it.
    suite: &'static str,
    /// What its command line needs.
    options: &'static str,
    /// Whether it is among those of `cargo xtask test`.
    everyday: bool,
}

const KERNELS: [Kernel; 4] = [
    // Its default order of security modules leaves BPF out.
    Kernel { name: "5.10", suite: "bullseye", options: "lsm=lockdown,yama,apparmor,bpf", everyday: true },
    Kernel { name: "6.1", suite: "bookworm", options: "", everyday: false },
    Kernel { name: "6.12", suite: "trixie", options: "", everyday: false },
    Kernel { name: "newest", suite: "unstable", options: "", everyday: true },
];

const HOST: &str = "x86_64-unknown-linux-gnu";
/// How long one machine may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Boots all that are asked for, one after the other.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let unknown = arguments.kernels.iter().find(|name| KERNELS.iter().all(|kernel| kernel.name != **name));
    if let Some(unknown) = unknown {
        bail!("no kernel {unknown:?}; there are 5.10, 6.1, 6.12 and newest");
    }
    let wanted =
        |kernel: &&Kernel| arguments.kernels.is_empty() || arguments.kernels.iter().any(|name| name == kernel.name);
    boot_all(KERNELS.iter().filter(wanted))
}

/// The two of every test run: the oldest and the newest.
pub(crate) fn everyday() -> Result<()> {
    match vm_image::obstacle()? {
        None => boot_all(KERNELS.iter().filter(|kernel| kernel.everyday)),
        Some(obstacle) => {
            eprintln!("without other kernels: {obstacle}");
            Ok(())
        }
    }
}

fn boot_all<'a>(kernels: impl Iterator<Item = &'a Kernel>) -> Result<()> {
    if let Some(obstacle) = vm_image::obstacle()? {
        bail!("{obstacle}");
    }
    setup::default()?;
    if tools::on_path(vm::EMULATOR).is_none() {
        apt::install(&["qemu-system-x86"])?;
    }
    let program = static_test()?;
    let work = std::env::temp_dir().join(format!("limpet-kernels-{}", std::process::id()));
    let mut failed = Vec::new();
    for kernel in kernels {
        fs::create_dir_all(&work).with_context(|| format!("{}", work.display()))?;
        let start = Instant::now();
        let outcome = image(kernel).and_then(|image| boot(kernel, &image, &program, &work));
        fs::remove_dir_all(&work).ok();
        match outcome {
            Ok(summary) => println!("kernel {}: {summary}, in {:.0} s", kernel.name, start.elapsed().as_secs_f64()),
            Err(error) => {
                println!("kernel {}: FAILED: {error:#}", kernel.name);
                failed.push(kernel.name);
            }
        }
    }
    ensure!(failed.is_empty(), "failed in {}", failed.join(", "));
    Ok(())
}

/// The kernel, from the cache or from Debian.
fn image(kernel: &Kernel) -> Result<PathBuf> {
    let directory = tools::cache_dir().join(format!("kernel-{}", kernel.suite));
    if let Some(found) = vmlinuz_below(&directory) {
        return Ok(found);
    }
    let machine = Machine::read(Path::new("/"))?;
    apt::unpack_dependencies(
        &machine,
        kernel.suite,
        "linux-image-cloud-amd64",
        &["linux-image-", "linux-binary-"],
        &directory,
    )?;
    vmlinuz_below(&directory).with_context(|| format!("no kernel in the packages of {}", kernel.suite))
}

fn vmlinuz_below(directory: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            if let Some(found) = vmlinuz_below(&path) {
                return Some(found);
            }
        } else if entry.file_name().to_string_lossy().starts_with("vmlinuz") {
            return Some(path);
        }
    }
    None
}

/// The test, able to run where there is no library.
fn static_test() -> Result<PathBuf> {
    let flags = format!("target.{HOST}.rustflags=[\"-C\",\"target-feature=+crt-static\"]");
    let mut command =
        cargo::command(&["test", "-p", "limpet-bpf", "--features", "ebpf", "--test", "kernels", "--no-run"]);
    command.args(["--release", "--target", HOST, "--config", &flags, "--message-format=json"]);
    // It would be taken instead of the flags above.
    command.env_remove("RUSTFLAGS");
    let output = command.stderr(Stdio::inherit()).output().context("cargo test --no-run")?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut programs = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == "kernels").then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    programs.next().context("cargo names no executable of the test")
}

/// Boots, waits for the end, and returns the last line.
fn boot(kernel: &Kernel, image: &Path, program: &Path, work: &Path) -> Result<String> {
    let (initrd, log) = (work.join("initrd"), work.join("console"));
    write_initrd(program, &work.join("root"), &initrd)?;
    let mut command = Command::new(vm::EMULATOR);
    // Without cx16: QEMU 7.2 emulates cmpxchg16b wrongly now and then.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-cx16", "-smp", "2", "-m", "1024"]);
    command.args(["-nographic", "-no-reboot", "-net", "none", "-kernel"]).arg(image).arg("-initrd").arg(&initrd);
    command.arg("-append").arg(format!("console=ttyS0 panic=1 quiet {}", kernel.options));
    let mut emulator = Daemon::start(&mut command, &log)?;
    let ended = emulator.wait(PATIENCE);
    let said = String::from_utf8_lossy(&fs::read(&log)?).replace('\r', "");
    ended.with_context(|| format!("it did not end within {PATIENCE:?}\n{}", tail(&said, 30)))?;
    let summary = said.lines().find(|line| line.starts_with("kernels: "));
    let summary = summary.with_context(|| format!("it ended early\n{}", tail(&said, 40)))?;
    // In a machine of its own nothing may be skipped.
    ensure!(summary.ends_with(" 0 failed, 0 skipped"), "{summary}\n{}", tail(&said, 60));
    Ok(summary.to_owned())
}

/// A file system in memory with the test as its first process.
fn write_initrd(program: &Path, root: &Path, initrd: &Path) -> Result<()> {
    for directory in ["dev", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::copy(program, root.join("init")).with_context(|| format!("{}", program.display()))?;
    let busybox = tools::busybox().context("no busybox; run: cargo xtask setup")?;
    let mut command = Command::new(busybox);
    command.args(["cpio", "-o", "-H", "newc"]).current_dir(root);
    let output = process::run(&mut command, b"dev\nproc\nsys\ntmp\ninit\n")?;
    ensure!(output.status.success(), "cpio: {}", String::from_utf8_lossy(&output.stderr));
    fs::write(initrd, output.stdout).with_context(|| format!("{}", initrd.display()))
}
