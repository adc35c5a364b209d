//! Gateways: small machines of each architecture, with the deb installed as the README says, and images of that
//! architecture. On 32 bits, the C library's times end in January 2038, and Debian's kernel has no types for BPF.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::{self, ImageBuilder, OtherMachine};
use limpet_tests::vm::{self, Guest};
use limpet_tests::{registry, tools};
use serde_json::{Value, json};

use crate::leftovers;
use crate::machine::{Machine, Model};
use crate::pod::{IDLE, SOON, container_id, manifest, noting, running, runs, runs_volume, shell, wait};

/// What gateways of each architecture have.
static MODELS: [Model; 3] = [
    Model { board: &vm::PC, processors: 1, memory: 256 },
    Model { board: &vm::ARM_64, processors: 2, memory: 512 },
    Model { board: &vm::ARM_32, processors: 2, memory: 512 },
];

/// The size of the image that takes a while to pull.
const LARGE_IMAGE_BYTES: usize = 16 << 20;
/// A year that is beyond 31 bits of seconds since 1970.
const YEAR: &str = "2040";
/// The registries that speak TLS: the name of each one's files, and its port. Only the first's certificate is valid in
/// [`YEAR`].
const REGISTRIES: [(&str, u16); 2] = [("lasting", 5001), ("expired", 5002)];
/// How long their certificates are valid, in days.
const VALIDITY: [u32; 2] = [9_000, 2];

/// A gateway that takes the place of the usual machine.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) model: Model,
    deb: PathBuf,
}

impl Gateway {
    /// The README's commands, without a network: the package is in the payload, and the image in an archive. kubelet's
    /// threshold of 100 MiB would be half of what the smallest machine has, so it is set as a node of this size needs it.
    pub(crate) const INSTALL: &str = "set -e
DEBIAN_FRONTEND=noninteractive dpkg -i /payload/limpet.deb
sed -i 's/^maxPods:.*/&\\nevictionHard: {memory.available: 16Mi}\\nmergeDefaultEvictionSettings: true/' /etc/limpet/config.yaml
systemctl restart limpet
install -D -m 0644 /usr/share/doc/limpet/examples/10-limpet.conflist /etc/cni/net.d/10-limpet.conflist
mkdir -p /var/lib/limpet/images && cp /payload/demo.tar /var/lib/limpet/images/";

    /// The one that the environment names, if it does.
    pub(crate) fn chosen() -> Result<Option<Self>> {
        let Ok(architecture) = std::env::var(vm::GATEWAY_VARIABLE) else { return Ok(None) };
        let model = MODELS.iter().find(|model| model.board.architecture == architecture);
        let model = *model.with_context(|| format!("no gateway has an {architecture} processor"))?;
        let deb = std::env::var_os(vm::DEB_VARIABLE).with_context(|| format!("{} is not set", vm::DEB_VARIABLE))?;
        Ok(Some(Self { model, deb: deb.into() }))
    }

    /// Writes what the cases need: the package, images, and registries with an image.
    pub(crate) fn write_files(&self, image: &Path, files: &Path) -> Result<()> {
        fs::copy(&self.deb, files.join("limpet.deb")).with_context(|| format!("{}", self.deb.display()))?;
        let is_here = self.model.board.architecture == std::env::consts::ARCH;
        let program = if is_here { tools::registry() } else { Some(image.join("docker-registry")) };
        let program = program.context("no docker-registry here; run: cargo xtask setup")?;
        fs::copy(&program, files.join("docker-registry")).with_context(|| format!("{}", program.display()))?;
        let other = OtherMachine { architecture: self.model.board.image_architecture, busybox: image.join("busybox") };
        let machine = Some(&other).filter(|_| !is_here);
        let [first, second] = image::demo_images_for(machine)?;
        image::write_oci_archive(&[&first, &second], &files.join("demo.tar"))?;
        let noise = image::noise("large", LARGE_IMAGE_BYTES);
        let large = ImageBuilder::new("large").machine(machine).file("noise", noise, 0o644).build()?;
        registry::store(&files.join("registry"), &large, "large", "1")?;
        registry::store(&files.join("registry"), &first, "small", "1")?;
        for ((name, _), days) in REGISTRIES.iter().zip(VALIDITY) {
            let (key, certificate) = (files.join(format!("{name}.key")), files.join(format!("{name}.pem")));
            registry::self_signed_for(days, &key, &certificate)?;
        }
        Ok(())
    }
}

