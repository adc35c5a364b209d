//! `cargo xtask test-kernels`: the BPF programs and the watch's backends in stock kernels, under QEMU's emulation.
//!
//! The test `kernels` of limpet-bpf, linked statically, is the first process of a machine that has little else: the unit
//! tests of limpet-watch, which it runs, with their libraries and a busybox. A kernel that panics once that process
//! runs, hangs or prints only a part has failed, and so has one that skips a case which it is not declared to skip.

mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::process::{self, Daemon, tail};
use limpet_tests::sweep::{self, Machines};
use limpet_tests::{tools, vm, wait};

use crate::apt::{self, Machine};
use crate::{cargo, initrd, setup, vm_image};
use verdict::Skip;

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
    /// The release of Debian that has it.
    suite: &'static str,
    /// Options for its command line.
    options: &'static str,
    /// Whether `cargo xtask test` boots it.
    everyday: bool,
    /// Modules that its machine needs, below its `kernel/`.
    modules: &'static [&'static str],
    /// The cases that it cannot run. A skip that is not listed fails the run, and so does a listed one that ran.
    skips: &'static [Skip],
}

static KERNELS: [Kernel; 4] = [
    Kernel {
        // Its default order of security modules leaves BPF out.
        options: "lsm=lockdown,yama,apparmor,bpf",
        // Its fanotify does not accept tmpfs. A RAM disk has a file system like that of nodes.
        modules: &["drivers/block/brd.ko"],
        ..kernel("5.10", "bullseye", true)
    },
    kernel("6.1", "bookworm", false),
    kernel("6.12", "trixie", false),
    kernel("newest", "unstable", true),
];

/// A kernel that runs every case without further settings.
const fn kernel(name: &'static str, suite: &'static str, everyday: bool) -> Kernel {
    Kernel { name, suite, options: "", everyday, modules: &[], skips: &[] }
}

const HOST: &str = "x86_64-unknown-linux-gnu";
/// The time limit of one machine: far longer than it takes beside compilers.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(1_500);
/// The maximum number of boots of one machine.
const MAX_BOOTS: usize = 3;
/// Keeps the kernel's messages out of the lines of the tests, but for a panic: on a busy host its watchdogs report that
/// processors stand still.
const QUIET: &str = "loglevel=1 nowatchdog rcupdate.rcu_cpu_stall_suppress=1";
/// The first line of the first process; later failures may be caused by it.
const BOOTED_MARKER: &str = "the first process runs";

/// Boots all selected kernels.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let unknown = arguments.kernels.iter().find(|name| KERNELS.iter().all(|kernel| kernel.name != **name));
    if let Some(unknown) = unknown {
        bail!("no kernel {unknown:?}; there are 5.10, 6.1, 6.12 and newest");
    }
    if tools::is_root() {
        sweep::sweep();
    }
    let wanted =
        |kernel: &&Kernel| arguments.kernels.is_empty() || arguments.kernels.iter().any(|name| name == kernel.name);
    boot_all(KERNELS.iter().filter(wanted))
}

/// Boots the two kernels of every test run, the oldest and the newest.
pub(crate) fn everyday() -> Result<()> {
    match vm_image::obstacle()? {
        None => boot_all(KERNELS.iter().filter(|kernel| kernel.everyday)),
        Some(obstacle) => {
            eprintln!("without other kernels: {obstacle}");
            Ok(())
        }
    }
}

fn boot_all(kernels: impl Iterator<Item = &'static Kernel>) -> Result<()> {
    if let Some(obstacle) = vm_image::obstacle()? {
        bail!("{obstacle}");
    }
    setup::default()?;
    if tools::on_path(vm::EMULATOR).is_none() {
        apt::install(&["qemu-system-x86"])?;
    }
    let programs = Programs { kernels: static_test()?, watch: watch_tests()? };
    // The images are made one after the other, because the package manager locks its directory.
    let images: Vec<_> = kernels.map(|kernel| (kernel, image(kernel))).collect();
    let work = Machines::Kernels.dir();
    let mut failed = Vec::new();
    // One after the other: two would keep four cores busy.
    for (kernel, image) in images {
        let start = Instant::now();
        match image.and_then(|image| boot(kernel, &image, &programs, &work.join(kernel.name))) {
            Ok(summary) => println!("kernel {}: {summary}, in {:.0} s", kernel.name, start.elapsed().as_secs_f64()),
            Err(error) => {
                println!("kernel {}: FAILED: {error:#}", kernel.name);
                failed.push(format!("{}: {}", kernel.name, error.root_cause()));
            }
        }
    }
    fs::remove_dir_all(&work).ok();
    ensure!(failed.is_empty(), "failed in {}", failed.join(", "));
    Ok(())
}

