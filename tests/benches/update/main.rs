//! What an update costs that changes one of an image's ten layers: bytes over the network, bytes written, and the time in which
//! no process runs. Of limpet by a signed delta bundle and by an edited manifest; with `--kubelet` of a real kubelet by an
//! edited manifest; with `--podman` of Podman by the commands that its auto-update and the unit of a pod consist of.

mod versions;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::containerd::Containerd;
use limpet_tests::contender::{Contender, Stage, apply, processes, remove, settle, wait_ready};
use limpet_tests::file_server::FileServer;
use limpet_tests::footprint::Footprint;
use limpet_tests::life::Life;
use limpet_tests::registry::{self, Registry};
use limpet_tests::wire::{Traffic, Wire};
use limpet_tests::{measure, wait};
use serde_json::{Value, json};
use versions::{POD, Workshop, app, image};

/// The most updates of each; more say nothing new.
const MOST_RUNS: usize = 10;
/// How long the writes of an update may last after the new process runs.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// The registry, as containerd knows it.
const HOST: &str = "registry.test:5000";

fn main() -> Result<()> {
    let runs = measure::setting(measure::RUNS_VARIABLE, MOST_RUNS)?.min(MOST_RUNS);
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!("containerd {}.{}, {runs} updates of one layer in ten of 1 MiB each", version.0, version.1);
    let dir = stage.node.dir().to_owned();
    let registry = Registry::start(&dir.join("registry"))?;
    let server = FileServer::start()?;
    let [registry_wire, server_wire] = [Wire::to(registry.address().port())?, Wire::to(server.port())?];
    registry::allow_plain_http(&stage.node.containerd.certs_d(), HOST, ([127, 0, 0, 1], registry_wire.port).into())?;
    let life = Life::new(&dir.join("life"))?;
    let mut bench = Bench { runs, dir, life, registry, registry_wire, server, server_wire, rows: Vec::new() };
    stage.measure(|stage| bench.measure(stage))?;
    bench.print();
    let rows = bench.rows.iter().map(Update::json).collect();
    measure::write(env!("CARGO_TARGET_TMPDIR"), "update", version, rows)?;
    drop(bench);
    stage.finish()
}

/// The means and the results of the measurement.
struct Bench {
    runs: usize,
    dir: PathBuf,
    life: Life,
    registry: Registry,
    registry_wire: Wire,
    server: FileServer,
    server_wire: Wire,
    rows: Vec<Update>,
}

/// What one update cost, and who made it.
struct Update {
    who: &'static str,
    traffic: Traffic,
    written: u64,
    /// From the moment at which the new version can be had until its process runs.
    took: Duration,
    /// From the end of the old process to the start of the new one.
    downtime: Duration,
}

impl Update {
    fn json(&self) -> Value {
        json!({
            "who": self.who, "sent": self.traffic.sent, "received": self.traffic.received, "written_bytes": self.written,
            "took_seconds": self.took.as_secs_f64(), "downtime_seconds": self.downtime.as_secs_f64(),
        })
    }
}

/// What was before an update.
struct Mark {
    traffic: Traffic,
    written: Vec<(u32, u64)>,
}

impl Bench {
    fn measure(&mut self, stage: &mut Stage) -> Result<()> {
        self.by_bundles(stage)?;
        for index in 0..stage.parts().0.len() {
            self.by_manifests(stage, index)?;
        }
        Ok(())
    }

    /// limpet's signed bundles, each as a delta at a URL.
    fn by_bundles(&mut self, stage: &mut Stage) -> Result<()> {
        let mut workshop = Workshop::open(self.dir.join("workshop"))?;
        let (key, port) = (workshop.key(), self.server_wire.port);
        let line = format!(
            "bundle: {{keys: [{}], url: \"http://127.0.0.1:{port}/bench.limpet\", interval: 1s}}",
            key.display()
        );
        let agent = &mut stage.node.agent;
        agent.reconfigure(|settings| settings.limpet.push(line.clone()))?;
        Contender::start(agent)?;
        let name = "registry.test/bench/bundle:1";
        for version in 0..=self.runs {
            let image = image(name, "bundle", version)?;
            let bundle = workshop.make(agent, &[app(&self.life, name)], Some(&image))?;
            let update = || {
                self.server.serve(bundle, None);
                Ok(())
            };
            let measured = self.update(&*agent, &stage.node.containerd, &self.server_wire, version, update)?;
            self.rows.extend(measured.map(|measured| Update { who: "limpet, delta bundle", ..measured }));
        }
        // A bundle's pods end with the next bundle.
        self.server.serve(workshop.make(agent, &[], None)?, None);
        settle(agent, &stage.node.containerd)?;
        self.life.forget();
        Contender::stop(agent)?;
        agent.reconfigure(|settings| settings.limpet.retain(|known| *known != line))
    }

