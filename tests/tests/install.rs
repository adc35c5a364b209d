//! `deploy/install.sh` on systems that have busybox's shell and nothing else: it installs, what it installs runs, and an
//! uninstallation leaves nothing.
//!
//! Each system is a directory that is the root of its own mount, process and network namespaces. busybox's init and
//! OpenRC are real; systemd is a script that records its calls.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::process::{self, Daemon};
use limpet_tests::tools::ContainerdPrograms;
use limpet_tests::{TestNode, agent, case, suite, tools, wait};

/// The node's containerd and agent are not used, because the systems have their own.
fn main() -> ExitCode {
    suite::run([
        case!(busyboxs_init_runs_what_is_installed_and_nothing_is_left)
            .on(|node| (node.agent, node.containerd) = (false, false)),
        case!(openrc_supervises_what_is_installed_and_starts_it_at_boot)
            .on(|node| (node.agent, node.containerd) = (false, false)),
        case!(systemd_gets_units).on(|node| (node.agent, node.containerd) = (false, false)),
        case!(configuration_is_kept_and_other_packages_are_respected)
            .on(|node| (node.agent, node.containerd) = (false, false)),
    ])
}

/// How long init may take to start everything.
const LIMIT: Duration = Duration::from_secs(120);
/// Directories that the system itself mounts or writes.
const NOT_COMPARED: [&str; 4] = ["dev", "package", "proc", "sys"];
/// What init runs first.
const MOUNTS: &str = "#!/bin/sh\nmount -t proc proc /proc\nmount -t tmpfs run /run\n";
/// The table of an init that leaves everything to OpenRC, as Alpine has it.
const OPENRC_TABLE: &str = "\
::sysinit:/etc/rc
::sysinit:/sbin/openrc sysinit
::sysinit:/sbin/openrc boot
::wait:/sbin/openrc default
";
/// A service that has nothing to do: the system has a root directory and cgroups already.
const EMPTY_SERVICE: &str = "#!/sbin/openrc-run\nstart() { return 0; }\n";

/// A system that has busybox and a package.
struct System {
    root: PathBuf,
}

impl System {
    /// Makes a system. `has_runtime`: its package is an offline one.
    fn new(root: PathBuf, has_runtime: bool) -> Result<Self> {
        let busybox = tools::busybox().context("no static busybox: cargo xtask setup fetches it")?;
        for directory in [
            "bin",
            "sbin",
            "dev",
            "etc",
            "proc",
            "sys",
            "tmp",
            "run",
            "usr/bin",
            "usr/local/bin",
            "var/lib",
            "var/log",
            "package",
        ] {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::copy(&busybox, root.join("bin/busybox"))?;
        for applet in process::output(&busybox.display().to_string(), &["--list"])?.lines() {
            let directory = if applet == "init" { "sbin" } else { "bin" };
            if applet != "busybox" {
                symlink("/bin/busybox", root.join(directory).join(applet))?;
            }
        }
        let system = Self { root };
        system.add_package(has_runtime)?;
        Ok(system)
    }

    /// Adds the files of an archive, as `cargo xtask release` packs them.
    fn add_package(&self, has_runtime: bool) -> Result<()> {
        let deploy = agent::workspace_dir().join("deploy");
        let package = self.root.join("package");
        let limpet = agent::static_program()?;
        self.add_libraries(&limpet)?;
        let mut files = vec![
            (limpet, "usr/bin/limpet"),
            (deploy.join("install.sh"), "install.sh"),
            (deploy.join("config.yaml"), "etc/limpet/config.yaml"),
            (deploy.join("limpet.service"), "usr/lib/systemd/system/limpet.service"),
            (deploy.join("10-limpet.conflist"), "usr/share/doc/limpet/examples/10-limpet.conflist"),
        ];
        if has_runtime {
            let containerd = ContainerdPrograms::chosen(None)?;
            files.push((containerd.dir.join("containerd"), "runtime/bin/containerd"));
            files.push((containerd.dir.join("containerd-shim-runc-v2"), "runtime/bin/containerd-shim-runc-v2"));
            files.push((tools::on_path("runc").context("no runc")?, "runtime/bin/runc"));
            files.push((tools::cni_plugins().context("no CNI plugins")?.join("bridge"), "runtime/cni/bridge"));
            self.add_libraries(&containerd.dir.join("containerd"))?;
        }
        for (from, to) in files {
            let to = package.join(to);
            fs::create_dir_all(to.parent().context("a file")?)?;
            fs::copy(&from, &to).with_context(|| from.display().to_string())?;
        }
        if has_runtime {
            // These programs use the machine's own libraries, so the directory only has to exist.
            fs::create_dir_all(package.join("runtime/lib"))?;
            fs::write(package.join("runtime/lib/ld.so"), "")?;
        }
        Ok(())
    }

    /// Adds the libraries of a dynamic executable in the same places.
    fn add_libraries(&self, program: &Path) -> Result<()> {
        let output = process::run(Command::new("ldd").arg(program), b"")?;
        let text = String::from_utf8_lossy(&output.stdout);
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            let to = self.root.join(library.trim_start_matches('/'));
            fs::create_dir_all(to.parent().context("a file")?)?;
            fs::copy(library, to).with_context(|| library.to_owned())?;
        }
        Ok(())
    }

