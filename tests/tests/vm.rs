//! limpet installed on a machine of its own, as the README says: systemd, cgroup v2, reboots and power cuts.
//!
//! The machine is emulated and slow, so each test waits for facts, and one installation is the base of all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use limpet_tests::vm::{self, Boot, Disk, Guest};
use limpet_tests::{agent, image, tools};
use serde_json::{Value, json};

/// How long an emulated machine may take for what takes a second elsewhere.
const SOON: Duration = Duration::from_secs(240);

type Case = (&'static str, fn(&Machine) -> Result<()>);

const FIRST: [Case; 5] = [
    ("installed_as_the_readme_says_it_runs_pods", installed_as_the_readme_says_it_runs_pods),
    ("a_reboot_brings_back_what_ran_and_nothing_that_had_finished", a_reboot),
    ("a_power_cut_in_the_middle_of_a_start", |machine| power_cut(machine, 0)),
    ("a_power_cut_in_the_middle_of_an_edit", |machine| power_cut_in_edit(machine, 0)),
    ("a_clock_in_1970_that_jumps", a_clock_in_1970_that_jumps),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One machine at a time: it takes both cores, and the next one needs what the first installed.
    arguments.test_threads = Some(1);
    let lacking = lacking();
    if let Some(reason) = lacking {
        eprintln!("the tests on a machine of its own are skipped: {reason}");
    }
    let mut trials: Vec<Trial> = FIRST.into_iter().map(|(name, test)| trial(name.to_owned(), test, lacking)).collect();
    if std::env::var_os(vm::ALL_VARIABLE).is_some() {
        for round in 1..3 {
            let name = |what: &str| format!("{what}_again_{round}");
            trials.push(trial(name("a_power_cut_in_the_middle_of_a_start"), move |m| power_cut(m, round), lacking));
            trials.push(trial(
                name("a_power_cut_in_the_middle_of_an_edit"),
                move |m| power_cut_in_edit(m, round),
                lacking,
            ));
        }
        trials.push(trial("a_shutdown_lets_containers_end".to_owned(), a_shutdown_lets_containers_end, lacking));
        for suite in std::env::var(vm::SUITES_VARIABLE).unwrap_or_default().split(':').filter(|suite| !suite.is_empty())
        {
            let path = PathBuf::from(suite);
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let name = format!("suite_{}", file.split('-').next().unwrap_or_default());
            trials.push(trial(name, move |machine| suite_inside(machine, &path), lacking));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    fs::remove_dir_all(work_dir()).ok();
    conclusion.exit_code()
}

/// Disks and sockets of this run.
fn work_dir() -> PathBuf {
    Path::new("/var/tmp").join(format!("limpet-vm-{}", std::process::id()))
}

fn lacking() -> Option<&'static str> {
    if vm::image().is_none() {
        return Some("no image of a machine; run: cargo xtask test-vm");
    }
    (!tools::is_root()).then_some("not root")
}

fn trial(name: String, test: impl Fn(&Machine) -> Result<()> + Send + 'static, lacking: Option<&str>) -> Trial {
    let run = move || {
        let machine = MACHINE.get_or_init(|| Machine::install().map_err(|error| format!("{error:#}")));
        let machine = machine.as_ref().map_err(|error| Failed::from(error.clone()))?;
        test(machine).map_err(|error| Failed::from(format!("{error:#}")))
    };
    Trial::test(name, run).with_ignored_flag(lacking.is_some())
}

/// The machine after the README's installation, shut down: the base of every test.
static MACHINE: OnceLock<Result<Machine, String>> = OnceLock::new();

struct Machine {
    image: PathBuf,
    dir: PathBuf,
    payload: PathBuf,
    installed: Disk,
    forks: AtomicU32,
}

/// The README's commands, with the package's files at `/payload`, and images from an
/// archive as a box without a registry gets them.
const INSTALL: &str = "set -e
install /payload/limpet /usr/bin/limpet
install -D /payload/deploy/config.yaml /etc/limpet/config.yaml
install -D /payload/deploy/10-limpet.conflist /etc/cni/net.d/10-limpet.conflist
install /payload/deploy/limpet.service /etc/systemd/system/
mkdir -p /etc/limpet/manifests /var/lib/limpet/images && cp /payload/demo.tar /var/lib/limpet/images/
systemctl enable --now limpet";

impl Machine {
    fn install() -> Result<Self> {
        let image = vm::image().context("no image")?;
        let dir = work_dir();
        let mut payload = dir.join("payload");
        fs::create_dir_all(payload.join("deploy"))?;
        fs::copy(agent::program()?, payload.join("limpet"))?;
        for entry in fs::read_dir(agent::workspace_dir().join("deploy"))? {
            let entry = entry?;
            fs::copy(entry.path(), payload.join("deploy").join(entry.file_name()))?;
        }
        let [first, second] = image::demo_images()?;
        image::write_oci_archive(&[&first, &second], &payload.join("demo.tar"))?;
        for suite in std::env::var(vm::SUITES_VARIABLE).unwrap_or_default().split(':').filter(|path| !path.is_empty()) {
            let path = Path::new(suite);
            fs::copy(path, payload.join(path.file_name().context("a suite without a name")?))?;
        }
        let files = std::mem::replace(&mut payload, dir.join("payload.img"));
        vm::write_payload(&files, &payload)?;
        fs::remove_dir_all(&files)?;
        let disk = Disk::over_image(&image, &dir.join("installed.qcow2"))?;
        let mut guest = Guest::boot(disk, &Boot { image: &image, payload: &payload, dir: &dir, clock: None })?;
        guest.run(INSTALL)?;
        guest.run("systemctl is-active limpet")?;
        guest.send("systemctl poweroff")?;
        let installed = guest.wait_off()?;
        Ok(Self { image, dir, payload, installed, forks: AtomicU32::new(0) })
    }

    fn boot<'a>(&'a self, clock: Option<&'a str>) -> Boot<'a> {
        Boot { image: &self.image, payload: &self.payload, dir: &self.dir, clock }
    }

    fn fresh(&self) -> Result<Guest> {
        let number = self.forks.fetch_add(1, Ordering::Relaxed);
        let disk = self.installed.fork(&self.dir.join(format!("{number}.qcow2")))?;
        self.again(disk)
    }

    fn again(&self, disk: Disk) -> Result<Guest> {
        Guest::boot(disk, &self.boot(None))
    }
}

fn manifest(name: &str, spec: Value) -> String {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec,
    });
    let path = format!("/etc/limpet/manifests/{name}.yaml");
    format!("cat > {path}.new <<'END'\n{manifest}\nEND\nmv {path}.new {path}")
}