    /// An edited manifest, with the image in a registry.
    fn by_manifests(&mut self, stage: &mut Stage, index: usize) -> Result<()> {
        let podman = index > 0 && stage.parts().0[index].name() == "podman";
        if podman {
            return self.by_podman(stage, index);
        }
        let (mut contenders, containerd) = stage.parts();
        let contender = &mut *contenders[index];
        let who = if index == 0 { "limpet, manifest" } else { "kubelet, manifest" };
        contender.start()?;
        for version in 0..=self.runs {
            let tag = version.to_string();
            let repository = self.push(who, contender.name(), &tag, version)?;
            let manifest = app(&self.life, &format!("{HOST}/{repository}:{tag}"));
            let update = || apply(&*contender, &manifest);
            let measured = self.update(&*contender, containerd, &self.registry_wire, version, update)?;
            self.rows.extend(measured.map(|measured| Update { who, ..measured }));
        }
        remove(&*contender, POD)?;
        settle(&*contender, containerd)?;
        self.life.forget();
        contender.stop()
    }

    /// What `podman auto-update` does without systemd: a pull, and the command of the pod's unit.
    fn by_podman(&mut self, stage: &mut Stage, index: usize) -> Result<()> {
        for version in 0..=self.runs {
            let tag = version.to_string();
            let repository = self.push("podman", "podman", &tag, version)?;
            let image = format!("127.0.0.1:{}/{repository}:{tag}", self.registry_wire.port);
            let manifest = app(&self.life, &image);
            let podman = stage.podman().context("Podman is not set up")?;
            let update = || {
                podman.pull(&image)?;
                podman.replace(&manifest)
            };
            let measured = self.update(podman, &stage.node.containerd, &self.registry_wire, version, update)?;
            self.rows.extend(measured.map(|measured| Update { who: "podman, pull and replace", ..measured }));
        }
        let (mut contenders, containerd) = stage.parts();
        let contender = &mut *contenders[index];
        remove(&*contender, POD)?;
        contender.stop()?;
        settle(&*contender, containerd)?;
        self.life.forget();
        Ok(())
    }

    /// Puts a version into the registry, and returns its repository.
    fn push(&self, who: &str, name: &str, tag: &str, version: usize) -> Result<String> {
        let repository = format!("bench/{name}");
        let image = image(&format!("{HOST}/{repository}:{tag}"), who, version)?;
        self.registry.add(&image, &repository, tag)?;
        Ok(repository)
    }

    /// Makes an update and measures it; the first version is no update.
    fn update(
        &self,
        contender: &dyn Contender,
        containerd: &Containerd,
        wire: &Wire,
        version: usize,
        update: impl FnOnce() -> Result<()>,
    ) -> Result<Option<Update>> {
        let before = Mark { traffic: wire.traffic(), written: self.written(contender, containerd)? };
        let begun = Instant::now();
        update()?;
        let ended = if version == 0 { None } else { Some(self.life.ended()?) };
        let started = self.life.started()?;
        wait_ready(contender, 1)?;
        wait::pass(SETTLE_TIME)?;
        let Some(ended) = ended else { return Ok(None) };
        ensure!(self.life.is_quiet(), "the process of version {version} was replaced again");
        let now = self.written(contender, containerd)?;
        let written = now.iter().map(|(pid, written)| {
            let known = before.written.iter().find(|(known, _)| known == pid);
            written.saturating_sub(known.map_or(0, |(_, written)| *written))
        });
        Ok(Some(Update {
            who: "",
            traffic: wire.traffic() - before.traffic,
            written: written.sum(),
            took: started.saturating_duration_since(begun),
            downtime: started.saturating_duration_since(ended),
        }))
    }

    /// The bytes that each process of a contender has written. Podman's commands are counted as this process's children.
    fn written(&self, contender: &dyn Contender, containerd: &Containerd) -> Result<Vec<(u32, u64)>> {
        let kinds = processes(contender, containerd, &self.dir)?;
        let commands = contender.keepers().map(|_| std::process::id());
        let pids = kinds.into_iter().flat_map(|(_, pids)| pids).chain(commands);
        Ok(pids.map(|pid| (pid, Footprint::measure(pid).written)).collect())
    }

    fn print(&self) {
        println!(
            "\n{:<28} {:>14} {:>14} {:>20} {:>22}",
            "median / most of an update", "network kB", "written kB", "downtime ms", "s until it runs"
        );
        let mut whos: Vec<&str> = self.rows.iter().map(|row| row.who).collect();
        whos.dedup();
        for who in whos {
            let column = |value: &dyn Fn(&Update) -> f64| {
                let mut values: Vec<f64> = self.rows.iter().filter(|row| row.who == who).map(value).collect();
                values.sort_by(f64::total_cmp);
                (values[values.len() / 2], values[values.len() - 1])
            };
            let (network, most_network) = column(&|row| row.traffic.bytes() as f64 / 1e3);
            let (written, most_written) = column(&|row| row.written as f64 / 1e3);
            let (downtime, longest) = column(&|row| row.downtime.as_secs_f64() * 1e3);
            let (took, slowest) = column(&|row| row.took.as_secs_f64());
            println!(
                "{who:<28} {network:>6.0} /{most_network:>6.0} {written:>6.0} /{most_written:>6.0} {downtime:>9.0} /{longest:>9.0} {took:>10.2} /{slowest:>10.2}"
            );
        }
    }
}