    /// Adds OpenRC, started by busybox's init.
    fn add_openrc(&self) -> Result<()> {
        let packages = tools::openrc_packages().context("no OpenRC: cargo xtask setup fetches it")?;
        for package in &packages {
            process::checked(Command::new("cp").arg("-a").arg(package.join(".")).arg(&self.root))?;
        }
        for program in ["sbin/openrc", "sbin/openrc-run", "sbin/supervise-daemon"] {
            self.add_libraries(&self.root.join(program))?;
        }
        for service in ["localmount", "cgroups"] {
            self.write(&format!("etc/init.d/{service}"), EMPTY_SERVICE, 0o755)?;
        }
        symlink("/run", self.root.join("var/run"))?;
        self.write("etc/rc", MOUNTS, 0o755)?;
        self.write("etc/inittab", OPENRC_TABLE, 0o644)
    }

    fn write(&self, path: &str, text: &str, mode: u32) -> Result<()> {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().context("a file")?)?;
        fs::write(&path, text)?;
        Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
    }

    fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.root.join(path)).with_context(|| path.to_owned())
    }

    /// Runs the script with `sh` of busybox, with no init system running.
    fn install(&self, arguments: &[&str]) -> Result<Output> {
        self.run("exec /bin/sh /package/install.sh \"$@\"", arguments)
    }

    /// Runs a script with no init system running.
    fn run(&self, script: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "chroot"]).arg(&self.root);
        command.args(["/bin/sh", "-c", &format!("mount -t proc proc /proc && {script}"), "sh"]);
        process::run(command.args(arguments).env_clear().env("PATH", "/sbin:/bin"), b"")
    }

    fn installed(&self, arguments: &[&str]) -> Result<String> {
        let output = self.install(arguments)?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "install.sh {arguments:?}: {text}");
        Ok(text)
    }

    /// Every file and directory of the system.
    fn files(&self) -> Result<BTreeSet<PathBuf>> {
        let mut files = BTreeSet::new();
        let mut left = vec![self.root.clone()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let path = entry.path().strip_prefix(&self.root)?.to_owned();
                if NOT_COMPARED.iter().any(|name| path == Path::new(name)) {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    left.push(entry.path());
                }
                files.insert(path);
            }
        }
        Ok(files)
    }
}

/// A booted system: its init, and a pipe to its shell.
struct Booted<'a> {
    system: &'a System,
    init: Daemon,
}

impl<'a> Booted<'a> {
    /// Starts its init, and waits until that has mounted `/run`.
    fn boot(node: &TestNode, system: &'a System) -> Result<Self> {
        let mut unshare = Command::new("unshare");
        // The system has the machine's cgroups, because another cgroup namespace would need one in each hierarchy.
        let start = "mount --rbind /sys/fs/cgroup \"$0/sys/fs/cgroup\" && exec chroot \"$0\" /sbin/init";
        fs::create_dir_all(system.root.join("sys/fs/cgroup"))?;
        unshare.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", start]).arg(&system.root);
        let booted = Self { system, init: Daemon::start(&mut unshare, &node.dir().join("init.log"))? };
        let is_up = || booted.shell("grep -q ' /run ' /proc/mounts").is_ok_and(|output| output.status.success());
        wait::until_true(LIMIT, "the system's init", is_up)?;
        Ok(booted)
    }

    fn shell(&self, script: &str) -> Result<Output> {
        // The init is the child of unshare.
        let parent = self.init.pid();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
        let init = children.split_whitespace().next().context("init has ended")?;
        let mut command = Command::new("nsenter");
        command.args(["--target", init, "--mount", "--net", "--pid", "chroot"]).arg(&self.system.root);
        process::run(command.args(["/bin/sh", "-c", script]).env_clear().env("PATH", "/usr/local/bin:/sbin:/bin"), b"")
    }