/// Containers run the architecture's own programs, `limpet doctor` reports whether the kernel has types for BPF, and
/// the memory of limpet's processes is printed.
pub(crate) fn what_the_node_has_is_said(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    let [inside, outside] = ["limpet exec stays -c stays -- uname -m", "uname -m"].map(|command| guest.run(command));
    let (inside, outside) = (inside?, outside?);
    ensure!(inside == outside, "{inside} in a container, {outside} outside");
    let report: Value = serde_json::from_str(&guest.run("limpet doctor -o json")?)?;
    let findings = report["findings"].as_array().context("no findings")?;
    let types = findings.iter().find(|finding| finding["name"] == "kernel types").context("nothing about BTF")?;
    let has_types = guest.attempt("test -e /sys/kernel/btf/vmlinux")?.0 == 0;
    let text = types["text"].as_str().unwrap_or_default();
    let expected = if has_types { "ok" } else { "degraded" };
    ensure!(types["level"] == expected && (has_types || text.contains("no BPF programs")), "{types}");
    for finding in findings.iter().filter(|finding| finding["level"] != "ok") {
        println!("{}: {finding}", outside.trim());
    }
    let memory = "for name in limpet containerd-shim-limpet-v1 containerd; do
        for pid in $(pgrep -f \"^[^ ]*/$name( |\\$)\"); do
            echo $name $(awk '/^(Rss|Pss|Private_Dirty):/ { print $1, $2, $3 }' /proc/$pid/smaps_rollup); done; done
        uname -srm; awk '/^Mem/ { print $1, $2, $3 }' /proc/meminfo | xargs";
    println!("{}", guest.run(memory)?);
    guest.power_cut();
    Ok(())
}

/// The clock is set to a time that has no room in 32 bits: what runs is not touched, pods start, end and are shown with
/// this time, certificates are valid or not, and after a boot everything runs again.
pub(crate) fn in_2040(machine: &Machine) -> Result<()> {
    let mut guest = machine.resume()?;
    let before = running(&mut guest, "stays")?;
    guest.run(&format!("date -s {YEAR}-02-01T12:00:00 && limpet pods"))?;
    let spec = json!({
        "containers": [noting("later", IDLE)], "volumes": runs_volume(), "terminationGracePeriodSeconds": 1,
    });
    guest.run(&manifest("later", &spec))?;
    let later = running(&mut guest, "later")?;
    let after = running(&mut guest, "stays")?;
    ensure!(container_id(&before, "stays")? == container_id(&after, "stays")?, "the clock restarted a container");
    for time in
        [&later["status"]["startTime"], &later["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]]
    {
        ensure!(time.as_str().is_some_and(|time| time.starts_with(YEAR)), "{}", later["status"]);
    }
    ages_are_right(&mut guest)?;
    let said = guest.run("limpet exec later -- date +%Y")?;
    ensure!(said.trim() == YEAR, "in the container it is {said}");
    an_end_has_its_time(&mut guest)?;
    certificates_are_judged(&mut guest)?;
    guest.run("sync")?;
    // A 32-bit kernel refuses this time of its hardware clock and begins in 1970.
    let mut guest = machine.boot_at(guest.power_cut(), &format!("{YEAR}-02-02T12:00:00"))?;
    running(&mut guest, "later")?;
    running(&mut guest, "lasting")?;
    running(&mut guest, "stays")?;
    ensure!(runs(&mut guest)?.contains("once1"), "what had finished ran again");
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// The pod of before is thirteen years old; that of today, and what has been written for it, is not.
fn ages_are_right(guest: &mut Guest) -> Result<()> {
    let pods = guest.run("limpet pods")?;
    let age = |name: &str| {
        let mut words = pods.lines().find(|line| line.starts_with(name))?.split_whitespace();
        let is_age =
            |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(char::is_alphabetic);
        words.find(is_age)
    };
    ensure!(age("stays-gateway").is_some_and(|age| age.starts_with("13y")), "{pods}");
    ensure!(age("later-gateway").is_some_and(|age| age.ends_with(['m', 's'])), "{pods}");
    let written = guest.run("stat -L -c %y /var/log/pods/*later*/later/0.log /var/lib/limpet/pods/*/etc-hosts")?;
    ensure!(written.contains(YEAR), "files of the pod are of {written}");
    let history = guest.run("limpet history later && limpet events | grep later-gateway")?;
    println!("{pods}\n{history}");
    Ok(())
}

/// A container that ends is restarted, and its end has today's time.
fn an_end_has_its_time(guest: &mut Guest) -> Result<()> {
    // The command may end with the container.
    guest.attempt("limpet exec later -- kill -TERM 1")?;
    wait(guest, "later", "restarted", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        let ended = &status["lastState"]["terminated"]["finishedAt"];
        let again = status["restartCount"] == 1 && status["state"]["running"].is_object();
        again && ended.as_str().is_some_and(|time| time.starts_with(YEAR))
    })?;
    Ok(())
}

/// Images come from a registry whose certificate is valid in this year, and not from one whose certificate has expired.
fn certificates_are_judged(guest: &mut Guest) -> Result<()> {
    for (name, port) in REGISTRIES {
        guest.run(&serve(name, port))?;
        let image = format!("127.0.0.1:{port}/small:1");
        guest.run(&manifest(name, &json!({ "hostNetwork": true, "containers": [shell("main", &image, IDLE)] })))?;
    }
    running(guest, "lasting")?;
    guest.until(SOON, "the refusal of the certificate", "limpet events | grep expired-gateway", |events| {
        events.to_lowercase().contains("certificate").then(|| println!("{events}"))
    })?;
    guest.run("rm /etc/limpet/manifests/expired.yaml")?;
    Ok(())
}

/// The commands that start a registry with TLS, whose certificate is trusted.
fn serve(name: &str, port: u16) -> String {
    format!(
        "set -e; mkdir -p /run/registry /etc/containerd/certs.d/127.0.0.1:{port}
         printf 'version: 0.1\\nstorage:\\n  filesystem:\\n    rootdirectory: /payload/registry/data\\n  maintenance:\\n    \
         readonly:\\n      enabled: true\\nhttp:\\n  addr: 127.0.0.1:{port}\\n  tls:\\n    key: /payload/{name}.key\\n    \
         certificate: /payload/{name}.pem\\n' > /run/registry/{name}.yml
         printf 'server = \"https://127.0.0.1:{port}\"\\n\\n[host.\"https://127.0.0.1:{port}\"]\\n  capabilities = [\"pull\", \
         \"resolve\"]\\n  ca = \"/payload/{name}.pem\"\\n' > /etc/containerd/certs.d/127.0.0.1:{port}/hosts.toml
         systemd-run --unit=registry-{name} /payload/docker-registry serve /run/registry/{name}.yml
         timeout 120 bash -c 'until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2> /dev/null; do sleep 0.2; done' || \
         {{ journalctl -u registry-{name} --no-pager; exit 1; }}"
    )
}