fn shell(name: &str, image: &str, script: &str) -> Value {
    json!({ "name": name, "image": image, "command": ["/bin/sh", "-c", script], "imagePullPolicy": "IfNotPresent" })
}

/// Writes a line to a file of the host for each run, so that a second run shows.
fn noting(name: &str, then: &str) -> Value {
    let mut container = shell(name, image::V1, &format!("echo {name} >> /runs/list; {then}"));
    container["volumeMounts"] = json!([{ "name": "runs", "mountPath": "/runs" }]);
    container
}

const IDLE: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

fn runs_volume() -> Value {
    json!([{ "name": "runs", "hostPath": { "path": "/var/lib/runs", "type": "DirectoryOrCreate" } }])
}

/// Waits until every container of the pod `name` runs, and returns the pod.
fn running(guest: &mut Guest, name: &str) -> Result<Value> {
    let phase = |pod: &Value| {
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        !statuses.is_empty() && statuses.iter().all(|status| status["state"]["running"].is_object())
    };
    wait_pod(guest, name, "running", phase)
}

fn wait_pod(guest: &mut Guest, name: &str, what: &str, accept: impl Fn(&Value) -> bool) -> Result<Value> {
    let full = format!("{name}-gateway");
    let found = guest.until(SOON, &format!("pod {name} {what}"), "limpet pods -A -o json", |output| {
        let list: Value = serde_json::from_str(output).ok()?;
        let pod = list["items"].as_array()?.iter().find(|pod| pod["metadata"]["name"] == full.as_str())?.clone();
        accept(&pod).then_some(pod)
    });
    found.map_err(|error| {
        let evidence = guest.attempt("limpet events; journalctl -u limpet -u containerd -n 60 --no-pager -o cat");
        anyhow!("{error:#}\n{}", evidence.map(|(_, text)| text).unwrap_or_default())
    })
}