    /// Runs a script that must succeed, and returns what it prints.
    fn checked(&self, script: &str) -> Result<String> {
        let output = self.shell(script)?;
        ensure!(output.status.success(), "{script}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Installs the package and has `start` start it. Its cgroups are below the node's, which are removed with it.
    fn install(&self, node: &TestNode, start: &str) -> Result<()> {
        self.checked("sh /package/install.sh --no-start")?;
        let root = format!("s|^cgroupDriver: cgroupfs$|&\\ncgroupRoot: /{}|", node.cgroup());
        self.checked(&format!("sed -i '{root}' /etc/limpet/config.yaml && {start}"))?;
        Ok(())
    }

    /// Waits until the agent and its containerd answer.
    fn wait_serving(&self) -> Result<()> {
        let answers = || self.checked("limpet version -o json").is_ok_and(|version| version.contains("\"agent\": \""));
        wait::until_true(LIMIT, "the agent's answer", answers).with_context(|| {
            format!("{:?}", self.shell("ps; cat /var/log/limpet.log /var/log/limpet-containerd.log"))
        })?;
        let has_containerd = || self.checked("[ -S /run/containerd/containerd.sock ]").is_ok();
        wait::until_true(LIMIT, "containerd's socket", has_containerd)
    }

    /// Installs the package once more, and waits until what runs is what it has installed.
    fn upgrade(&self) -> Result<()> {
        self.checked("sh /package/install.sh")?;
        let runs = |program: &str| {
            let exes = self.checked("for exe in /proc/[0-9]*/exe; do readlink $exe; done; true").unwrap_or_default();
            let is_of = |exe: &&str| exe.starts_with(&format!("/opt/limpet/{program}"));
            let all: Vec<_> = exes.lines().filter(is_of).collect();
            !all.is_empty() && all.iter().all(|exe| !exe.ends_with(" (deleted)"))
        };
        wait::until_true(LIMIT, "the programs of the upgrade", || {
            runs("bin/limpet") && runs("runtime/bin/containerd")
        })?;
        ensure!(!self.system.root.join("opt/limpet/runtime.new").exists(), "files are left");
        self.wait_serving()
    }

    /// Uninstalls the package, ends init, and checks that the system has the files of `before`.
    fn uninstall(self, before: &BTreeSet<PathBuf>) -> Result<()> {
        self.checked("sh /package/install.sh --uninstall")?;
        let running = self.checked("ps")?;
        ensure!(!running.contains("limpet"), "{running}");
        let Self { system, init } = self;
        drop(init);
        let left: Vec<_> = system.files()?.difference(before).cloned().collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}

fn busyboxs_init_runs_what_is_installed_and_nothing_is_left(node: &mut TestNode) -> Result<()> {
    let system = System::new(node.dir().join("busybox"), true)?;
    system.write("etc/rc", MOUNTS, 0o755)?;
    system.write("etc/inittab", "::sysinit:/etc/rc\n", 0o644)?;
    let before = system.files()?;
    let booted = Booted::boot(node, &system)?;
    booted.install(node, "kill -HUP 1")?;
    booted.wait_serving()?;
    let config = system.read("etc/limpet/config.yaml")?;
    ensure!(
        config.contains("\ncgroupDriver: cgroupfs\n") && config.contains("\n- /opt/limpet/runtime/cni\n"),
        "{config}"
    );
    ensure!(config.contains("\nruntimeBinary: /opt/limpet/runtime/bin/runc"), "{config}");
    let log = system.read("var/log/limpet.log")?;
    ensure!(log.contains("limpet started"), "{log}");
    booted.upgrade()?;
    booted.uninstall(&before)?;
    ensure!(system.read("etc/inittab")? == "::sysinit:/etc/rc\n");
    Ok(())
}

fn openrc_supervises_what_is_installed_and_starts_it_at_boot(node: &mut TestNode) -> Result<()> {
    let system = System::new(node.dir().join("openrc"), true)?;
    system.add_openrc()?;
    system.write("etc/logrotate.d/other", "", 0o644)?;
    let before = system.files()?;
    let booted = Booted::boot(node, &system)?;
    let runlevel = || booted.checked("rc-status --runlevel").is_ok_and(|level| level.trim() == "default");
    wait::until_true(LIMIT, "the default runlevel", runlevel)?;
    booted.install(node, "openrc default")?;
    booted.wait_serving()?;
    let states = booted.checked("rc-status default")?;
    let is_started = |name: &str| states.lines().any(|line| line.contains(name) && line.contains("started"));
    ensure!(is_started(" limpet ") && is_started(" limpet-containerd "), "{states}");
    let rotation = system.read("etc/logrotate.d/limpet")?;
    ensure!(rotation.starts_with("/var/log/limpet.log ") && rotation.contains("copytruncate"), "{rotation}");

    booted.upgrade()?;
    // An agent that ends is started again, and its log goes on in the file.
    let starts = || Ok::<_, anyhow::Error>(system.read("var/log/limpet.log")?.matches("limpet started").count());
    let before_kill = starts()?;
    booted.checked("kill -9 $(pidof limpet)")?;
    wait::until_true(LIMIT, "another start of the agent", || starts().is_ok_and(|starts| starts > before_kill))?;
    booted.wait_serving()?;

    let mode = fs::metadata(system.root.join("var/log/limpet.log"))?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "others may read the log: {mode:o}");

    // A boot starts both by the runlevel. A log that has grown was put aside, and one that cannot be written stops nothing.
    drop(booted);
    let unwritable = system.root.join("var/log/limpet-containerd.log");
    fs::remove_file(&unwritable)?;
    fs::create_dir(&unwritable)?;
    system.write("var/log/limpet.log", &"a line\n".repeat(200_000), 0o644)?;
    let booted = Booted::boot(node, &system)?;
    booted.wait_serving()?;
    ensure!(system.read("var/log/limpet.log.1")?.starts_with("a line\n") && starts()? == 1);
    fs::remove_dir(&unwritable)?;
    booted.uninstall(&before)
}

fn systemd_gets_units(node: &mut TestNode) -> Result<()> {
    let recorder = "#!/bin/sh\necho \"${0##*/} $*\" >> /tmp/calls\n";
    let system = System::new(node.dir().join("systemd"), false)?;
    fs::create_dir_all(system.root.join("run/systemd/system"))?;
    system.write("bin/systemctl", recorder, 0o755)?;
    system.installed(&[])?;
    let unit = system.read("etc/systemd/system/limpet.service")?;
    ensure!(
        unit.contains("\nExecStart=/opt/limpet/bin/start-limpet\n") && unit.contains("After=containerd.service"),
        "{unit}"
    );
    // The journal has what it prints.
    ensure!(!system.read("opt/limpet/bin/start-limpet")?.contains("/var/log"));
    let calls = system.read("tmp/calls")?;
    ensure!(
        calls == "systemctl daemon-reload\nsystemctl enable limpet.service\nsystemctl restart limpet.service\n",
        "{calls}"
    );
    ensure!(system.read("etc/limpet/config.yaml")?.contains("\ncgroupDriver: systemd\n"));
    system.installed(&["--uninstall"])?;
    ensure!(!system.root.join("etc/systemd/system/limpet.service").exists());
    Ok(())
}

fn configuration_is_kept_and_other_packages_are_respected(node: &mut TestNode) -> Result<()> {
    let system = System::new(node.dir().join("plain"), false)?;
    system.write("etc/limpet/config.yaml", "mine\n", 0o600)?;
    let text = system.installed(&[])?;
    ensure!(text.contains("No init system was recognised") && text.contains("/opt/limpet/bin/start-limpet"), "{text}");
    ensure!(system.read("etc/limpet/config.yaml")? == "mine\n");
    // The second installation is an upgrade.
    system.installed(&[])?;
    system.installed(&["--uninstall", "--keep-state"])?;
    ensure!(system.read("etc/limpet/config.yaml")? == "mine\n" && !system.root.join("opt/limpet").exists());

    let refused = |arguments: &[&str], reason: &str| -> Result<()> {
        let output = system.install(arguments)?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && text.contains(reason), "{arguments:?}: {text}");
        Ok(())
    };
    refused(&["--uninstall"], "was not installed by this script")?;
    // Nobody would end containers whose agent does not answer.
    system.installed(&[])?;
    let shim = "containerd-shim-limpet-v1";
    system.write(&format!("tmp/{shim}"), "#!/bin/sh\nsleep 1000\n", 0o755)?;
    let uninstall = format!("/tmp/{shim} -namespace k8s.io & exec /bin/sh /package/install.sh --uninstall");
    let output = system.run(&uninstall, &[])?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && text.contains("does not answer"), "{text}");
    ensure!(system.root.join("opt/limpet/bin/limpet").exists() && system.root.join("etc/limpet").exists());
    system.installed(&["--uninstall"])?;
    refused(&["--with-runtime"], "this archive has no runtime")?;
    refused(&["--perhaps"], "unknown option")?;
    system.write("usr/bin/limpet", "#!/bin/sh\n", 0o755)?;
    refused(&[], "belongs to a package")?;
    Ok(())
}