/// The kernel, from the cache or from Debian.
fn image(kernel: &Kernel) -> Result<PathBuf> {
    let directory = tools::cache_dir().join(format!("kernel-{}", kernel.suite));
    if let Some(image) = vmlinuz_below(&directory) {
        return Ok(image);
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

/// A module of the kernel whose image this is: the image is in `boot` beside `lib`.
fn module_of(image: &Path, module: &str) -> Result<PathBuf> {
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    let release = name.strip_prefix("vmlinuz-").with_context(|| format!("no release in {name}"))?;
    let package = image.parent().and_then(Path::parent).unwrap_or(image);
    Ok(package.join("lib/modules").join(release).join("kernel").join(module))
}

fn vmlinuz_below(directory: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            if let Some(image) = vmlinuz_below(&path) {
                return Some(image);
            }
        } else if entry.file_name().to_string_lossy().starts_with("vmlinuz") {
            return Some(path);
        }
    }
    None
}

/// The test, statically linked.
fn static_test() -> Result<PathBuf> {
    let flags = format!("target.{HOST}.rustflags=[\"-C\",\"target-feature=+crt-static\"]");
    let mut command =
        cargo::command(&["test", "-p", "limpet-bpf", "--features", "ebpf", "--test", "kernels", "--no-run"]);
    command.args(["--release", "--target", HOST, "--config", &flags]);
    // It would be taken instead of the flags above.
    command.env_remove("RUSTFLAGS");
    cargo::executable(&mut command, "kernels")
}

/// The unit tests of the watch, as every test run builds them: built for one package alone they would be compiled once more.
fn watch_tests() -> Result<PathBuf> {
    cargo::executable(&mut cargo::command(&["test", "--workspace", "--lib", "--no-run"]), "limpet_watch")
}

/// What runs in the machine.
struct Programs {
    /// The first process.
    kernels: PathBuf,
    /// The unit tests of the watch.
    watch: PathBuf,
}

/// Boots, waits for the end, and returns the last line, after what was found out on the way.
fn boot(kernel: &Kernel, image: &Path, programs: &Programs, work: &Path) -> Result<String> {
    fs::create_dir_all(work).with_context(|| work.display().to_string())?;
    let initrd = work.join("initrd");
    let modules = kernel.modules.iter().map(|module| module_of(image, module)).collect::<Result<Vec<_>>>()?;
    write_initrd(programs, &modules, &work.join("root"), &initrd)?;
    let mut console = console_of(kernel, image, &initrd, work)?;
    for _ in 1..MAX_BOOTS {
        if !console.contains("Kernel panic") || console.contains(BOOTED_MARKER) {
            break;
        }
        // The emulation's: it sometimes runs code that the kernel is just patching.
        println!("kernel {}: it panicked before its first process ran; retrying", kernel.name);
        console = console_of(kernel, image, &initrd, work)?;
    }
    verdict::check(&console, kernel.skips).with_context(|| tail(&console, 60))
}

/// The whole console of one boot, until the machine ends by itself.
fn console_of(kernel: &Kernel, image: &Path, initrd: &Path, work: &Path) -> Result<String> {
    let log = work.join("console");
    fs::remove_file(&log).ok();
    let mut command = Command::new(vm::EMULATOR);
    // Without cx16: QEMU 7.2 sometimes emulates cmpxchg16b wrongly.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-cx16", "-smp", "2", "-m", "1536"]);
    command.args(["-nographic", "-no-reboot", "-net", "none", "-kernel"]).arg(image).arg("-initrd").arg(initrd);
    command.arg("-append").arg(format!("console=ttyS0 panic=1 {QUIET} {}", kernel.options));
    let mut emulator = Daemon::start(&mut command, &log)?;
    let ended = emulator.wait(wait::patient(MACHINE_TIMEOUT));
    let console = String::from_utf8_lossy(&fs::read(&log)?).replace('\r', "");
    ended.with_context(|| format!("it did not end within {MACHINE_TIMEOUT:?}\n{}", tail(&console, 30)))?;
    Ok(console)
}

/// A file system in memory with the test as its first process.
fn write_initrd(programs: &Programs, modules: &[PathBuf], root: &Path, initrd: &Path) -> Result<()> {
    for directory in ["bin", "dev", "etc", "modules", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    let put = |from: &Path, to: &Path| -> Result<()> {
        let to = root.join(to.strip_prefix("/").unwrap_or(to));
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(from, &to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
        Ok(())
    };
    let busybox = tools::busybox().context("no busybox; run: cargo xtask setup")?;
    put(&programs.kernels, Path::new("init"))?;
    put(&busybox, Path::new("bin/busybox"))?;
    put(&programs.watch, Path::new("bin/watch-tests"))?;
    process::checked(Command::new("strip").arg("--strip-debug").arg(root.join("bin/watch-tests")))?;
    for library in libraries(&programs.watch)? {
        put(&library, &library)?;
    }
    for module in modules {
        put(module, &Path::new("modules").join(module.file_name().unwrap_or_default()))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    initrd::write(root, initrd)
}

/// What a program is linked with: the absolute paths in each line of `ldd`.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let console = process::checked(Command::new("ldd").arg(program))?;
    Ok(console.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