/// Nothing of containerd's runs twice, and nothing is there that limpet does not know.
fn nothing_doubled(guest: &mut Guest) -> Result<()> {
    let tasks = guest.run("ctr -n k8s.io tasks ls -q | sort")?;
    let known = guest.run(
        "limpet pods -A -o json | grep -o 'containerd://[0-9a-f]*' | sed 's/.*:..//' | sort -u; \
         true",
    )?;
    for task in tasks.lines() {
        ensure!(known.lines().any(|id| id == task), "task {task} belongs to no pod\ntasks:\n{tasks}\nknown:\n{known}");
    }
    Ok(())
}

fn installed_as_the_readme_says_it_runs_pods(machine: &Machine) -> Result<()> {
    let mut guest = machine.fresh()?;
    guest.until(SOON, "the agent", "systemctl is-active limpet && limpet pods", |_| Some(()))?;
    let limits =
        json!({ "limits": { "memory": "64Mi", "cpu": "500m" }, "requests": { "memory": "32Mi", "cpu": "100m" } });
    let mut web = shell("web", image::V1, IDLE);
    web["resources"] = limits;
    guest.run(&manifest(
        "web",
        json!({ "terminationGracePeriodSeconds": 2, "containers": [web, shell("side", image::V1, IDLE)] }),
    ))?;
    let pod = running(&mut guest, "web")?;
    ensure!(pod["status"]["podIP"].as_str().is_some_and(|ip| ip.starts_with("10.88.")), "{}", pod["status"]);
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?.replace('-', "_");
    let slice = format!("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
    let id = container_id(&pod, "web")?;
    let limits = guest.run(&format!("cd {slice}/limpet-{id}.scope && cat memory.max cpu.max"))?;
    ensure!(limits.split_whitespace().eq(["67108864", "50000", "100000"]), "{limits}");
    guest.run("systemctl status 'kubepods*.slice' --no-pager > /dev/null")?;
    // Restarting and stopping the agent stops no pod.
    guest.run("systemctl restart limpet")?;
    let after = running(&mut guest, "web")?;
    ensure!(container_id(&after, "web")? == id, "restarted by a restart of the agent");
    guest.run("systemctl stop limpet && ctr -n k8s.io tasks ls | grep -c RUNNING")?;
    guest.run("systemctl restart containerd && systemctl start limpet")?;
    let after = running(&mut guest, "web")?;
    ensure!(container_id(&after, "web")? == id, "restarted by a restart of containerd");
    // An edit of the image in place, and the end.
    let mut web = shell("web", image::V2, IDLE);
    web["resources"] =
        json!({ "limits": { "memory": "64Mi", "cpu": "500m" }, "requests": { "memory": "32Mi", "cpu": "100m" } });
    guest.run(&manifest(
        "web",
        json!({ "terminationGracePeriodSeconds": 2, "containers": [web, shell("side", image::V1, IDLE)] }),
    ))?;
    let edited = wait_pod(&mut guest, "web", "with its new image", |pod| {
        container_id(pod, "web").is_ok_and(|new| new != id) && pod["metadata"]["uid"] == after["metadata"]["uid"]
    })?;
    ensure!(container_id(&edited, "side")? == container_id(&after, "side")?, "the other container was touched");
    guest.run("limpet doctor")?;
    guest.run("rm /etc/limpet/manifests/web.yaml")?;
    guest.until(SOON, "nothing of the pod", &format!("test ! -e {slice} && limpet pods -o json"), |output| {
        (!output.contains("web-gateway")).then_some(())
    })?;
    let left = guest.run("ctr -n k8s.io tasks ls -q; ctr -n k8s.io containers ls -q; ip -br link | grep veth; true")?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    guest.power_cut();
    Ok(())
}

fn container_id(pod: &Value, name: &str) -> Result<String> {
    let statuses = pod["status"]["containerStatuses"].as_array().context("no statuses")?;
    let status = statuses.iter().find(|status| status["name"] == name).context("no such container")?;
    let id = status["containerID"].as_str().context("no id")?;
    Ok(id.trim_start_matches("containerd://").to_owned())
}

/// A pod of each kind of ending, and one that stays.
fn three_kinds(guest: &mut Guest) -> Result<()> {
    guest.run(&manifest(
        "stays",
        json!({
            "initContainers": [noting("init", "true")], "containers": [noting("stays", IDLE)],
            "volumes": runs_volume(), "terminationGracePeriodSeconds": 1,
        }),
    ))?;
    guest.run(&manifest(
        "once",
        json!({
            "restartPolicy": "Never", "hostNetwork": true, "containers": [noting("once", "exit 0")],
            "volumes": runs_volume(),
        }),
    ))?;
    running(guest, "stays")?;
    wait_pod(guest, "once", "finished", |pod| pod["status"]["phase"] == "Succeeded")?;
    Ok(())
}

fn a_reboot(machine: &Machine) -> Result<()> {
    let mut guest = machine.fresh()?;
    three_kinds(&mut guest)?;
    // A reboot without QEMU's own: the same disk is booted again.
    guest.send("systemctl reboot")?;
    let mut guest = machine.again(guest.wait_off()?)?;
    wait_pod(&mut guest, "stays", "running in its second run", |pod| {
        let main = &pod["status"]["containerStatuses"][0];
        main["state"]["running"].is_object() && main["restartCount"] == 1
    })?;
    wait_pod(&mut guest, "once", "still finished", |pod| pod["status"]["phase"] == "Succeeded")?;
    let runs = guest.run("sort /var/lib/runs/list | uniq -c | awk '{print $2 $1}' | xargs")?;
    ensure!(runs.trim() == "init1 once1 stays2", "{runs}");
    nothing_doubled(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// The power goes when the first container of three runs, or (`round`) a little later.
fn power_cut(machine: &Machine, round: u32) -> Result<()> {
    let mut guest = machine.fresh()?;
    three_kinds(&mut guest)?;
    guest.run("sync")?;
    let spec = json!({
        "containers": [noting("one", IDLE), noting("two", IDLE), noting("three", IDLE)], "volumes": runs_volume(),
        "terminationGracePeriodSeconds": 1,
    });
    guest.run(&format!("{}; sync", manifest("cut", spec)))?;
    let reached = ["one", "two", "three"][round as usize % 3];
    guest.until(SOON, "the start to be under way", &format!("grep -c {reached} /var/lib/runs/list"), |_| Some(()))?;
    let mut guest = machine.again(guest.power_cut())?;
    running(&mut guest, "cut")?;
    running(&mut guest, "stays")?;
    wait_pod(&mut guest, "once", "still finished", |pod| pod["status"]["phase"] == "Succeeded")?;
    let once = guest.run("grep -c once /var/lib/runs/list")?;
    ensure!(once.trim() == "1", "a finished container ran again: {once}");
    nothing_doubled(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// The power goes in the middle of an edit that makes a new pod.
fn power_cut_in_edit(machine: &Machine, round: u32) -> Result<()> {
    let mut guest = machine.fresh()?;
    let version = |value: &str| {
        let mut main = noting("main", IDLE);
        main["env"] = json!([{ "name": "EDIT", "value": value }]);
        json!({ "containers": [main], "volumes": runs_volume(), "terminationGracePeriodSeconds": 5 })
    };
    guest.run(&manifest("edited", version("first")))?;
    let first = running(&mut guest, "edited")?;
    guest.run(&format!("sync; {}; sync", manifest("edited", version("second"))))?;
    let stage = ["grep Killing", "grep -c Created | grep -v 1", "grep -c Started | grep -v 1"][round as usize % 3];
    guest.until(SOON, "the edit to be under way", &format!("limpet events | {stage}"), |_| Some(()))?;
    let mut guest = machine.again(guest.power_cut())?;
    let second = wait_pod(&mut guest, "edited", "running as edited", |pod| {
        pod["metadata"]["uid"] != first["metadata"]["uid"]
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    ensure!(second["spec"]["containers"][0]["env"][0]["value"] == "second", "{}", second["spec"]);
    nothing_doubled(&mut guest)?;
    guest.power_cut();
    Ok(())
}

fn a_clock_in_1970_that_jumps(machine: &Machine) -> Result<()> {
    let mut guest = machine.fresh()?;
    three_kinds(&mut guest)?;
    guest.send("systemctl poweroff")?;
    let disk = guest.wait_off()?;
    let mut guest = Guest::boot(disk, &machine.boot(Some("1970-01-02T00:00:00")))?;
    let before = running(&mut guest, "stays")?;
    guest.run("date -s 2026-11-21T12:00:00 && limpet pods")?;
    guest.run(&manifest(
        "later",
        json!({ "hostNetwork": true, "containers": [noting("later", IDLE)], "volumes": runs_volume() }),
    ))?;
    running(&mut guest, "later")?;
    let after = running(&mut guest, "stays")?;
    ensure!(container_id(&before, "stays")? == container_id(&after, "stays")?, "the jump restarted a container");
    let once = guest.run("grep -c once /var/lib/runs/list")?;
    ensure!(once.trim() == "1", "a finished container ran again: {once}");
    guest.power_cut();
    Ok(())
}

fn a_shutdown_lets_containers_end(machine: &Machine) -> Result<()> {
    let mut guest = machine.fresh()?;
    let slow = "trap 'sleep 3; echo ended >> /runs/list; exit 0' TERM; sleep 100000 & wait";
    guest.run(&manifest(
        "slow",
        json!({ "containers": [noting("slow", slow)], "volumes": runs_volume(), "terminationGracePeriodSeconds": 30 }),
    ))?;
    running(&mut guest, "slow")?;
    guest.send("systemctl poweroff")?;
    let mut guest = machine.again(guest.wait_off()?)?;
    running(&mut guest, "slow")?;
    let runs = guest.run("sort /var/lib/runs/list | uniq -c | awk '{print $2 $1}' | xargs")?;
    ensure!(runs.trim() == "ended1 slow2", "{runs}");
    guest.power_cut();
    Ok(())
}

/// One of the end-to-end suites, inside the machine, with the systemd driver.
fn suite_inside(machine: &Machine, suite: &Path) -> Result<()> {
    let mut guest = machine.fresh()?;
    let file = suite.file_name().context("a suite without a name")?.to_string_lossy().into_owned();
    guest.run("systemctl stop limpet")?;
    let run = format!(
        "cd /tmp && LIMPET_TEST_PATIENCE=20 LIMPET_TEST_CGROUP_DRIVER=systemd {}=/payload/limpet timeout 3000 \
         /payload/{file} --test-threads=1 --skip hundred --skip twenty > /tmp/suite.log 2>&1; echo $? > /tmp/suite.code",
        agent::PROGRAM_VARIABLE,
    );
    guest.run(&format!("systemd-run --unit=suite --setenv=HOME=/root bash -c {}", quoted(&run)))?;
    let code = guest.until(Duration::from_secs(3_000), "the suite to end", "cat /tmp/suite.code", |text| {
        text.trim().parse::<i32>().ok()
    })?;
    let log = guest.run("tail -n 80 /tmp/suite.log")?;
    ensure!(code == 0, "{file}: exit {code}\n{log}");
    guest.power_cut();
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
